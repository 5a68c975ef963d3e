"""What demos that start processes have in common: to find and end them, and to be interrupted once.

What must stay true: a signal goes to one process id, never to a name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType

from sandbox.install import ROOT

END_SECONDS = 30.0
_LEFT_SECONDS = 10.0


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


def dies_with_us(signal_name: str = "TERM") -> list[str]:
    """The kernel ties the signal to the thread that started the process, so only the main thread may ask for it."""
    program = shutil.which("setpriv")
    is_main = threading.current_thread() is threading.main_thread()
    return [program, "--pdeathsig", signal_name] if program and is_main else []


def end(process: subprocess.Popen[bytes]) -> None:
    """Cleanly, then not; what it has started ends with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)


def descendants(pid: int) -> list[int]:
    """Process ids, parents first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def of_session(sid: int) -> list[int]:
    """Process ids of a session that have not ended, those too whose parents have."""
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            # Behind the last parenthesis: the program's name stands in a pair of them, and may hold any character.
            words = (each / "stat").read_text().rsplit(")", 1)[1].split()
            if int(words[3]) == sid and words[0] != "Z":
                found.append(int(each.name))
    return found


def end_all(pids: list[int]) -> None:
    """None of them is a child of ours that could be waited for."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _LEFT_SECONDS
        for pid in filter(is_there, pids):
            send(pid, number)
        while any(map(is_there, pids)) and time.monotonic() < deadline:
            time.sleep(0.1)


def began(pid: int) -> int | None:
    """When a process began, in the kernel's ticks; None where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def is_there(pid: int) -> bool:
    """A process that only waits to be waited for is none any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    """One that has ended needs no signal."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
