"""Finds the RENAME of a cut-over in the log: the place behind it is the first of the new table's life.

What must stay true: nothing that names the tables otherwise is taken for it; the place is the end of that very event,
so that every write to the new table stands behind it, and none to the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vreplication.binlog.control import TableMap
from vreplication.binlog.definitions import Definition
from vreplication.binlog.events import Group, Heartbeat, Position
from vreplication.binlog.position import current, draw_server_id
from vreplication.binlog.reader import Item
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import Following, Watch
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session

_NAME = "rename"


class _Statements:
    """A catalog that follows no table, and hands on the RENAME of these names."""

    def __init__(self, names: frozenset[tuple[str, str]]) -> None:
        self._names = names

    def watch(self, found: TableMap) -> Watch | None:
        return None

    def defined(self, found: Definition) -> Sequence[Definition]:
        told = {(schema.casefold(), table.casefold()) for schema, table in found.tables}
        return (found,) if found.verb == "RENAME" and self._names <= told else ()


def behind_rename(
    session: Session,
    start: Position,
    names: Sequence[tuple[str, str]],
    *,
    is_mariadb: bool,
    check: Callable[[], None] = lambda: None,
) -> Position:
    """Just behind the first RENAME, from `start` on, that has all these tables (schema, name) in it.

    It must have been done by now. Raises SourceChanged where the log does not show it.
    """
    wanted = frozenset((schema.casefold(), table.casefold()) for schema, table in names)
    # As of now, for the RENAME has been done: what is not in the log up to here will not come.
    end = current(session, is_mariadb)
    with Tailer(session.url, start, (), server_id=draw_server_id(session), is_mariadb=is_mariadb) as tailer:
        tailer.join(Following(name=_NAME, catalog=_Statements(wanted)))
        for item in tailer:
            check()
            if isinstance(item, Group) and item.items:
                return item.end
            if _is_behind(item, end):
                break
    raise SourceChanged("The binary log does not show the RENAME of the cut-over.")


def _is_behind(item: Item, end: Position) -> bool:
    """Everything before `end` has been read."""
    # Where writes never cease no heartbeat comes, but a group that begins there says as much.
    at = item.start if isinstance(item, Group) else item.position if isinstance(item, Heartbeat) else None
    return at is not None and not at < end
