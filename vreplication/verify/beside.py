"""Chunks compared beside the copy, soon after they were matched, while their pages are warm. Runs on Spark's workers.

A chunk whose rows are equal but for a few, whose keys are kept to be compared again, need not be read at the end: what
catch-up writes from then on is collected, and compared until the cut-over like all that is written since a verification
began (since.py). So that these keys do not pile up during a long copy, they are compared in rounds meanwhile.

What must stay true: keys are collected before the first chunk is compared; a chunk counts only under the collection
that was under way when its rows were read, and while the driver that asks for it holds its lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vreplication import names
from vreplication.errors import Transient
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import ConnectionLost, LockWait, Session
from vreplication.schema.model import TableMapping
from vreplication.state import compared, markers, since
from vreplication.state.lease import Lease, fence
from vreplication.state.ledger import Chunk
from vreplication.verify.ranges import Span, quiet_rows, span_rows
from vreplication.verify.rounds import Examiner, markers_of
from vreplication.verify.scan import Finding, SpanScan
from vreplication.verify.since import SinceRounds

LEAST_ROWS, LEAST_BYTES = 1_000_000, 256 << 20
"""What is smaller in both is compared at the end in a second or two: later is safer, whatever goes wrong in between."""
MANY_KEYS = 20_000
_MOST_KEYS = 1_000
"""So few rows of what is compared at once may differ to be compared again by their keys."""
_ROWS_AT_ONCE = 20_000
"""Twice what is copied between two calls (rowcopy.chunker), to keep up with chunks of every size; a span at most."""


def begin(examiner: Examiner) -> int:
    """Have catch-up collect what it writes; returns the number of the collection, 0 where it is not known any more."""
    # Before the first chunk is compared: what is written to it later has to be among the keys that are compared again.
    examiner.pass_marker(markers.SINCE)
    found = since.load(examiner.ends.home, examiner.table)
    return 0 if found is None or found.is_void else found.first_round


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """To be called by a copying task between two chunks, with its sessions.

    On one server: what was compared counts as long as home's runs (state/compared.py), whatever became of another.
    """

    mapping: TableMapping
    workflow: str
    lease: Lease
    collection: int
    is_mariadb: bool

    def __call__(self, ends: Ends, split: int) -> None:
        """Compare chunks, of this split first, or the keys when they are many. A lock is no reason to wait."""
        with contextlib.suppress(LockWait):
            found = since.load(ends.home, self.workflow)
            if found is None or found.is_void or found.first_round != self.collection:
                return
            if found.keys_waiting > MANY_KEYS:
                self._compare_keys(ends)
                return
            most_rows = min(_ROWS_AT_ONCE, span_rows(self.mapping))
            if chunks := compared.choose(ends.home, self.workflow, split, most_rows):
                self._compare(ends, chunks)

    def _compare(self, ends: Ends, chunks: Sequence[Chunk]) -> None:
        """Neighbors, as one."""
        rows = max(sum(chunk.rows_copied for chunk in chunks), 1)
        quiet = quiet_rows(ends.home, self.workflow, self.mapping)
        # Beside writers a span of so many rows nearly always differs, for what catch-up has not applied yet: it is
        # compared in pieces at once, most of which are equal.
        pieces = -(-rows // quiet)
        scan = SpanScan(mapping=self.mapping, span_rows=rows, is_busy=pieces > 1, piece_rows=-(-rows // max(pieces, 2)))
        finding = scan(ends, Span(lower=chunks[0].range.lower, upper=chunks[-1].range.upper))
        # Under the lease of who asked for it: a task that was stopped and wakes up behind a takeover would call a chunk
        # compared that the new driver's collection knows nothing of.
        with ends.home.transaction():
            fence(ends.home, self.lease)
            self._note(ends.home, chunks, finding)

    def _note(self, session: Session, chunks: Sequence[Chunk], finding: Finding) -> None:
        # Once more, under the lease: the collection may have become void, or have been begun anew, while rows were
        # read.
        found = since.load(session, self.workflow)
        is_known = found is not None and not found.is_void and found.first_round == self.collection
        # Left to the end, and noted all the same, so that no task looks at it again.
        if found is None or not is_known or finding.wide or len(finding.keys) > _MOST_KEYS:
            compared.note(session, self.workflow, chunks, 0, 0)
            return
        # Of a round to come: one that is being compared may have seen these keys equal before, and would forget them.
        since.add(session, self.workflow, finding.keys, found.round + 1)
        compared.note(session, self.workflow, chunks, self.collection, finding.rows)

    def _compare_keys(self, ends: Ends) -> None:
        """One task at a time. What is found wrong stays on the list, and is copied again at the gate."""
        examiner = Examiner(
            ends=ends,
            mapping=self.mapping,
            table=self.workflow,
            markers=markers_of(ends, self.workflow),
            is_mariadb=self.is_mariadb,
            check=lambda: fence(ends.home, self.lease),
        )
        with _alone(ends.home, self.workflow) as is_alone:
            if is_alone:
                # A marker that takes too long is the end's concern, a lost connection the caller's.
                try:
                    SinceRounds(examiner=examiner).compare()
                except ConnectionLost:
                    raise
                except Transient:
                    return


@contextlib.contextmanager
def _alone(session: Session, workflow: str) -> Iterator[bool]:
    name = f"vreplication.{names.since_table(workflow)}"
    is_alone = bool(session.value("SELECT GET_LOCK(%s, 0)", (name,)))
    try:
        yield is_alone
    finally:
        if is_alone:
            session.value("SELECT RELEASE_LOCK(%s)", (name,))
