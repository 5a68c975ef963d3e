"""The ways rows take from the source to the target (an online DDL's shadow table), behind one interface.

What must stay true: `read` runs behind "opened" and outside the landing transaction, `write` inside it, and a chunk
that is written again after a lock wait is written whole; every row of the range is either inserted, or accounted for
by a warning. `server` copies in one lock-free statement; `rows` fetches the rows as SQL text that the source itself
renders, and inserts that: it is the only way from one server to another. A third, `zone`, takes the place of both where
the target computes values by the time zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from vreplication.errors import Terminal, Transient
from vreplication.mysql.bulk import BulkInsert
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.values import packet_of, split_literals
from vreplication.rowcopy.blocks import Block, make_block
from vreplication.rowcopy.job import CopyJob
from vreplication.rowcopy.long_row import LongRow
from vreplication.rowcopy.probes import as_text, key_sql, nth_key, source_key, source_sql, within
from vreplication.rowcopy.warned import Outcome, Place, is_refused, run_copying
from vreplication.schema.bounds import equal_sql, key_names, order_sql
from vreplication.schema.literals import key_literal_sql, row_literal_sql
from vreplication.schema.model import TableMapping
from vreplication.settings import MAX_CHUNK_ROWS, WORK_SECONDS
from vreplication.state import stage
from vreplication.state.ledger import Bound, KeyRange

STATEMENT_BYTES = 1 << 20
"""An INSERT of the rows path is about this long, unless one row alone is longer."""
TEXT_BYTES = 16 << 20
"""A chunk's text up to this length is fetched in one value; a longer one is streamed row by row."""
_GLUE = ",\n"
_HEADROOM = 4096
_NO_BULK = (1047, 1295)
"""What a server or a proxy answers that does not speak bulk statements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What `write` did."""

    rows_read: int
    rows_copied: int
    outcome: Outcome


class CopyPath(Protocol):
    def read(self, bounds: KeyRange) -> None:
        """Fetch what may be fetched before the landing transaction."""

    def write(self, bounds: KeyRange) -> Copied:
        """Insert the rows, inside the landing transaction. May be called again for the same range."""

    @property
    def fitting_rows(self) -> int:
        """Rows that a chunk may have to be copied the quick way, as far as is known."""


def make_path(ends: Ends, mapping: TableMapping, job: CopyJob) -> CopyPath:
    """Raises Terminal for a mapping whose rows can only be copied on one server."""
    if ends.is_across:
        _check_across(mapping)
    elif mapping.is_written_in_zone:
        return ZonePath(ends.home, mapping, job.table)
    elif job.copy_path == "server":
        return ServerPath(ends.home, mapping)
    rows = RowsPath(ends, mapping, min(job.packet, packet_of(ends.source), packet_of(ends.target)))
    block = make_block(mapping.pairs) if is_mariadb(ends.source) and is_mariadb(ends.target) else None
    return rows if block is None else BulkPath(ends, mapping, block, rows)


def _check_across(mapping: TableMapping) -> None:
    """What gives way to another row is looked for on both sides at once, and a time zone is one server's."""
    table = f"{mapping.source.schema}.{mapping.source.name}"
    if mapping.may_collide:
        raise Terminal(
            f"The target of {table} has a unique key, {mapping.added_unique[0].name}, that the source has not.",
            cure="Add it when the table has moved.",
        )
    if mapping.is_written_in_zone:
        raise Terminal(
            f"The target of {table} computes values that may depend on the time zone.",
            cure="Move the table while the target's time_zone is '+00:00'.",
        )


def _insert_sql(mapping: TableMapping) -> str:
    target = qualified(mapping.target.schema, mapping.target.name)
    return f"INSERT IGNORE INTO {target} ({idents(p.target.name for p in mapping.pairs)})"


def _select_sql(mapping: TableMapping, where: str) -> str:
    """INSERT IGNORE … SELECT of the rows that `where` picks."""
    return f"{_insert_sql(mapping)} {_rows_sql(mapping, where)}"


def _rows_sql(mapping: TableMapping, where: str) -> str:
    values = ",".join(pair.convert.format(ident(pair.source.name)) for pair in mapping.pairs)
    return f"SELECT {values} FROM {source_sql(mapping)} WHERE {where}"


