"""The chunk ledger: splits and chunks, and the statements of the chunk protocol on them.

What must stay true (docs/correctness.md, chunk protocol): bounds are in the ledger before the copy starts and never
change; a bump of an attempt is conditional on "not landed"; landing locks the row `FOR UPDATE` with workflow, chunk,
attempt and state as its condition; a chunk is opened only by the newest attempt at its split, and only while the gate
is open.

Rows are kept by a table's id (`workflow` in all calls); where a workflow has one table that is its own id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from vreplication.errors import Superseded
from vreplication.mysql.session import DUPLICATE, Session, SqlError
from vreplication.settings import GATE_STALE_SECONDS, SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.lease import Lease, fence
from vreplication.state.sidecar import fetch, fetch_one, now

OPEN, LANDED, MATCHED = "open", "landed", "matched"
LATELY_SECONDS = 10
REPAIR_SPLIT = 1_000_000
"""Splits from this number on are repairs: ranges that are copied again."""

LATELY = f"landed_at > NOW(6) - INTERVAL {LATELY_SECONDS} SECOND"
Bound = tuple[str, ...]
"""One SQL literal a key column."""
_s, _c = sidecar.split, sidecar.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """(lower, upper] in key order; `has_lower`: [lower, upper].

    beside: single keys that are copied with it. The ledger does not keep them: whoever asked for them does.
    """

    lower: Bound
    upper: Bound
    has_lower: bool
    beside: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    number: int
    range: KeyRange
    estimated_rows: int
    attempt: int = 0
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    split: int
    ordinal: int
    attempt: int
    state: str
    range: KeyRange
    rows_copied: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """What a chunk's copying statement did."""

    rows_read: int
    rows_copied: int
    swallowed: int
    millis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lately:
    """The mean chunk of the last LATELY_SECONDS; None: there was none."""

    chunk_rows: int
    chunk_millis: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """first_left: splits of the first pass that are not done. first_unmatched: chunks of it that are not matched."""

    chunks_open: int
    chunks_landed: int
    chunks_matched: int
    rows_copied: int
    splits: int
    splits_done: int
    first_left: int
    first_unmatched: int
    lately: Lately | None

    @property
    def has_chunks(self) -> bool:
        """True once the first chunk was opened."""
        return self.chunks_open + self.chunks_landed + self.chunks_matched > 0

    @property
    def is_walked(self) -> bool:
        """Each split of the first pass was walked to its end; ranges that are copied again do not change that."""
        return self.splits > 0 and self.first_left == 0

    @property
    def is_first_matched(self) -> bool:
        """The same, and every chunk of it is matched: from here on it stays so."""
        return self.is_walked and self.first_unmatched == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a copy is not through with. chunks: open, or landed and not matched."""

    splits: int
    splits_done: int
    chunks: int

    @property
    def is_nothing(self) -> bool:
        """Every split has been walked to its end, and every chunk's deletes have been done again."""
        return self.splits == self.splits_done and not self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """Of the first pass. rows: read in splits that are done; share: of the table's rows, as estimated, in those."""

    rows: int = 0
    share: float = 0.0


def _bounds(r: KeyRange) -> dict[str, Any]:
    return {
        "lower_bound": json.dumps(r.lower),
        "upper_bound": json.dumps(r.upper),
        "has_lower": int(r.has_lower),
    }


def _range(row: dict[str, Any]) -> KeyRange:
    return KeyRange(
        lower=tuple(json.loads(row["lower_bound"])),
        upper=tuple(json.loads(row["upper_bound"])),
        has_lower=bool(row["has_lower"]),
    )


def add_splits(session: Session, workflow: str, splits: list[Split]) -> None:
    for s in splits:
        fields = {"estimated_rows": s.estimated_rows, "attempt": s.attempt, "is_done": int(s.is_done)}
        rows.add(session, _s, workflow=workflow, split=s.number, **_bounds(s.range), **fields)


def splits(session: Session, workflow: str) -> list[Split]:
    found = fetch(session, select(_s).where(_s.c.workflow == workflow).order_by(_s.c.split))
    return [_split(row) for row in found]


