"""XA branches that a server has lost in a crash, as a feed finds them (changes/lost_branches.py has when one is lost).

A feed writes nothing for it: a place in the log that it has passed is marker enough.

What must stay true: the branch is no part of the progress any more when its rows are dropped, so that the log from
there on is needed no longer; nothing is sent for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vreplication.binlog.events import Group, Heartbeat, Position, Stopped
from vreplication.binlog.position import current
from vreplication.changes import lost_branches
from vreplication.changes.lost_branches import LostBranches
from vreplication.changes.matcher import Matcher
from vreplication.mysql.server import Xid
from vreplication.mysql.session import Session


class Lost:
    """Of one source, in the thread that reads its log. session: one that is open, not always the same."""

    def __init__(
        self, session: Callable[[], Session], matcher: Matcher, dropped: Callable[[Xid], None], *, is_mariadb: bool
    ) -> None:
        self._session, self._matcher, self._dropped, self._is_mariadb = session, matcher, dropped, is_mariadb
        self._looked_at = time.monotonic()
        self._ends: _Ends | None = None
        self._branches: LostBranches | None = None

    def look(self, item: Group | Heartbeat | Stopped) -> None:
        """Behind each item of the log. Raises Transient."""
        if self._ends is not None and self._branches is not None and (marker := self._ends.passed(_end(item))):
            self._branches.passed(marker)
        if time.monotonic() - self._looked_at < lost_branches.LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        if self._matcher.held():
            self._of(self._session()).look_now()

    def _of(self, session: Session) -> LostBranches:
        # The catalog may have opened another session since. A look that has begun ends with its session, and
        # begins anew.
        if self._ends is None or self._branches is None or self._ends.session is not session:
            self._ends = _Ends(session, self._is_mariadb)
            of = session, self._ends, self._matcher, self._dropped
            self._branches = LostBranches(*of, is_mariadb=self._is_mariadb)
        return self._branches


def _end(item: Group | Heartbeat | Stopped) -> Position | None:
    if isinstance(item, Group):
        return item.end
    return item.position if isinstance(item, Heartbeat) else None


class _Ends:
    """Ends of the log, as markers. There is one at a time."""

    def __init__(self, session: Session, is_mariadb: bool) -> None:
        self.session, self._is_mariadb = session, is_mariadb
        self._asked: Position | None = None

    def write(self) -> str:
        self._asked = current(self.session, self._is_mariadb)
        return str(self._asked)

    def passed(self, at: Position | None) -> str:
        """The one that `at` has come to; ''."""
        return str(self._asked) if at is not None and self._asked is not None and at >= self._asked else ""

    def remove(self, marker: str) -> None:
        self._asked = None
