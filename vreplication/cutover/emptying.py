"""Takes the rows out of a table that nobody uses any more, a few at a time, before it is dropped.

DROP of a large table holds the server's dictionary while it frees the pages of all rows; of an empty one it is short.

What must stay true: only the table of that identity is emptied, and only when nothing can ever switch to it again: who
calls has made sure of that, durably, before; cut off anywhere, it is begun again and goes on. It walks along the key:
deleted rows stay in the index until the server has purged them, and are not to be passed over by each statement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from vreplication.clock import SYSTEM
from vreplication.cutover.identity import table_identity
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import LockWait, Session
from vreplication.pausepoints import reach
from vreplication.schema.bounds import Bound, key_names, order_sql, range_sql
from vreplication.schema.introspect import introspect
from vreplication.schema.keys import usable_keys
from vreplication.schema.literals import bound_sql
from vreplication.schema.model import Column

_FIRST_ROWS, _LEAST_ROWS, _MOST_ROWS = 500, 50, 20_000
_AIM_SECONDS = 0.1
"""Of one statement; it rests as long again, so that the server's other work and its replicas go on."""
_LOOK_SECONDS = 1.0


def empty(
    session: Session,
    schema: str,
    table: str,
    identity: str,
    *,
    is_mariadb: bool,
    is_stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Delete all rows. False: there is no table of this identity, or we were asked to stop."""
    looked, walk = -_LOOK_SECONDS, None
    while not is_stopping():
        began = SYSTEM.monotonic()
        if began - looked >= _LOOK_SECONDS:
            # Once a second: reading it scans InnoDB's dictionary, and somebody may put another table under the name.
            if table_identity(session, schema, table, is_mariadb) != identity:
                return False
            looked = began
        walk = walk or _Walk.along(session, schema, table)
        if walk.is_done:
            return True
        walk.delete(session)
        reach("revert.emptying")
        seconds = SYSTEM.monotonic() - began
        walk.size(seconds)
        SYSTEM.sleep(min(seconds, 2 * _AIM_SECONDS))
    return False


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Along the key; without one that a range can be read of (`index` is ''), as the server finds rows.

    behind: all rows up to there are gone.
    """

    name: str
    index: str
    columns: tuple[Column, ...]
    rows: int = _FIRST_ROWS
    behind: Bound | None = None
    is_done: bool = False

    @classmethod
    def along(cls, session: Session, schema: str, table: str) -> _Walk:
        found = introspect(session, schema, table)
        # An earlier release may have taken a key for usable that this one does not.
        if not (keys := usable_keys(found)):
            return cls(name=qualified(schema, table), index="", columns=())
        return cls(name=qualified(schema, table), index=keys[0].name, columns=tuple(map(found.column, keys[0].columns)))

    def delete(self, session: Session) -> None:
        """The next rows. Somebody may hold one: then the same ones come again."""
        if not self.index:
            with contextlib.suppress(LockWait):
                self.is_done = session.execute_raw(f"DELETE FROM {self.name} LIMIT {self.rows}") < self.rows
            return
        upper = self._upper(session)
        try:
            session.execute(f"DELETE FROM {self.name} WHERE {range_sql(self.columns, self.behind, upper)}")
        except LockWait:
            return
        self.behind, self.is_done = upper, upper is None

    def _upper(self, session: Session) -> Bound | None:
        """The last key of the next rows; None: fewer are left."""
        names = key_names(self.columns)
        shown = ",".join(bound_sql(c, n) for c, n in zip(self.columns, names, strict=True))
        where = range_sql(self.columns, self.behind, None)
        order = f"ORDER BY {order_sql(self.columns)} LIMIT 1 OFFSET {self.rows - 1}"
        found = session.row(f"SELECT {shown} FROM {self.name} FORCE INDEX ({ident(self.index)}) WHERE {where} {order}")
        return tuple(v.decode("ascii") if isinstance(v, bytes) else str(v) for v in found) if found else None

    def size(self, seconds: float) -> None:
        """As many as take the time that is meant."""
        wanted = int(self.rows * _AIM_SECONDS / max(seconds, 1e-3))
        self.rows = max(_LEAST_ROWS, min(_MOST_ROWS, 2 * self.rows, wanted))
