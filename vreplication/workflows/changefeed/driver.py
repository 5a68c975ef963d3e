"""A feed's lease and heartbeat at its source, what the operator wants, and what is told of it.

Our heartbeat is in the source's log, too, so that the feed's time goes on while the application is silent.

What must stay true: whoever has lost the lease is told at the next look; figures are written under the lease.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from vreplication.errors import Ambiguous, Cancelled, Interrupted, Refused, Terminal, Transient, VReplicationError
from vreplication.feed.lanes import topic_name
from vreplication.feed.merge import AHEAD_MICROS
from vreplication.feed.progress import Progress
from vreplication.feed.terms import Status
from vreplication.masking import mask
from vreplication.mysql import read_only
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session, connect, is_passing
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS
from vreplication.state import feed_rates, feeds, history, journal, layout, lease, workflows
from vreplication.state.lease import Lease
from vreplication.workflows.changefeed import roles
from vreplication.workflows.changefeed.pulse import Pulse
from vreplication.workflows.changefeed.replicas import servers_of

log = logging.getLogger(__name__)

_BEAT_SECONDS = 1.0
_RATE_SECONDS = 10
"""Over which rates are."""
# All figures are one row that each beat writes anew, whole, into the binary log of the source.
_MOST_TOLD = 500
"""Partitions of topics of tables."""
_OF_A_PROCESS = frozenset(
    {
        *("waiting_for", "rows_per_second", "rates", "rows_sent", "rows_by_partition", "committed_seconds"),
        *("lag_seconds", "ahead_seconds", "is_held"),
    }
)
"""Figures that say nothing once it has ended."""
# A beat takes about a second, so both are seconds, too.
_BEATS_A_POINT, _BEATS_A_THINNING = history.SLOT_SECONDS, 3_600


class Counts:
    """Rows that were sent, in all and by partition, over the runs of this process: each run begins to count anew."""

    def __init__(self) -> None:
        self.rows, self.by_partition = 0, list[int]()
        self._before, self._parts_before = 0, list[int]()
        self._status: Status | None = None
        self._seen: deque[tuple[float, int, list[int]]] = deque(maxlen=_RATE_SECONDS + 1)

    def told(self, status: Status) -> None:
        # Each run counts anew, and a broker that was away begins another run.
        if self._status is not None and status.rows < self._status.rows:
            self._before, self._parts_before = self.rows, self.by_partition
        self._status = status
        self.rows = self._before + status.rows
        self.by_partition = _added(status.by_partition, self._parts_before)

    def look(self, at: float) -> tuple[float | None, list[float]]:
        """Rows per second, in all and by partition; to be asked each second."""
        self._seen.append((at, self.rows, self.by_partition))
        since, rows, parts = self._seen[0]
        # The first look of a process has none before it to reckon from.
        if at <= since:
            return None, []
        now = _added(self.by_partition, [-each for each in parts])
        return (self.rows - rows) / (at - since), [round(each / (at - since), 2) for each in now]


def _added(now: Sequence[int], more: Sequence[int]) -> list[int]:
    # A feed that was scaled has more partitions, or fewer, than a moment ago.
    return [each + (more[number] if number < len(more) else 0) for number, each in enumerate(now)]


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
    _warned: dict[str, bool] = field(default_factory=dict)
    """Sentences, and whether they are in the journal."""
    _counts: Counts = field(default_factory=Counts)
    _committed_at: float = 0.0
    _generation: int | None = None
    _servers: list[str] = field(default_factory=list)
    """That are known to be read."""
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pulse: Pulse | None = None

    def start(self) -> None:
        """Raises LeaseHeld, Refused."""
        # The database that the URL names may be gone. That is in the log as any DDL is, and the feed goes on.
        with connect(self.url, use_database=False) as session:
            self._look_at_roles(session)
            layout.complete(session)
            self.our_lease = lease.acquire(session, self.workflow, lease.DRIVER)
            # `move` alone lets a failed workflow go nowhere but to its cancel.
            workflows.reopen(session, self.workflow, Phase.STREAMING)
            workflows.move(session, self.workflow, Phase.STREAMING, our_lease=self.our_lease)
            row = workflows.load(session, self.workflow)
            self._is_paused, self._servers = row.is_paused, servers_of(session, row)
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)
        self._thread.start()
        if self.others:
            self._pulse = Pulse((self.url, *self.others), self.workflow, self.pulse_seconds, self.check_role)
            self._pulse.start()

    def _look_at_roles(self, session: Session) -> None:
        """Before anything is written. Raises Refused."""
        # As long as Kafka does not answer, this is all that tells that the feed has begun, and from which servers.
        _, told = feeds.find(session, self.workflow) or (None, {})
        self.figures = {name: value for name, value in told.items() if name not in _OF_A_PROCESS}
        with ExitStack() as stack:
            others = [stack.enter_context(connect(url, use_database=False)) for url in self.others]
            self.figures[roles.NAME] = roles.known([session, *others], told)

    def check_role(self, session: Session) -> None:
        """One of the sources may have become a replica of another server. Raises Refused."""
        before = self.figures[roles.NAME].get(identity_of(session))
        if before is not None:
            roles.check(session, before)

    def may_write(self, session: Session) -> bool:
        """Into the first source."""
        try:
            # Before each beat: a source that has become a replica of another server must not get a transaction of ours
            # of its own.
            self.check_role(session)
        except Refused:
            return False
        return True

    def check(self) -> None:
        """Raises what ends the run."""
        if self.stop.is_set():
            raise Interrupted("Interrupted.")
        if self._ended is not None:
            raise self._ended
        if self._pulse is not None and self._pulse.refused is not None:
            raise self._pulse.refused
        if self._is_paused:
            raise Paused("Paused.")

    def wait_while_paused(self) -> None:
        while self._is_paused and self._ended is None and not self.stop.is_set():
            self.stop.wait(0.2)
        self.check()

    def is_ours(self) -> bool:
        """Whoever takes over has taken the lease first."""
        with connect(self.url, use_database=False) as session:
            return self.our_lease is not None and lease.is_held(session, self.our_lease)

    def told(self, status: Status) -> None:
        self._status, self._waiting, self._committed_at = status, "", time.monotonic()
        self._counts.told(status)

    def waits(self, text: str) -> None:
        self._waiting = text

    def warn(self, text: str) -> bool:
        """Into the journal, with the next beat. False: it was told before."""
        is_new = text not in self._warned
        self._warned.setdefault(text, False)
        return is_new

    def close(self) -> None:
        """Stop beating, give the lease back."""
        self._closing.set()
        if self._pulse:
            self._pulse.close()
        if self._thread:
            self._thread.join(10.0)
        try:
            with connect(self.url, use_database=False) as session:
                # What is told is a write, too, and none may come to a server that has become a replica.
                if self.our_lease and self.may_write(session) and lease.is_held(session, self.our_lease):
                    self._journal_warnings(session)
                    feeds.tell(session, self.our_lease, self._figures(session))
                    lease.release(session, self.our_lease)
        except VReplicationError as error:
            log.info("the lease was not given back: %s", error)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with connect(
                    self.url, use_database=False, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS
                ) as session:
                    with read_only.waited_for():
                        self._beat(session)
            # A source that is started again, or read-only for a moment, is waited for. Whether somebody has taken the
            # lease meanwhile, the beat behind that tells (Superseded).
            except (Transient, Ambiguous) as error:
                log.warning("the feed's heartbeat failed: %s", error)
                # Nothing can be told there, and who looks at this process is to see it.
                self.figures = self.figures | {"waiting_for": str(error)}
                self._closing.wait(1.0)
            except Terminal as error:
                # A statement that somebody has killed is sent again.
                if is_passing(error):
                    log.warning("the feed's heartbeat failed: %s", error)
                    self._closing.wait(1.0)
                    continue
                self._ended = error
                return
            except Exception as error:  # a silent end of this thread would look like a dead driver
                log.exception("the feed's heartbeat failed")
                self._ended = Terminal(f"The feed's heartbeat failed: {type(error).__name__}: {error}")
                return

    def _beat(self, session: Session) -> None:
        assert self.our_lease is not None
        for number in itertools.count():
            if self._closing.is_set():
                return
            self.check_role(session)
            # Behind the look at the source's role: on a server that has become a replica our beat would end its
            # replication.
            lease.beat(session, self.our_lease, (session.id,))
            row = workflows.load(session, self.workflow)
            self._is_paused = row.is_paused
            # What came first stays the reason.
            if row.is_cancel_requested:
                self._ended = self._ended or Cancelled("Cancelled by the operator.")
            found = feeds.find(session, self.workflow)
            self.wanted = found[0] if found else None
            figures = self._figures(session)
            self._note_servers(session, [each["server"] for each in figures.get("sources", ())])
            feeds.tell(session, self.our_lease, figures)
            self._journal_warnings(session)
            if number % _BEATS_A_POINT == 0:
                self._remember(session)
            if number % _BEATS_A_THINNING == 0:
                feed_rates.thin(session, self.workflow, history.thin(session, self.workflow))
            self._closing.wait(_BEAT_SECONDS)

    def _note_servers(self, session: Session, servers: list[str]) -> None:
        """A switch to another one was committed in Kafka; it is journaled before the figures tell of it."""
        if not servers or servers[: len(self._servers)] == self._servers:
            return
        for was, server in zip(self._servers, servers, strict=False):
            if was != server:
                words = f"from server {was} to {server}"
                journal.write(session, self.workflow, "moved", words, actor=lease.me())
                log.warning("feed %s moved %s", self.workflow, words)
        workflows.set_fields(session, self.workflow, server_identity=servers[0][:64])
        self._servers = servers

    def _journal_warnings(self, session: Session) -> None:
        for text in [text for text, is_there in list(self._warned.items()) if not is_there]:
            journal.write(session, self.workflow, "warning", text, actor=lease.me())
            self._warned[text] = True

    def _remember(self, session: Session) -> None:
        """A point of the feed's history, and in the journal when partitions have changed."""
        figures = self.figures
        held = "paused by the operator" if self._is_paused else figures.get("waiting_for")
        slot = history.slot_now(session)
        if rates := figures.get("rates"):
            feed_rates.add(session, self.workflow, slot, rates)
        history.add(
            session,
            self.workflow,
            slot=slot,
            phase=str(Phase.STREAMING),
            rows_copied=figures.get("rows_sent") or 0,
            rows_per_second=figures.get("rows_per_second"),
            lag_seconds=figures.get("lag_seconds"),
            throttled=held and mask(held)[:255],
            eta_seconds=None,
        )
        # A process that has just begun knows none before: the one that it finds is no news.
        generation = figures.get("generation")
        if self._generation is not None and generation != self._generation:
            told = f"generation {generation} with {figures['partitions']} partitions"
            journal.write(session, self.workflow, "scaled", told, actor=lease.me())
        self._generation = generation

    def _figures(self, session: Session) -> dict[str, Any]:
        """As `status` shows them."""
        now = int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))
        status = self._status
        rate, rates = self._counts.look(time.monotonic())
        held = status.held if status else ""
        waiting = self._waiting or (self._pulse.waits if self._pulse else "") or held
        found: dict[str, Any] = {"waiting_for": waiting or None, "rows_per_second": rate, "rates": rates}
        if status is not None:
            progress = status.progress
            found |= {
                "rows_sent": self._counts.rows,
                "rows_by_partition": self._counts.by_partition,
                "ends": [end.n for end in progress.ends],
                "committed_seconds": round(time.monotonic() - self._committed_at, 3),
                "resolved_micros": progress.resolved,
                **_lag(now - progress.resolved, is_held=bool(held)),
                "topic": progress.topic,
                "topic_id": progress.topic_id,
                "topics": 1 + len(progress.topics),
                "table_topics": _table_topics(progress),
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


def _lag(micros: int, *, is_held: bool) -> dict[str, Any]:
    """From what the last Resolved said to the server's present time. Where that was later, no lag is known.

    is_held: what one source has committed waits for the others, who alone are told of by Resolved.
    """
    is_ahead = micros < -AHEAD_MICROS
    lag = None if is_ahead or is_held else max(0.0, micros / 1e6)
    return {"lag_seconds": lag, "ahead_seconds": -micros / 1e6 if is_ahead else None, "is_held": is_held}


def _table_topics(progress: Progress) -> dict[str, Any]:
    """Where each of them stands, as long as they are not too many to be written each second."""
    if sum(len(each.ends) // 2 for each in progress.topics) > _MOST_TOLD:
        return {}
    return {
        topic_name(progress.topic, each.schema, each.table): {
            "topic_id": each.id,
            "generation": progress.generation - each.before,
            "ends": each.ends[1::2],
        }
        for each in progress.topics
    }


def _filling(progress: Progress) -> str | None:
    """The table whose rows are being sent by a snapshot."""
    for each in progress.sources:
        if each.filled is not None and not each.filled.is_done:
            return f"{each.filled.schema}.{each.filled.table}".strip(".") or "the first table"
    return None
