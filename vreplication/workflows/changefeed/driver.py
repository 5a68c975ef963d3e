"""A feed's lease and heartbeat at its source, what the operator wants, and what is told of it.

Our heartbeat is in the source's log, too, so that the feed's time goes on while nobody writes.

What must stay true: whoever has lost the lease is told at the next look; figures are written under the lease.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from vreplication.errors import Ambiguous, Cancelled, Interrupted, Terminal, Transient, VReplicationError
from vreplication.feed.feed import Status
from vreplication.feed.progress import Progress
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS
from vreplication.state import feeds, layout, lease, workflows
from vreplication.state.lease import Lease
from vreplication.workflows.changefeed.pulse import Pulse

log = logging.getLogger(__name__)

_BEAT_SECONDS = 1.0


class Paused(Terminal):
    """The operator has paused it: the run ends, and the next begins when it is resumed."""


@dataclass(slots=True)
class FeedDriver:
    """Holds the lease between `start` and `close`. url: of the first source; others: those that need a heartbeat, too.

    pulse_seconds: between two of those.
    """

    url: SourceUrl
    workflow: str
    stop: threading.Event
    others: tuple[SourceUrl, ...] = ()
    pulse_seconds: float = 0.2
    our_lease: Lease | None = None
    wanted: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    _ended: VReplicationError | None = None
    _is_paused: bool = False
    _status: Status | None = None
    _waiting: str = ""
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pulse: Pulse | None = None

    def start(self) -> None:
        """Raises LeaseHeld."""
        with connect(self.url) as session:
            layout.complete(session)
            self.our_lease = lease.acquire(session, self.workflow, lease.DRIVER)
            workflows.reopen(session, self.workflow, Phase.STREAMING)
            workflows.move(session, self.workflow, Phase.STREAMING, our_lease=self.our_lease)
            self._is_paused = workflows.load(session, self.workflow).is_paused
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()
        if self.others:
            self._pulse = Pulse((self.url, *self.others), self.workflow, self.pulse_seconds)
            self._pulse.start()

    def check(self) -> None:
        """Raises what ends the run."""
        if self.stop.is_set():
            raise Interrupted("Interrupted.")
        if self._ended is not None:
            raise self._ended
        if self._is_paused:
            raise Paused("Paused.")

    def wait_while_paused(self) -> None:
        while self._is_paused and self._ended is None and not self.stop.is_set():
            self.stop.wait(0.2)
        self.check()

    def is_ours(self) -> bool:
        """Whoever takes over has taken the lease first."""
        with connect(self.url) as session:
            return self.our_lease is not None and lease.is_held(session, self.our_lease)

    def told(self, status: Status) -> None:
        self._status, self._waiting = status, ""

    def waits(self, text: str) -> None:
        self._waiting = text

    def close(self) -> None:
        """Stop beating, give the lease back."""
        self._closing.set()
        if self._pulse:
            self._pulse.close()
        if self._thread:
            self._thread.join(10.0)
        try:
            with connect(self.url) as session:
                if self.our_lease and lease.is_held(session, self.our_lease):
                    feeds.tell(session, self.our_lease, self._figures(session))
                    lease.release(session, self.our_lease)
        except VReplicationError as error:
            log.info("the lease was not given back: %s", error)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with connect(self.url, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS) as session:
                    self._beat(session)
            except (Transient, Ambiguous) as error:
                log.warning("the feed's heartbeat failed: %s", error)
                self._closing.wait(1.0)
            except Terminal as error:
                self._ended = error
                return
            except Exception as error:  # a silent end of this thread would look like a dead driver
                log.exception("the feed's heartbeat failed")
                self._ended = Terminal(f"The feed's heartbeat failed: {type(error).__name__}: {error}")
                return

    def _beat(self, session: Session) -> None:
        assert self.our_lease is not None
        while not self._closing.is_set():
            lease.beat(session, self.our_lease, (session.id,))
            row = workflows.load(session, self.workflow)
            self._is_paused = row.is_paused
            if row.is_cancel_requested:
                self._ended = self._ended or Cancelled("Cancelled by the operator.")
            found = feeds.find(session, self.workflow)
            self.wanted = found[0] if found else None
            feeds.tell(session, self.our_lease, self._figures(session))
            self._closing.wait(_BEAT_SECONDS)

    def _figures(self, session: Session) -> dict[str, Any]:
        """As `status` shows them. lag: from the server's present time to what the last Resolved said."""
        now = int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))
        status = self._status
        found: dict[str, Any] = {"waiting_for": self._waiting or None}
        if status is not None:
            progress = status.progress
            found |= {
                "rows_sent": status.rows,
                "rows_by_partition": list(status.by_partition),
                "resolved_micros": progress.resolved,
                "lag_seconds": max(0.0, (now - progress.resolved) / 1e6),
                "topic": progress.topic,
                "partitions": progress.partitions,
                "generation": progress.generation,
                "position": progress.sources[0].position,
                "filling": _filling(progress),
                "open_branches": sum(len(each.branches) for each in progress.sources),
                "sources": [
                    {"server": each.source, "position": each.position, "sent_micros": each.assigned}
                    for each in progress.sources
                ],
            }
        self.figures = self.figures | found
        return self.figures


def _filling(progress: Progress) -> str | None:
    """The table whose rows are being sent by a snapshot."""
    for each in progress.sources:
        if each.filled is not None and not each.filled.is_done:
            return f"{each.filled.schema}.{each.filled.table}".strip(".") or "the first table"
    return None
