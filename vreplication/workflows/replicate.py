"""Catch-up as a process of its own: read the log, match, apply, and say each quarter second how far that is.

Three threads that share a channel and the watermark: one reads the log, one applies, one beats (gate row, heartbeat,
progress). A lost connection starts all of them again from the checkpoint; anything else ends the workflow with its
reason in the sidecar.

What must stay true: the gate is closed, and no marker of an earlier run counts, until a marker written after our start
has been applied; when the cut-over's marker is applied nothing more is read until it is taken back; when our parent
goes, or somebody else takes the driver's lease, we go too.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from vreplication.apply.applier import Applier, Marker
from vreplication.apply.writer import Target
from vreplication.binlog.events import Change, Group, GroupKind, Heartbeat, Position, SidecarWatch, SourceWatch
from vreplication.binlog.position import draw_server_id
from vreplication.binlog.tailer import Tailer
from vreplication.changes.channel import Channel, Closed
from vreplication.changes.matcher import Matcher
from vreplication.changes.watermark import Watermark
from vreplication.clock import SYSTEM
from vreplication.errors import Ambiguous, LeaseHeld, SourceChanged, Superseded, Terminal, Transient, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.schema.introspect import introspect
from vreplication.schema.model import TableMapping
from vreplication.settings import SIDECAR
from vreplication.state import lease, ledger, markers, workflows
from vreplication.state.lease import Lease
from vreplication.workflows import job as jobs
from vreplication.workflows.beater import Beater
from vreplication.workflows.job import Job

log = logging.getLogger(__name__)

_TAKE_SECONDS = 0.05
_LEASE_WAIT_SECONDS = 20.0
_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
_PATIENCE = 60
"""Restarts after lost connections, without any progress in between, before we give up."""


@dataclass(slots=True)
class _Run:
    """What the threads of one round share."""

    stop: threading.Event
    watermark: Watermark
    is_alone: bool = False
    channel: Channel[Group | Heartbeat] = field(default_factory=Channel)
    fresh_marker: str | None = None
    is_fresh: bool = False
    is_holding: bool = False
    held: int = 0
    read_position: Position | None = None


def replicate(url: SourceUrl, workflow: str, stop: threading.Event, *, is_alone: bool = False) -> None:
    """Run catch-up until the workflow ends or `stop` is set. Raises what ended it, after noting it in the sidecar.

    is_alone: no single driver stands behind it, but one process a step; then it ends when the gate has been passed, and
    whoever switches the tables goes on from its checkpoint.
    """
    right = _take_lease(url, workflow, stop)
    watermark = Watermark()
    failures = 0
    while not stop.is_set():
        before = watermark.applied
        try:
            _round(url, right, watermark, stop, is_alone)
        except (Transient, Ambiguous) as error:
            failures = 0 if watermark.applied > before else failures + 1
            log.warning("catch-up starts again from its checkpoint: %s", error)
            if failures > _PATIENCE:
                _note_failure(url, right, error)
                raise
            stop.wait(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
        except Superseded:
            raise
        except VReplicationError as error:
            _note_failure(url, right, error)
            raise
    _give_back(url, right)


def _take_lease(url: SourceUrl, workflow: str, stop: threading.Event) -> Lease:
    """Our predecessor may need a moment to see that it has been replaced."""
    deadline = SYSTEM.monotonic() + _LEASE_WAIT_SECONDS
    while True:
        try:
            with connect(url) as session:
                return lease.acquire(session, workflow, lease.REPLICATE)
        except LeaseHeld:
            if SYSTEM.monotonic() > deadline or stop.wait(0.2):
                raise


def _give_back(url: SourceUrl, right: Lease) -> None:
    try:
        with connect(url) as session:
            lease.release(session, right)
    except VReplicationError as error:
        log.info("the lease was not given back: %s", error)


def _note_failure(url: SourceUrl, right: Lease, error: VReplicationError) -> None:
    """The driver reads the reason there; a workflow that has ended stays as it is."""
    try:
        with connect(url) as session:
            row = workflows.load(session, right.workflow)
            if row.phase is Phase.CUTTING_OVER and isinstance(error, SourceChanged):
                # The name may carry the new table by now; the driver finds out, and starts us again if not.
                return
            if not row.has_ended:
                workflows.move(session, right.workflow, Phase.FAILED, str(error), right=right)
    except VReplicationError as other:
        log.error("the failure could not be noted in the sidecar: %s", other)


def _round(url: SourceUrl, right: Lease, watermark: Watermark, stop: threading.Event, is_alone: bool) -> None:
    """Read, apply and beat until `stop`; every connection of the round is closed at its end."""
    watermark.forget_queued()
    run = _Run(stop=stop, watermark=watermark, is_alone=is_alone)
    sessions: list[Session] = []
    try:
        control = _open(url, sessions)
        job = jobs.load(control, right.workflow)
        sessions += [connect(url) for _ in range(job.limits.apply_parallelism)]
        _follow(url, right, job, run, sessions)
    finally:
        run.channel.close()
        for session in sessions:
            session.close()


def _open(url: SourceUrl, sessions: list[Session]) -> Session:
    sessions.append(connect(url))
    return sessions[-1]


def _follow(url: SourceUrl, right: Lease, job: Job, run: _Run, sessions: list[Session]) -> None:
    control = sessions[0]
    matcher = Matcher(is_strict=ledger.totals(control, right.workflow).has_chunks)
    target = Target(mapping=job.mapping, lease=right, packet=job.packet)
    applier = Applier(
        sessions[1:],
        target,
        run.watermark,
        held=lambda only_ours: tuple(map(str, matcher.held_with_rows() if only_ours else matcher.held())),
        hold_position=matcher.hold_position,
        on_first_open=matcher.be_strict,
    )
    tailer = _tailer(url, control, job, applier.position)
    beater = Beater(url, right, run.watermark, state=lambda: _beat_state(run, applier), is_alone=run.is_alone)
    reader = threading.Thread(target=_read, args=(tailer, run), name="reader", daemon=True)
    try:
        reader.start()
        beater.start([s.id for s in sessions])
        run.fresh_marker = markers.write(control, right.workflow)
        _apply_all(matcher, applier, run, beater, control, right.workflow)
    finally:
        beater.stop()
        tailer.close()
        applier.close()
        run.channel.close()
        reader.join(10.0)


def _beat_state(run: _Run, applier: Applier) -> dict[str, object]:
    return {
        "is_fresh": run.is_fresh,
        "is_holding": run.is_holding,
        "held_branches": run.held,
        "events_applied": applier.events_applied,
        "read_position": str(run.read_position) if run.read_position else None,
    }


def _tailer(url: SourceUrl, session: Session, job: Job, position: Position | None) -> Tailer:
    row = job.row
    start = position or Position.parse(row.start_position or "")
    watches = [
        SidecarWatch(schema=SIDECAR, table=t, columns=introspect(session, SIDECAR, t).columns)
        for t in ("chunk", "gate", "marker")
    ]
    return Tailer(
        url,
        start,
        source_watch(job.mapping),
        watches,
        server_id=draw_server_id(session),
        is_mariadb=job.server.is_mariadb,
        guarded=frozenset({(row.source_schema, row.shadow_table)}),
    )


def source_watch(mapping: TableMapping) -> SourceWatch:
    """The source table as the tailer has to read it."""
    return SourceWatch(
        schema=mapping.source.schema,
        table=mapping.source.name,
        columns=mapping.source.columns,
        key=tuple((p.source.ordinal, p.convert) for p in mapping.key),
        values=tuple((p.source.ordinal, p.convert) for p in mapping.pairs),
        hidden=sum(key.index_type == "HASH" for key in mapping.source.keys),
    )


def _read(tailer: Tailer, run: _Run) -> None:
    """The reading thread."""
    try:
        for item in tailer:
            if isinstance(item, Group):
                run.watermark.received_changes(_changes(item))
                run.read_position = item.end
                run.channel.put(item, item.nbytes + 256)
            if run.stop.is_set():
                return
    except Closed:
        return
    except VReplicationError as error:
        run.channel.fail(error)
    except Exception as error:  # a fault of ours must end the workflow, not leave it waiting
        log.exception("reading the log failed")
        run.channel.fail(Terminal(f"Reading the log failed: {type(error).__name__}: {error}"))


def _changes(group: Group) -> int:
    return sum(1 for item in group.items if isinstance(item, Change))


def _apply_all(matcher: Matcher, applier: Applier, run: _Run, beater: Beater, control: Session, workflow: str) -> None:
    """The applying thread's loop."""
    while not run.stop.is_set():
        beater.check()
        if beater.is_over:
            run.stop.set()
            break
        for item in run.channel.take(_TAKE_SECONDS):
            if isinstance(item, Group):
                for group in _matched(matcher, item, run):
                    _react(applier.take(group), applier, run, control, workflow)
        run.held = len(matcher.held_with_rows())
        applier.flush()
    applier.flush()


def _matched(matcher: Matcher, group: Group, run: _Run) -> list[Group]:
    """Rows that the matcher holds are not backlog: nothing can be done about them yet."""
    if group.kind is GroupKind.XA_PREPARE:
        run.watermark.received_changes(-_changes(group))
    found = list(matcher.feed(group))
    if group.kind is GroupKind.XA_COMMIT:
        run.watermark.received_changes(sum(map(_changes, found)))
    return found


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
            if workflows.load(control, workflow).is_cut:
                run.stop.set()
            run.stop.wait(0.01)
    finally:
        run.is_holding = False
