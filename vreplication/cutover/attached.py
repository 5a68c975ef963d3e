"""What is attached to a table and goes over with it, at its places in an attempt: triggers and foreign keys.

What must stay true: as of `cutover.carried` and `cutover.foreign`. Neither is touched before catch-up has lost its
lease, and catch-up's lease stays nobody's until RENAME has returned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from vreplication.cutover import carried, foreign
from vreplication.cutover.carried import Carried
from vreplication.cutover.foreign import KeyMove
from vreplication.cutover.parts import Held
from vreplication.cutover.sessions import Sessions
from vreplication.errors import VReplicationError
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.planning.foreign import family
from vreplication.state.lease import fence_deposed
from vreplication.state.workflows import WorkflowRow


def is_asked(row: WorkflowRow) -> bool:
    """Something is to be made on the new table."""
    return carried.is_asked(row) or foreign.is_asked(row)


class Attached:
    """Of all tables of one attempt. about: whose affair what is raised inside is. keys: None where none go over."""

    def __init__(self, sessions: Sessions, about: Callable[[str], AbstractContextManager[None]]) -> None:
        self._sessions = sessions
        self._about = about
        self._triggers: list[Carried] = []
        self.keys: KeyMove | None = None

    @property
    def _observer(self) -> Session:
        return self._sessions.observer

    @property
    def relatives(self) -> Sequence[tuple[str, str]]:
        """Tables (schema, name) that are locked with it."""
        return self.keys.family.relatives if self.keys else ()

    def find_keys(self, first: Held, announce: Callable[[tuple[int, ...]], None]) -> None:
        """Before the lock. Tables with foreign keys are switched alone, so there is only the first.

        On MySQL such a table is switched by cutover/alone.py.
        """
        row, maker = first.part.row, self._sessions.maker
        if maker is None or not foreign.is_asked(row) or not is_mariadb(self._observer):
            return
        found = family(self._observer, first.part.table, is_mariadb=True)
        if found.relatives:
            guards = self._sessions.open_guards(len(found.relatives))
            # Again, for these are more: who takes over has to end them, too.
            announce(self._sessions.ids)
            self.keys = KeyMove(row, found, maker, guards, self._sessions.patience_seconds)

    def find_triggers(self, each: Held) -> None:
        """Under the lock, when catch-up holds: from here on it has no lease any more."""
        found = carried.fence_catch_up(each.locker, self._observer, each.part.row)
        self._triggers += [found] if found else []

    def fence_catch_up(self) -> None:
        """The same for keys."""
        if self.keys:
            self.keys.check_same(self._observer)
            self.keys.fence_catch_up(self._observer)

    def make(self) -> None:
        """On the new table; in the observer's transaction, which keeps catch-up's lease from everybody."""
        for each in self._triggers:
            with self._about(each.row.id):
                fence_deposed(self._observer, each.fenced)
                assert self._sessions.maker is not None
                carried.make(self._sessions.maker, each)
        if self.keys:
            self.keys.check_fenced(self._observer)
            self.keys.give()

    def dropped_ahead(self) -> list[str]:
        return carried.dropped_ahead(self._observer, self._triggers)

    def let_go(self) -> None:
        if self.keys:
            self.keys.let_go()

    def drop_old_keys(self) -> None:
        """Behind RENAME; what cannot be dropped now is dropped behind the cut-over."""
        if self.keys:
            # The switch is done: nothing here may be told as its failure.
            with contextlib.suppress(VReplicationError):
                self.keys.drop_old(self._observer, self._sessions.spare)
            self.keys.free(self._sessions.spare)

    def put_back(self) -> None:
        """Of an attempt that ends here: keys. Triggers are removed when its connections are gone."""
        if self.keys:
            self.keys.put_back()
            self.keys.free(self._sessions.spare)
