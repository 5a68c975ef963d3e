"""XA branches that a server has lost in a crash: their XA PREPARE is in the log, and the server does not know them.

MariaDB writes XA PREPARE and XA COMMIT to the log before InnoDB has prepared or committed the branch, and its recovery
does not compare the two. So a crash in between leaves a branch that no statement can end, whose rows would be held, and
the cut-over with them, for ever; or one that the log shows as committed and XA RECOVER lists as prepared (that one the
verification behind the restart compares). MySQL recovers by its log, but where branches of several format ids are
prepared it finds some of them not and rolls these back, without a word in the log. How often: docs/limits.md.

What must stay true: a branch is given up only where it cannot have an outcome any more. It was prepared before this run
of the server began: within one run an XA PREPARE is in the log before it is listed, for seconds where the server waits
for a semi-synchronous replica. And an outcome is in the log before the branch leaves the list: behind a marker that was
written after a look at the list, a branch that was not listed, has no outcome and is not listed still has none. Were it
wrong all the same, its commit ends the workflow by name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from vreplication.binlog.events import Position
from vreplication.changes.matcher import Matcher
from vreplication.mysql.server import Xid, prepared_branches, started_at
from vreplication.mysql.session import Session

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks at the server's list, while branches are held."""


class Markers(Protocol):
    """Places in the log, each behind all that stood there when it was written."""

    def write(self) -> str: ...

    def remove(self, marker: str) -> None: ...


class LostBranches:
    """Of one round, in the thread that applies (of a feed: that reads).

    is_mariadb: source is; dropped: is told the name of each that is lost.
    """

    def __init__(
        self,
        source: Session,
        markers: Markers,
        matcher: Matcher,
        dropped: Callable[[Xid], None],
        *,
        is_mariadb: bool,
    ) -> None:
        self._source, self._markers, self._matcher, self._dropped = source, markers, matcher, dropped
        self._is_mariadb = is_mariadb
        self._looked_at = time.monotonic()
        self._missing: dict[Xid, Position] = {}
        """Held at the last look, and not listed; by name, with the place of the PREPARE."""
        self._asked: tuple[str, dict[Xid, Position]] | None = None
        """The marker behind which those are lost that are held still."""

    def look(self) -> None:
        """When it is time to. Raises Transient."""
        if time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        self.look_now()

    def look_now(self) -> None:
        """Raises Transient."""
        before, self._missing = self._missing, self._not_listed()
        # By the place, too: an application may use a name again, and the later branch is another one.
        doubted = {xid: start for xid, start in self._missing.items() if before.get(xid) == start}
        if doubted and self._asked is None:
            self._asked = (self._markers.write(), doubted)

    def _not_listed(self) -> dict[Xid, Position]:
        """Of those with rows, prepared before this run of the server; the others hold nothing up."""
        # Of a branch of which an older checkpoint does not tell when it was prepared nothing can be proved: it stays
        # held.
        held = [branch for branch in self._matcher.held() if branch.rows and branch.prepared]
        if not held:
            return {}
        # To the second, in which MariaDB's log tells times: a branch of the very second of the start may be of the run
        # before, and left out it would be held for ever.
        behind = (started_at(self._source) + 1) * 1_000_000
        listed = set(prepared_branches(self._source, is_mariadb=self._is_mariadb))
        return {b.xid: b.start for b in held if b.prepared < behind and b.xid not in listed}

    def passed(self, marker: str) -> None:
        """It has been applied. Raises Transient."""
        if self._asked is None or self._asked[0] != marker:
            return
        (_, doubted), self._asked = self._asked, None
        self._markers.remove(marker)
        # Looked at once more: a branch that waited for a semi-synchronous replica at both looks may be listed by now.
        for xid, start in self._not_listed().items():
            if doubted.get(xid) == start:
                self._matcher.give_up(xid)
                self._dropped(xid)
                log.warning(
                    "XA branch %s, prepared at %s, is not on the server any more, and has no outcome in the log: the"
                    " server has lost it in a crash. Its changes are dropped, as the server has dropped them.",
                    *(xid, start),
                )
