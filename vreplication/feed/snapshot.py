"""Rows that are in a table already, sent beside its changes, chunk by chunk in the order of the key.

A chunk is read between two markers, rows of ours that stand in the log. When the reader of the log comes to the second
one, it sends the chunk there, without the rows whose keys it has seen changed between the two: of those the log has
told what they are now. So what a consumer gets of each row is in order, and no table is locked. The marker behind a
chunk is the one before the next. Source: DBLog, a watermark based change data capture framework (Andreakis and
Papapanagiotou, 2020), with XA branches besides.

What must stay true: a marker is committed before anything behind it is read; a branch that is listed as prepared then
is waited for, where the server may show its rows later than the log (MariaDB, docs/correctness.md); a chunk is
registered before its marker is written; after any doubt (DDL, another definition) the run begins anew at the last chunk
whose rows were sent whole; rows that get the name of a table that was read are read under it; a table is passed over
only where the server says that it is not there.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vreplication.binlog.events import RowChange
from vreplication.binlog.watch import Watch
from vreplication.changes.codecs import PlainValues
from vreplication.errors import Interrupted, Refused, SourceChanged, Transient, VReplicationError
from vreplication.feed.catalog import Tables
from vreplication.feed.layout import Layout
from vreplication.feed.progress import Filled
from vreplication.feed.topics import followed, versioned
from vreplication.feed.values import Decode, decoder, shortest
from vreplication.mysql import read_only
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import Xid, is_mariadb, prepared_branches
from vreplication.mysql.session import NO_SUCH_SCHEMA, NO_SUCH_TABLE, QUERY_KILLED, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.schema.bounds import order_sql, range_sql
from vreplication.schema.introspect import introspect
from vreplication.schema.keys import has_one_order
from vreplication.schema.literals import bound_sql
from vreplication.schema.model import Column, Table
from vreplication.settings import SIDECAR, TABLE_SECONDS
from vreplication.state import layout as sidecar
from vreplication.state import markers

log = logging.getLogger(__name__)

MARKED = -8
"""Number of the changes that are markers."""
KIND = "feed"
_ROWS, _FIRST_ROWS, _CHUNK_BYTES, _AHEAD = 2_000, 10, 2 << 20, 4
"""Rows of a chunk: at the most, at first, and about how many bytes; and chunks that wait for their marker."""
_POLL_SECONDS, _JOIN_SECONDS = 0.02, 15.0
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_RAW = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"})
_SHAPES = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        "geometrycollection",
    }
)
_TEXT = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year"})
_FLOAT = struct.Struct("<f")
_DEFINED_ANEW = frozenset({1049, 1054, 1146, 1176, 1412})
"""Schema, column, table or index that is not there any more, or is another one."""
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows, and what is known when they are sent. table: (schema, name) of those that are read behind it, or None."""

    layout: Layout | None
    rows: Sequence[Row]
    filled: Filled
    table: tuple[str, str] | None


@dataclass(slots=True)
class _Window:
    """What has changed since the last marker, of the table that is being read."""

    table: tuple[str, str] | None = None
    keys: set[Row] = field(default_factory=set)
    layouts: dict[int, Layout] = field(default_factory=dict)


class _Again(Exception):
    """Other rows are to be read than was known: look once more which tables there are."""


