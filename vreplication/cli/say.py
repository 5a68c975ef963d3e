"""Words to the person: one line on standard error or output, masked; JSON lines on standard output.

What must stay true: whatever is printed passes `mask`; with --json standard output holds JSON lines and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from vreplication.masking import mask, masked

PROGRAM = "vreplication"


def say(text: str) -> None:
    print(mask(text), flush=True)


def warn(text: str) -> None:
    print(f"{PROGRAM}: warning: {mask(text)}", file=sys.stderr, flush=True)


def error(text: str) -> None:
    print(f"{PROGRAM}: {mask(text)}", file=sys.stderr, flush=True)


def json_line(fields: Mapping[str, Any]) -> None:
    """One JSON object on a line of its own, at once."""
    sys.stdout.write(json.dumps(masked(fields), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
