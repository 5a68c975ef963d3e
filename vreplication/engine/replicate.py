"""Catch-up as a process of its own: read the log, match, apply, and say each quarter second how far that is.

A round (engine/catch_up.py) ends at a lost connection, and the next one starts from the checkpoint; anything else ends
the workflow with its reason in the sidecar.

What must stay true: one process holds the stream's lease; what a round could not finish the next one does again; a
reason is noted once, and never over an end that is there.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Iterator

from vreplication.changes.protocol import RulesRenewed, watermark_of
from vreplication.changes.watermark import Watermark
from vreplication.clock import SYSTEM
from vreplication.cutover.decide import SWITCHED, decide, is_of
from vreplication.engine.catch_up import Setting, Stop, run_round
from vreplication.engine.job import Stream, reason_of, stream_of
from vreplication.engine.reading import SharedReader
from vreplication.errors import (
    Ambiguous,
    LeaseHeld,
    Refused,
    SourceChanged,
    Superseded,
    Transient,
    VReplicationError,
)
from vreplication.mysql import read_only
from vreplication.mysql.read_only import ReadOnly
from vreplication.mysql.session import LockWait, Session, SqlError, connect, is_passing
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.settings import OUTAGE_SECONDS
from vreplication.state import journal, layout, lease, markers, workers, workflows
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow

log = logging.getLogger(__name__)

# Longer than the beat of a holder that died counts for (LEASE_STALE_SECONDS), should the server still show its
# connections.
_LEASE_WAIT_SECONDS = 20.0
_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
_COLLECT_EVERY = 200_000
"""Objects, two of them a change; Python's own is 700."""
_PATIENCE = 60
"""Restarts after lost connections, without any progress in between, before we give up.

What somebody else holds is waited for as long as he holds it: keys and triggers that a killed attempt has left on the
new table are put back by its driver, who may have to wait for a relative that is in use.
"""


def replicate(
    url: SourceUrl,
    workflow: str,
    asked: threading.Event,
    *,
    is_alone: bool = False,
    reader: SharedReader | None = None,
    share: int = 1,
) -> None:
    """Run catch-up of an online DDL until the workflow ends or `asked` is set. Raises what ended it, after noting it.

    is_alone: no single driver stands behind it, but one process a step; then it ends when the gate has been passed, and
    whoever switches the tables goes on from its checkpoint.
    reader: where others are followed too; share: among so many the memory is divided.
    """
    setting = Setting(reader=reader or SharedReader(), share=share, is_alone=is_alone)
    with collecting_rarely():
        _replicate(stream_of(url, workflow), Stop(asked), setting)


def replicate_stream(stream: Stream, asked: threading.Event, *, is_alone: bool = False) -> None:
    """The same for any stream."""
    with collecting_rarely():
        _replicate(stream, Stop(asked), Setting(is_alone=is_alone))


def _replicate(of: Stream, stop: Stop, setting: Setting) -> None:
    our_lease, watermark = _take_lease(of, stop)
    failures = 0
    while not stop.is_set():
        # What a round held that was cut off is a cycle: errors know frames, and frames know the round.
        gc.collect()
        before = _reached(watermark)
        try:
            run_round(of, our_lease, watermark, stop, setting)
        except RulesRenewed as error:
            log.info("catch-up starts again from its checkpoint: %s", error)
            watermark = watermark_of(error.protocol)
        except (Transient, Ambiguous, SqlError) as found:
            # Of a move: either server may be closed for a moment, and the old one behind the switch for longer.
            said = read_only.named(found, of.route)
            if isinstance(said, SqlError) and not is_passing(said):
                _note_failure(of, our_lease, said)
                raise
            failures = 0 if _reached(watermark) != before or isinstance(said, LockWait | ReadOnly) else failures + 1
            log.warning("catch-up starts again from its checkpoint: %s", said)
            if failures > _PATIENCE:
                _note_failure(of, our_lease, said)
                raise
            stop.wait(_RETRY_SECONDS[-1 if isinstance(said, ReadOnly) else min(failures, len(_RETRY_SECONDS) - 1)])
        except Superseded:
            # The workflow is another process's by now: no reason of ours may be noted.
            raise
        except VReplicationError as error:
            _note_failure(of, our_lease, error)
            raise
    # Behind an error it is not given back: the connections are closed by then, and without one the lease counts as free
    # (state/lease.py).
    _give_back(of, our_lease)


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """What waits in the channel is hundreds of thousands of objects without cycles, and looking through them again and
    again for cycles took a third of catch-up's time (changes in transactions of one row).
    """
    before = gc.get_threshold()
    gc.collect()
    # What is loaded stays to the end, and need not be looked through. Once: where others are followed too, what they
    # hold at this moment would never be freed.
    if gc.get_freeze_count() == 0:
        gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _reached(watermark: Watermark) -> tuple[int, int | None]:
    """Changes applied, and the newest time up to which all are: an idle source shows progress too."""
    return watermark.applied, watermark.resolved


def _take_lease(of: Stream, stop: Stop) -> tuple[Lease, Watermark]:
    """Our predecessor may need a moment to see that it has been replaced, and the server one to come back.

    Raises Refused: the workflow was begun under rules that are not known here.
    """
    began = SYSTEM.monotonic()
    while True:
        try:
            with connect(of.route.home) as session:
                layout.complete(session)
                # Before the lease: who cannot go on by these rules must not take it from somebody who can.
                watermark_of((row := workflows.load(session, of.workflow)).protocol)
                our_lease = lease.acquire(session, of.id, lease.REPLICATE)
                workers.tell(session, our_lease)
                return our_lease, watermark_of(workers.renew(session, our_lease, row))
        except (Transient, Ambiguous, SqlError) as found:
            said = read_only.named(found, of.route)
            if isinstance(said, SqlError):
                raise
            patience = _LEASE_WAIT_SECONDS if isinstance(said, LeaseHeld) else OUTAGE_SECONDS
            # One that is read-only is waited for, however long.
            is_over = not isinstance(said, ReadOnly) and SYSTEM.monotonic() - began > patience
            if is_over or stop.wait(0.2):
                raise


def _give_back(of: Stream, our_lease: Lease) -> None:
    try:
        with connect(of.route.home) as session:
            lease.release(session, our_lease)
    except VReplicationError as error:
        log.info("the lease was not given back: %s", error)


def _note_failure(of: Stream, our_lease: Lease, error: VReplicationError) -> None:
    """The driver reads the reason there; a workflow that has ended stays as it is."""
    try:
        with connect(of.route.home) as session:
            row = workflows.load(session, of.workflow)
            if isinstance(error, (SourceChanged, Refused)) and _may_be_switched(session, of, row):
                # The driver finds out, and starts us again if not.
                return
            if not row.has_ended:
                reason = reason_of(row, error)
                workflows.move(session, of.workflow, Phase.FAILED, reason, our_lease=our_lease)
                journal.write(session, of.workflow, "failed", reason, actor=lease.me())
    except VReplicationError as other:
        log.error("the failure could not be noted in the sidecar: %s", other)


def _may_be_switched(session: Session, of: Stream, row: WorkflowRow) -> bool:
    """The name may carry the new table by now; then what the log shows, or what is not found, may be by our RENAME."""
    if row.phase is not Phase.CUTTING_OVER:
        return False
    if of.route.is_across or row.is_cut or markers.is_any(session, row.id, markers.CUTOVER):
        # While its marker stands an attempt is under way, and RENAME is in the log before it is seen.
        return True
    try:
        # Of tables that another server has noted nothing is known here.
        return not is_of(session, row) or decide(session, row) == SWITCHED
    except SourceChanged:
        return False
