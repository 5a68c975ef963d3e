"""One round of catch-up: the log is read, matched and applied until it is stopped or a connection is lost.

Three threads that share a channel and the watermark: one reads the log, one applies, one beats (gate row, heartbeat,
progress).

What must stay true: the gate is closed, and no marker of an earlier run counts, until a marker written after our start
has been applied; when the cut-over's marker is applied nothing more is read until it is taken back; every connection
of a round is closed at its end; when our parent goes, or another process takes the driver's lease, we go too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from vreplication.apply.applier import Applier, Marker
from vreplication.apply.rounds import Across
from vreplication.apply.writer import Target
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.binlog.position import Standing, draw_server_id, standing
from vreplication.binlog.tailer import PART_BYTES, Tailer
from vreplication.binlog.watch import Following, Watch
from vreplication.changes import stream
from vreplication.changes.beats import beat_micros
from vreplication.changes.channel import Channel, Closed
from vreplication.changes.lost_branches import LostBranches
from vreplication.changes.matcher import Held, Matcher
from vreplication.changes.sorter import DiskSorter
from vreplication.changes.watermark import Watermark
from vreplication.cutover.deny import exempt
from vreplication.engine import spool
from vreplication.engine.beater import Beater, server_micros
from vreplication.engine.job import Stream, StreamJob
from vreplication.engine.reading import Intake, SharedReader
from vreplication.errors import Transient
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError, connect
from vreplication.pausepoints import reach
from vreplication.schema.introspect import read_columns
from vreplication.settings import LONG_IDLE_SECONDS, MEMORY_BYTES, SIDECAR, WORK_SECONDS
from vreplication.state import checkpoint, journal, lease, ledger, markers, source_marks
from vreplication.state.checkpoint import Checkpoint
from vreplication.state.lease import Lease

log = logging.getLogger(__name__)

_TAKE_SECONDS = 0.05
_OTHERWISE = frozenset({NO_SUCH_TABLE, 1412})
"""No such table; another definition than when the transaction began."""

_connect = functools.partial(connect, read_timeout=WORK_SECONDS, idle_seconds=LONG_IDLE_SECONDS)


@dataclass(slots=True)
class Stop:
    """What ends catch-up: its caller, who is waited for, or catch-up itself, which stops nobody else."""

    asked: threading.Event
    is_over: bool = False

    def is_set(self) -> bool:
        return self.is_over or self.asked.is_set()

    def wait(self, seconds: float) -> bool:
        return self.is_over or self.asked.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """As of `replicate`."""

    reader: SharedReader = field(default_factory=SharedReader)
    share: int = 1
    is_alone: bool = False


@dataclass(slots=True)
class _Run:
    """What the threads of one round share."""

    stop: Stop
    watermark: Watermark
    sorter: DiskSorter
    channel: Channel
    memory: int = MEMORY_BYTES
    """Bytes of changes that may wait."""
    setting: Setting = field(default_factory=Setting)
    keeps_rows: Callable[[], bool] = lambda: False
    """Rows of branches are on disk, of which a restart can make use."""
    fresh_marker: str | None = None
    is_fresh: bool = False
    is_holding: bool = False
    held: int = 0
    lost: LostBranches | None = None
    read_position: Position | None = None
    others: int = 0
    """Transactions of others that have been read."""


def run_round(of: Stream, our_lease: Lease, watermark: Watermark, stop: Stop, setting: Setting) -> None:
    """Read, apply and beat until `stop`; every connection of the round is closed at its end."""
    watermark.forget_queued()
    with contextlib.ExitStack() as opened:
        ends = opened.enter_context(of.route.open(read_timeout=WORK_SECONDS, idle_seconds=LONG_IDLE_SECONDS))
        # Of the round before: what was lost here may still hold rows there.
        lease.end_connections(ends.home, lease.former_connections(ends.home, our_lease), user=of.route.home.user)
        job = of.load(ends)
        sessions = _Sessions.open(of.route, ends, job, opened)
        for session in (*sessions.appliers, *sessions.apart) if job.exemption else ():
            exempt(session, job.exemption)
            # REPLACE deletes first: a foreign key to the table that somebody has made since would take children along.
            session.execute_raw("SET SESSION foreign_key_checks=0")
        with _running(of, job, watermark, stop, setting) as run:
            try:
                _follow(of, our_lease, job, run, sessions)
            except SqlError as error:
                _refuse_moved(of, ends, job, error)
                raise


def _refuse_moved(of: Stream, ends: Ends, job: StreamJob, error: SqlError) -> None:
    """Raises Transient where the rows go to another table by now (schema/stand_in.py)."""
    if error.code in _OTHERWISE:
        names = [[table.mapping.target.name for table in each.tables] for each in (job, of.load(ends))]
        if names[0] != names[1]:
            raise Transient(f"Rows go to {', '.join(names[1])} from here on.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sessions:
    """Of a round: one for whatever has to be asked at each end; those that apply, of which the first writes the state;
    and those that write rows, where that is not at home."""

    ends: Ends
    appliers: list[Session]
    apart: tuple[Session, ...] = ()

    @classmethod
    def open(cls, route: Route, ends: Ends, job: StreamJob, stack: contextlib.ExitStack) -> _Sessions:
        if route.target == route.home:
            appliers = [stack.enter_context(_connect(route.home)) for _ in range(job.apply_parallelism)]
            return cls(ends=ends, appliers=appliers)
        # One applier for all tables, so that whole transactions go with one checkpoint.
        home, there = (stack.enter_context(_connect(url)) for url in (route.home, route.target))
        return cls(ends=ends, appliers=[home], apart=(there,))

    @property
    def ids(self) -> list[int]:
        """At home."""
        return [session.id for session in (self.ends.home, *self.appliers)]


@contextlib.contextmanager
def _running(of: Stream, job: StreamJob, watermark: Watermark, stop: Stop, setting: Setting) -> Iterator[_Run]:
    """What is on disk stays where a restart can make use of it."""
    sorter = DiskSorter(spool.home(job.row, of.id))
    memory = spool.memory_bytes() // setting.share
    # An eighth for the queue, half for open transactions (below); parts and batches under way have the rest.
    channel = Channel(memory // 8, sorter=sorter)
    run = _Run(stop=stop, watermark=watermark, sorter=sorter, channel=channel, memory=memory, setting=setting)
    try:
        yield run
    finally:
        channel.close()
        if run.keeps_rows():
            sorter.close()
        else:
            sorter.remove()


def _follow(of: Stream, our_lease: Lease, job: StreamJob, run: _Run, sessions: _Sessions) -> None:
    ends = sessions.ends
    matcher = Matcher(
        # R19: the commit of a branch whose PREPARE was not read is harmless before the first chunk, whose SELECT shows
        # it; behind that it would be lost without a word.
        is_strict=job.has_copy and any(ledger.totals(ends.home, table.id).has_chunks for table in job.tables),
        budget_bytes=run.memory // 2,
        sorter=run.sorter,
        # Both are called later: the applier is made below, of this very matcher.
        on_applied=lambda items: applier.note_items(items),
        on_lost=lambda: applier.make_since_void(),
    )
    run.keeps_rows = lambda: any(branch.place for branch in matcher.held())
    numbers = _numbers(of, job, run)
    applier = Applier(
        sessions.appliers,
        [
            Target(mapping=t.mapping, lease=our_lease, packet=job.packet, number=numbers[t.number], id=t.id)
            for t in job.tables
        ],
        run.watermark,
        # branches_remembered: without them in the checkpoint their commits would be strangers' after a restart.
        held=matcher.held,
        on_first_open=matcher.be_strict,
        across=_across(of, our_lease, job, sessions) if ends.is_across else None,
    )
    run.watermark.server_time(server_micros(ends.source))
    intake = _intake(of, ends, job, run, numbers)
    beater = Beater(of, our_lease, run.watermark, lambda: _beat_state(run, applier), is_alone=run.setting.is_alone)
    marks = source_marks.markers_of(ends, of.id)
    run.lost = LostBranches(ends.source, marks, matcher, run.watermark.settle, is_mariadb=job.is_mariadb)
    try:
        intake.begin(_start(ends.source, job, matcher, applier, run))
        # Before anything is applied: who takes over ends the connections that stand in the heartbeat.
        beater.start(sessions.ids)
        # R14: what is read again makes the target older for a while. Until a marker of our own has been applied the
        # gate is shut, and nothing that a restart finds counts as level.
        run.fresh_marker = marks.write()
        _apply_all(of, matcher, applier, run, beater, ends.home)
        # Behind a clean end the next start need not read the log again for these keys.
        applier.save_since()
    finally:
        beater.stop()
        # The channel before the intake: the reading thread may wait here for room, and `intake.close` waits for that
        # thread.
        run.channel.close()
        intake.close()
        applier.close()


def _across(of: Stream, our_lease: Lease, job: StreamJob, sessions: _Sessions) -> Across:
    """Where rows are not written at home, whoever wrote them before is kept out by the fence there."""
    if not sessions.apart:
        return Across()
    (there,) = sessions.apart
    # In this order: `claim` ends the connections of whoever held the lease before, for whose transaction in flight
    # `take_fence` would otherwise wait.
    source_marks.claim(there, of.id, lease.REPLICATE, our_lease.token, (there.id,))
    noted = source_marks.take_fence(there, of.id, our_lease.token)

    def fence(session: Session, place: str) -> None:
        source_marks.pass_fence(session, of.id, our_lease.token, place)

    return Across(writers=sessions.apart, fence=fence, written=_written(of, sessions.ends, job, noted))


def _written(of: Stream, ends: Ends, job: StreamJob, noted: str) -> Checkpoint | None:
    """How far the rows are, as their server says, which may have lost its last commits in a crash; None: go by home.

    Where the log from there on is gone, what was lost is not written again: the verification finds it.
    """
    written = Checkpoint.of_text(noted) if noted else Checkpoint(position=job.start, batch=0, events_applied=0)
    if written is None or not checkpoint.has_lost(checkpoint.load(ends.home, of.id), written):
        return written
    # What an open branch has changed is read again from its PREPARE on, which may stand long before that place.
    starts = [branch.start for branch in map(Held.of, written.held) if branch.rows]
    places = (Position.parse(written.position), *starts)
    is_here = all(standing(ends.source, place) is Standing.HERE for place in places)
    words = f"read again from {written.position} on" if is_here else f"the log from {written.position} on is gone"
    log.warning("commits were lost where rows are written; %s", words)
    journal.write(ends.home, of.workflow, "commits lost", f"where rows are written; {words}", actor=lease.me())
    return written if is_here else None


def _numbers(of: Stream, job: StreamJob, run: _Run) -> dict[int, int]:
    """Of the tables' watches, by the tables' own numbers: where a reader serves several, they are its."""
    if of.route.is_across:
        return {table.number: table.number for table in job.tables}
    return {table.number: run.setting.reader.number(of.id) for table in job.tables}


def _beat_state(run: _Run, applier: Applier) -> dict[str, object]:
    return {
        "is_fresh": run.is_fresh,
        "is_holding": run.is_holding,
        "held_branches": run.held,
        "events_applied": applier.events_applied,
        "keys_since": applier.keys_since,
        "others": run.others,
        "read_position": str(run.read_position) if run.read_position else None,
    }


def _start(source: Session, job: StreamJob, matcher: Matcher, applier: Applier, run: _Run) -> Position:
    """Where the log has to be read from: the checkpoint, or before it.

    For branches whose rows are not here now, and for keys written since a verification that are not in the sidecar.
    """
    if applier.position is None:
        return Position.parse(job.start)
    collected = _collected(source, applier)
    # Rows on the way from there to the checkpoint are only gathered (nothing_applied_twice): applied once more, an
    # older row would win over what a branch that was prepared before has written.
    start = matcher.restore(applier.held_before, applier.position, collected)
    for branch in applier.held_before:
        run.watermark.track(branch.xid)
    if start != applier.position:
        if start == collected:
            log.info("keys written since the verification are looked up in the log from %s on", start)
        else:
            log.info("rows of prepared XA branches are read again, from %s up to %s", start, applier.position)
    return start


def _collected(source: Session, applier: Applier) -> Position | None:
    """Up to where keys are in the sidecar, when that is before the checkpoint. A log that is gone makes them void."""
    collected, position = applier.collected, applier.position
    if collected is None or position is None:
        return None
    # Never behind the checkpoint; MariaDB's numbers may say so where several servers write one domain.
    is_before = collected.is_within(position)
    if is_before and position.is_within(collected):
        return None
    if is_before and standing(source, collected) is Standing.HERE:
        return collected
    applier.make_since_void()
    return None


def _intake(of: Stream, ends: Ends, job: StreamJob, run: _Run, numbers: Mapping[int, int]) -> Intake:
    watched = ours(ends)
    following = Following(
        name=of.id,
        watches=tuple(stream.of_mapping(t.mapping, numbers[t.number]) for t in job.tables),
        guarded=job.guarded,
    )

    def open_log(start: Position) -> Tailer:
        return Tailer(
            of.route.source,
            start,
            watched,
            server_id=draw_server_id(ends.source),
            is_mariadb=job.is_mariadb,
            part_bytes=min(PART_BYTES, run.memory // 16),
        )

    return Intake(run.setting.reader, following, _Queue(run), open_log)


def ours(ends: Ends) -> list[Watch]:
    """Our own rows in the source's log."""
    if not ends.is_across:
        return stream.of_ours(SIDECAR, lambda table: read_columns(ends.home, SIDECAR, table))
    columns = read_columns(ends.source, SIDECAR, source_marks.TABLE)
    return stream.of_source_marks(SIDECAR, source_marks.TABLE, columns)


