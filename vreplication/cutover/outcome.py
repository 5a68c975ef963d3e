"""What an attempt at the cut-over has come to: told by the tables' identities, and what it leaves is cleared away.

What must stay true: it is looked up on a fresh connection, whatever the attempt's own have said; a RENAME that has not
answered, and whoever makes triggers or keys, is gone from the server before the look; sentries are removed only while
the lease is ours.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from vreplication.cutover import sentry
from vreplication.cutover.blockers import Blocker, blockers
from vreplication.cutover.decide import SWITCHED, decide_together
from vreplication.cutover.parts import Part
from vreplication.cutover.rename import Rename
from vreplication.cutover.sessions import Sessions
from vreplication.errors import Ambiguous, SourceChanged, Transient, VReplicationError
from vreplication.mysql.processes import still_there
from vreplication.mysql.server import Server
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.state.lease import end_connections, fence
from vreplication.state.workflows import WorkflowRow

LOOKUP_SECONDS = 30.0
"""How long an ambiguous result is looked up on a server that cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an attempt came to. `lock_millis`: LOCK sent to UNLOCK returned; `total_millis`: until RENAME returned."""

    is_switched: bool
    reason: str
    not_locked: str | None = None
    """Workflow of the table whose lock could not be had in time."""
    blockers: tuple[Blocker, ...] = ()
    lock_millis: float = 0.0
    total_millis: float = 0.0


@dataclass(slots=True, kw_only=True)
class Lookup:
    """Of one attempt. rows: in RENAME's order. sentries: of these parts one has been placed, so far.

    is_way_free: RENAME may have succeeded, for the last sentry is gone, or may be.
    """

    url: SourceUrl
    server: Server
    rows: Sequence[WorkflowRow]
    sessions: Sessions
    rename: Rename
    sentries: Sequence[Part]
    is_way_free: bool = False

    def decided(self) -> bool:
        """Has it switched? If it has not, the sentries are cleared away. Raises Ambiguous."""
        until = time.monotonic() + LOOKUP_SECONDS
        while True:
            try:
                return self._look()
            except Transient as error:
                if time.monotonic() > until:
                    raise ambiguous(self.rows, error) from None
                time.sleep(0.2)

    def _look(self) -> bool:
        with connect(self.url) as session:
            # rename_gone: first, for a RENAME that is still at work could switch right behind the look.
            self._wait_until_gone(session)
            if self.sessions.makers:
                # What it may still be making would come after those that are there have been removed.
                end_connections(session, tuple(each.id for each in self.sessions.makers), user=self.url.user)
            if self._has_switched(session):
                return True
            with contextlib.suppress(LockWait):
                # The next attempt removes them, or a cancel.
                self._remove_sentries(session)
            return False

    def _wait_until_gone(self, session: Session) -> None:
        """A RENAME without an answer may be at work yet, or lie in the server's socket: its session must end first."""
        until = time.monotonic() + 5
        renamer = self.sessions.renamer.id
        while self.rename.is_unanswered and still_there(session, [renamer], user=self.url.user):
            if time.monotonic() > until:
                raise Transient("The session that renames the tables does not end.")
            session.kill(renamer)
            time.sleep(0.02)

    def _has_switched(self, session: Session) -> bool:
        """Raises SourceChanged when nobody can tell. While a sentry stood no RENAME has passed, whatever else has."""
        try:
            return decide_together(session, self.rows) == SWITCHED
        except SourceChanged:
            # Before that no RENAME of ours can have passed: a table that is neither of ours is somebody else's doing.
            if self.is_way_free:
                raise
            return False

    def remove_placed(self) -> None:
        """Of an attempt that has not begun; what stays is removed by the next one, or by a cancel."""
        with contextlib.suppress(VReplicationError), connect(self.url) as session:
            self._remove_sentries(session)

    def _remove_sentries(self, session: Session) -> None:
        """Of a driver that took over they have the same names: so nobody takes over before ours have gone."""
        with connect(self.url) as other, other.transaction():
            for part in self.sentries:
                fence(other, part.lease)
                sentry.remove_sentry(session, *part.sentry, part.row.id)

    def users_of_shadows(self) -> tuple[Blocker, ...]:
        """RENAME needs the shadows as well: who has one open, as far as the server says."""
        with contextlib.suppress(VReplicationError), connect(self.url) as session:
            own = frozenset((*self.sessions.ids, session.id))
            shadows = [(row.source_schema, row.shadow_table) for row in self.rows]
            found = [b for shadow in shadows for b in blockers(session, self.server, *shadow, own=own)]
            # Younger ones, our own catch-up's among them, have not kept RENAME waiting to the deadline.
            return tuple(b for b in found if b.age_seconds >= 1)
        return ()


def ambiguous(rows: Sequence[WorkflowRow], error: Transient) -> Ambiguous:
    names, workflow = ", ".join(row.source_table for row in rows), rows[0].id
    if len(rows) > 1:
        # Of several tables each has the number behind the id of all.
        workflow = workflow.rpartition(".")[0]
    return Ambiguous(
        f"The cut-over of {names} may or may not have happened: {error}",
        cure=f"`vreplication resume {workflow}` looks it up when the server answers again.",
    )