class Snapshot:
    """Of one source, in a thread of its own between `start` and `close`; the reader of its log calls the rest.

    name: the feed's. filled: as far as it is.
    """

    def __init__(self, url: SourceUrl, name: str, tables: Tables, filled: Filled) -> None:
        self._url, self._name, self._tables = url, name, tables
        self.filled = filled
        self._chunks: dict[str, Chunk] = {}
        self._passed: dict[str, frozenset[Xid]] = {}
        self._changed = threading.Condition()
        self._is_closed = self._is_again = False
        self._error: VReplicationError | None = None
        self._window = _Window()
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def watch(self) -> Watch:
        """For the markers. Raises what connecting raises."""
        with connect(self._url, use_database=False) as session, read_only.waited_for():
            sidecar.complete(session)
            columns = introspect(session, SIDECAR, "marker").columns
        return Watch(number=MARKED, schema=SIDECAR, table="marker", columns=columns, codec=PlainValues())

    # From the reader of the log.

    def look(self) -> None:
        """Raises what ended the thread: no marker comes any more, and perhaps no row."""
        if self._error is not None:
            raise self._error

    def note(self, layout: Layout, change: RowChange) -> None:
        window = self._window
        if (layout.schema, layout.table) == window.table:
            window.layouts[layout.number] = layout
            window.keys.update(_key(layout, image) for image in (change.before, change.after) if image is not None)

    def defined(self, tables: Sequence[tuple[str, str]]) -> None:
        """Raises Transient where the table is another one now."""
        now = self._window.table
        if now is not None and any(schema == now[0] and table in ("", now[1]) for schema, table in tables):
            raise Transient(f"Table {now[0]}.{now[1]} was defined anew while its rows were read.")

    def moved(self, tables: Sequence[tuple[str, str]], filled: Filled) -> Filled:
        """Rows stand under another name now, perhaps of a table that was read: from where on they are read again.

        filled: how far it was at that place of the log. Of chunks whose markers come behind it nothing is sent.
        """
        least = min((each for each in tables if self._tables.filter.has(*each)), default=None)
        if least is not None and least <= (filled.schema, filled.table):
            filled = Filled(schema=least[0], table=least[1])
        with self._changed:
            self._chunks.clear()
            self.filled, self._is_again = filled, True
            self._changed.notify_all()
        self._window = _Window()
        return filled

    def marked(self, change: RowChange, held: Callable[[], frozenset[Xid]]) -> Chunk | None:
        """The chunk that ends there, of the rows that are still as they were read. Raises Transient."""
        row = change.after
        # Markers of other feeds and of workflows stand in the same table.
        if row is None or (row["workflow"], row["kind"]) != (self._name, KIND):
            return None
        with self._changed:
            chunk = self._chunks.pop(str(row["id"]), None)
            if chunk is not None:
                # As of this place in the log (F1b): what ends behind it is told as a change, and need not be waited
                # for.
                self._passed[str(row["id"])] = held()
                self._changed.notify_all()
        if chunk is None:
            return None
        window, self._window = self._window, _Window(chunk.table)
        self.filled = chunk.filled
        return chunk if chunk.layout is None else _without(chunk, chunk.layout, window)

    # The thread.

    def _run(self) -> None:
        try:
            # The URL's schema may have been dropped since, and others be followed.
            with connect(self._url, use_database=False, read_timeout=TABLE_SECONDS) as session:
                # TIMESTAMPs are told in UTC, as the log has them.
                session.execute("SET time_zone='+00:00'")
                with read_only.waited_for():
                    self._read_all(session)
                    markers.remove_kind(session, self._name, KIND)
        except Interrupted:
            pass
        except VReplicationError as error:
            log.warning("the snapshot stopped: %s", error)
            self._error = error
        except Exception as error:  # a silent end of this thread would look like a snapshot that never ends
            log.exception("the snapshot failed")
            self._error = Transient(f"The snapshot failed: {type(error).__name__}: {error}")

    def _read_all(self, session: Session) -> None:
        while True:
            with self._changed:
                filled, self._is_again = self.filled, False
                self._passed.clear()
            with contextlib.suppress(_Again):
                return self._read_from(session, filled)

    def _read_from(self, session: Session, filled: Filled) -> None:
        for schema, table in _tables(session, self._tables, filled):
            is_begun = (schema, table) == (filled.schema, filled.table)
            self._read_table(session, filled if is_begun else Filled(schema=schema, table=table))
        # The end, too, is a place in the log: the reader comes to this marker when all rows before it were sent.
        self._mark(session, Chunk(layout=None, rows=(), filled=Filled(is_done=True), table=None))
        with self._changed:
            # The reader of the log may still come to a RENAME in front of the last marker: then there is more to be
            # read.
            while self._chunks and not self._is_closed and not self._is_again:
                self._changed.wait(1.0)
            self._check()

    def _read_table(self, session: Session, begun: Filled) -> None:
        schema, table, after = begun.schema, begun.table, begun.after
        here = (schema, table)
        # Without rows: from this marker on the reader of the log notes what changes in the table, so before its first
        # row is read.
        self._mark(session, Chunk(layout=None, rows=(), filled=begun, table=here))
        reader = self._reader(session, schema, table)
        if reader is None:
            return
        # A place in the order of another key does not tell which rows were read. All are read again, and some come
        # twice.
        if begun.key not in ("", reader.key):
            after = None
        while True:
            rows, last = reader.next(after)
            if not rows:
                return
            after = last
            filled = Filled(schema=schema, table=table, after=after, key=reader.key)
            self._mark(session, Chunk(layout=reader.layout, rows=rows, filled=filled, table=here))

    def _reader(self, session: Session, schema: str, table: str) -> _TableReader | None:
        """None: the table is gone. Raises Transient where it may be there when it is looked at again."""
        try:
            return _TableReader(session, self._tables, schema, table)
        except SqlError as error:
            # Of a table that is there, and cannot be read now, no row would ever be sent.
            if error.code not in (NO_SUCH_TABLE, NO_SUCH_SCHEMA):
                raise _passing(error, f"{schema}.{table}") from error
        log.info("table %s.%s is gone", schema, table)
        return None

    def _mark(self, session: Session, chunk: Chunk) -> None:
        """Behind the chunk, and before what is read next."""
        id = secrets.token_hex(8)
        with self._changed:
            while len(self._chunks) >= _AHEAD and not self._is_closed and not self._is_again:
                self._changed.wait(1.0)
            self._check()
            self._chunks[id] = chunk
        # R2: with it off a change may stand in front of the marker and not be visible to what is read behind it.
        if not is_mariadb(session) and int(session.value("SELECT @@GLOBAL.binlog_order_commits")) != 1:
            raise SourceChanged(
                "binlog_order_commits was switched off while rows were read: what is in the log may not be visible.",
                cure="SET GLOBAL binlog_order_commits=ON, and begin another feed.",
            )
        self._write(session, id)
        if is_mariadb(session):
            self._settle(session, id)
        with self._changed:
            self._passed.pop(id, None)

    def _write(self, session: Session, id: str) -> None:
        """The marker, as soon as the server takes writes: what it logs goes on being sent meanwhile."""
        while True:
            with contextlib.suppress(read_only.ReadOnly), read_only.waited_for():
                markers.write(session, self._name, KIND, marker=id)
                return
            with self._changed:
                self._changed.wait(1.0)
                self._check()

    def _settle(self, session: Session, id: str) -> None:
        """Until nothing that stands in the log before the marker can become visible later."""
        waiting = set(prepared_branches(session, is_mariadb=True))
        while waiting:
            self._check()
            time.sleep(_POLL_SECONDS)
            with self._changed:
                open_there = self._passed.get(id)
            waiting &= set(prepared_branches(session, is_mariadb=True))
            # F1b: still prepared when the log came to the marker, so its outcome stands behind it and is told as a
            # change.
            waiting -= open_there or set()

    def _check(self) -> None:
        if self._is_closed:
            raise Interrupted("Interrupted.")
        if self._is_again:
            raise _Again


