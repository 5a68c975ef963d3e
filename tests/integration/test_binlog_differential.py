"""Our decoder against the mysql-replication library's: the same events of the same log, and the server as the judge.

Every value that ours gives, of row images before and after, must be stored as the very value that it was read from. So
must the library's, but for what `WRONG` lists: a value of these it loses. docs/design/testing.md has the same list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support.drawn_values import DrawnTable, hexed, tables
from tests.support.private_server import VECTORS, is_older, private_server
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog.position import draw_server_id
from vreplication.mysql.quoting import ident, text
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.schema.introspect import introspect
from vreplication.schema.literals import DECIMALS, INTEGERS, TEMPORALS
from vreplication.schema.model import Column

ROWS = 200 if os.environ.get("VREPLICATION_MODELS") == "large" else 25
"""Drawn for each table."""
LOOSE = "SET SESSION sql_mode='ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'"

Image = tuple[str, ...]
"""SQL for the values of a row: its id first."""


@dataclass(slots=True)
class Log:
    """What a reader made of a table's events: rows as they were written, as they were before and after, and deleted."""

    written: list[Image] = field(default_factory=list)
    before: list[Image] = field(default_factory=list)
    after: list[Image] = field(default_factory=list)
    deleted: list[Image] = field(default_factory=list)


STAGES = ("written", "before", "after", "deleted")
TRUTH = {"written": "first", "before": "first", "after": "second", "deleted": "second"}

