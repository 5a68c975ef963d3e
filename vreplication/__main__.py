"""The `vreplication` command, and `python -m vreplication`.

What must stay true: from the first moment on SIGINT, SIGTERM and SIGHUP end it with exit code 130 and one sentence,
also while the program is still being loaded, which takes half a second; nothing has been touched by then.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

_Handler = Callable[[int, FrameType | None], None]


def main() -> None:
    """Load the program and run it."""
    early: list[int] = []
    _on_signals(lambda number, _frame: early.append(number))
    from vreplication.cli import main as program

    _on_signals(_interrupt)
    sys.exit(program.interrupted(sys.argv[1:]) if early else program.run(sys.argv[1:]))


def _on_signals(handler: _Handler) -> None:
    """One that was ignored before (nohup) stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
