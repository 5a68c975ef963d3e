"""Catch-up as a process of its own: read the log, match, apply, and say each quarter second how far that is.

Three threads that share a channel and the watermark: one reads the log, one applies, one beats (gate row, heartbeat,
progress). A lost connection starts all of them again from the checkpoint; anything else ends the workflow with its
reason in the sidecar.

What must stay true: the gate is closed, and no marker of an earlier run counts, until a marker written after our start
has been applied; when the cut-over's marker is applied nothing more is read until it is taken back; when our parent
goes, or somebody else takes the driver's lease, we go too.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vreplication.apply.applier import Applier, Marker, beat_micros
from vreplication.apply.writer import Target
from vreplication.binlog.events import Group, GroupKind, Position
from vreplication.binlog.position import Standing, draw_server_id, standing
from vreplication.binlog.tailer import PART_BYTES, Tailer
from vreplication.binlog.watch import Following
from vreplication.changes import stream
from vreplication.changes.channel import Channel, Closed
from vreplication.changes.matcher import Matcher
from vreplication.changes.protocol import RulesRenewed, watermark_of
from vreplication.changes.sorter import DiskSorter
from vreplication.changes.watermark import Watermark
from vreplication.clock import SYSTEM
from vreplication.errors import (
    Ambiguous,
    LeaseHeld,
    Refused,
    SourceChanged,
    Superseded,
    Transient,
    VReplicationError,
)
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.schema.introspect import read_columns
from vreplication.settings import LONG_IDLE_SECONDS, MEMORY_BYTES, OUTAGE_SECONDS, SIDECAR, WORK_SECONDS
from vreplication.state import journal, layout, lease, ledger, markers, workers, workflows
from vreplication.state.lease import Lease
from vreplication.workflows import job as jobs
from vreplication.workflows import spool
from vreplication.workflows.beater import Beater, server_micros
from vreplication.workflows.job import Job
from vreplication.workflows.reading import Intake, SharedReader

log = logging.getLogger(__name__)

_TAKE_SECONDS = 0.05
_LEASE_WAIT_SECONDS = 20.0
_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
_COLLECT_EVERY = 200_000
"""Objects, two of them a change; Python's own is 700."""
_PATIENCE = 60
"""Restarts after lost connections, without any progress in between, before we give up."""


@dataclass(slots=True)
class _Stop:
    """What ends catch-up: its caller, who is waited for, or catch-up itself, which stops nobody else."""

    asked: threading.Event
    is_over: bool = False

    def is_set(self) -> bool:
        return self.is_over or self.asked.is_set()

    def wait(self, seconds: float) -> bool:
        return self.is_over or self.asked.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """As of `replicate`."""

    reader: SharedReader = field(default_factory=SharedReader)
    share: int = 1
    is_alone: bool = False


@dataclass(slots=True)
class _Run:
    """What the threads of one round share."""

    stop: _Stop
    watermark: Watermark
    sorter: DiskSorter
    channel: Channel
    memory: int = MEMORY_BYTES
    """Bytes of changes that may wait."""
    setting: _Setting = field(default_factory=_Setting)
    keeps_rows: Callable[[], bool] = lambda: False
    """Rows of branches are on disk, of which a restart can make use."""
    fresh_marker: str | None = None
    is_fresh: bool = False
    is_holding: bool = False
    held: int = 0
    read_position: Position | None = None
    others: int = 0
    """Transactions of others that have been read."""


def replicate(
    url: SourceUrl,
    workflow: str,
    asked: threading.Event,
    *,
    is_alone: bool = False,
    reader: SharedReader | None = None,
    share: int = 1,
) -> None:
    """Run catch-up until the workflow ends or `asked` is set. Raises what ended it, after noting it in the sidecar.

    is_alone: no single driver stands behind it, but one process a step; then it ends when the gate has been passed, and
    whoever switches the tables goes on from its checkpoint.
    reader: where others are followed too; share: among so many the memory is divided.
    """
    with collecting_rarely():
        _replicate(
            url, workflow, _Stop(asked), _Setting(reader=reader or SharedReader(), share=share, is_alone=is_alone)
        )


