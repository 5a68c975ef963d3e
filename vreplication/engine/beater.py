"""The beating thread of catch-up: gate row, lease heartbeat and progress, on a connection of its own.

What must stay true: the gate is open only while catch-up is level, fresh and not holding; the row is rewritten every
250 ms and read back from the log, so lag is measured on the source's clock, and where that was set back, by how long
our own beats are under way; what goes wrong here is raised in the applying thread (`check`), which cannot otherwise
know.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from vreplication import about
from vreplication.changes.protocol import RulesRenewed
from vreplication.changes.watermark import Reading, Watermark
from vreplication.clock import SYSTEM
from vreplication.engine import log_kept
from vreplication.engine.job import Stream, request_of
from vreplication.engine.throttling import Noting, Throttling
from vreplication.errors import Superseded, Terminal, VReplicationError
from vreplication.mysql.ends import Ends
from vreplication.mysql.server import check_commit_order
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.estimate import ApplyEstimate
from vreplication.settings import BEAT_SECONDS, GATE_PERIOD_SECONDS, MIB
from vreplication.state import (
    gate,
    held,
    history,
    journal,
    lease,
    progress,
    since,
    source_marks,
    throttle,
    throttling,
    workers,
    workflows,
)
from vreplication.state.history import SLOT_SECONDS
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow
from vreplication.throttle.reasons import Reason

log = logging.getLogger(__name__)

COPY_LAG_SECONDS = 3.0
COPY_BACKLOG_CHANGES = 4_000
_THIN_SECONDS = 600
LOG_CHECK_SECONDS = 3600.0
APPLYING = snapshot.APPLY.strip()
_BEATS_A_SECOND, _BEATS_A_LOOK = max(1, round(1 / GATE_PERIOD_SECONDS)), 2
THROTTLED = frozenset({Phase.PREPARING, Phase.COPYING, Phase.CATCHING_UP, Phase.VERIFYING})
"""Later nothing is copied that could be held back, and a critical load ends nothing."""


class Beater:
    """Start it with the ids of the round's other connections; `check` raises what happened to it."""

    def __init__(
        self,
        of: Stream,
        our_lease: Lease,
        watermark: Watermark,
        state: Callable[[], dict[str, Any]],
        *,
        is_alone: bool = False,
    ) -> None:
        self._is_alone = is_alone
        self._of, self._lease, self._watermark, self._state = of, our_lease, watermark, state
        self._stop = threading.Event()
        self._error: VReplicationError | None = None
        self._thread: threading.Thread | None = None
        self._connections: tuple[int, ...] = ()
        self._estimate = ApplyEstimate()
        self._applied, self._others = _PerSecond(), _PerSecond()
        self._driver_token: int | None = None
        self._log_due = 0.0
        self._throttling = Throttling(of.route, of.workflow)
        self._noting = Noting(of.workflow)
        self._row: WorkflowRow | None = None
        self._share = 0.0
        """Of a beat, that the copy has to go on for although catch-up is behind."""
        self._told: list[dict[str, Any]] | None = None
        self.is_over = False

    def start(self, connections: list[int]) -> None:
        """The first beat is written before this returns."""
        with contextlib.ExitStack() as stack:
            ends = stack.enter_context(self._of.route.open(read_timeout=BEAT_SECONDS))
            self._connections = (*connections, ends.home.id)
            self._beat(ends, 0)
            opened = stack.pop_all()
        self._thread = threading.Thread(target=self._run, args=(ends, opened), name="beater", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(10.0)
        self._throttling.stop()

    def check(self) -> None:
        if self._error is not None:
            raise self._error
        self._throttling.check()

    def _run(self, ends: Ends, opened: contextlib.ExitStack) -> None:
        about.this_thread(self._of.workflow)
        beat = 0
        try:
            while not self._stop.wait(GATE_PERIOD_SECONDS):
                beat += 1
                self._beat(ends, beat)
        except VReplicationError as error:
            self._error = error
        except Exception as error:  # the applying thread must hear of it
            log.exception("the beating thread failed")
            self._error = Terminal(f"Catch-up's heartbeat failed: {type(error).__name__}: {error}")
        finally:
            opened.close()

    def _beat(self, ends: Ends, beat: int) -> None:
        state, session = self._state(), ends.home
        now = SYSTEM.monotonic()
        reading = self._watermark.reading(server_micros(ends.source), now)
        if beat % _BEATS_A_LOOK == 0:
            self._ask(session)
        reasons = self._borne(why_closed(reading, state)) or self._throttling.reasons
        reason = "".join(map(str, reasons[:1]))
        # Counted before it is written, for the log may bring it back at once.
        number = self._watermark.write_beat(now)
        gate.write(session, self._lease, is_open=not reason, reason=reason, beat=number)
        # Of our rows this stream follows one table on its source alone, and not the gate's at home.
        if ends.is_across:
            source_marks.beat(ends.source, self._of.id, number)
        if beat % _BEATS_A_SECOND == 0:
            lease.beat(session, self._lease, self._connections)
            self._write_progress(session, reading, state, reason)
            self._tell(session, [each.as_json() for each in reasons])
            self._noting.look(session, self._throttling.reason)
            others = self._others.take(int(state["others"]))
            if others is not None:
                throttle.write_traffic(session, self._of.workflow, others)
            self._remember(session, beat // _BEATS_A_SECOND)
            self._look_around(ends)

    def _ask(self, session: Session) -> None:
        """How the copy is to be held back, as of now; of what is no copy nothing is asked."""
        row = self._row = self._row or workflows.load(session, self._of.workflow)
        is_held = row.phase in THROTTLED
        self._throttling.ask(request_of(row, throttling.read(session, row.id)) if is_held else None)

    def _tell(self, session: Session, reasons: list[dict[str, Any]]) -> None:
        """For programs; as long as nothing changes it is in the row."""
        if reasons != self._told:
            held.note(session, self._of.workflow, held.COPY, reasons)
            self._told = reasons

    def _borne(self, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """None in the least share of the beats, where the copy is to get on although catch-up is behind."""
        asked = self._throttling.asked
        if asked is None or not asked.least_copy_share or APPLYING not in [each.code for each in reasons]:
            self._share = 0.0
            return reasons
        self._share += asked.least_copy_share
        if self._share < 1:
            return reasons
        self._share -= 1
        return ()

    def _write_progress(self, session: Session, reading: Reading, state: dict[str, Any], reason: str) -> None:
        is_known = bool(state["is_fresh"]) and reading.lag_seconds is not None
        lag = reading.lag_seconds if is_known else None
        backlog = reading.backlog if is_known else None
        figures = self._estimate.observe(
            SYSTEM.monotonic(),
            lag_seconds=lag,
            backlog=backlog,
            is_inside=reading.inside is not None,
            is_reading=reading.unread is not None,
        )
        progress.write_replicate(
            session,
            self._of.workflow,
            lag_seconds=lag,
            backlog=backlog,
            events_applied=state["events_applied"],
            applied_per_second=self._applied.take(int(state["events_applied"])),
            **figures.columns(),
            throttled=reason or None,
            held_branches=state["held_branches"],
            read_position=state["read_position"],
        )
        for table, keys in state["keys_since"].items():
            since.note_waiting(session, table, keys)

    def _remember(self, session: Session, seconds: int) -> None:
        """Ours is the pen, because we write from before the first chunk until the cut-over, whoever drives."""
        if seconds % SLOT_SECONDS == 0:
            snapshot.remember(session, self._of.workflow)
        if seconds % _THIN_SECONDS == 0:
            history.thin(session, self._of.workflow)

    def _look_around(self, ends: Ends) -> None:
        """Has the workflow ended, or has another driver taken over?"""
        session = ends.home
        row = self._row = workflows.load(session, self._of.workflow)
        about.stands(row.id, str(row.phase))
        self.is_over = row.has_ended or self._of.is_cut(session)
        self._watch_log(ends, row)
        # R2: it is dynamic. With it off a change can be in the log, and applied, long before a SELECT shows it, and a
        # chunk that is read then brings the row of before.
        check_commit_order(ends.source)
        if (known := workers.renew(session, self._lease, row)) > row.protocol:
            raise RulesRenewed(known)
        if self._is_alone:
            # Drivers come and go, one a step; the last of them runs a catch-up of its own once the gate is passed.
            is_held = row.phase in (Phase.WAITING, Phase.CUTTING_OVER)
            self.is_over |= row.is_cancel_requested or (is_held and gate.released_by(session, row.id) is not None)
            return
        holder = lease.holder_of(session, self._of.workflow, lease.DRIVER)
        token = holder.token if holder else None
        if self._driver_token is not None and token != self._driver_token:
            raise Superseded("Another driver has taken this workflow over; it starts its own catch-up.")
        self._driver_token = token

    def _watch_log(self, ends: Ends, row: WorkflowRow) -> None:
        """At the start and hourly: could a restart go on?"""
        if SYSTEM.monotonic() < self._log_due:
            return
        self._log_due = SYSTEM.monotonic() + LOG_CHECK_SECONDS
        # F15. It ends nothing: who reads on loses nothing, only a restart could not go on from there.
        if place := log_kept.gone(ends.home, row, source=ends.source, stream=self._of.id):
            words = f"the server has purged its binary log at {place}: a restart could not go on from there"
            log.warning("workflow %s: %s", row.id, words)
            journal.write(ends.home, row.id, "log purged", words, actor=lease.me())


class _PerSecond:
    """Rate of a counter since it was looked at last."""

    def __init__(self) -> None:
        self._from: tuple[float, int] | None = None

    def take(self, count: int) -> float | None:
        """None: the first look."""
        now = SYSTEM.monotonic()
        before, self._from = self._from, (now, count)
        if before is None or now <= before[0]:
            return None
        return max(0.0, (count - before[1]) / (now - before[0]))


def why_closed(reading: Reading, state: dict[str, Any]) -> tuple[Reason, ...]:
    """Why no copy chunk may start now; () when one may."""
    if state["is_holding"]:
        return (Reason(code="switching", said="the tables are being switched", is_limit=False),)
    if not state["is_fresh"] or reading.lag_seconds is None:
        return (Reason(code="starting", said="catch-up has just started", is_limit=False),)
    if reading.backlog >= COPY_BACKLOG_CHANGES:
        words = f"{snapshot.APPLY}backlog {reading.backlog:,} changes{_inside(reading)}"
        return (_applying(words, "backlog", reading.backlog, COPY_BACKLOG_CHANGES, "changes"),)
    if reading.lag_seconds >= COPY_LAG_SECONDS:
        words = f"{snapshot.APPLY}lag {reading.lag_seconds:.1f} s{_inside(reading)}"
        return (_applying(words, "lag", reading.lag_seconds, COPY_LAG_SECONDS, "seconds"),)
    return ()


def _applying(words: str, what: str, value: float, limit: float, unit: str) -> Reason:
    """Catch-up comes first."""
    return Reason(code=APPLYING, said=words, is_limit=False, what=what, value=value, limit=limit, unit=unit)


def _inside(reading: Reading) -> str:
    """How far giant transactions are: one that is being applied, and one whose end has not been read."""
    inside, unread, found = reading.inside, reading.unread, ""
    if inside:
        found = f", {inside.done:,} of {inside.total:,} of one transaction applied"
    if unread:
        # The log of MySQL tells the whole length up front, MariaDB's does not.
        size = f"{unread.done / MIB:,.0f}" + (f" of {unread.total / MIB:,.0f} MiB" if unread.total else " MiB")
        found += f", {size} of {'another' if inside else 'one transaction'} read"
    return found


def server_micros(session: Session) -> int:
    """The source's clock."""
    return int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))
