"""A process that has imported the program and forks a child for each command: what a start of Python costs, once.

`python -m tests.support.fork_server <descriptor of a socket>`; who asks is tests/support/forked.py. A child leaves the
loop and becomes the command: its interpreter ends as that of `python -m tests.support.without_spark` does.

What must stay true: nothing runs here but the loop, so that a child inherits no thread, no connection and nothing read
from the environment; when whoever asked has gone, the children are killed.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass, field

from tests.support import forked_catch_up, without_spark
from tests.support.becoming import Asked
from tests.support.hurried import hurry


@dataclass(slots=True, kw_only=True)
class Server:
    """going: process id of each living child by its pidfd, and the socket on which its end is told."""

    asking: socket.socket
    going: dict[int, tuple[int, socket.socket]] = field(default_factory=dict)

    def next_command(self) -> Asked | None:
        """Returns in children only; in the server itself None, at the end."""
        while True:
            ready, _, _ = select.select([self.asking, *self.going], [], [])
            for pidfd in set(ready) & set(self.going):
                self._tell_end(pidfd)
            if self.asking in ready:
                asked = Asked.receive(self.asking)
                if asked is None or self._fork(asked) == 0:
                    return asked

    def _fork(self, asked: Asked) -> int:
        pid = os.fork()
        if pid:
            *streams, told = asked.descriptors
            for descriptor in streams:
                os.close(descriptor)
            self.going[os.pidfd_open(pid)] = (pid, socket.socket(fileno=told))
            os.write(told, str(pid).encode())
        return pid

    def _tell_end(self, pidfd: int) -> None:
        pid, told = self.going.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        with told:
            try:
                told.send(str(os.waitstatus_to_exitcode(status)).encode())
            except BrokenPipeError:
                # Nobody wants to know any more.
                return

    def end(self) -> None:
        for pid, _ in self.going.values():
            os.kill(pid, signal.SIGKILL)


def load() -> None:
    """What a command imports on its way, and nothing that runs."""
    import pyspark  # noqa: F401
    import sqlalchemy.dialects.mysql.pymysql  # noqa: F401

    import vreplication.__main__
    import vreplication.cli.internal
    import vreplication.cli.main
    import vreplication.engine.effort
    import vreplication.planning.explain
    import vreplication.workflows.move_tables.explain
    import vreplication.workflows.move_tables.operate
    import vreplication.workflows.online_ddl.ending
    import vreplication.workflows.online_ddl.run
    import vreplication.workflows.operate  # noqa: F401


def main() -> None:
    # Ctrl-C is for pytest, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    hurry(setattr)
    assert len(os.listdir("/proc/self/task")) == 1, "what has threads cannot be forked"
    gc.freeze()
    server = Server(asking=socket.socket(fileno=int(sys.argv[1])))
    asked = server.next_command()
    if asked is None:
        server.end()
        return
    asked.become()
    if asked.words[0] in ("online-ddl", "move-tables", "resume", "reverse", "complete"):
        # Here it is two processes that go on: the command, and later its catch-up.
        forked_catch_up.fork_ahead()
    without_spark.main()


if __name__ == "__main__":
    main()
