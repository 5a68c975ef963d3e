"""A compressed transaction too large for memory: set down in a file as it arrives, read from there piece by piece.

What must stay true: what is read back has been checked as a whole; the file has no name and goes with its last user; a
full disk is told as what it is and not as a lost connection.
"""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from vreplication.errors import Terminal

HEAD_BYTES = 256
"""Enough for the event's header and the fields in front of the compressed data."""
_TAIL_BYTES = 4


@contextlib.contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Terminal(
            f"A compressed transaction could not be set down in {_folder()}: {error}.",
            cure="Make room there, or point TMPDIR elsewhere; then run the same command again.",
        ) from None


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    # There is none that takes a file; the error names those that were tried.
    except OSError:
        return "a temporary file"


class Spooled:
    """One event. `head`: its first bytes; `size`: all of them. All of it raises Terminal when there is no room."""

    def __init__(self) -> None:
        with _room():
            self._file: BinaryIO = tempfile.TemporaryFile(prefix="vreplication-")  # noqa: SIM115
        self._tail = b""
        self._crc = 0
        self.head = b""
        self.size = 0

    def add(self, piece: bytes) -> None:
        with _room():
            self._file.write(piece)
        self.size += len(piece)
        self.head += piece[: HEAD_BYTES - len(self.head)]
        # The checksum is the last four bytes, and nobody knows which piece is the last one: four bytes wait all the
        # time.
        known = self._tail + piece
        self._crc = zlib.crc32(memoryview(known)[:-_TAIL_BYTES], self._crc)
        self._tail = known[-_TAIL_BYTES:]

    @property
    def is_whole(self) -> bool:
        """True when the last four bytes are the checksum of all before them."""
        return self._crc == int.from_bytes(self._tail, "little")

    def cut(self, count: int) -> None:
        """Take the last bytes away."""
        # The last bytes are written here, and not by the last `write`.
        with _room():
            self._file.truncate(self.size - count)

    def from_(self, start: int) -> BinaryIO:
        with _room():
            self._file.seek(start)
        return self._file

    def close(self) -> None:
        self._file.close()
