"""Values that were too large for a message, as files: DIRECTORY/TOPIC/DAY/T-SEQ-HASH.json holds one, byte for byte.

The message names its file in the header `vr-claim-check`, with its length and its SHA-256. T and SEQ are the row's
place, DAY is that of T in UTC, HASH is the first 16 digits of the SHA-256. So a replay writes the same file again, and
rows that are not the same (a snapshot's chunk that is read anew) have another one.

What must stay true: a file is on the disk under its name, whole, with the directories above it, before the message that
names it is sent; DIRECTORY itself is never made, for what is missing may be a mount that is away; a reader takes what
it finds only where length and hash are those of the message.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from vreplication.errors import Terminal, Transient
from vreplication.feed.messages import Header, Place
from vreplication.pausepoints import reach

HEADER = "vr-claim-check"
MOST_DIRECTORY = 400
"""Bytes of a directory's name as an address: it is in every message that names a file."""
# These a person has to repair. Whatever else it is, a share may be away, and comes back.
_FOR_GOOD = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
_NOT_KNOWN = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Where a value is: a file:// address, its length and its SHA-256."""

    location: str
    bytes: int
    sha256: str

    @property
    def header(self) -> Header:
        return HEADER, msgspec.json.encode(self)


@dataclass(slots=True)
class Claims:
    """Writes them. directory: is there already."""

    directory: Path
    topic: str
    _made: set[Path] = field(default_factory=set)
    """Folders that are known to be on the disk."""

    def put(self, place: Place, value: bytes) -> Claim:
        """Raises Terminal, and Transient where the directory is away."""
        digest = hashlib.sha256(value).hexdigest()
        path = self.directory / self.topic / _day(place.t) / f"{place.t}-{place.seq}-{digest[:16]}.json"
        reach("feed.claim.begin")
        with _told(f"A value that is too large for a message cannot be kept in {self.directory}"):
            self._make(path.parent)
            _write(path, value)
        reach("feed.claim.synced")
        return Claim(location=path.as_uri(), bytes=len(value), sha256=digest)

    def _make(self, folder: Path) -> None:
        # The folder of a day may have been removed since; then it is made, and synced, again.
        if folder in self._made and folder.is_dir():
            return
        for each in (folder.parent, folder):
            with contextlib.suppress(FileExistsError):
                each.mkdir()
            # A new name is on the disk only when its folder is: else the message would outlive the file that it names.
            _sync(each.parent)
        self._made.add(folder)


def _day(t: int) -> str:
    return datetime.fromtimestamp(t // 1_000_000, UTC).strftime("%Y-%m-%d")


def _write(path: Path, value: bytes) -> None:
    """Under another name first: nobody finds half of it."""
    # With a word of chance, for a former process of the feed may still be writing the same file.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        reach("feed.claim.written")
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Some shares cannot be asked for it, and do it by themselves."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(found)
    except OSError as error:
        if error.errno not in _NOT_KNOWN:
            raise
    finally:
        os.close(found)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        words = f"{what}: {error.strerror}."
        if error.errno in _FOR_GOOD:
            raise Terminal(words, cure="Make room there, or give us the right to write; then resume.") from None
        raise Transient(words) from None


def lacks(directory: Path) -> str:
    """Why no value can be kept there; empty: one can."""
    if not directory.is_dir():
        return "is no directory"
    return "" if os.access(directory, os.W_OK | os.X_OK) else "cannot be written"


# Reading.


@dataclass(frozen=True, slots=True)
class Fetcher:
    """directory: where the feed's is to be found here; None: under the name that the feed gives it."""

    directory: Path | None = None

    def get(self, said: bytes | str) -> bytes:
        """said: as in the header. Raises Terminal, and Transient where the directory is away."""
        try:
            claim = msgspec.json.decode(said, type=Claim)
        except msgspec.DecodeError as error:
            raise Terminal(f"A message names a file in a way that cannot be read ({error}).") from None
        path = self.path(claim)
        found = _read(path)
        if len(found) != claim.bytes or hashlib.sha256(found).hexdigest() != claim.sha256:
            raise Terminal(f"File {path} is not what its message says: somebody has changed it.")
        return found

    def path(self, claim: Claim) -> Path:
        parts = urlsplit(claim.location)
        path = Path(unquote(parts.path))
        if parts.scheme != "file" or parts.netloc or len(path.parts) < 4 or ".." in path.parts:
            raise Terminal(f"A message names {claim.location}, which is no file that we can read.")
        return path if self.directory is None else self.directory.joinpath(*path.parts[-3:])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        # The topic's folder is there, so the directory is not away: it is the file alone that is missing.
        if path.parents[1].is_dir():
            raise Terminal(
                f"File {path}, which a message names, is gone.",
                cure="Files have to be kept as long as the topic keeps its messages: begin again with a copy.",
            ) from None
        raise Transient(f"There is no directory {path.parents[1]}, in which a message names a file.") from None
    except OSError as error:
        raise Transient(f"File {path} cannot be read: {error.strerror}.") from None
