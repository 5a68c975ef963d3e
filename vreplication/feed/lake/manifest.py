"""What a lake consists of: a manifest names every file that counts, and nothing else does.

    DIRECTORY/manifests/00000000000000000007.json    the newest number is the lake
    DIRECTORY/tables/shop.orders/w-….parquet          changes of a table; never changed once they are there
    DIRECTORY/_work/…                                 of a process that writes; nothing in it counts

What must stay true: a manifest is written and synced beside its place, and linked there: it is whole or not there, and
of two who write the same number one has to begin anew from the other's; files that it names are synced before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from vreplication.errors import Refused, Terminal

FORMAT = 1
MANIFESTS, TABLES, WORK = "manifests", "tables", "_work"
_KEPT = 20
"""Older manifests are removed: the newest tells all that they told."""
_NAME = re.compile(r"(\d{20})\.json")
_PLAIN = re.compile(r"[A-Za-z0-9._/ +@~-]+")
# A number and no null, so that times compare without a special case; it is the largest BIGINT.
FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """kind: the feed's type; type: Spark's, in the files of this version."""

    name: str
    kind: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """How rows of a table look from time t on. key: columns that tell rows apart; none: all of them.

    sources: of which column of the version before it each column is; none where it is new.
    """

    number: int
    t: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    sources: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """first, last: times of its rows. version: its columns. path: below the directory."""

    path: str
    version: int
    rows: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alter:
    """A statement that may have changed rows which the log does not show."""

    t: int
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table from its CREATE, or TRUNCATE, to its end, whatever it is called meanwhile."""

    folder: str
    versions: tuple[Version, ...] = ()
    files: tuple[File, ...] = ()
    alters: tuple[Alter, ...] = ()

    def version(self, number: int) -> Version:
        return next(each for each in self.versions if each.number == number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """Table `table` is called so from `since`, up to and including the time before `until`.

    rows: schema and name as its rows have them; None: none has come under this name. is_exact: its source tells names
    that differ in case apart.
    """

    schema: str
    name: str
    table: int
    since: int
    until: int = FOREVER
    rows: tuple[str, str] | None = None
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of a partition: the offset from which it is read on, and the number of the message before it."""

    next: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A file that no reader needs who begins now. at: seconds since 1970."""

    path: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a lake. tables: that have a name now; changes: rows of all files."""

    tables: int
    files: int
    changes: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """watermark: the lake is the source at this time. horizon: what was earlier can no longer be told.

    topic, topic_id: what it is made of; places by partition. tables by number.
    """

    format: int = FORMAT
    number: int = 0
    previous: int | None = None
    topic: str
    topic_id: str
    watermark: int = 0
    horizon: int = 0
    generation: int = 0
    partitions: int = 1
    places: dict[int, Place] = field(default_factory=dict)
    names: tuple[Name, ...] = ()
    tables: dict[int, Table] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()

    @property
    def size(self) -> Size:
        files = [file for table in self.tables.values() for file in table.files]
        return Size(
            tables=sum(each.until == FOREVER for each in self.names),
            files=len(files),
            changes=sum(file.rows for file in files),
            nbytes=sum(file.nbytes for file in files),
        )

    def find(self, schema: str, name: str, at: int) -> Table | None:
        """What was called so then."""
        for each in self.names:
            if (each.schema, each.name) == (schema, name) and each.since <= at < each.until:
                return self.tables[each.table]
        return None

    def paths(self) -> set[str]:
        """Of all files that a reader may need, now or from a manifest of before."""
        named = {file.path for table in self.tables.values() for file in table.files}
        return named | {each.path for each in self.retired}


class Taken(Refused):
    """Another process does that now."""


class Store:
    """A directory on a file system that all who write and read share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        if not _PLAIN.fullmatch(str(self.directory)):
            raise Refused(
                f"The directory {str(directory)!r} has characters in its name that Spark takes for patterns.",
                cure="Use letters, digits and any of . _ - + @ ~ /.",
            )

    def path(self, below: str) -> str:
        return str(self.directory / below)

    def create(self) -> None:
        """Raises Refused."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            others = {each.name for each in self.directory.iterdir()} - {MANIFESTS, TABLES, WORK}
            # So that a wrong --to makes no lake of somebody's folder.
            if others and not (self.directory / MANIFESTS).exists():
                raise Refused(f"{self.directory} holds something else than a lake.", cure="Give a new directory.")
            for name in (MANIFESTS, TABLES, WORK):
                (self.directory / name).mkdir(exist_ok=True)
        except OSError as error:
            raise Refused(f"{self.directory} cannot be written: {error.strerror}.") from None

    # Manifests.

    def _numbers(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            names = map(_NAME.fullmatch, os.listdir(self.directory / MANIFESTS))
            return sorted(int(found.group(1)) for found in names if found)
        return []

    def _place(self, number: int) -> Path:
        return self.directory / MANIFESTS / f"{number:020}.json"

    def newest(self) -> Manifest | None:
        """None: there is no lake here. Raises Terminal."""
        with told(self.directory, "read"):
            while numbers := self._numbers():
                # Meanwhile it may be an old one, and gone.
                with contextlib.suppress(FileNotFoundError):
                    return _read(self._place(numbers[-1]))
        return None

    def open(self) -> Manifest:
        """Raises Refused where there is no lake."""
        found = self.newest()
        if found is None:
            raise Refused(f"There is no lake in {self.directory}.", cure="Begin one: vreplication lake --from … --to …")
        return found

    def commit(self, change: Callable[[Manifest], Manifest], *, reach: Callable[[], None] = lambda: None) -> Manifest:
        """The newest manifest, changed; `change` is asked again when another one came in between.

        reach: called when the new one is written, and not yet in its place.
        """
        while True:
            before = self.open()
            made = replace(change(before), number=before.number + 1, previous=before.number)
            if self.put(made, reach=reach):
                self._prune(made.number)
                return made

    def put(self, manifest: Manifest, *, reach: Callable[[], None] = lambda: None) -> bool:
        """False: there is one of this number."""
        # In the same file system, for it is linked into its place.
        draft = self.directory / WORK / f"manifest-{secrets.token_hex(8)}"
        with told(draft):
            _write(draft, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            reach()
            try:
                # Not by renaming, which would replace what another process has just written under this number.
                os.link(draft, self._place(manifest.number))
            except FileExistsError:
                return False
            finally:
                draft.unlink()
            # The name is on the disk only when the folder is.
            sync(self.directory / MANIFESTS)
        return True

    def _prune(self, newest: int) -> None:
        with told(self.directory / MANIFESTS):
            for number in self._numbers():
                if number <= newest - _KEPT:
                    # The filler and a compaction may both be at it.
                    self._place(number).unlink(missing_ok=True)

    # Who writes.

    @contextlib.contextmanager
    def alone(self, what: str, words: str) -> Iterator[None]:
        """The lock lives as long as the process. words: who holds it otherwise. Raises Taken."""
        with contextlib.ExitStack() as stack:
            # Not the body: an error of Spark's connection is one of the system's, too, and says nothing of the lake.
            with told(self.directory):
                held = stack.enter_context(open(self.directory / WORK / f"{what}.lock", "w"))
                try:
                    # Not by whether the file is there: of a process that was killed nothing has to be cleared away.
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise Taken(f"{words} {self.directory}.", cure="Let it end, or stop it, first.") from None
            yield

    def remove_strays(self, letter: str, manifest: Manifest) -> None:
        """Files of whoever wrote with this letter and did not come to name them. Only who has the lock may."""
        named = manifest.paths()
        # By the letter: what the other one writes at this moment is in no manifest either.
        with told(self.directory / TABLES):
            for path in (self.directory / TABLES).glob(f"*/{letter}-*.parquet"):
                if str(path.relative_to(self.directory)) not in named:
                    path.unlink(missing_ok=True)


def _read(path: Path) -> Manifest:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise Terminal(f"The manifest {path} cannot be read ({error}).") from None
    if found.format != FORMAT:
        raise Terminal(f"The lake is of format {found.format}; this release knows {FORMAT}.")
    return found


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """A file's content, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def told(where: Path, what: str = "written") -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except OSError as error:
        raise Terminal(
            f"The lake cannot be {what} at {where}: {error.strerror}.",
            cure="Nothing is lost; the same command goes on when it can.",
        ) from None
