"""The applier: takes committed groups in log order and keeps a stream's tables on the target level with the source.

Beside row changes the stream brings our own rows, in exact order with them: a chunk was opened, a chunk has landed, a
marker was written, a gate beat. Each is acted on at its place in the stream (docs/correctness.md, chunk protocol).
Where the state is not on the source, landings are not in its log: they are looked up in the ledger.

What must stay true: everything before a "landed" or a marker is flushed before it is acted on; the checkpoint is saved
in the transaction of the rows it describes or after all workers of the batch have committed, never earlier, and on
another server only while their connection is there, for one that starts again may have lost them; nothing is
matched, and no marker counts, before the same transaction has deleted the tombstoned keys again; a landing is looked up
before the transaction that matches it, never in it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vreplication.apply import writer
from vreplication.apply.in_parts import InParts
from vreplication.apply.rounds import Across, Batches, RowWriters, Written
from vreplication.apply.since import first_collected
from vreplication.apply.table import Place, TableWork
from vreplication.apply.writer import Target
from vreplication.binlog.events import Group, Position, RowChange
from vreplication.changes.beats import beat_micros
from vreplication.changes.matcher import Held
from vreplication.changes.stream import CHUNK, FIRST, GATE, MARKER, SIGNAL
from vreplication.changes.watermark import Inside, Watermark
from vreplication.clock import SYSTEM
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.state import checkpoint, ledger, markers, source_marks
from vreplication.state.checkpoint import Checkpoint

MAX_BATCH_CHANGES = 4_000
MAX_BATCH_BYTES = 4 << 20
LINGER_SECONDS = 0.2
"""How long a small batch waits for more: each is a commit, and the application's commits wait for the same disk."""
MATCHES_AT_ONCE = 4
"""So many may follow each other without waiting: the end of a small table's copy waits for its last one."""
IDLE_SAVE_SECONDS = 1.0
"""A checkpoint is a transaction that stands in the log itself; without a pause saving would never end."""
LOOK_SECONDS = 0.1
"""How often the ledger is asked what has landed, where the log does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker that has just been applied."""

    id: str
    kind: str