def _key(layout: Layout, image: Row) -> Row:
    return tuple(image[place] for place in layout.key_places)


def _without(chunk: Chunk, layout: Layout, window: _Window) -> Chunk:
    """Raises Transient where the log knows the table by another definition."""
    if any((other.key, list(other.places)) != (layout.key, list(layout.places)) for other in window.layouts.values()):
        raise _defined_anew(layout.name)
    # Of these the log has told between the markers what they are now, so a row as it was read may be older.
    kept = [row for row in chunk.rows if _key(layout, row) not in window.keys]
    return Chunk(layout=layout, rows=kept, filled=chunk.filled, table=chunk.table)


def _tables(session: Session, tables: Tables, filled: Filled) -> Iterator[tuple[str, str]]:
    """Those to be read yet, in one order. Compared by bytes, as the place in `filled` is. Raises Refused."""
    if words := versioned(session, tables.filter):
        raise Refused(f"{words}.", cure="Begin another feed without the table (--exclude), or without --snapshot.")
    return (name for name in sorted(followed(session, tables.filter)) if name >= (filled.schema, filled.table))


def _defined_anew(name: str) -> Transient:
    return Transient(f"Table {name} was defined anew while its rows were read.")


def _passing(error: SqlError, name: str) -> VReplicationError:
    """Transient, where reading again gets past it; else the error."""
    if error.code == QUERY_KILLED:
        return Transient(f"A query that read table {name} was killed ({error.code}).")
    return _defined_anew(name) if error.code in _DEFINED_ANEW else error


def unreadable(layout: Layout) -> tuple[str, str] | None:
    """Why the rows of a table cannot be read in the order of its key, and what would help; None where they can."""
    if not layout.has_key:
        return f"Table {layout.name} has no unique key without NULLs, by which its rows could be read.", "Give it one"
    if all(has_one_order(layout.columns[place]) for place in layout.key_places):
        return None
    why = f"The key of table {layout.name} has a CHAR under a NOPAD collation, by which no range of rows can be read."
    return why, "Make it a VARCHAR"


