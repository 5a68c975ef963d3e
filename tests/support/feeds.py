"""Reading a source's log as a feed does: what was written, as rows of plain values and DDL."""

from __future__ import annotations

from typing import Any

from sandbox.databases import Database
from vreplication.binlog.events import Heartbeat, Position, RowChange
from vreplication.binlog.position import current, draw_server_id
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import DEFINED, Following
from vreplication.feed.catalog import Filter, Tables
from vreplication.mysql.session import connect


def describe_fully(database: Database) -> None:
    """The server's own setting, for whoever connects from here on; other tests do not mind."""
    database.admin.execute_raw("SET GLOBAL binlog_row_metadata=FULL")


def here(database: Database) -> Position:
    return current(database.admin, database.server.is_mariadb)


def catalog(database: Database, **chosen: Any) -> Tables:
    filter = Filter(tables=(f"{database.name}.*",), **chosen)
    return Tables(filter=filter, connect=lambda: connect(database.server.plain(database.server.url(database.name))))


def read(database: Database, tables: Tables, start: Position) -> list[tuple[str, Any, Any]]:
    """(table, before, after) of each row as {column: value}, and ("DDL", None, its fields), up to the log's end now."""
    end = here(database)
    found: list[tuple[str, Any, Any]] = []
    url = database.server.plain(database.server.url(database.name))
    tailer = Tailer(url, start, [], server_id=draw_server_id(database.admin), is_mariadb=database.server.is_mariadb)
    with tailer:
        tailer.join(Following(name="feed", catalog=tables))
        for item in tailer:
            if isinstance(item, Heartbeat):
                if item.position >= end:
                    return found
            else:
                found += [_shown(tables, change) for change in item.items]
                if item.end >= end:
                    return found
    raise AssertionError("the tailer ended by itself")


def _shown(tables: Tables, change: RowChange) -> tuple[str, Any, Any]:
    if change.table == DEFINED:
        return "DDL", None, change.after
    layout = tables.layout(change.table)
    return layout.table, *(_named(layout, row) for row in (change.before, change.after))


def _named(layout: Any, row: Any) -> Any:
    return None if row is None else dict(zip((c.name for c in layout.columns), row, strict=True))