@dataclass(slots=True)
class ServerPath:
    """INSERT IGNORE … SELECT: takes no locks on the source under READ COMMITTED, and no LIMIT."""

    session: Session
    mapping: TableMapping
    fitting_rows: int = MAX_CHUNK_ROWS

    def read(self, bounds: KeyRange) -> None:
        """Nothing: reading and writing are one statement."""

    def write(self, bounds: KeyRange) -> Copied:
        # F2: both bounds and no LIMIT. With LIMIT, rows inserted behind the probe push others out, which are never
        # copied. F3: under READ COMMITTED it reads without locks, so no writer waits for a chunk.
        sql = _select_sql(self.mapping, within(self.mapping, bounds))
        # The statement reads along the index, so its n-th row is the range's n-th, but for writes in between.
        place = _place(self.session, self.mapping, bounds)
        copied, outcome = run_copying(self.session, self.mapping, lambda: self.session.execute_raw(sql), place)
        return Copied(rows_read=copied + outcome.duplicates, rows_copied=copied, outcome=outcome)


@dataclass(slots=True)
class ZonePath:
    """By way of a temporary table, from which rows are inserted in the server's own time zone (state/stage.py)."""

    session: Session
    mapping: TableMapping
    workflow: str
    fitting_rows: int = MAX_CHUNK_ROWS
    count: int = 0

    def __post_init__(self) -> None:
        stage.create(self.session, self.mapping, self.workflow)

    def read(self, bounds: KeyRange) -> None:
        # The rows of the chunk before are still there: they were put in outside of any transaction.
        stage.clear(self.session, self.mapping, self.workflow)
        sql = f"{stage.head(self.mapping, self.workflow)} {_rows_sql(self.mapping, within(self.mapping, bounds))}"
        self.count, _ = run_copying(self.session, self.mapping, lambda: self.session.execute_raw(sql), self._at(bounds))

    def write(self, bounds: KeyRange) -> Copied:
        target = qualified(self.mapping.target.schema, self.mapping.target.name)
        # One statement: columns are spared on a way back alone, where nothing is copied.
        (sql,) = stage.moves(self.session, "INSERT IGNORE", target, self.mapping, self.workflow)
        with stage.computing(self.session, self.mapping):
            copied, outcome = run_copying(
                self.session, self.mapping, lambda: self.session.execute_raw(sql), self._at(bounds)
            )
        return Copied(rows_read=self.count, rows_copied=copied, outcome=outcome)

    def _at(self, bounds: KeyRange) -> Place:
        return _place(self.session, self.mapping, bounds)


def _check_same_server(session: Session, known: Session) -> None:
    """Behind one name there may be several replicas, and it is `known` that has been waited for."""
    if identity_of(session) != identity_of(known):
        raise Transient(f"{known.url} led to another server than before.")


def _place(source: Session, mapping: TableMapping, bounds: KeyRange) -> Place:
    return Place(source=source, bounds=bounds, nth=lambda n: nth_key(source, mapping, bounds, n))