@dataclass(frozen=True, slots=True)
class _Queue:
    """Where the reading thread puts what it reads."""

    run: _Run

    def put(self, group: Group) -> None:
        if self.run.stop.is_set():
            raise Closed
        # Before the applying thread can see it: a group that is counted as applied first would leave a backlog below
        # zero for a moment.
        _note_read(group, self.run)
        self.run.channel.put(group, group.nbytes + 256)

    def has_room(self, nbytes: int) -> bool:
        return self.run.channel.has_room(nbytes)

    def fail(self, error: BaseException) -> None:
        self.run.channel.fail(error)


def _note_read(group: Group, run: _Run) -> None:
    run.watermark.received_changes(stream.count_changes(group.items))
    run.watermark.unread(group.read)
    run.read_position = group.end
    run.others += group.is_last and group.is_others
    beats = [beat_micros(i.after) for i in group.items if i.after and _is_beat(i)]
    # Of a transaction that has not been read whole, only what stands before it is received.
    run.watermark.shown(max([group.time_micros - (not group.is_last), *beats]))


def _is_beat(item: RowChange) -> bool:
    return item.table == stream.GATE or (item.table == stream.SIGNAL and item.after["kind"] == source_marks.BEAT)


def _apply_all(of: Stream, matcher: Matcher, applier: Applier, run: _Run, beater: Beater, home: Session) -> None:
    """The applying thread's loop."""
    while not run.stop.is_set():
        beater.check()
        if beater.is_over:
            run.stop.is_over = True
            break
        for item in run.channel.take(_TAKE_SECONDS):
            for group in _matched(matcher, item, run):
                _react(applier.take(group), applier, run, of, home)
                # A giant transaction has many parts, and whoever ends us is not to wait for the last of them.
                if not group.is_last:
                    beater.check()
            if run.stop.is_set():
                return
        run.held = len(matcher.held_with_rows())
        if run.lost:
            run.lost.look()
        applier.flush_if_due()
    applier.end()