def find_split(session: Session, workflow: str, number: int) -> Split:
    """One split. Raises Superseded when it is gone."""
    row = rows.find(session, _s, workflow=workflow, split=number)
    if row is None:
        raise Superseded(f"Split {number} of workflow {workflow} is gone.")
    return _split(row)


def _split(row: dict[str, Any]) -> Split:
    return Split(
        number=row["split"],
        range=_range(row),
        estimated_rows=int(row["estimated_rows"]),
        attempt=int(row["attempt"]),
        is_done=bool(row["is_done"]),
    )


def claim_split(
    session: Session, workflow: str, number: int, *, expected: int | None = None, our_lease: Lease | None = None
) -> int:
    """Become the newest attempt at a split; returns the attempt. Earlier ones can open and land nothing more.

    `expected`: the attempt that we were before our connection was lost. Raises Superseded when another one is newer, or
    when `our_lease`, the lease of the driver that we copy for, is not its any more.
    """
    with session.transaction():
        # Else a task that wakes up behind a takeover would be the newest attempt, and end that of the living driver.
        if our_lease:
            fence(session, our_lease)
        where = (_s.c.workflow == workflow, _s.c.split == number)
        row = fetch_one(session, select(_s.c.attempt).where(*where).with_for_update())
        if row is None:
            raise Superseded(f"Split {number} of workflow {workflow} is gone.")
        if expected is not None and int(row["attempt"]) != expected:
            raise Superseded(f"A newer attempt at split {number} has taken over.")
        # claim_bumps: a number is never used twice. With the same one a repeated Spark task would pass the fence of the
        # first.
        attempt = int(row["attempt"]) + 1
        rows.change(session, _s, {"workflow": workflow, "split": number}, attempt=attempt)
        # Conditional on "not landed": a chunk that has landed stays what it is.
        mine = {"workflow": workflow, "split": number, "state": OPEN}
        rows.change(session, _c, mine, attempt=attempt, opened_at=now())
    return attempt


def finish_split(session: Session, workflow: str, number: int, attempt: int) -> None:
    # By its attempt: a task that was superseded may come to its end late, and must not end the split for the next one.
    rows.change(session, _s, {"workflow": workflow, "split": number, "attempt": attempt}, is_done=1)


def chunks(session: Session, workflow: str, *, split: int | None = None, states: tuple[str, ...] = ()) -> list[Chunk]:
    query = select(_c).where(_c.c.workflow == workflow)
    if split is not None:
        query = query.where(_c.c.split == split)
    if states:
        query = query.where(_c.c.state.in_(states))
    return [_chunk(r) for r in fetch(session, query.order_by(_c.c.split, _c.c.ordinal))]


def find_chunk(session: Session, workflow: str, split: int, ordinal: int) -> Chunk | None:
    row = rows.find(session, _c, workflow=workflow, split=split, ordinal=ordinal)
    return _chunk(row) if row else None


def neighbors(session: Session, workflow: str, split: int, first: int, last: int) -> list[Chunk]:
    """Chunks of a split by their ordinals, both ends included."""
    query = select(_c).where(_c.c.workflow == workflow, _c.c.split == split, _c.c.ordinal.between(first, last))
    return [_chunk(row) for row in fetch(session, query.order_by(_c.c.ordinal))]


def last_chunk(session: Session, workflow: str, split: int) -> Chunk | None:
    query = select(_c).where(_c.c.workflow == workflow, _c.c.split == split).order_by(_c.c.ordinal.desc()).limit(1)
    row = fetch_one(session, query)
    return _chunk(row) if row else None


def _chunk(row: dict[str, Any]) -> Chunk:
    return Chunk(
        split=row["split"],
        ordinal=row["ordinal"],
        attempt=int(row["attempt"]),
        state=row["state"],
        range=_range(row),
        rows_copied=int(row["rows_copied"]),
    )


