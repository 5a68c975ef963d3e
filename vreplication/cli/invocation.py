"""What a command knows about how it was called, handed down by Typer's context."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The words after the program's name."""

    args: tuple[str, ...]


def of(context: typer.Context) -> Invocation:
    found: Any = context.obj
    return found if isinstance(found, Invocation) else Invocation(args=tuple(sys.argv[1:]))


def is_terminal() -> bool:
    """True when there is a person to ask."""
    # Not standard output: questions go to standard error, and the result may go into a file or a pipe.
    return sys.stdin.isatty() and sys.stderr.isatty()
