"""Words to the person: one line on standard error or output, masked; JSON lines on standard output.

What must stay true: whatever is printed passes `mask`; with --json standard output holds JSON lines and nothing else.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from vreplication.masking import mask, masked

PROGRAM = "vreplication"
_log: logging.Logger | None = None


def say(text: str) -> None:
    # At once: into a pipe Python would keep lines back, and what is watched would seem to stand still.
    print(mask(text), flush=True)


def log_instead(log: logging.Logger | None) -> None:
    """What is for standard error goes into this log, which leads there."""
    global _log
    _log = log


def tell(text: str) -> None:
    """What happens on the way to a result."""
    if _log is not None:
        _log.info("%s", text)
    else:
        say(text)


def warn(text: str) -> None:
    if _log is not None:
        _log.warning("%s", text)
        return
    print(f"{PROGRAM}: warning: {mask(text)}", file=sys.stderr, flush=True)


def error(text: str) -> None:
    if _log is not None:
        _log.error("%s", text)
        return
    print(f"{PROGRAM}: {mask(text)}", file=sys.stderr, flush=True)


def json_line(fields: Mapping[str, Any]) -> None:
    """One JSON object on a line of its own, at once."""
    # NaN and Infinity are Python's words: JSON has none for them, and most readers refuse the line.
    sys.stdout.write(json.dumps(masked(fields), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