_CHARSETS = "cp1250 cp1251 cp1256 cp1257 cp866 greek hebrew koi8u latin1 sjis tis620 utf16 utf32"
_BOTH = {
    *(f"charset_{name}" for name in _CHARSETS.split()), *(f"negative_TIME_{digits}" for digits in range(1, 7)),
    "empty_SET", "latin1_ENUM", "unreal_DATE", "unreal_DATETIME",
    "zero_DATE", "zero_DATETIME_3", "zero_TIMESTAMP", "zero_TIMESTAMP_6", "zero_YEAR",
}  # fmt: skip
WRONG = {
    "mariadb": _BOTH | {"INET4", "INET6", "UUID", "charset_ascii"},
    "mysql": _BOTH | {"null_JSON", "typed_JSON"} | ({"VECTOR"} if not is_older("mysql", VECTORS) else set()),
}
MAY_DIFFER = {f"charset_{name}" for name in ["big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "ujis"]}
"""Python's codecs and the servers' have other opinions of a few characters, which are seldom drawn."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """A drawn table `a…` on the server, and `c…`, which holds rows by stage: as they were, and as a reader says."""

    database: Database
    session: Session
    table: DrawnTable
    number: str

    @property
    def name(self) -> str:
        return f"a{self.number}"

    def make(self) -> None:
        columns = ", ".join(f"{ident(c.name)} {c.sql}" for c in self.table.columns)
        self.session.execute_raw(f"CREATE TABLE a{self.number} (id INT PRIMARY KEY, {columns})")
        key = "stage VARCHAR(30) NOT NULL, id INT NOT NULL"
        self.session.execute_raw(f"CREATE TABLE c{self.number} ({key}, {columns}, PRIMARY KEY (stage, id))")

    def write(self, rows: list[tuple[str, ...]]) -> None:
        """Insert, change and delete. A row that the server refuses is none."""
        with connect(self.database.app_url) as app:
            app.execute_raw(LOOSE)
            with app.transaction():
                insert = f"INSERT INTO {self.name} VALUES "
                done = sum(_is_taken(app, f"{insert}({i},{','.join(row)})") for i, row in enumerate(rows))
            assert done > len(rows) / 2, "the server refuses most of what is drawn"
            self._remember("first")
            others = f"c{self.number} o ON o.stage='first' AND o.id=(SELECT MAX(id) FROM c{self.number}) - a.id"
            names = [ident(c.name) for c in self.table.columns]
            app.execute_raw(f"UPDATE {self.name} a JOIN {others} SET {','.join(f'a.{n}=o.{n}' for n in names)}")
            self._remember("second")
            app.execute_raw(f"DELETE FROM {self.name}")

    def _remember(self, stage: str) -> None:
        self.session.execute_raw(f"INSERT INTO c{self.number} SELECT '{stage}', a.* FROM {self.name} a")

    def store(self, reader: str, log: Log) -> None:
        """The server takes every value for its column. What it refuses of the library's stays NULL."""
        for stage in STAGES:
            for image in getattr(log, stage):
                sql = f"INSERT INTO c{self.number} VALUES ('{reader} {stage}',{','.join(image)})"
                if reader == "ours":
                    self.session.execute_raw(sql)
                elif not _is_taken(self.session, sql):
                    self._store_singly(f"{reader} {stage}", image)

    def _store_singly(self, stage: str, image: Image) -> None:
        self.session.execute_raw(f"INSERT INTO c{self.number} (stage,id) VALUES ('{stage}',{image[0]})")
        for column, value in zip(self.table.columns, image[1:], strict=True):
            where = f"stage='{stage}' AND id={image[0]}"
            _is_taken(self.session, f"UPDATE c{self.number} SET {ident(column.name)}={value} WHERE {where}")

    def differences(self, reader: str) -> dict[str, str]:
        """Column → how the first value of it that is not the stored one looks, as the server shows both."""
        columns = introspect(self.session, self.database.name, f"c{self.number}").columns[2:]
        found: dict[str, str] = {}
        for stage in STAGES:
            self._compare(columns, TRUTH[stage], f"{reader} {stage}", found)
        return found

    def _compare(self, columns: tuple[Column, ...], truth: str, stage: str, found: dict[str, str]) -> None:
        shown = [(_stored(c, f"x.{ident(c.name)}"), _stored(c, f"y.{ident(c.name)}")) for c in columns]
        table = f"c{self.number}"
        sql = f"SELECT x.id,{','.join(f'LEFT({s},80)' for both in shown for s in both)} FROM {table} x JOIN {table} y"
        sql += f" ON x.id=y.id AND x.stage='{truth}' AND y.stage='{stage}' WHERE "
        sql += " OR ".join(f"NOT ({mine}<=>{theirs})" for mine, theirs in shown)
        for row in self.session.rows(sql):
            for column, mine, theirs in zip(columns, row[1::2], row[2::2], strict=True):
                if mine != theirs:
                    found.setdefault(column.name, f"{stage}: stored {mine!r}, read {theirs!r} (row {row[0]})")

    def counts(self) -> dict[str, int]:
        found = self.session.rows(f"SELECT stage, COUNT(*) FROM c{self.number} GROUP BY stage")
        return {str(stage): int(count) for stage, count in found}


def _is_taken(session: Session, sql: str) -> bool:
    try:
        session.execute_raw(sql)
    except SqlError:
        return False
    return True


def _stored(column: Column, value: str) -> str:
    """SQL that shows a stored value so that two values are the same when their texts are."""
    kind = column.data_type
    if kind in ("float", "double"):
        return f"CONCAT(JSON_ARRAY({value}*1e0))"
    if kind in ("bit", "enum", "set", "year"):
        return f"CONCAT({value}+0)"
    if kind == "json":
        kinds = f"JSON_TYPE({value}),IFNULL(JSON_TYPE(JSON_EXTRACT({value},'$[0]')),'')"
        return f"CONCAT_WS(' ',{kinds},SHA2(CAST({value} AS CHAR),256),LEFT(CAST({value} AS CHAR),40))"
    if kind in ("char", "varchar", "binary", "varbinary", "vector") or kind.endswith(("text", "blob")):
        return f"IF({value} IS NULL,NULL,CONCAT(LENGTH({value}),' ',SHA2(HEX({value}),256),' ',LEFT(HEX({value}),60)))"
    if kind in _NUMERIC:
        return f"CONCAT({value})"
    return f"HEX({value})"


_NUMERIC = INTEGERS | DECIMALS | TEMPORALS


def ours(trial: Trial, start: Any) -> Log:
    """A delete has no values, an update that changes something is a delete of the old row and the new one."""
    source = watch(trial.database, trial.name, key=("id", *(c.name for c in trial.table.columns)))
    found, rows = changes(groups(trial.database, start, source)), trial.counts()["first"]
    updated = found[rows:-rows]
    return Log(
        written=[(str(change.values),) for change in found[:rows]],
        before=[(change.key,) for change in updated if change.values is None],
        after=[(change.values,) for change in updated if change.values is not None],
        deleted=[(change.key,) for change in found[-rows:]],
    )


def library(trial: Trial, start: Any) -> Log:
    """What the library reads. Raises whatever it raises."""
    log, server = Log(), trial.database.server
    own_id = draw_server_id(trial.database.admin)
    reader = BinLogStreamReader(
        connection_settings=server.plain(server.url()).connect_arguments(), server_id=own_id,
        log_file=start.file, log_pos=start.offset, resume_stream=True, blocking=False, enable_logging=False,
        only_schemas=[trial.database.name], only_tables=[trial.name],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )  # fmt: skip
    try:
        for event in reader:
            _collect(log, event)
    finally:
        reader.close()
    return log


def _collect(log: Log, event: Any) -> None:
    if isinstance(event, UpdateRowsEvent):
        log.before += [_image(event, row["before_values"]) for row in event.rows]
        log.after += [_image(event, row["after_values"]) for row in event.rows]
    else:
        images = log.written if isinstance(event, WriteRowsEvent) else log.deleted
        images += [_image(event, row["values"]) for row in event.rows]


def _image(event: Any, values: dict[str, Any]) -> Image:
    kinds = {column.name: column.type for column in event.columns}
    return tuple(_sql(value, kinds[name]) for name, value in values.items())


_BIT, _JSON = 16, 245


def _sql(value: Any, kind: int) -> str:
    """A Python value of the library's as SQL."""
    if value is None:
        return "NULL"
    if kind == _JSON:
        return f"JSON_EXTRACT(JSON_ARRAY({_json(value)}),'$[0]')"
    if kind == _BIT:
        return f"b'{value}'"
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if "e" in repr(value) else f"{value!r}e0"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return hexed(value)
    if isinstance(value, set):
        return text(",".join(sorted(value)))
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        seconds, rest = divmod(abs(micros), 10**6)
        return f"'{'-' * (micros < 0)}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}'"
    if isinstance(value, date):
        return f"'{value}'"
    return f"_utf8mb4 {hexed(value.encode())}" if value else "''"


def _json(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, dict):
        return f"JSON_OBJECT({','.join(f'{_json(name)},{_json(inner)}' for name, inner in value.items())})"
    if isinstance(value, list):
        return f"JSON_ARRAY({','.join(map(_json, value))})"
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL(65,{max(0, -int(value.as_tuple().exponent))}))"
    if isinstance(value, datetime):
        return f"CAST('{value}' AS DATETIME(6))"
    if isinstance(value, date):
        return f"CAST('{value}' AS DATE)"
    if isinstance(value, time):
        return f"CAST('{value}' AS TIME(6))"
    if isinstance(value, bytes):
        return f"CONVERT({hexed(value)} USING utf8mb4)" if value else "''"
    return _plain(value)


@pytest.fixture(scope="module")
def described(server: RunningServer) -> Iterator[RunningServer]:
    """A server that writes names, character sets and labels into its log: the library needs them, we do not."""
    with private_server(server.flavor, {"binlog_row_metadata": "FULL"}) as started:
        yield started


def charsets(session: Session) -> list[tuple[str, int]]:
    found = session.rows("SELECT character_set_name, maxlen FROM information_schema.character_sets ORDER BY 1")
    return [(str(name), int(most)) for name, most in found if name != "binary"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_type_as_it_is_stored(described: RunningServer) -> None:
    """Ours has no difference; the library has those that are listed, and each of them."""
    with described.admin() as session:
        drawn = tables(described.flavor, charsets(session))
    database = create_database(described)
    try:
        seen = _differences(database, drawn)
    finally:
        database.drop()
    print("\n".join(f"{name}: {words}" for name, words in sorted(seen.items())))
    assert set(seen) - MAY_DIFFER == WRONG[described.flavor]


def _differences(database: Database, drawn: Iterable[DrawnTable]) -> dict[str, str]:
    found: dict[str, str] = {}
    with connect(database.app_url) as session:
        for number, table in enumerate(drawn):
            trial = Trial(database=database, session=session, table=table, number=str(number))
            trial.make()
            start = here(database)
            trial.write(table.rows(ROWS))
            trial.store("ours", ours(trial, start))
            assert trial.differences("ours") == {}, table.name
            _check_counts(trial)
            found.update({_named(table, name): words for name, words in _library_differences(trial, start).items()})
    return found


def _named(table: DrawnTable, column: str) -> str:
    """A character set is wrong as a whole."""
    return table.name if table.name.startswith("charset_") else column


def _library_differences(trial: Trial, start: Any) -> dict[str, str]:
    try:
        log = library(trial, start)
    except Exception as error:
        # It gives up the whole event.
        return {c.name: f"{type(error).__name__}: {error}"[:100] for c in trial.table.columns}
    trial.store("library", log)
    return trial.differences("library")


def _check_counts(trial: Trial) -> None:
    """Every row came: those whose update changed nothing are in no update event."""
    counts = trial.counts()
    assert counts["ours written"] == counts["first"] == counts["ours deleted"] > 0
    assert counts["ours before"] == counts["ours after"] > 0