def _replicate(url: SourceUrl, workflow: str, stop: _Stop, setting: _Setting) -> None:
    our_lease, watermark = _take_lease(url, workflow, stop)
    failures = 0
    while not stop.is_set():
        # What a round held that was cut off is a cycle: errors know frames, and frames know the round.
        gc.collect()
        before = _reached(watermark)
        try:
            _round(url, our_lease, watermark, stop, setting)
        except RulesRenewed as error:
            log.info("catch-up starts again from its checkpoint: %s", error)
            watermark = watermark_of(error.protocol)
        except (Transient, Ambiguous) as error:
            failures = 0 if _reached(watermark) != before else failures + 1
            log.warning("catch-up starts again from its checkpoint: %s", error)
            if failures > _PATIENCE:
                _note_failure(url, our_lease, error)
                raise
            stop.wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
        except Superseded:
            raise
        except VReplicationError as error:
            _note_failure(url, our_lease, error)
            raise
    _give_back(url, our_lease)


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """What waits in the channel is hundreds of thousands of objects without cycles, and looking through them again and
    again for cycles took a third of catch-up's time (changes in transactions of one row).
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _reached(watermark: Watermark) -> tuple[int, int | None]:
    """Changes applied, and the newest time up to which all are: an idle source shows progress too."""
    return watermark.applied, watermark.resolved


def _take_lease(url: SourceUrl, workflow: str, stop: _Stop) -> tuple[Lease, Watermark]:
    """Our predecessor may need a moment to see that it has been replaced, and the server one to come back.

    Raises Refused: the workflow was begun under rules that are not known here.
    """
    began = SYSTEM.monotonic()
    while True:
        try:
            with connect(url) as session:
                layout.complete(session)
                watermark_of((row := workflows.load(session, workflow)).protocol)
                our_lease = lease.acquire(session, workflow, lease.REPLICATE)
                workers.tell(session, our_lease)
                return our_lease, watermark_of(workers.renew(session, our_lease, row))
        except (Transient, Ambiguous) as error:
            patience = _LEASE_WAIT_SECONDS if isinstance(error, LeaseHeld) else OUTAGE_SECONDS
            if SYSTEM.monotonic() - began > patience or stop.wait(0.2):
                raise


def _give_back(url: SourceUrl, our_lease: Lease) -> None:
    try:
        with connect(url) as session:
            lease.release(session, our_lease)
    except VReplicationError as error:
        log.info("the lease was not given back: %s", error)


def _note_failure(url: SourceUrl, our_lease: Lease, error: VReplicationError) -> None:
    """The driver reads the reason there; a workflow that has ended stays as it is."""
    try:
        with connect(url) as session:
            row = workflows.load(session, our_lease.workflow)
            if row.phase is Phase.CUTTING_OVER and isinstance(error, (SourceChanged, Refused)):
                # The name may carry the new table by now; the driver finds out, and starts us again if not.
                return
            if not row.has_ended:
                workflows.move(session, our_lease.workflow, Phase.FAILED, str(error), our_lease=our_lease)
                journal.write(session, our_lease.workflow, "failed", str(error), actor=lease.me())
    except VReplicationError as other:
        log.error("the failure could not be noted in the sidecar: %s", other)


def _round(url: SourceUrl, our_lease: Lease, watermark: Watermark, stop: _Stop, setting: _Setting) -> None:
    """Read, apply and beat until `stop`; every connection of the round is closed at its end."""
    watermark.forget_queued()
    sessions: list[Session] = []
    try:
        control = _open(url, sessions)
        # Of the round before: what was lost here may still hold rows there.
        lease.end_connections(control, lease.former_connections(control, our_lease), user=url.user)
        job = jobs.load(control, our_lease.workflow)
        for _ in range(job.limits.apply_parallelism):
            _open(url, sessions)
        with _running(job, watermark, stop, setting) as run:
            _follow(url, our_lease, job, run, sessions)
    finally:
        for session in sessions:
            session.close()


@contextlib.contextmanager
def _running(job: Job, watermark: Watermark, stop: _Stop, setting: _Setting) -> Iterator[_Run]:
    """What is on disk stays where a restart can make use of it."""
    sorter = DiskSorter(spool.home(job.row))
    memory = spool.memory_bytes() // setting.share
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


def _open(url: SourceUrl, sessions: list[Session]) -> Session:
    sessions.append(connect(url, read_timeout=WORK_SECONDS, idle_seconds=LONG_IDLE_SECONDS))
    return sessions[-1]


def _follow(url: SourceUrl, our_lease: Lease, job: Job, run: _Run, sessions: list[Session]) -> None:
    control = sessions[0]
    matcher = Matcher(
        is_strict=ledger.totals(control, our_lease.workflow).has_chunks,
        budget_bytes=run.memory // 2,
        sorter=run.sorter,
        on_applied=lambda items: applier.since.note_items(items),
        on_lost=lambda: applier.since.make_void(),
    )
    run.keeps_rows = lambda: any(branch.place for branch in matcher.held())
    target = Target(mapping=job.mapping, lease=our_lease, packet=job.packet)
    applier = Applier(
        sessions[1:],
        target,
        run.watermark,
        held=matcher.held,
        on_first_open=matcher.be_strict,
    )
    run.watermark.server_time(server_micros(control))
    intake = _intake(url, control, job, run)
    beater = Beater(url, our_lease, run.watermark, lambda: _beat_state(run, applier), is_alone=run.setting.is_alone)
    try:
        intake.begin(_start(control, job, matcher, applier, run))
        beater.start([s.id for s in sessions])
        run.fresh_marker = markers.write(control, our_lease.workflow)
        _apply_all(matcher, applier, run, beater, control, our_lease.workflow)
        applier.save_since()
    finally:
        beater.stop()
        run.channel.close()
        intake.close()
        applier.close()


def _beat_state(run: _Run, applier: Applier) -> dict[str, object]:
    return {
        "is_fresh": run.is_fresh,
        "is_holding": run.is_holding,
        "held_branches": run.held,
        "events_applied": applier.events_applied,
        "keys_since": len(applier.since.keys) if applier.since.is_active else None,
        "others": run.others,
        "read_position": str(run.read_position) if run.read_position else None,
    }


def _start(control: Session, job: Job, matcher: Matcher, applier: Applier, run: _Run) -> Position:
    """Where the log has to be read from: the checkpoint, or before it.

    For branches whose rows are not here now, and for keys written since a verification that are not in the sidecar.
    """
    if applier.position is None:
        return Position.parse(job.row.start_position or "")
    collected = _collected(control, applier)
    start = matcher.restore(applier.held_before, applier.position, collected)
    for branch in applier.held_before:
        run.watermark.track(branch.xid)
    if start != applier.position:
        if start == collected:
            log.info("keys written since the verification are looked up in the log from %s on", start)
        else:
            log.info("rows of prepared XA branches are read again, from %s up to %s", start, applier.position)
    return start


def _collected(control: Session, applier: Applier) -> Position | None:
    """Up to where keys are in the sidecar, when that is before the checkpoint. A log that is gone makes them void."""
    collected, position = applier.since.collected, applier.position
    if collected is None or position is None:
        return None
    # Never behind the checkpoint; MariaDB's numbers may say so where several servers write one domain.
    is_before = collected.is_within(position)
    if is_before and position.is_within(collected):
        return None
    if is_before and standing(control, collected) is Standing.HERE:
        return collected
    applier.since.make_void()
    return None


def _intake(url: SourceUrl, session: Session, job: Job, run: _Run) -> Intake:
    row, reader = job.row, run.setting.reader
    ours = stream.of_ours(SIDECAR, lambda table: read_columns(session, SIDECAR, table))
    following = Following(
        name=row.id,
        watches=(stream.of_mapping(job.mapping, reader.number(row.id)),),
        guarded=frozenset({(row.source_schema, row.shadow_table)}),
    )

    def open_log(start: Position) -> Tailer:
        return Tailer(
            url,
            start,
            ours,
            server_id=draw_server_id(session),
            is_mariadb=job.server.is_mariadb,
            part_bytes=min(PART_BYTES, run.memory // 16),
        )

    return Intake(reader, following, _Queue(run), open_log)


@dataclass(frozen=True, slots=True)
class _Queue:
    """Where the reading thread puts what it reads."""

    run: _Run

    def put(self, group: Group) -> None:
        if self.run.stop.is_set():
            raise Closed
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
    beats = [beat_micros(i.after) for i in group.items if i.table == stream.GATE and i.after]
    # Of a transaction that has not been read whole, only what stands before it is received.
    run.watermark.shown(max([group.time_micros - (not group.is_last), *beats]))


def _apply_all(matcher: Matcher, applier: Applier, run: _Run, beater: Beater, control: Session, workflow: str) -> None:
    """The applying thread's loop."""
    while not run.stop.is_set():
        beater.check()
        if beater.is_over:
            run.stop.is_over = True
            break
        for item in run.channel.take(_TAKE_SECONDS):
            for group in _matched(matcher, item, run):
                _react(applier.take(group), applier, run, control, workflow)
                if not group.is_last:
                    beater.check()
            if run.stop.is_set():
                return
        run.held = len(matcher.held_with_rows())
        applier.flush_if_due()
    applier.flush()


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


def _react(applied: list[Marker], applier: Applier, run: _Run, control: Session, workflow: str) -> None:
    for marker in applied:
        if marker.id == run.fresh_marker:
            applier.match_landed()
            run.is_fresh = True
        elif marker.kind == markers.CUTOVER:
            _hold(marker, run, control, workflow)


def _hold(marker: Marker, run: _Run, control: Session, workflow: str) -> None:
    """Stand still while the tables are switched: the driver takes the marker back when it could not."""
    reach("replicate.holding")
    run.is_holding = True
    try:
        while markers.is_present(control, workflow, marker.id) and not run.stop.is_set():
            if workflows.is_cut(control, workflow):
                run.stop.is_over = True
            run.stop.wait(0.01)
    finally:
        run.is_holding = False
