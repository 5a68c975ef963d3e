"""What demos that start commands have in common: to end them, and to be interrupted once.

What must stay true: a signal goes to one process id, never to a name.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from types import FrameType

from sandbox.install import ROOT

END_SECONDS = 30.0


def interrupt_once() -> None:
    """An end, or a closed terminal, is as Ctrl-C; a second one does not disturb what ends all that was started."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


def runs_in(pid: int, folder: Path) -> bool:
    """Process numbers are used again: it must also have been told of this folder."""
    try:
        return str(folder.resolve()).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def short(folder: Path) -> str:
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)


def dies_with_us() -> list[str]:
    """The kernel ties the signal to the thread that started the process, so only the main thread may ask for it."""
    program = shutil.which("setpriv")
    is_main = threading.current_thread() is threading.main_thread()
    return [program, "--pdeathsig", "TERM"] if program and is_main else []


def end(process: subprocess.Popen[bytes]) -> None:
    """Cleanly, then not; what it has started ends with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