def open_chunk(session: Session, workflow: str, chunk: Chunk, *, stream: str = "") -> bool:
    """Open a chunk, in the caller's transaction: when that has committed, the low watermark is set, on one server.

    stream: whose gate is asked; of a workflow of one table it is the table's own id.
    False: the gate is closed, or a newer attempt has claimed the split. Raises Superseded when it has opened the chunk.
    """
    b = _bounds(chunk.range)
    # Locked while it reads: a claim, a pause, or a gate that closes is seen, or has to wait until this has committed:
    # else a chunk could be opened for an attempt that has been replaced already.
    sql = (
        f"INSERT INTO {SIDECAR}.chunk "
        "(workflow, split, ordinal, attempt, state, lower_bound, upper_bound, has_lower, opened_at) "
        "SELECT s.workflow, s.split, %s, s.attempt, 'open', %s, %s, %s, NOW(6) "
        f"FROM {SIDECAR}.split s JOIN {SIDECAR}.gate g ON g.workflow = %s "
        f"JOIN {SIDECAR}.workflow w ON w.id = g.workflow "
        "WHERE s.workflow=%s AND s.split=%s AND s.attempt=%s AND g.is_open AND NOT w.paused "
        # Locking reads: a claim or a pause that is being committed is waited for. A plain read would open a chunk under
        # the attempt of before the claim, which the claim's bump has not met.
        f"AND g.written_at > NOW(6) - INTERVAL {int(GATE_STALE_SECONDS * 1000)} * 1000 MICROSECOND LOCK IN SHARE MODE"
    )
    bounds = (chunk.ordinal, b["lower_bound"], b["upper_bound"], b["has_lower"])
    place = (stream or workflow, workflow, chunk.split, chunk.attempt)
    try:
        return session.execute(sql, (*bounds, *place)) == 1
    except SqlError as error:
        if error.code == DUPLICATE:
            raise Superseded(f"Chunk {chunk.split}/{chunk.ordinal} was opened by a newer attempt.") from None
        raise


def fence_chunk(session: Session, workflow: str, chunk: Chunk) -> None:
    """First statement of the landing transaction. Raises Superseded."""
    # R8, each part needed: the attempt (a stalled one brings rows of before a delete), the state (a repeated task has
    # the same number), and the lock (a plain read passes before "opened" of the next attempt is committed).
    where = "workflow=%s AND split=%s AND ordinal=%s AND attempt=%s AND state='open'"
    sql = f"SELECT 1 FROM {SIDECAR}.chunk WHERE {where} FOR UPDATE"
    if session.row(sql, (workflow, chunk.split, chunk.ordinal, chunk.attempt)) is None:
        raise Superseded(f"A newer attempt at chunk {chunk.split}/{chunk.ordinal} has taken over.")


def land(session: Session, workflow: str, chunk: Chunk, landing: Landing) -> None:
    """Of the landing transaction, behind the rows."""
    sql = (
        f"UPDATE {SIDECAR}.chunk SET state='landed', rows_read=%s, rows_copied=%s, swallowed=%s, "
        "millis=%s, landed_at=NOW(6) WHERE workflow=%s AND split=%s AND ordinal=%s"
    )
    # Without the attempt: `fence_chunk` has locked the row by it in this transaction.
    counts = (landing.rows_read, landing.rows_copied, landing.swallowed, landing.millis)
    session.execute(sql, (*counts, workflow, chunk.split, chunk.ordinal))


def match(session: Session, workflow: str, split: int, ordinal: int) -> None:
    """By the applier, when the tombstoned keys have been deleted again."""
    sql = (
        f"UPDATE {SIDECAR}.chunk SET state='matched', matched_at=NOW(6) "
        "WHERE workflow=%s AND split=%s AND ordinal=%s AND state='landed'"
    )
    # R14: a restart may read landings again whose chunks are matched. Those keep their time, by which the gate tells
    # which snapshots are older than the copy (last_matched).
    session.execute(sql, (workflow, split, ordinal))


def last_landed(session: Session, workflow: str, count: int) -> list[tuple[int, int]]:
    """Rows and milliseconds of the chunks that landed last, newest first."""
    sql = (
        f"SELECT rows_read, millis FROM {SIDECAR}.chunk WHERE workflow=%s AND landed_at IS NOT NULL "
        "ORDER BY landed_at DESC LIMIT %s"
    )
    return [(int(rows), int(millis)) for rows, millis in session.rows(sql, (workflow, count))]