class Applier:
    """Feed it groups with `take`; call `flush_if_due` now and then, `flush` at the end. Not thread-safe.

    sessions: at home; the first one writes the state. targets: the tables, by the numbers of their watches where there
    are several. held: the branches that the matcher holds, asked for at each marker and checkpoint.
    """

    def __init__(
        self,
        sessions: list[Session],
        targets: Sequence[Target],
        watermark: Watermark,
        *,
        held: Callable[[], tuple[Held, ...]],
        on_first_open: Callable[[], None],
        across: Across | None = None,
    ) -> None:
        self._main = sessions[0]
        self._is_across = across is not None
        self._lease = targets[0].lease
        self._rows = RowWriters(sessions, self._lease, across)
        self._in_parts = InParts(self._rows.sessions[0], self._fence)
        self._workflow = self._lease.workflow
        self._watermark = watermark
        self._held, self._on_first_open = held, on_first_open
        self._is_past_checkpoint = False
        """Until a group comes, the log may be read again on the way there."""
        self._time: int | None = None
        """Assigned time of the transaction that is being taken in parts."""
        self._beat: int | None = None
        self._beat_number = 0
        """Of the last beat that has been taken."""
        self._taken: int | None = None
        self._done = 0
        self._saved_at = self._looked_at = 0.0
        self._matches: deque[float] = deque(maxlen=MATCHES_AT_ONCE)
        """When the last ones were."""
        self._waiting_since: float | None = None
        self._load(across.written if across else None)
        self._tables = [TableWork(target, self._main, self._rows.sessions) for target in targets]
        self._by_number = {table.target.number: table for table in self._tables}
        self._by_id = {table.id: table for table in self._tables}

    def _load(self, written: Checkpoint | None) -> None:
        """Where the last holder of the lease stopped.

        The checkpoint first, then the ledger: a chunk that opens in between stands in the log behind the checkpoint.
        """
        found = checkpoint.load(self._main, self._workflow)
        saved = written if checkpoint.has_lost(found, written) else found
        # Never a number twice, for by it the next one is told what is missing there.
        self._number = max(each.batch if each else 0 for each in (found, written))
        self._events = saved.events_applied if saved else 0
        self._position: Position | None = Position.parse(saved.position) if saved else None
        self._saved_position = self._position
        self.held_before = tuple(Held.of(fields) for fields in saved.held) if saved else ()
        """Branches that were open at the checkpoint."""
        self._watermark.go_on_from(saved.assigned_micros if saved else 0)

    @property
    def position(self) -> Position | None:
        """End of the last group that was taken in."""
        return self._position

    @property
    def events_applied(self) -> int:
        return self._events

    @property
    def keys_since(self) -> dict[str, int]:
        """Table ids → keys in memory that were written since a verification began, where one has begun."""
        return {table.id: len(table.since.keys) for table in self._tables if table.since.is_active}

    @property
    def collected(self) -> Position | None:
        """Up to where the keys of all tables that collect them are in the sidecar; None where nobody collects."""
        return first_collected(table.since for table in self._tables)

    def note_items(self, items: Iterable[RowChange]) -> None:
        """Of a group that is read again and was applied before."""
        for item in items:
            if item.table >= FIRST:
                self._of(item).since.note_items((item,))

    def make_since_void(self) -> None:
        for table in self._tables:
            table.since.make_void()

    def _of(self, item: RowChange) -> TableWork:
        return self._tables[0] if len(self._tables) == 1 else self._by_number[item.table]

    def take(self, group: Group) -> list[Marker]:
        """Take one committed group; returns the markers in it that have been applied."""
        found: list[Marker] = []
        self._is_past_checkpoint = True
        if self._time is None:
            self._time = self._watermark.begin(group.time_micros)
        for item in group.items:
            if item[0] >= FIRST:
                self._wait_for_more()
                self._of(item).batch.add(item)
            else:
                found += self._act_on(item, group)
        self._done += len(group.items)
        if group.is_last:
            self._took(group)
        elif group.changes:
            self._watermark.inside(Inside(done=self._done, total=group.changes))
        self._flush_if_full(group)
        return found

    def _flush_if_full(self, group: Group) -> None:
        count, nbytes = sum(len(t.batch) for t in self._tables), sum(t.batch.nbytes for t in self._tables)
        if count < MAX_BATCH_CHANGES and nbytes < MAX_BATCH_BYTES:
            return
        if group.is_last or not self._keeps_whole:
            self.flush()
        else:
            self._flush_inside()

    @property
    def _keeps_whole(self) -> bool:
        """A transaction of the source is one on the target: while no chunk is under way, for then tables are level.

        On one server where rows keep some of what they have: a part that is written again, over what comes behind it,
        may put a row out of another one's way; its own change is still to come, and brings it back without that.
        """
        is_asked = self._is_across or any(table.target.mapping.spared for table in self._tables)
        return is_asked and not any(table.open for table in self._tables)

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
        if row is None:
            return []
        if item.table == SIGNAL:
            return self._on_signal(item, row, group) if row["stream"] == self._workflow else []
        if item.table == CHUNK:
            if table := self._by_id.get(str(row["workflow"])):
                self._on_chunk(table, row)
        elif row["workflow"] != self._workflow:
            return []
        elif item.table == GATE:
            self._on_beat(row, int(str(row["beat"])))
        elif item.table == MARKER and item.before is None:
            return [self._on_marker(row, group)]
        return []

    def _on_signal(self, item: RowChange, row: dict[str, Any], group: Group) -> list[Marker]:
        """What home's rows say on one server, out of the source's one table."""
        kind = row["kind"]
        if kind == source_marks.BEAT:
            self._on_beat(row, int(str(row["number"])))
        elif kind == source_marks.OPEN:
            told = json.loads(row["detail"])
            if (table := self._by_id.get(told["table"])) and self._is_unmatched(table, told["split"], told["ordinal"]):
                self._opened(table, (told["split"], told["ordinal"]))
        elif item.before is None and kind not in source_marks.NO_MARKERS:
            return [self._on_marker(row, group)]
        return []

    def _is_unmatched(self, table: TableWork, split: int, ordinal: int) -> bool:
        """One that was found landed before its "opened" was read is matched by now, and stays so."""
        found = ledger.find_chunk(self._main, table.id, split, ordinal)
        return found is not None and found.state != ledger.MATCHED

    def _on_beat(self, row: dict[str, Any], number: int) -> None:
        self._beat, self._beat_number = beat_micros(row), number

    def _on_chunk(self, table: TableWork, row: dict[str, Any]) -> None:
        place = (int(row["split"]), int(row["ordinal"]))
        if row["state"] == ledger.OPEN:
            if place in table.landed:
                # Copied again: the match of its first landing, if done later, would end the tombstones of the second.
                self.flush()
            self._opened(table, place)
        elif row["state"] == ledger.LANDED and place in table.open:
            table.note_landed([place])
            # With nothing to be written it is matched at once, else with what waits; small chunks land by the hundred a
            # second, and are matched together.
            if len(self._matches) == MATCHES_AT_ONCE and SYSTEM.monotonic() - self._matches[0] < LINGER_SECONDS:
                self._wait_for_more()

    def _opened(self, table: TableWork, place: Place) -> None:
        if not any(each.open for each in self._tables):
            # From here on rows are read, and a branch whose PREPARE we have not seen may change them behind our back.
            self._on_first_open()
        table.open.setdefault(place, self._number)

    def _wait_for_more(self) -> None:
        if self._waiting_since is None:
            self._waiting_since = SYSTEM.monotonic()

    def match_landed(self) -> None:
        """Chunks that the ledger calls landed but whose event never came (a server that lost the end of its log)."""
        self._look_for_landed()
        self.flush()

    def _look_for_landed(self) -> None:
        for table in self._tables:
            found = ledger.chunks(self._main, table.id, states=(ledger.LANDED,))
            table.note_landed([(c.split, c.ordinal) for c in found])
        self._looked_at = SYSTEM.monotonic()

    @property
    def _is_look_due(self) -> bool:
        """Where the source's log does not tell what has landed, while chunks are under way."""
        is_late = SYSTEM.monotonic() - self._looked_at >= LOOK_SECONDS
        return self._is_across and is_late and any(table.open for table in self._tables)

    def _commit(self, work: Callable[[], None] = lambda: None) -> None:
        """One transaction: `work`, then the landed chunks are matched, then the checkpoint is saved.

        Deleting the tombstoned keys again may wait until here: who was inserted since is no tombstone any more. But a
        checkpoint behind a landing without its match would leave the chunk open for ever.
        """
        matching = [(t, t.landed, t.oldest_but(t.landed, self._number + 1)) for t in self._tables if t.landed]
        left: dict[str, bool] = {}

        def all_of_it() -> None:
            work()
            for table, places, oldest in matching:
                left[table.id] = table.match(places, oldest)
            self._save_checkpoint()

        if matching:
            reach("apply.before_match")
            self._matches.append(SYSTEM.monotonic())
        self._rows.check_there()
        writer.in_transaction(self._main, self._lease, all_of_it)
        for table, places, _ in matching:
            table.matched(places, is_left=left[table.id])

    def _on_marker(self, row: dict[str, Any], group: Group) -> Marker:
        self.flush()
        marker = Marker(id=str(row["id"]), kind=str(row["kind"]))
        # A marker of the cut-over makes us hold, unless it was taken back meanwhile (we read an old log again).
        is_cutover = marker.kind == markers.CUTOVER
        is_holding = is_cutover and markers.is_standing(self._main, self._workflow, marker.id)
        position = self._position = group.end
        ending = [t for t in self._tables if marker.kind == markers.SINCE or (is_cutover and t.since.is_active)]
        rounds = {table.id: table.since.round for table in ending}

        def work() -> None:
            # Who reads behind a marker compares with XA RECOVER, which names no tables. At the cut-over those that have
            # changed other tables are no matter.
            held = tuple(str(b.xid) for b in self._held() if b.rows or not is_cutover)
            markers.record_applied(self._main, self._workflow, marker.id, held, is_holding=is_holding)
            for table in ending:
                rounds[table.id] = table.since.end_round(position)
            self._save_checkpoint()

        self._rows.check_there()
        for table in ending:
            table.since.make_room(self._lease)
        writer.in_transaction(self._main, self._lease, work)
        for table in ending:
            table.since.saved(rounds[table.id])
        if marker.kind in (markers.SUSPECTS_OPEN, markers.SUSPECTS_CLOSE):
            for table in self._tables:
                table.has_suspects = marker.kind == markers.SUSPECTS_OPEN
        return marker

    def flush_if_due(self) -> None:
        """As `flush`, unless the batch may still wait for more, or its transaction has not been taken whole."""
        if self._keeps_whole and self._time is not None:
            return
        if self._waiting_since is None or SYSTEM.monotonic() - self._waiting_since >= LINGER_SECONDS:
            self.flush()

    def end(self) -> None:
        """As `flush`, but for a transaction that has not been taken whole: it is read again."""
        if self._time is None:
            self.flush()

    def flush(self) -> None:
        """Write the batches and the checkpoint: then everything taken in is applied, and what has landed is matched."""
        self._waiting_since = None
        if self._is_look_due:
            self._look_for_landed()
        batches = self._take_batches()
        if batches or self._in_parts.is_open:
            reach("apply.before_flush")
            self._write(batches)
            self._note_written(batches)
        elif any(table.landed for table in self._tables) or self._is_checkpoint_due:
            self._commit()
        if any(table.since.is_due for table in self._tables):
            self.save_since()
        if self._taken is not None:
            self._watermark.resolve(self._taken)
            self._watermark.beat_applied(self._beat_number)
            self._taken = None

    def _take_batches(self) -> Batches:
        found = [(table, table.batch) for table in self._tables if table.batch]
        for table, _ in found:
            table.batch = table.new_batch()
        return found

    def _note_written(self, batches: Batches) -> None:
        self._note_keys(batches)
        self._watermark.applied_changes(sum(batch.count for _, batch in batches))

    def _note_keys(self, batches: Batches) -> None:
        for table, batch in batches:
            table.since.note(batch.keys())

    @property
    def _is_checkpoint_due(self) -> bool:
        return self._position != self._saved_position and SYSTEM.monotonic() - self._saved_at >= IDLE_SAVE_SECONDS

    def save_since(self) -> None:
        """Put the keys written since a verification began into the sidecar, as far as they are flushed.

        On the way to the checkpoint they are not known up to there yet: who reads again begins at the same place.
        """
        position = self._saved_position
        active = [table.since for table in self._tables if table.since.is_active]
        if not active or position is None or not self._is_past_checkpoint or self._in_parts.is_open:
            return

        def work() -> None:
            for since in active:
                since.save(position)

        writer.in_transaction(self._main, self._lease, work)
        for since in active:
            since.saved(since.round)

    def _write(self, batches: Batches) -> None:
        rounds = self._rounds(batches)
        if self._in_parts.is_open:
            self._end_inside(rounds, batches)
        elif not self._rows.is_apart and len(rounds) == len(rounds[0]) == 1:
            self._commit(lambda: self._rows.write(0, self._main, rounds[0][0]))
        else:
            self._write_shared(rounds, batches)

    def _rounds(self, batches: Batches) -> list[list[Written]]:
        self._events += sum(batch.count for _, batch in batches)
        # What is written in parts has one session, up to its commit, whatever has been opened since.
        is_one = self._keeps_whole or self._in_parts.is_open
        rounds = self._rows.divide(batches, self._number, is_one=is_one)
        self._number += bool(batches)
        return rounds

    def _write_shared(self, rounds: list[list[Written]], batches: Batches) -> None:
        """All workers commit, then the checkpoint: a crash in between repeats this batch, which is harmless."""
        self._rows.write_all(rounds, self._place)
        reach("apply.before_checkpoint")
        self._commit(lambda: self._touch(batches))

    def _touch(self, batches: Batches) -> None:
        """Suspects that stand at home, where the rows do not."""
        for table, batch in batches:
            if self._rows.is_apart and table.has_suspects:
                table.touch(batch)

    @property
    def _place(self) -> str:
        """The checkpoint that rows on another server come to; '' where nothing has been taken yet."""
        position = self._position or self._saved_position
        return self._checkpoint(position).text if position and self._rows.is_apart else ""

    def _fence(self) -> None:
        self._rows.fence(self._rows.sessions[0], self._place)

    def _flush_inside(self) -> None:
        """Write what is there of a transaction that has not been taken whole, and do not commit."""
        batches = self._take_batches()
        [[written]] = self._rounds(batches)
        changes = sum(batch.count for _, batch in batches)
        self._in_parts.write(lambda: self._rows.write(0, self._rows.sessions[0], written), changes)
        self._note_keys(batches)
        self._save_inside(batches)
        reach("apply.inside")

    def _save_inside(self, batches: Batches) -> None:
        """Keys that are too many for memory, and suspects at home: noted too early they do no harm."""
        full = [table.since for table in self._tables if table.since.is_full]

        def work() -> None:
            self._touch(batches)
            for since in full:
                since.put_aside()

        if self._rows.is_apart:
            writer.in_transaction(self._main, self._lease, work)
        else:
            # In the transaction that is open: the session that writes the state writes the rows, too.
            work()
        for since in full:
            since.saved(since.round)

    def _end_inside(self, rounds: list[list[Written]], batches: Batches) -> None:
        """The rest of it, the checkpoint, and the commit."""

        def rest() -> None:
            for [written] in rounds:
                self._rows.write(0, self._rows.sessions[0], written)
            if self._rows.is_apart:
                # Once more: at the begin the place was that of the transaction before.
                self._fence()
            else:
                self._save_checkpoint()

        self._watermark.applied_changes(self._in_parts.end(rest))
        if self._rows.is_apart:
            self._commit(lambda: self._touch(batches))

    def _save_checkpoint(self) -> None:
        if self._position is None:
            return
        checkpoint.save(self._main, self._workflow, self._checkpoint(self._position))
        self._saved_position = self._position
        self._saved_at = SYSTEM.monotonic()

    def _checkpoint(self, position: Position) -> Checkpoint:
        return Checkpoint(
            position=position.saved,
            batch=self._number,
            events_applied=self._events,
            assigned_micros=self._watermark.assigned,
            held=tuple(branch.fields() for branch in self._held()),
        )

    def close(self) -> None:
        """A transaction that is under way is rolled back with its session."""
        self._in_parts.drop()
        self._rows.close()
