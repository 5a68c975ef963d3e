"""Reading the binary log in tests: write, then collect everything up to there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sandbox.databases import Database
from tests.support.changes import Effect, effects
from vreplication.binlog.events import Group, Heartbeat, Position, RowChange
from vreplication.binlog.position import current, draw_server_id
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import Watch
from vreplication.changes import stream
from vreplication.changes.codecs import SqlText
from vreplication.mysql.quoting import ident, idents
from vreplication.schema.introspect import introspect
from vreplication.settings import SIDECAR


def watch(database: Database, table: str, key: Iterable[str] = ("id",), number: int = 0) -> Watch:
    """A watch of all columns that can be written, without conversions."""
    found = introspect(database.admin, database.name, table)
    columns = found.columns
    ordinals = {c.name: c.ordinal for c in columns}
    return Watch(
        number=number,
        schema=database.name,
        table=table,
        columns=columns,
        codec=SqlText(
            key=tuple((ordinals[k], "{}") for k in key),
            values=tuple((c.ordinal, "{}") for c in columns if not c.generated),
        ),
        hidden=sum(k.index_type == "HASH" for k in found.keys),
    )


def ours(database: Database) -> list[Watch]:
    """The tables of ours that catch-up follows."""
    return stream.of_ours(SIDECAR, lambda name: introspect(database.admin, SIDECAR, name).columns)


def here(database: Database) -> Position:
    return current(database.admin, database.server.is_mariadb)


def open_tailer(
    database: Database, start: Position, source: Watch, more: Sequence[Watch] = (), **options: Any
) -> Tailer:
    return Tailer(
        database.url,
        start,
        [source, *more],
        server_id=draw_server_id(database.admin),
        is_mariadb=database.server.is_mariadb,
        **options,
    )


def groups(
    database: Database, start: Position, source: Watch, more: Sequence[Watch] = (), **options: Any
) -> list[Group]:
    """All groups from `start` to the end of the log as it is now."""
    end = here(database)
    found: list[Group] = []
    with open_tailer(database, start, source, more, **options) as tailer:
        for item in tailer:
            if isinstance(item, Heartbeat):
                if item.position >= end:
                    return found
            else:
                found.append(item)
    raise AssertionError("the tailer ended by itself")


def changes(found: Iterable[Group]) -> list[Effect]:
    return [effect for group in found for effect in effects(group.items)]


def rows(found: Iterable[Group]) -> list[RowChange]:
    """Of tables of ours."""
    return [item for group in found for item in group.items if item.table < 0]


def apply(database: Database, source: Watch, table: str, found: Iterable[Effect], session: Any = None) -> None:
    """What the applier does, one row at a time."""
    session = session or database.admin
    names = {c.ordinal: c.name for c in source.columns}
    assert isinstance(source.codec, SqlText)
    key = idents(names[o] for o, _ in source.codec.key)
    for change in found:
        if change.values is None:
            session.execute_raw(f"DELETE FROM {ident(table)} WHERE ({key}) = ({change.key})")
        else:
            columns = idents(names[o] for o, _ in source.codec.values)
            session.execute_raw(f"REPLACE INTO {ident(table)} ({columns}) VALUES ({change.values})")