def _matched(matcher: Matcher, group: Group, run: _Run) -> Iterator[Group]:
    """Rows that the matcher holds are not backlog: nothing can be done about them yet."""
    _note_branch(group, run)
    discounted = matcher.not_queued
    for found in matcher.feed(group):
        run.watermark.received_changes(discounted - matcher.not_queued)
        discounted = matcher.not_queued
        if run.stop.is_set():
            return
        yield found
    run.watermark.received_changes(discounted - matcher.not_queued)


def _note_branch(group: Group, run: _Run) -> None:
    """A branch whose outcome is open holds the watermark nowhere, but it is tracked."""
    if group.kind is GroupKind.XA_PREPARE:
        run.watermark.track(group.xid)
    elif group.kind in (GroupKind.XA_COMMIT, GroupKind.XA_ROLLBACK):
        run.watermark.settle(group.xid)


def _react(applied: list[Marker], applier: Applier, run: _Run, of: Stream, home: Session) -> None:
    for marker in applied:
        if run.lost:
            run.lost.passed(marker.id)
        if marker.id == run.fresh_marker:
            # The end of the log may have been lost with the server (sync_binlog is not 1): "landed" stands in the
            # ledger and in no log, and the gate would wait for it for ever.
            applier.match_landed()
            # The marker's transaction has saved a checkpoint, which names what this run has on disk.
            run.sorter.forget_others()
            run.is_fresh = True
        elif marker.kind == markers.CUTOVER:
            _hold(marker, run, of, home)


def _hold(marker: Marker, run: _Run, of: Stream, home: Session) -> None:
    """Stand still while the tables are switched: the driver takes the marker back when it could not."""
    reach("replicate.holding")
    run.is_holding = True
    try:
        while markers.is_present(home, of.id, marker.id) and not run.stop.is_set():
            # What comes next in the log is our own RENAME, at which catch-up would end as at anybody's DDL.
            if of.is_cut(home):
                run.stop.is_over = True
            run.stop.wait(0.01)
    finally:
        run.is_holding = False
