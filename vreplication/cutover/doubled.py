"""Foreign keys that go over on MySQL: statements of the session that holds all of the locks (cutover/alone.py).

What must stay true: each statement leaves every child with a key to the table in use, or to the one that is about to
be; no statement waits for a lock that is not held, nor reads rows or builds an index; after a crash what is too much is
found by the tables, never remembered (cutover/foreign.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from vreplication.cutover import foreign
from vreplication.cutover.rename import rename_statement
from vreplication.errors import Terminal, VReplicationError
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import LockWait, Session, SqlError
from vreplication.pausepoints import reach
from vreplication.planning.foreign import Family, family, foreign_keys, grandchildren
from vreplication.schema.foreign import ForeignKey, Named, alters
from vreplication.state.workflows import WorkflowRow


class DoubledKeys:
    """Of one attempt; in the order of its methods."""

    def __init__(self, row: WorkflowRow, holder: Session) -> None:
        self._row = row
        self._holder = holder
        self._family = Family()
        self._further: tuple[Named, ...] = ()
        self._is_begun = False
        self.is_rename_sent = False

    def find(self, session: Session) -> None:
        """Before the lock."""
        table = foreign.table(self._row)
        self._family = family(session, table, is_mariadb=False)
        # A reader of one would keep the ALTER of a child waiting (measured), in the end with both keys in place.
        self._further = grandchildren(session, table, self._family)

    @property
    def _tables(self) -> tuple[Named, ...]:
        near = (foreign.table(self._row), foreign.shadow(self._row), *self._family.relatives)
        return (*near, *self._further)

    def lock_sql(self, aliases: Sequence[str]) -> str:
        """aliases: further names of the new table."""
        new = qualified(*foreign.shadow(self._row))
        locks = [
            *(f"{qualified(*each)} WRITE" for each in self._tables),
            *(f"{new} AS {ident(name)} READ" for name in aliases),
        ]
        return f"LOCK TABLES {', '.join(locks)}"

    def locked_tables(self, session: Session) -> list[Named]:
        """Those, and what the server takes along with them, in schemas too that the user may not see."""
        named, every = set(self._tables), foreign_keys(session, is_mariadb=False)
        children = {key.child for key in every if key.parent in named}
        parents = {key.parent for key in every if key.child in named}
        return [*self._tables, *sorted((children | parents) - named)]

    def check_same(self, session: Session) -> None:
        """Under the lock. Raises LockWait when a key has come or gone since `find`."""
        if family(session, foreign.table(self._row), is_mariadb=False) != self._family:
            raise LockWait("Foreign keys from or to the table have changed a moment ago.")

    def give(self) -> None:
        """The new table gets the table's own keys; one to itself refers to itself."""
        table, new = foreign.table(self._row), foreign.shadow(self._row)
        if own := self._family.own:
            self._is_begun = True
            # One to the table itself as well: which it is by the time of RENAME.
            keys = [replace(key, parent=new) if key.parent == table else key for key in own]
            self._run(alters(self._holder, new).added(keys))
            reach("cutover.key_given")

    def double(self) -> None:
        """Each child gets a key to the new table beside the one to the old."""
        for child, keys in self._of_children():
            self._is_begun = True
            self._run(alters(self._holder, child).added(keys, foreign.shadow(self._row)))
            reach("cutover.key_moved")

    def rename(self) -> None:
        """References go along with their tables."""
        self.is_rename_sent = True
        self._run(rename_statement([self._row]))
        self._is_begun = False
        reach("cutover.after_rename")

    def finish(self) -> None:
        """Keys to the old table go, and its own; then the new ones get the names. What fails is done later."""
        # Here, for by another session each ALTER of a child would wait for who reads one of its own children.
        with contextlib.suppress(VReplicationError):
            for child, keys in self._of_children():
                self._holder.execute_raw(alters(self._holder, child).dropped(keys))
                reach("cutover.old_key_dropped")
            foreign.drop_all(self._holder, foreign.retired(self._row))
            foreign.give_names(self._holder, self._row)

    def put_back(self) -> None:
        """Of an attempt that ends here: before the locks go, if their session still can."""
        if self._is_begun:
            with contextlib.suppress(VReplicationError):
                foreign.put_back(self._holder, self._row, self._family.children)

    def _of_children(self) -> Iterator[tuple[Named, list[ForeignKey]]]:
        for child in self._family.children:
            yield child, [key for key in self._family.theirs if key.child == child]

    def _run(self, sql: str) -> None:
        try:
            self._holder.execute_raw(sql)
        except SqlError as error:
            raise Terminal(f"The foreign keys of {self._row.source_table} cannot be carried over: {error}") from None
