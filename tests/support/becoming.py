"""What a process that was forked ahead needs to know to become a command, and how it does.

What must stay true: after `become` it is what the interpreter would have been if it had been started for this command:
the words, exactly this environment, the folder, and no descriptor but 0, 1 and 2, or it would hold open what ends
another's catch-up.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MESSAGE_BYTES = 1 << 18
_DESCRIPTORS = 4


def pair() -> tuple[socket.socket, socket.socket]:
    """A socket that keeps messages whole, for both ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def ask(
    to: socket.socket, words: Sequence[str], environment: Mapping[str, str], folder: Path, descriptors: Sequence[int]
) -> None:
    """descriptors: its 0, 1 and 2, and what else both sides know of."""
    message = json.dumps({"words": list(words), "environment": dict(environment), "folder": str(folder)})
    socket.send_fds(to, [message.encode()], descriptors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One command."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]

    @classmethod
    def receive(cls, asking: socket.socket) -> Asked | None:
        """None when whoever could ask has gone."""
        message, descriptors, _, _ = socket.recv_fds(asking, _MESSAGE_BYTES, _DESCRIPTORS)
        return cls(descriptors=descriptors, **json.loads(message)) if message else None

    def become(self) -> None:
        for number in range(3):
            os.dup2(self.descriptors[number], number)
        os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv[1:] = self.words
