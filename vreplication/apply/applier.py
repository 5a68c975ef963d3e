"""The applier: takes committed groups in log order and keeps the shadow table level with the source.

Beside row changes the stream brings our own sidecar rows, in exact order with them: a chunk was opened, a chunk has
landed, a marker was written, a gate beat. Each is acted on at its place in the stream (docs/correctness.md, chunk
protocol).

What must stay true: everything before a "landed" or a marker is flushed before it is acted on; the checkpoint is saved
in the transaction of the rows it describes or after all workers of the batch have committed, never earlier; tombstones
are kept from a chunk's first "opened" until it is matched, whatever attempts come; nothing is matched, and no marker
counts, before the same transaction has deleted the tombstoned keys again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from vreplication import names
from vreplication.apply import writer
from vreplication.apply.batch import Batch, Share
from vreplication.apply.since import SinceKeys
from vreplication.apply.unique import UniqueWriter
from vreplication.apply.writer import Marks, Target
from vreplication.binlog.events import Group, Position, RowChange
from vreplication.changes.matcher import Held
from vreplication.changes.stream import CHUNK, FIRST, GATE, MARKER
from vreplication.changes.watermark import Inside, Watermark
from vreplication.clock import SYSTEM
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.state import checkpoint, keytables, ledger, markers
from vreplication.state.checkpoint import Checkpoint

log = logging.getLogger(__name__)

MAX_BATCH_CHANGES = 4_000
MAX_BATCH_BYTES = 4 << 20
LINGER_SECONDS = 0.2
"""How long a small batch waits for more: each is a commit, and the application's commits wait for the same disk."""
IDLE_SAVE_SECONDS = 1.0
"""A checkpoint is a transaction that stands in the log itself; without a pause saving would never end."""
_WORTH_SHARING = 400
"""Changes below this number are written by one connection, together with the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker that has just been applied."""

    id: str
    kind: str