def last_matched(session: Session, workflow: str) -> datetime | None:
    """When the last chunk was matched (UTC); None when none was."""
    # Of each split the last chunk alone, for it was matched last: asked at the gate four times a second, and a large
    # table has as many chunks as would take the server a tenth of a second to read. Ordered by the whole key, or MySQL
    # 9.7 reads and sorts a split's chunks.
    last = (
        f"SELECT (SELECT c.matched_at FROM {SIDECAR}.chunk c FORCE INDEX (PRIMARY) WHERE c.workflow=s.workflow "
        "AND c.split=s.split ORDER BY c.workflow DESC, c.split DESC, c.ordinal DESC LIMIT 1) AS matched_at "
        f"FROM {SIDECAR}.split s WHERE s.workflow=%s"
    )
    found = session.value(f"SELECT MAX(matched_at) FROM ({last}) found", (workflow,))
    return found if isinstance(found, datetime) else None


def next_repair_split(session: Session, workflow: str) -> int:
    query = select(func.max(_s.c.split).label("top")).where(_s.c.workflow == workflow)
    row = fetch_one(session, query)
    top = int(row["top"]) if row and row["top"] is not None else 0
    return max(REPAIR_SPLIT, top + 1)


def left(session: Session, workflow: str) -> Left:
    """Cheap, however many chunks there are. By one statement: a task may end a split between two."""
    sql = (
        "SELECT COUNT(*), COALESCE(SUM(is_done),0), "
        f"(SELECT COUNT(*) FROM {SIDECAR}.chunk WHERE workflow=%s AND state IN ('{OPEN}','{LANDED}')) "
        f"FROM {SIDECAR}.split WHERE workflow=%s"
    )
    found = session.row(sql, (workflow, workflow))
    assert found is not None
    splits, done, chunks = map(int, found)
    return Left(splits=splits, splits_done=done, chunks=chunks)


def totals(session: Session, workflow: str) -> Totals:
    """Reads every chunk: not for who asks again and again (`left`, `counting.Counting`)."""
    sql = (
        "SELECT COALESCE(SUM(state='open'),0), COALESCE(SUM(state='landed'),0), COALESCE(SUM(state='matched'),0), "
        # Read, not inserted: a row that catch-up had brought before is there as well. Without repairs, whose rows are
        # counted already.
        f"COALESCE(SUM(IF(split < {REPAIR_SPLIT}, rows_read, 0)),0), "
        f"COALESCE(SUM(split < {REPAIR_SPLIT} AND state <> 'matched'),0), "
        f"AVG(IF({LATELY}, rows_read, NULL)), AVG(IF({LATELY}, millis, NULL)) "
        f"FROM {SIDECAR}.chunk WHERE workflow=%s"
    )
    chunk_row = session.row(sql, (workflow,))
    split_row = session.row(
        "SELECT COUNT(*), COALESCE(SUM(is_done),0), "
        f"COALESCE(SUM(split < {REPAIR_SPLIT} AND NOT is_done),0) FROM {SIDECAR}.split WHERE workflow=%s",
        (workflow,),
    )
    assert chunk_row is not None
    assert split_row is not None
    *counts, mean_rows, mean_millis = chunk_row
    opened, landed, matched, rows, first_unmatched = map(int, counts)
    lately = None if mean_rows is None else Lately(chunk_rows=round(mean_rows), chunk_millis=float(mean_millis))
    return Totals(
        chunks_open=opened,
        chunks_landed=landed,
        chunks_matched=matched,
        rows_copied=rows,
        splits=int(split_row[0]),
        splits_done=int(split_row[1]),
        first_left=int(split_row[2]),
        first_unmatched=first_unmatched,
        lately=lately,
    )


def walked(session: Session, workflow: str) -> Walked:
    """How many rows the splits that are done held, beside what was thought."""
    first = f"s.workflow=%s AND s.split < {REPAIR_SPLIT}"
    shares = session.row(
        "SELECT COALESCE(SUM(s.is_done * s.estimated_rows), 0), COALESCE(SUM(s.estimated_rows), 0) "
        f"FROM {SIDECAR}.split s WHERE {first}",
        (workflow,),
    )
    rows = session.value(
        f"SELECT COALESCE(SUM(c.rows_read), 0) FROM {SIDECAR}.split s JOIN {SIDECAR}.chunk c "
        f"ON c.workflow = s.workflow AND c.split = s.split WHERE {first} AND s.is_done",
        (workflow,),
    )
    done, every = shares or (0, 0)
    return Walked(rows=int(rows), share=float(done / every) if every else 0.0)
