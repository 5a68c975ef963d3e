"""The `vreplication` command, and `python -m vreplication`.

What must stay true: from the first moment on SIGINT, SIGTERM and SIGHUP end it with exit code 130 and one sentence,
also while the program is still being loaded, which takes half a second; nothing has been touched by then.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

_Handler = Callable[[int, FrameType | None], None]


def main() -> None:
    """Load the program and run it."""
    early: list[int] = []
    _on_signals(lambda number, _frame: early.append(number))
    args = sys.argv[1:]
    # As the driver starts it; any other shape is the program's to refuse, in its own sentence.
    if len(args) in (2, 4) and args[0] == "replicate" and not args[1].startswith("-"):
        _replicate(args[1:], early)
    from vreplication.cli import main as program

    _on_signals(_interrupt)
    sys.exit(program.interrupted(args) if early else program.run(args))


def _replicate(args: Sequence[str], early: Sequence[int]) -> NoReturn:
    """Catch-up, which has no use for what a person reads: a third of the program that need not be loaded."""
    from vreplication.cli.internal import run_replicate
    from vreplication.errors import Interrupted

    sys.exit(Interrupted.exit_code if early else run_replicate(*args))


def _on_signals(handler: _Handler) -> None:
    """One that was ignored before (nohup) stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
