"""The sorter: what does not fit into memory waits on disk, ordered as it will be needed.

An entry is a fragment: some rows of one transaction on one table, in the order of the log. Its key says the order:

    0         4         12          20       28       32
    | run u32 | table u64 | time u64 | group u64 | number u32 |        big-endian, so bytes sort as numbers do

run: whose data it is, a number drawn at the start; table: of whichever source (a transaction whose outcome is open has
a number of its own); time: the assigned commit time in microseconds; group: the transaction in the order of its
source's log; number: the fragment in it, counted through all its tables. So changes leave in the order of the log, and
two changes of one key in one transaction stay as they were made.

One file and one connection whatever the number of tables, with a page cache of a fixed size. Entries are written in
batches; `flush` makes durable, against the end of this process, what was added; `resolve` says that nothing older will
come. What has been fetched is deleted in ranges, many tables' at a time, because each deletion costs the readers
behind it; its place in the file is used again, and the file shrinks when nothing is left in it. Source: TiCDC's design
"DB Sorter" (ordering by commit time, range deletion, fixed resources); the engine is SQLite because fragments need few
keys (bench/README.md has the comparison with RocksDB).

What must stay true: nothing is fetched above what is resolved; an entry that was flushed survives this process; a
full disk or an I/O error ends the workflow at once, and nothing that was put aside is taken for applied; what an
earlier run has left counts only where each entry's checksum holds, because a crash of the machine may have damaged it.
Thread-safe.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import secrets
import sqlite3
import struct
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vreplication.changes.encoding import FORMAT
from vreplication.errors import Terminal

log = logging.getLogger(__name__)

_KEY = struct.Struct(">IQQQI")
_SUM = struct.Struct(">I")
_BATCH_BYTES = 8 << 20
_CACHE_KIB = 16 << 10
# By bytes as well: 16 fragments of wide rows make reads of 2.5 GB.
_FETCH, _FETCH_BYTES = 16, 8 << 20
"""Entries that are read together: so many, or so many bytes."""
# By bytes as well: ten applied transactions of 3 GiB are ten ranges, and 30 GiB on disk.
_CLEAN_EVERY, _CLEAN_BYTES = 64, 64 << 20
"""Ranges that wait for their deletion together: so many, or so many bytes."""
MAX_TIME = (1 << 64) - 1
_FIRST, _LAST = (0, 0, 0), (MAX_TIME, MAX_TIME, (1 << 32) - 1)
_FILE = "spool.sqlite"


class Entry(NamedTuple):
    """A fragment of a transaction. `data`: what `encoding` made of its rows."""

    table: int
    time: int
    group: int
    number: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """entries, nbytes: written and not yet deleted; tables: known to the sorter; disk_bytes: size of its file."""

    entries: int
    nbytes: int
    tables: int
    disk_bytes: int


def encode_key(run: int, entry: Entry) -> bytes:
    return _KEY.pack(run, entry.table, entry.time, entry.group, entry.number)


class DiskSorter:
    """The sorter of one run of one workflow, in a folder of its own under `home`; it begins empty.

    What other runs have left there can be copied by name (`copy`), and goes with `forget_others`.
    """

    def __init__(self, home: Path) -> None:
        # Drawn: a process that has lost its lease and does not know it may still write in this home.
        self._run = secrets.randbits(32)
        self.name = f"{self._run:08x}"
        self._home, self._folder = home, home / self.name
        self._lock = threading.RLock()
        self._waiting: list[tuple[bytes, bytes]] = []
        self._waiting_bytes = 0
        self._entries = self._nbytes = 0
        self._resolved: dict[int, int] = {}
        self._ranges: list[tuple[bytes, bytes]] = []
        self._ranges_bytes = 0
        self._file = self._folder / _FILE
        with _told(self._folder):
            self._folder.mkdir(parents=True, mode=0o700)
            self._db = _open(self._file)

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries; of one table in any order, as long as none is older than what has been resolved of it."""
        with self._lock:
            for entry in entries:
                if entry.time <= self._resolved.get(entry.table, -1):
                    # Whoever fetched up to there has continued without it, and would never come back for it.
                    raise Terminal(f"A change of {entry.time} came after everything up to then was said to be there.")
                key = encode_key(self._run, entry)
                value = _signed(key, entry.data)
                self._waiting.append((key, value))
                self._waiting_bytes += len(key) + len(value)
                if self._waiting_bytes >= _BATCH_BYTES:
                    self._write()

    def resolve(self, table: int, time: int) -> None:
        """Of this table everything up to `time` has been added. Never goes backwards; saying it again is harmless."""
        self._resolved[table] = max(time, self._resolved.get(table, -1))

    def flush(self) -> None:
        """Make durable what was added."""
        self._write()

    def copy(self, run: str, table: int, to: int) -> int:
        """Copy a table that an earlier run has put aside; returns how many entries there were.

        Fewer if it is gone or damaged: then who asks reads the log again, and what has been copied is to be cleaned.
        """
        file = self._home / run / _FILE
        count = 0
        try:
            for entry in _left(file, run, table):
                self.add([entry._replace(table=to)])
                count += 1
        # Of the other run's file only: where our own cannot be written `add` raises Terminal, which ends the workflow.
        except sqlite3.Error as error:
            log.warning("what was put aside in %s is damaged (%s): the log is read again", file, error)
        return count

    def forget_others(self, but: Collection[str] = ()) -> None:
        """What earlier runs have left is not needed any more, `but` that of these. A living one has lost its lease."""
        for folder in self._home.iterdir():
            if folder != self._folder and folder.name not in but:
                _remove(folder)

    def read(self, table: int) -> Iterator[Entry]:
        """All entries of a table in order, whatever has been resolved."""
        self._write()
        return self._read(*(_KEY.pack(self._run, table, *rest) for rest in (_FIRST, _LAST)))

    def fetch(self, table: int, lower: int, upper: int) -> Iterator[Entry]:
        """Entries with lower <= time <= upper, in order. Raises Terminal when upper is not resolved yet."""
        if upper > self._resolved.get(table, -1):
            raise Terminal(f"Table {table} is not complete up to {upper}.")
        self._write()
        return self._read(self._bound(table, lower), self._bound(table, upper, is_upper=True))

    def merged(self, tables: Iterable[int], lower: int, upper: int) -> Iterator[Entry]:
        """As `fetch`, of several tables or sources as one stream: by time, group and number, so as the log has them.

        What is the same in all three is of different sources, and stays in the order of `tables`.
        """
        streams = [self.fetch(table, lower, upper) for table in tables]
        # The table is left out of the key: a parent's number may be above its child's, and a transaction has to leave
        # as it was written.
        return heapq.merge(*streams, key=lambda e: (e.time, e.group, e.number))

    def clean(self, table: int, before: int) -> None:
        """Entries older than `before` will not be fetched again. They go when some such ranges have come together."""
        if before <= 0:
            return
        with self._lock:
            self._ranges.append((self._bound(table, 0), self._bound(table, before - 1, is_upper=True)))
            # To weigh a range is to walk through it, which is not worth it below this size.
            if self._nbytes + self._waiting_bytes >= _CLEAN_BYTES:
                self._write()
                self._ranges_bytes += self._weight(*self._ranges[-1])[1]
            if len(self._ranges) >= _CLEAN_EVERY or self._ranges_bytes >= _CLEAN_BYTES:
                self._delete()

    def cut(self, table: int, keep: int) -> None:
        """Of a transaction that waits only the first fragments stay; the numbers behind them are used again."""
        # What waits for its outcome is put aside at time 0 and group 0: the number alone tells its fragments apart.
        first = _KEY.pack(self._run, table, 0, 0, keep)
        with self._lock:
            self._write()
            self._delete_from([(first, self._bound(table, MAX_TIME, is_upper=True))])

    def stats(self) -> Stats:
        return Stats(
            entries=self._entries,
            nbytes=self._nbytes,
            tables=len(self._resolved),
            disk_bytes=sum(path.stat().st_size for path in self._folder.glob(f"{_FILE}*")),
        )

    def close(self) -> None:
        """What has been flushed stays, for a later run to copy."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def remove(self) -> None:
        """Close it and delete its files: nothing in them is needed any more."""
        self.close()
        _remove(self._folder)

    def _bound(self, table: int, time: int, *, is_upper: bool = False) -> bytes:
        rest = (MAX_TIME, (1 << 32) - 1) if is_upper else (0, 0)
        return _KEY.pack(self._run, table, time, *rest)

    def _write(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            with _told(self._file), self._db:
                self._db.executemany("INSERT OR REPLACE INTO change VALUES (?, ?)", self._waiting)
            self._entries += len(self._waiting)
            self._nbytes += self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0

    def _read(self, lower: bytes, upper: bytes) -> Iterator[Entry]:
        """Some entries at a time: a cursor left open would keep the log of the file from being folded in."""
        sign, is_end = ">=", False
        while not is_end:
            rows, is_end = self._some(sign, lower, upper)
            for key, data in rows:
                sign, lower = ">", key
                with _told(self._file):
                    entry = _entry(key, data)
                yield entry

    def _some(self, sign: str, lower: bytes, upper: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The first entries of a range, and whether they are all of it."""
        sql = f"SELECT k, v FROM change WHERE k {sign} ? AND k <= ? ORDER BY k LIMIT {_FETCH}"
        rows: list[tuple[bytes, bytes]] = []
        nbytes = 0
        with self._lock, _told(self._file), contextlib.closing(self._db.execute(sql, (lower, upper))) as found:
            while nbytes < _FETCH_BYTES and (row := found.fetchone()) is not None:
                rows.append(row)
                nbytes += len(row[1])
        return rows, nbytes < _FETCH_BYTES and len(rows) < _FETCH

    def _weight(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """Entries of a range, and their bytes."""
        sql = "SELECT COUNT(*), COALESCE(SUM(LENGTH(v) + ?), 0) FROM change WHERE k BETWEEN ? AND ?"
        with _told(self._file):
            entries, nbytes = self._db.execute(sql, (_KEY.size, lower, upper)).fetchone()
        return entries, nbytes

    def _delete(self) -> None:
        self._write()
        deleted = self._delete_from(_joined(self._ranges))
        self._ranges, self._ranges_bytes = [], 0
        if not self._entries and deleted >= _CLEAN_BYTES:
            self._shrink()

    def _delete_from(self, ranges: list[tuple[bytes, bytes]]) -> int:
        """Bytes that were deleted."""
        before = self._nbytes
        with _told(self._file), self._db:
            for lower, upper in ranges:
                entries, nbytes = self._weight(lower, upper)
                self._db.execute("DELETE FROM change WHERE k BETWEEN ? AND ?", (lower, upper))
                self._entries -= entries
                self._nbytes -= nbytes
        return before - self._nbytes

    def _shrink(self) -> None:
        """Costs nothing while nothing is in it."""
        with _told(self._file):
            self._db.execute("VACUUM")
            # In WAL mode what VACUUM has done to the file is in its log until then.
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def left(home: Path, run: str, table: int) -> int:
    """How many entries of a table an earlier run has left, up to the first that is damaged."""
    count = 0
    # Another user's folder is as good as none.
    with contextlib.suppress(sqlite3.Error, OSError):
        for _ in _left(home / run / _FILE, run, table):
            count += 1
    return count


def _left(file: Path, run: str, table: int) -> Iterator[Entry]:
    """A table as an earlier run has left it. Raises sqlite3.Error behind the last entry that can be read."""
    # The name comes out of the sidecar and becomes a part of a path.
    if not run.isalnum() or not file.exists():
        return
    lower, upper = (_KEY.pack(int(run, 16), table, *rest) for rest in (_FIRST, _LAST))
    # That run may still have it open, after a takeover; in WAL mode it can be read all the same.
    with contextlib.closing(sqlite3.connect(file)) as db:
        if db.execute("SELECT value FROM about WHERE name='format'").fetchone() != (FORMAT,):
            return
        for key, value in db.execute("SELECT k, v FROM change WHERE k BETWEEN ? AND ? ORDER BY k", (lower, upper)):
            yield _entry(key, value)


def _signed(key: bytes, data: bytes) -> bytes:
    # Over the key as well: a page that a crash has left old may hold a whole value under another entry's key.
    return _SUM.pack(zlib.crc32(data, zlib.crc32(key))) + data


def _entry(key: bytes, value: bytes) -> Entry:
    """Raises sqlite3.DatabaseError when it is not what was written."""
    _, table, time, group, number = _KEY.unpack(key)
    data = value[_SUM.size :]
    if _signed(key, data) != value:
        raise sqlite3.DatabaseError(f"entry {number} of {table} is not what was written")
    return Entry(table, time, group, number, data)


def _remove(folder: Path) -> None:
    for path in folder.glob(f"{_FILE}*"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # Whatever is not ours in it keeps the folder.
        folder.rmdir()


def _joined(ranges: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Overlapping ranges as one."""
    joined: list[tuple[bytes, bytes]] = []
    for lower, upper in sorted(ranges):
        if joined and lower <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(upper, joined[-1][1]))
        else:
            joined.append((lower, upper))
    return joined


def _open(file: Path) -> sqlite3.Connection:
    # The thread that reads the log and the one that applies share it, under `_lock`.
    db = sqlite3.connect(file, check_same_thread=False, isolation_level="IMMEDIATE")
    # There are rows of the application in it.
    os.chmod(file, 0o600)
    for pragma in (
        "journal_mode=WAL",
        # Against the end of this process, not against that of the machine: who restarts counts what is there.
        "synchronous=OFF",
        f"cache_size=-{_CACHE_KIB}",
        "temp_store=FILE",
        # Pages of 4 KiB: so much of the log waits before it is folded into the file.
        "wal_autocheckpoint=4000",
    ):
        db.execute(f"PRAGMA {pragma}")
    # With the values in the tree of the keys each search would read the long ones that it comes by, to the end.
    db.execute("CREATE TABLE IF NOT EXISTS change (k BLOB PRIMARY KEY, v BLOB NOT NULL)")
    db.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    db.execute("INSERT OR REPLACE INTO about VALUES ('format', ?)", (FORMAT,))
    db.commit()
    return db


@contextlib.contextmanager
def _told(place: Path) -> Iterator[None]:
    """An error of the disk in words. It ends the workflow: what was put aside may not be there."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise Terminal(
            f"Changes cannot be put aside in {place}: {error}.",
            cure="Make room there, or set VREPLICATION_SPOOL to a folder with room, then resume the workflow.",
        ) from None
