"""Words to the person: one line on standard error or output, scrubbed; JSON lines on standard output.

What must stay true: whatever is printed passes `scrub`; with --json standard output holds JSON lines and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from vreplication.cli.scrub import scrub

PROGRAM = "vreplication"


def say(text: str) -> None:
    print(scrub(text), flush=True)


def warn(text: str) -> None:
    print(f"{PROGRAM}: warning: {scrub(text)}", file=sys.stderr, flush=True)


def error(text: str) -> None:
    print(f"{PROGRAM}: {scrub(text)}", file=sys.stderr, flush=True)


def json_line(fields: Mapping[str, Any]) -> None:
    """One JSON object on a line of its own, at once."""
    sys.stdout.write(json.dumps(_scrubbed(fields), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {key: _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    return value