class Applier:
    """Feed it groups with `take`; call `flush_if_due` now and then, `flush` at the end. Not thread-safe.

    held: the branches that the matcher holds, asked for at each marker and checkpoint.
    """

    def __init__(
        self,
        sessions: list[Session],
        target: Target,
        watermark: Watermark,
        *,
        held: Callable[[], tuple[Held, ...]],
        on_first_open: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._main = sessions[0]
        self._target = target
        self._workflow = target.lease.workflow
        self._watermark = watermark
        self._held, self._on_first_open = held, on_first_open
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(sessions)), thread_name_prefix="apply")
        self._writers = [UniqueWriter(target=target, number=i) for i in range(len(sessions))]
        self._has_suspects = False
        self._since = SinceKeys(session=self._main, workflow=self._workflow)
        self._is_past_checkpoint = False
        """Until a group comes, the log may be read again on the way there."""
        self._time: int | None = None
        """Assigned time of the transaction that is being taken in parts."""
        self._beat: int | None = None
        self._beat_number = 0
        """Of the last beat that has been taken."""
        self._taken: int | None = None
        self._done = 0
        self._saved_at = 0.0
        self._batch = self._new_batch()
        self._landed: list[tuple[int, int]] = []
        """Chunks whose landing has been taken in and that are matched with the next flush."""
        self._waiting_since: float | None = None
        self._load()

    def _load(self) -> None:
        """Where the last holder of the lease stopped. Chunks not yet matched count as open: more tombstones.

        The checkpoint first, then the ledger: a chunk that opens in between stands in the log behind the checkpoint.
        """
        saved = checkpoint.load(self._main, self._workflow)
        self._number = saved.batch if saved else 0
        self._events = saved.events_applied if saved else 0
        self._position: Position | None = Position.parse(saved.position) if saved else None
        self._saved_position = self._position
        self.held_before = tuple(Held.of(fields) for fields in saved.held) if saved else ()
        """Branches that were open at the checkpoint."""
        self._watermark.go_on_from(saved.assigned_micros if saved else 0)
        unmatched = ledger.chunks(self._main, self._workflow, states=(ledger.OPEN, ledger.LANDED))
        self._open = {(c.split, c.ordinal): 0 for c in unmatched}
        self._has_tombstones = writer.prune_tombstones(self._main, self._target, 0)
        self._has_suspects = not keytables.is_empty(self._main, names.suspect_table(self._workflow))
        self._since.load()
        for session, unique in zip(self._sessions, self._writers, strict=True):
            writer.prepare(session, self._target)
            if self._may_collide:
                unique.create_probe(session)

    @property
    def position(self) -> Position | None:
        """End of the last group that was taken in."""
        return self._position

    @property
    def since(self) -> SinceKeys:
        """Keys written since a verification began."""
        return self._since

    @property
    def events_applied(self) -> int:
        return self._events

    def take(self, group: Group) -> list[Marker]:
        """Take one committed group; returns the markers in it that have been applied."""
        found: list[Marker] = []
        self._is_past_checkpoint = True
        if self._time is None:
            self._time = self._watermark.begin(group.time_micros)
        for item in group.items:
            if item[0] >= FIRST:
                self._wait_for_more()
                self._batch.add(item)
            else:
                found += self._act_on(item, group)
        self._done += len(group.items)
        if group.is_last:
            self._took(group)
        elif group.changes:
            self._watermark.inside(Inside(done=self._done, total=group.changes))
        if len(self._batch) >= MAX_BATCH_CHANGES or self._batch.nbytes >= MAX_BATCH_BYTES:
            self.flush()
        return found

    def _took(self, group: Group) -> None:
        """A whole transaction."""
        assert self._time is not None
        self._position = group.end
        self._taken = self._watermark.took(self._time, self._beat)
        if group.changes:
            self._watermark.inside(None)
        self._time = self._beat = None
        self._done = 0

    def _act_on(self, item: RowChange, group: Group) -> list[Marker]:
        row = item.after
        if row is None or row.get("workflow") != self._workflow:
            return []
        if item.table == CHUNK:
            self._on_chunk(row)
        elif item.table == GATE:
            self._beat = beat_micros(row)
            self._beat_number = int(str(row["beat"]))
        elif item.table == MARKER and item.before is None:
            return [self._on_marker(row, group)]
        return []

    def _on_chunk(self, row: dict[str, Any]) -> None:
        place = (int(row["split"]), int(row["ordinal"]))
        if row["state"] == ledger.OPEN:
            if place in self._landed:
                self.flush()
            if not self._open:
                self._on_first_open()
            self._open.setdefault(place, self._number)
        elif row["state"] == ledger.LANDED and place in self._open and place not in self._landed:
            # With nothing to be written it is matched at once, else with what waits.
            self._landed.append(place)

    def _wait_for_more(self) -> None:
        if self._waiting_since is None:
            self._waiting_since = SYSTEM.monotonic()

    def match_landed(self) -> None:
        """Chunks that the ledger calls landed but whose event never came (a server that lost the end of its log)."""
        landed = ledger.chunks(self._main, self._workflow, states=(ledger.LANDED,))
        self._landed = list(dict.fromkeys([*self._landed, *((c.split, c.ordinal) for c in landed)]))
        self.flush()

    def _commit(self, work: Callable[[], None] = lambda: None) -> None:
        """One transaction: `work`, then the landed chunks are matched, then the checkpoint is saved.

        Deleting the tombstoned keys again may wait until here: who was inserted since is no tombstone any more. But a
        checkpoint behind a landing without its match would leave the chunk open for ever.
        """
        matched, oldest = self._landed, self._oldest_but(self._landed)
        left = [self._has_tombstones]

        def all_of_it() -> None:
            work()
            if matched:
                left[0] = self._match(matched, oldest)
            self._save_checkpoint()

        if matched:
            reach("apply.before_match")
        writer.in_transaction(self._main, self._target.lease, all_of_it)
        self._has_tombstones, self._landed = left[0], []
        for place in matched:
            self._open.pop(place, None)

    def _oldest_but(self, places: list[tuple[int, int]]) -> int:
        """The first batch that ran while a chunk was open that is not one of these."""
        open_since = (number for place, number in self._open.items() if place not in places)
        return min(open_since, default=self._number + 1)

    def _match(self, places: list[tuple[int, int]], oldest: int) -> bool:
        """Delete the tombstoned keys again, then the chunks are matched. Returns whether tombstones are left."""
        is_left = self._has_tombstones
        if is_left:
            writer.delete_again(self._main, self._target)
            is_left = writer.prune_tombstones(self._main, self._target, oldest)
        for split, ordinal in places:
            ledger.match(self._main, self._workflow, split, ordinal)
        return is_left

    def _on_marker(self, row: dict[str, Any], group: Group) -> Marker:
        self.flush()
        marker = Marker(id=str(row["id"]), kind=str(row["kind"]))
        # A marker of the cut-over makes us hold, unless it was taken back meanwhile (we read an old log again).
        is_cutover = marker.kind == markers.CUTOVER
        is_holding = is_cutover and markers.is_present(self._main, self._workflow, marker.id)
        ends_round = marker.kind == markers.SINCE or (is_cutover and self._since.is_active)
        position = self._position = group.end
        rounds = [self._since.round]

        def work() -> None:
            held = tuple(str(b.xid) for b in self._held() if b.rows or not is_cutover)
            markers.record_applied(self._main, self._workflow, marker.id, held, is_holding=is_holding)
            if ends_round:
                rounds[0] = self._since.end_round(position)
            self._save_checkpoint()

        writer.in_transaction(self._main, self._target.lease, work)
        if ends_round:
            self._since.saved(rounds[0])
        if marker.kind in (markers.SUSPECTS_OPEN, markers.SUSPECTS_CLOSE):
            self._has_suspects = marker.kind == markers.SUSPECTS_OPEN
        return marker

    def flush_if_due(self) -> None:
        """As `flush`, unless the batch may still wait for more."""
        if self._waiting_since is None or SYSTEM.monotonic() - self._waiting_since >= LINGER_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the batch and the checkpoint: then everything taken in is applied, and what has landed is matched."""
        batch, self._waiting_since = self._batch, None
        if batch:
            reach("apply.before_flush")
            self._write(batch)
            self._since.note(batch.keys())
            self._batch = self._new_batch()
            self._watermark.applied_changes(batch.count)
        elif self._landed or self._is_checkpoint_due:
            self._commit()
        if self._since.is_due:
            self.save_since()
        if self._taken is not None:
            self._watermark.resolve(self._taken)
            self._watermark.beat_applied(self._beat_number)
            self._taken = None

    @property
    def _is_checkpoint_due(self) -> bool:
        return self._position != self._saved_position and SYSTEM.monotonic() - self._saved_at >= IDLE_SAVE_SECONDS

    def save_since(self) -> None:
        """Put the keys written since a verification began into the sidecar, as far as they are flushed.

        On the way to the checkpoint they are not known up to there yet: who reads again begins at the same place.
        """
        position = self._saved_position
        if not self._since.is_active or position is None or not self._is_past_checkpoint:
            return

        def work() -> None:
            self._since.save(position)

        writer.in_transaction(self._main, self._target.lease, work)
        self._since.saved(self._since.round)

    def _write(self, batch: Batch) -> None:
        # Under a new unique key a write may push another row out, which is a delete, too.
        makes_tombstones = bool(self._open) and (batch.has_deletes or self._may_collide)
        marks = Marks(
            number=self._number,
            batch=self._number if self._open else None,
            has_tombstones=self._has_tombstones or makes_tombstones,
            has_suspects=self._has_suspects,
        )
        self._events += batch.count
        self._number += 1
        self._has_tombstones = self._has_tombstones or makes_tombstones
        wanted = len(self._sessions) if batch.count >= _WORTH_SHARING and self._may_share else 1
        rounds = batch.rounds(wanted)
        if len(rounds) == len(rounds[0]) == 1:
            self._write_alone(rounds[0][0], marks)
        else:
            self._write_shared(rounds, marks)

    def _write_alone(self, steps: Share, marks: Marks) -> None:
        self._commit(lambda: self._write_steps(0, steps, marks))

    def _write_steps(self, number: int, steps: Share, marks: Marks) -> None:
        """By one of the connections, inside its transaction."""
        session = self._sessions[number]
        if self._may_collide:
            self._writers[number].write_steps(session, steps, marks)
        else:
            writer.write_steps(session, self._target, steps, marks)

    def _write_shared(self, rounds: list[list[Share]], marks: Marks) -> None:
        """All workers commit, then the checkpoint: a crash in between repeats this batch, which is harmless."""
        for number, shares in enumerate(rounds):
            if number:
                reach("apply.between_rounds")
            self._write_round(shares, marks)
        reach("apply.before_checkpoint")
        self._commit()

    def _write_round(self, shares: list[Share], marks: Marks) -> None:
        jobs = [self._pool.submit(self._write_share, number, steps, marks) for number, steps in enumerate(shares)]
        errors = [e for e in (job.exception() for job in jobs) if e is not None]
        if errors:
            raise errors[0]

    def _write_share(self, number: int, steps: Share, marks: Marks) -> None:
        def work() -> None:
            self._write_steps(number, steps, marks)

        writer.in_transaction(self._sessions[number], self._target.lease, work)

    def _save_checkpoint(self) -> None:
        if self._position is None:
            return
        saved = Checkpoint(
            position=self._position.saved,
            batch=self._number,
            events_applied=self._events,
            assigned_micros=self._watermark.assigned,
            held=tuple(branch.fields() for branch in self._held()),
        )
        checkpoint.save(self._main, self._workflow, saved)
        self._saved_position = self._position
        self._saved_at = SYSTEM.monotonic()

    def _new_batch(self) -> Batch:
        return Batch(is_exact_key=self._target.mapping.is_exact_key, takes_out=self._may_collide)

    @property
    def _may_share(self) -> bool:
        """Connections that lock the whole table in turns would only wait for each other."""
        return not self._may_collide or self._target.mapping.is_found_by_index

    @property
    def _may_collide(self) -> bool:
        return self._target.mapping.may_collide

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def beat_micros(row: dict[str, Any]) -> int:
    """When a gate row was written ('2026-01-02 03:04:05.123456', UTC): microseconds since the epoch."""
    moment = datetime.fromisoformat(str(row["written_at"])).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond
