"""Waiting for XA branches that are committed in the log and not yet visible to a SELECT.

What must stay true: MariaDB makes an XA COMMIT visible after it is in the log, outside the commit order, and the branch
stands in XA RECOVER until then. So behind "opened" every listed branch has either left the list, or a marker written
after "opened" has been applied while the branch's outcome was not in the log yet: that outcome then comes by the stream
(docs/correctness.md, F1b).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vreplication.mysql.server import prepared_branches
from vreplication.mysql.session import Session
from vreplication.state.markers import Markers

POLL_SECONDS = 0.02


def wait_for_branches(
    source: Session, markers: Markers, check: Callable[[], None], level: Callable[[], None] = lambda: None
) -> None:
    """Return when reading on `source`, a MariaDB, is safe. `check` is called between looks and may raise.

    level: where `source` is a replica, waits until it has applied what its own source has logged. A name may be used
    again there while the first branch of it is still listed here; behind that it is the second one.
    """
    waiting = _branches(source)
    if not waiting:
        return
    # Behind the list: a branch that was still open when this marker was applied has its outcome behind it in the log,
    # hence behind "opened", and comes by the stream.
    marker = markers.write()
    try:
        while waiting:
            check()
            time.sleep(POLL_SECONDS)
            applied = markers.find_applied(marker)
            if applied:
                level()
            waiting &= _branches(source)
            waiting -= set(applied.branches) if applied else set()
    finally:
        markers.remove(marker)


def _branches(session: Session) -> set[str]:
    return set(map(str, prepared_branches(session, is_mariadb=True)))