@dataclass(slots=True)
class RowsPath:
    """SELECT the rows as text, INSERT IGNORE … VALUES. packet_bytes: the least that one of the servers takes."""

    ends: Ends
    mapping: TableMapping
    packet_bytes: int
    fitting_rows: int = MAX_CHUNK_ROWS
    text: str | None = None
    key_places: tuple[int, ...] = field(default=())
    """Where a row's text has the key's literals; none: behind it."""

    def __post_init__(self) -> None:
        self.ends.source.execute_raw(f"SET SESSION group_concat_max_len={self.text_limit}")
        names = [pair.target.name for pair in self.mapping.pairs]
        key = [pair.target.name for pair in self.mapping.key]
        self.key_places = tuple(map(names.index, key)) if set(key) <= set(names) else ()

    @property
    def _row(self) -> str:
        """SQL of a row's text. A key that is not copied, since the server generates it, stands behind in a comment."""
        row, columns = row_literal_sql(self.mapping), source_key(self.mapping)
        if self.key_places:
            return row
        return f"CONCAT({row},'/*',{key_literal_sql(columns, key_names(columns))},'*/')"

    @property
    def _values_limit(self) -> int:
        """What the longest statement has room for."""
        return max(1024, self.packet_bytes - _HEADROOM - len(_insert_sql(self.mapping)))

    @property
    def text_limit(self) -> int:
        return min(TEXT_BYTES, self._values_limit)

    @property
    def _statement_limit(self) -> int:
        return min(STATEMENT_BYTES, self._values_limit)

    def read(self, bounds: KeyRange) -> None:
        """All rows in one value: it spares the client a thousand packets. Too long: None, and `write` streams."""
        found = self.ends.source.row(
            f"SELECT COUNT(*),GROUP_CONCAT({self._row} SEPARATOR '{_GLUE}') FROM {source_sql(self.mapping)} "
            f"WHERE {within(self.mapping, bounds)}"
        )
        assert found is not None
        count, text = int(found[0]), "" if found[1] is None else as_text(found[1])
        # A cut value is as long as the limit; a row that is longer than a packet is NULL, which GROUP_CONCAT skips.
        # The newlines are ours alone: text stands in the row as hexadecimal digits.
        is_whole = len(text) < self.text_limit and (text.count("\n") + 1 if text else 0) == count
        self.text = text if is_whole else None
        if count and text:
            self.fitting_rows = fitting(count, len(text), self.text_limit)

    def write(self, bounds: KeyRange) -> Copied:
        total = Copied(rows_read=0, rows_copied=0, outcome=Outcome())
        for done in self._written(bounds):
            total = Copied(
                rows_read=total.rows_read + done.rows_read,
                rows_copied=total.rows_copied + done.rows_copied,
                outcome=total.outcome + done.outcome,
            )
        return total

    def _written(self, bounds: KeyRange) -> Iterator[Copied]:
        if self.text is None:
            yield from self._streamed(bounds)
        elif self.text:
            for rows in statements(self.text, self._statement_limit):
                yield self._insert(bounds, rows)

    def _insert(self, bounds: KeyRange, rows: str) -> Copied:
        """`rows`: row texts with _GLUE between them."""
        sql = f"{_insert_sql(self.mapping)} VALUES {rows}"
        place = Place(
            source=self.ends.source,
            bounds=bounds,
            nth=lambda n: self._locate(rows, n),
            first_refused=lambda: self._first_refused(rows),
        )
        copied, outcome = self._run(sql, place)
        return Copied(rows_read=rows.count("\n") + 1, rows_copied=copied, outcome=outcome)

    def _run(self, sql: str, place: Place) -> tuple[int, Outcome]:
        target = self.ends.target
        return run_copying(target, self.mapping, lambda: target.execute_raw(sql), place)

    def first_refused(self, bounds: KeyRange) -> list[str] | None:
        """Of the range's rows that are there now."""
        self.read(bounds)
        return self._first_refused(self.text) if self.text else None

    def _first_refused(self, rows: str) -> list[str] | None:
        """Key of the first row that the target refuses alone, in a transaction that is rolled back."""
        for n, row in enumerate(rows.split(_GLUE), 1):
            if is_refused(self.ends.target, self.mapping, f"{_insert_sql(self.mapping)} VALUES {row}"):
                return self._locate(rows, n)
        return None

    def _locate(self, rows: str, n: int) -> list[str]:
        row = rows.split(_GLUE)[n - 1]
        if not self.key_places:
            return split_literals(row[row.rindex("/*") + 2 : -2])
        values = split_literals(row[1:-1])
        return [values[place] for place in self.key_places]

    def _streamed(self, bounds: KeyRange) -> Iterator[Copied]:
        """Row by row on a connection of its own, so that a chunk of any size takes little memory."""
        order = order_sql(source_key(self.mapping))
        sql = f"SELECT {self._row},{key_sql(self.mapping)} FROM {source_sql(self.mapping)}"
        with connect(self.ends.source.url, read_timeout=WORK_SECONDS) as reader:
            _check_same_server(reader, self.ends.source)
            found = reader.stream(f"{sql} WHERE {within(self.mapping, bounds)} ORDER BY {order}")
            for batch in batches(found, self._statement_limit, self._values_limit):
                yield self._insert_one(batch) if isinstance(batch, tuple) else self._insert(bounds, batch)

    def _insert_one(self, key: Bound) -> Copied:
        """A row whose text no packet holds goes alone: inside the server, or in pieces to another one."""
        bounds = KeyRange(lower=key, upper=key, has_lower=True)
        place = Place(source=self.ends.source, bounds=bounds, nth=lambda _: key, first_refused=lambda: key)
        if self.ends.is_across:
            insert = f"{_insert_sql(self.mapping)} VALUES"
            with LongRow(self.ends, self.mapping, place, self.packet_bytes).assembled() as row:
                copied, outcome = self._run(f"{insert} {row}", place) if row else (0, Outcome())
        else:
            # Inside the server the row is no text, so no packet bounds it.
            copied, outcome = self._run(_select_sql(self.mapping, equal_sql(source_key(self.mapping), key)), place)
        return Copied(rows_read=copied + outcome.duplicates, rows_copied=copied, outcome=outcome)