class _TableReader:
    """Rows of a table as the log would tell them, in the order of its key."""

    def __init__(self, session: Session, tables: Tables, schema: str, name: str) -> None:
        self._session, self._name = session, qualified(schema, name)
        # Before the columns are read: a change in between is then noticed behind the first chunk.
        self._definition = self._defined()
        self._table = self._introspected(schema, name)
        self.layout = tables.layout_now(self._table)
        if found := unreadable(self.layout):
            raise Refused(
                found[0],
                cure=f"{found[1]} and resume the feed, or begin another one without the table or without --snapshot.",
            )
        # Left to itself, a server with odd statistics sorts the whole table for each chunk.
        index = next(k.name for k in self._table.keys if k.is_unique and tuple(k.columns) == tuple(self.layout.key))
        self._from = f"{self._name} FORCE INDEX ({ident(index)})"
        by_name = {column.name: column for column in self._table.columns}
        self._key = [by_name[column] for column in self.layout.key]
        self.key = ",".join(f"{ident(c.name)} {c.column_type} {c.collation or ''}" for c in self._key)
        """What decides about the order of the rows."""
        self._plain = [_plain(session, column) for column in self.layout.columns]
        self._rows = min(_ROWS, _FIRST_ROWS)

    def _introspected(self, schema: str, name: str) -> Table:
        """Raises SqlError where it is gone by now."""
        try:
            return introspect(self._session, schema, name)
        except Refused:
            # It was there a moment ago. Asked once more, the server says that it was dropped since; else it is another
            # one, or a view.
            self._defined()
            raise _defined_anew(f"{schema}.{name}") from None

    def _defined(self) -> str:
        # The counter rises with each row, and says nothing of the definition.
        return _COUNTER.sub("", str((self._session.row(f"SHOW CREATE TABLE {self._name}") or ("", ""))[1]))

    def next(self, after: tuple[str, ...] | None) -> tuple[list[Row], tuple[str, ...]]:
        """The rows behind a key, and the last one's key. Raises Transient where the table has changed."""
        cells = ",".join(_sql(column) for column in self.layout.columns)
        keys = ",".join(bound_sql(column, ident(column.name)) for column in self._key)
        where, order = range_sql(self._key, after, None), order_sql(self._key)
        found = self._read(f"SELECT {cells},{keys} FROM {self._from} WHERE {where} ORDER BY {order} LIMIT {self._rows}")
        self._resize(found)
        width = len(self.layout.columns)
        rows = [tuple(map(_told, self._plain, row[:width])) for row in found]
        last = tuple(_literal(each) for each in found[-1][width:]) if found else ()
        return rows, last

    def _read(self, sql: str) -> list[Row]:
        """Of the table as it was defined when this began, whatever has its name by then."""
        try:
            # The definition is looked at behind the rows: looked at before them, an ALTER could still come in between.
            found = self._session.bytes_rows(sql)
            is_same = self._defined() == self._definition
        except SqlError as error:
            raise _passing(error, self.layout.name) from error
        if not is_same:
            raise _defined_anew(self.layout.name)
        return found

    def _resize(self, found: Sequence[Row]) -> None:
        """By what the rows weighed, for the next chunk: some tables have rows of many MiB."""
        weight = sum(len(cell) for row in found for cell in row if isinstance(cell, bytes | str)) + 1
        wanted = len(found) * _CHUNK_BYTES // weight
        self._rows = max(1, min(_ROWS, wanted, 10 * self._rows))


def plain_reader(session: Session, columns: Sequence[Column]) -> tuple[str, Callable[[Row], Row]]:
    """SQL that asks for these columns in a session of UTC, and what makes values of a feed of that (feed/values.py)."""
    plain = [_plain(session, column) for column in columns]
    return ",".join(map(_sql, columns)), lambda row: tuple(map(_told, plain, row))


def _literal(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _told(plain: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else plain(value)


def _sql(column: Column) -> str:
    """What gives `_plain` its bytes."""
    name = ident(column.name)
    if column.data_type in _RAW or column.data_type in _SHAPES:
        return name
    if column.data_type in _TEXT:
        # The bytes as they are stored, decoded as the log's are; a server converts what is no letter to a question
        # mark.
        return f"CAST({name} AS BINARY)"
    if column.data_type in ("enum", "set"):
        return f"CONVERT({name} USING utf8mb4)"
    if column.data_type in ("float", "double", "real"):
        # Not +0e0, which takes the sign off -0.
        return f"({name}*1e0)"
    if column.data_type == "decimal":
        # Without +0 a column with ZEROFILL would have its zeros in the text.
        return f"CONCAT({name}+0)"
    return f"({name}+0)" if column.data_type in _WHOLE else f"CONCAT({name})"


def _plain(session: Session, column: Column) -> Callable[[Any], Any]:
    """The same value as the log's (feed/values.py)."""
    if column.data_type in _RAW or column.data_type in _SHAPES:
        return bytes
    if column.data_type in _TEXT:
        decode: Decode = decoder(session, column.charset or "utf8mb4")
        return lambda value: decode(_bytes(value))
    if column.data_type in _WHOLE:
        return int
    if column.data_type == "float":
        return lambda value: shortest(_FLOAT.pack(float(value)))
    if column.data_type in ("double", "real"):
        return float
    return lambda value: value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@contextlib.contextmanager
def running(snapshot: Snapshot | None) -> Iterator[None]:
    """A snapshot, if there is one, beside what is done meanwhile."""
    if snapshot is None:
        yield
        return
    snapshot.start()
    try:
        yield
    finally:
        snapshot.close()
