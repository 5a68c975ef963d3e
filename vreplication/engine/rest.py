"""What the log has behind the place at which catch-up stands still, written by the session that holds the locks.

For a cut-over in which the new table is locked as well (cutover/alone.py): catch-up cannot write to it then.

What must stay true: reading begins at the checkpoint, before which all is written, and ends at a marker that is written
under the lock, behind which nobody writes to the old table. What is written may have been written by catch-up since, or
be written by it once more: rows are replaced and keys deleted, so neither does harm. Nothing of it is noted anywhere;
an attempt that fails leaves it to catch-up, from its checkpoint on.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

from vreplication.apply.table import TableWork
from vreplication.apply.writer import Marks, Target
from vreplication.binlog.events import Group, Position
from vreplication.binlog.position import draw_server_id
from vreplication.binlog.tailer import Tailer
from vreplication.changes import stream
from vreplication.changes.matcher import Matcher
from vreplication.engine.catch_up import ours
from vreplication.engine.job import Job
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.state import checkpoint, markers
from vreplication.state.lease import Lease

# Beside three writers of whole families it was 62 at the most (docs/design/foreign-keys.md).
MOST_CHANGES = 10_000
MOST_BYTES = 16 << 20
"""With more the attempt is given up: writers would wait too long."""
_UNNOTED = Marks(number=0, batch=None, has_tombstones=False, has_suspects=False)
"""All chunks are matched by then, and no verification is under way."""


class Rest:
    """Of one attempt. home: a session of the driver's; holder: that is going to write, and holds no lock yet."""

    def __init__(self, url: SourceUrl, job: Job, our_lease: Lease, home: Session, holder: Session) -> None:
        self._home, self._lease, self._holder = home, our_lease, holder
        self._table = TableWork(Target(mapping=job.mapping, lease=our_lease, packet=job.packet), home, [holder])
        self._batch = self._table.new_batch()
        # Not strict: branches from before the checkpoint that have no rows of ours are unknown to it, and may commit
        # here. Of those that have rows `_level` has said no.
        self._matcher = Matcher()
        self._marker = secrets.token_hex(8)
        self._nbytes = 0
        self._error: BaseException | None = None
        # stage.moves reads the new table once more under this name.
        self.aliases = ("was",) if job.mapping.spared else ()
        self._tailer = Tailer(
            url,
            _level(home, our_lease.workflow),
            [stream.of_mapping(job.mapping), *ours(Ends.on(home))],
            server_id=draw_server_id(home),
            is_mariadb=job.server.is_mariadb,
            guarded=[(job.row.source_schema, job.row.shadow_table)],
        )
        self._thread = threading.Thread(target=self._read, name="cutover-rest", daemon=True)
        self._thread.start()

    @property
    def keys(self) -> list[str]:
        """Of all rows that were written, as comma lists of literals."""
        return list(self._batch.keys())

    def _read(self) -> None:
        try:
            for item in self._tailer:
                if isinstance(item, Group) and self._take(item):
                    return
        # Whatever it is: `read` takes a thread that ended without an error for one that has come to the marker.
        except BaseException as error:
            self._error = error

    def _take(self, read: Group) -> bool:
        """True at the marker."""
        self._nbytes += read.nbytes
        if self._nbytes > MOST_BYTES or self._batch.count > MOST_CHANGES:
            raise Transient("More was written behind the last change that catch-up has applied than fits under a lock.")
        # A list, not a generator: all groups have to be fed and taken, whichever of them has the marker.
        return any([self._has_marker(group) for group in self._matcher.feed(read)])

    def _has_marker(self, group: Group) -> bool:
        found = False
        for item in group.items:
            if item.table >= stream.FIRST:
                self._batch.add(item)
            elif item.table == stream.MARKER and item.after:
                found = found or item.after["id"] == self._marker
        return found

    def read(self, seconds: float) -> None:
        """Up to a marker that is written now."""
        markers.write(self._home, self._lease.workflow, our_lease=self._lease, marker=self._marker)
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise Transient("The log could not be read to its end in time.")

    def write(self, holder: Session) -> None:
        for shares in self._batch.rounds(1):
            for share in shares:
                self._table.write_steps(0, holder, share, _UNNOTED)

    def close(self) -> None:
        self._tailer.close()
        self._thread.join(5)
        with contextlib.suppress(VReplicationError):
            markers.remove(self._home, self._lease.workflow, self._marker)


@contextlib.contextmanager
def reading(url: SourceUrl, job: Job, our_lease: Lease, home: Session, holder: Session) -> Iterator[Rest]:
    rest = Rest(url, job, our_lease, home, holder)
    try:
        yield rest
    finally:
        rest.close()


def _level(home: Session, workflow: str) -> Position:
    """The place up to which all is written. Raises Transient where rows from before it are still to come."""
    saved = checkpoint.load(home, workflow)
    if saved is None or any(branch["rows"] for branch in saved.held):
        raise Transient("An XA branch that has changed the table has no outcome yet.")
    return Position.parse(saved.position)