@dataclass(slots=True)
class BulkPath:
    """As RowsPath, from MariaDB to MariaDB: the values go as one packet of parameters, and the server parses no text.

    It takes no AUTO-INC lock either. What does not fit goes row by row the other way.
    """

    ends: Ends
    mapping: TableMapping
    block: Block
    rows: RowsPath
    insert: BulkInsert | None = None
    values: bytes | None = None
    count: int = 0

    @property
    def fitting_rows(self) -> int:
        return self.rows.fitting_rows

    def read(self, bounds: KeyRange) -> None:
        """All rows in one value. Too long: None, and `write` streams."""
        found = self.ends.source.row(
            f"SELECT COUNT(*),GROUP_CONCAT({self.block.row} SEPARATOR '') FROM {source_sql(self.mapping)} "
            f"WHERE {within(self.mapping, bounds)}"
        )
        assert found is not None
        self.count, values = int(found[0]), found[1] or b""
        is_whole = len(values) < self.rows.text_limit
        self.values = values if is_whole else None
        if values:
            self.rows.fitting_rows = fitting(self.count, len(values), self.rows.text_limit)

    def write(self, bounds: KeyRange) -> Copied:
        if self.values is None:
            return self._streamed(bounds)
        # No values, although rows were counted: each of them is NULL there, longer than a packet.
        if not self.values:
            return Copied(rows_read=0, rows_copied=0, outcome=Outcome()) if not self.count else self._streamed(bounds)
        try:
            done = self._inserted(bounds, self.values)
        except SqlError as error:
            if error.code not in _NO_BULK:
                raise
            return self._streamed(bounds)
        # A row that is longer than a packet is NULL, which GROUP_CONCAT skips; those inserted are duplicates then.
        return done if done.rows_read == self.count else self._streamed(bounds)

    def _inserted(self, bounds: KeyRange, values: bytes) -> Copied:
        place = _place(self.ends.source, self.mapping, bounds)
        place = replace(place, first_refused=lambda: self.rows.first_refused(bounds))
        copied, outcome = run_copying(self.ends.target, self.mapping, lambda: self._statement().run(values), place)
        return Copied(rows_read=copied + outcome.duplicates, rows_copied=copied, outcome=outcome)

    def _statement(self) -> BulkInsert:
        if self.insert is None:
            sql = f"{_insert_sql(self.mapping)} VALUES ({self.block.values})"
            self.insert = BulkInsert(self.ends.target, sql, self.block.types)
        return self.insert

    def _streamed(self, bounds: KeyRange) -> Copied:
        self.rows.text = None
        return self.rows.write(bounds)


def fitting(count: int, length: int, limit: int) -> int:
    """Rows that make a text of four fifths of `limit`, as `count` rows make one of `length`."""
    return int(count * 0.8 * limit / length)


def statements(text: str, limit: int) -> Iterator[str]:
    """`text` cut between rows into pieces of at most `limit`, or of one row where that is longer."""
    start = 0
    while len(text) - start > limit:
        end = text.rfind(_GLUE, start, start + limit)
        end = end if end >= 0 else text.find(_GLUE, start)
        if end < 0:
            break
        yield text[start:end]
        start = end + len(_GLUE)
    yield text[start:]


def batches(rows: Iterable[Sequence[object]], limit: int, longest: int) -> Iterator[str | Bound]:
    """Rows (text, key literals…) as statements' worth of text; the key alone of a row of more than `longest`."""
    waiting: list[str] = []
    size = 0
    for raw, *key in rows:
        text = None if raw is None else as_text(raw)
        text = None if text is None or len(text) > longest else text
        if waiting and (text is None or size + len(text) > limit):
            yield _GLUE.join(waiting)
            waiting, size = [], 0
        if text is None:
            yield tuple(map(as_text, key))
        else:
            waiting.append(text)
            size += len(text) + len(_GLUE)
    if waiting:
        yield _GLUE.join(waiting)
