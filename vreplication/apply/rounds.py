"""Batches of several tables, divided among the connections that write rows, in rounds.

What must stay true: what stands in one round may be written side by side and in any order; a round begins when every
transaction of the one before has committed; each transaction of rows begins with the fence, which keeps out a catch-up
that has been superseded and does not know it yet.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from vreplication.apply import writer
from vreplication.apply.batch import Batch, Share
from vreplication.apply.table import TableWork
from vreplication.apply.writer import Marks
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.state.checkpoint import Checkpoint
from vreplication.state.lease import Lease, fence

_WORTH_SHARING = 400
"""Changes below this number are written by one connection, together with the checkpoint."""

Batches = list[tuple[TableWork, Batch]]
"""Tables that have changes, with these."""
Written = list[tuple[TableWork, Share, Marks]]
"""What one connection writes in a transaction, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """Of a stream whose state is not on its source.

    writers: sessions for rows where these are not written at home; then their transactions begin with `fence`, which is
    told the checkpoint that they come to. written: the one that stands beside the rows; None: it tells nothing.
    """

    writers: tuple[Session, ...] = ()
    fence: Callable[[Session, str], None] | None = None
    written: Checkpoint | None = None


class RowWriters:
    """The connections that write rows: those at home, which write the state as well, or those of `across`."""

    def __init__(self, sessions: list[Session], lease: Lease, across: Across | None) -> None:
        self._lease = lease
        self._fence = across.fence if across else None
        self.is_apart = across is not None and bool(across.writers)
        """Rows are on another server than the state."""
        self.sessions = list(across.writers) if across and self.is_apart else sessions
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(self.sessions)), thread_name_prefix="apply")

    def divide(self, batches: Batches, number: int, *, is_one: bool) -> list[list[Written]]:
        """One round after the other, each of what connections may write side by side; number: of the batch.

        All tables' first round comes before the second of any. is_one: by one connection only.
        """
        count = sum(batch.count for _, batch in batches)
        may_share = not is_one and all(table.may_share for table, _ in batches)
        wanted = len(self.sessions) if count >= _WORTH_SHARING and may_share else 1
        found: list[list[Written]] = []
        for table, batch in batches:
            marks = table.marks(batch, number)
            if self.is_apart:
                # Key tables are at home, where these connections are not: the applier sees to suspects there.
                marks = replace(marks, has_suspects=False)
            for order, shares in enumerate(batch.rounds(wanted)):
                _add(found, order, shares, table, marks)
        return found

    def write(self, number: int, session: Session, written: Written) -> None:
        """Inside a transaction, by the connection of this number."""
        for table, share, marks in written:
            table.write_steps(number, session, share, marks)

    def write_all(self, rounds: list[list[Written]], place: str) -> None:
        """In transactions of their own. place: the checkpoint to which they come."""
        for number, shares in enumerate(rounds):
            if number:
                reach("apply.between_rounds")
            self._write_round(shares, place)

    def _write_round(self, shares: list[Written], place: str) -> None:
        jobs = [self._pool.submit(self._write_share, n, written, place) for n, written in enumerate(shares)]
        # All are waited for, whatever becomes of the first: nobody may be writing when its session is closed.
        errors = [e for e in (job.exception() for job in jobs) if e is not None]
        if errors:
            raise errors[0]

    def _write_share(self, number: int, written: Written, place: str) -> None:
        session = self.sessions[number]
        writer.fenced(session, lambda: self.fence(session, place), lambda: self.write(number, session, written))

    def fence(self, session: Session, place: str) -> None:
        """First statement of a transaction that writes rows."""
        if self._fence is not None:
            self._fence(session, place)
        else:
            fence(session, self._lease)

    def check_there(self) -> None:
        """What was written on another server is there while its connections are. Raises ConnectionLost."""
        for session in self.sessions if self.is_apart else ():
            session.value("SELECT 1")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _add(found: list[list[Written]], order: int, shares: list[Share], table: TableWork, marks: Marks) -> None:
    """To the round of this number."""
    if order == len(found):
        found.append([])
    for place, share in enumerate(shares):
        if place == len(found[order]):
            found[order].append([])
        found[order][place].append((table, share, marks))
