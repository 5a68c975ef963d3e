"""The first catch-ups of a forked command: its own children, forked before it has any thread, instead of started.

Each waits until the driver starts catch-up, and becomes that. Every later one is started as in life.

What must stay true: to the driver it is what subprocess.Popen gives; it ends when its standard input does, and when the
command goes before there was anything to do; who looks for a command's catch-up finds it (`run_ddl.replicates`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.becoming import Asked, ask, pair

AHEAD = 2
"""The first, and one for after a kill."""
NAME = "replicate"
"""Of the process, as /proc/<pid>/comm has it: its words are those of the command that it was forked from."""


@dataclass(slots=True, kw_only=True)
class Taken:
    """Catch-up under way, to its parent."""

    pid: int
    stdin: IO[bytes]
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._look(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is not None:
            return self.returncode
        ended = os.pidfd_open(self.pid)
        try:
            if not select.select([ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(NAME, timeout or 0.0)
        finally:
            os.close(ended)
        return self._look(0) or 0

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _look(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@dataclass(slots=True, kw_only=True)
class Starts:
    """In the place of the module `subprocess` in vreplication.engine.child."""

    ahead: list[tuple[int, socket.socket]]
    PIPE: int = subprocess.PIPE
    TimeoutExpired: type[subprocess.TimeoutExpired] = subprocess.TimeoutExpired

    def Popen(self, words: Sequence[str], *, stdout: IO[bytes], **more: Any) -> Taken | subprocess.Popen[bytes]:
        if not self.ahead:
            return subprocess.Popen(words, stdout=stdout, **more)
        pid, asking = self.ahead.pop(0)
        theirs, mine = os.pipe()
        descriptors = [theirs, stdout.fileno(), stdout.fileno()]
        with asking:
            ask(asking, words[words.index(NAME) :], os.environ, Path.cwd(), descriptors)
        os.close(theirs)
        return Taken(pid=pid, stdin=os.fdopen(mine, "wb"))


def fork_ahead() -> None:
    """Returns in each process: at once in the command, and in its children as soon as they are catch-up."""
    from vreplication.engine import child

    ahead: list[tuple[int, socket.socket]] = []
    for _ in range(AHEAD):
        mine, theirs = pair()
        pid = os.fork()
        if not pid:
            # Or the command's end would not be seen by those that were forked before.
            for other in (mine, *(each for _, each in ahead)):
                other.close()
            _become(theirs)
            return
        theirs.close()
        ahead.append((pid, mine))
    child.subprocess = Starts(ahead=ahead)  # type: ignore[assignment]


def _become(asking: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = Asked.receive(asking)
    if asked is None:
        os._exit(0)
    os.setsid()
    Path("/proc/self/comm").write_text(NAME)
    asked.become()
