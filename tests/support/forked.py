"""A command forked from a process that has imported the program (tests/support/fork_server.py), instead of started.

What must stay true: to a test it is what subprocess.Popen gives; no command outlives the process that asked for it.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.becoming import ask, pair


@dataclass(slots=True, kw_only=True)
class Forked:
    """A command under way. `told`: where the server tells its end."""

    pid: int
    told: socket.socket
    out: IO[str]
    err: IO[str]
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(0.0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it wrote, when it has ended."""
        if self._look(timeout) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        for file in (self.out, self.err):
            file.seek(0)
        return self.out.read(), self.err.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self.told.settimeout(timeout)
            try:
                self.returncode = int(self.told.recv(64))
            except (BlockingIOError, TimeoutError):
                return None
            self.told.close()
        return self.returncode


def fork(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> Forked:
    """Run `without_spark` with these words, in exactly this environment."""
    mine, theirs = pair()
    # Files, not pipes: nobody has to read them for the command to go on.
    out, err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
    with theirs, open(os.devnull) as null:
        ask(_server(folder), words, environment, folder, [each.fileno() for each in (null, out, err, theirs)])
    return Forked(pid=int(mine.recv(64)), told=mine, out=out, err=err)


@functools.cache
def _server(folder: Path) -> socket.socket:
    """Started when the first command is asked for; it ends when this process does, and the socket with it."""
    mine, theirs = pair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd=folder,
        )
    return mine
