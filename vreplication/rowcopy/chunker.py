"""One split of the row copy: walk it in chunks under the chunk protocol. Runs on a Spark executor or locally.

What must stay true (docs/correctness.md, F1-F6 and the chunk protocol): a chunk's bounds are in the ledger, committed,
before its rows are read, and never change; where rows come from another server, "open" stands in its log, too, before
this attempt reads anything, and where they are read on a replica of it, that has applied the log up to there; rows and
"landed" are one transaction that begins with the fences; a lock wait, or a statement that was killed, repeats that
transaction whole. Whatever is lost with a connection is looked up in the ledger by claiming the split again, which
waits for what is still in flight. A split is left before its end with no chunk open.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from vreplication import pausepoints
from vreplication.errors import Ambiguous, Terminal, Transient, VReplicationError
from vreplication.mysql import replica as replicas
from vreplication.mysql.bulk import connect_bulk
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import ConnectionLost, LockWait, Session, SqlError, connect, is_passing
from vreplication.rowcopy.job import CopyJob, SplitResult
from vreplication.rowcopy.paths import Copied, CopyPath, make_path
from vreplication.rowcopy.probes import nth_key, within
from vreplication.rowcopy.settle import wait_for_branches
from vreplication.rowcopy.sizing import FIRST_ROWS, Sizer
from vreplication.rowcopy.turns import turn_for
from vreplication.schema.model import TableMapping
from vreplication.settings import ALIVE_SECONDS, LONG_IDLE_SECONDS, WORK_SECONDS
from vreplication.state import dirty, ledger, source_marks, tuning
from vreplication.state.lease import Lease, end_lost, fence
from vreplication.state.ledger import Bound, Chunk, KeyRange, Landing, Split
from vreplication.state.markers import Markers, OnServer
from vreplication.state.standing import check_standing

log = logging.getLogger(__name__)

_LAST_CHUNKS = 8
"""Landed chunks that say with which size to begin."""
T = TypeVar("T")

COMPARE_ROWS, _COMPARE_BYTES = 10_000, 32 << 20
"""Copied between two looks for what can be compared: small chunks are compared together, for each look is a commit."""
GATE_WAIT_SECONDS = 0.075
MOST_REST_SECONDS = 4.0
REPLICA_SECONDS, MARK_SECONDS = 60.0, 10.0
"""How long a replica may apply nothing at all while we wait for it, or be level and not show the chunk's mark."""
RECONNECT_SECONDS = 60.0
"""How long a server may be away before the split is given up (Spark then tries it again elsewhere)."""
_FIRST_BACKOFF_SECONDS, _LAST_BACKOFF_SECONDS = 0.02, 1.0


@dataclass(slots=True)
class Connected:
    """Our last connection to a server; it may be at work there yet when it is lost here."""

    connection: int = 0
    server_run: int | None = None

    def anew(self, session: Session) -> None:
        """`session` has come in its place: end the old one. Raises Transient when it stays."""
        self.server_run = end_lost(session, (self.connection,), self.server_run)
        self.connection = session.id


@dataclass(slots=True, kw_only=True)
class Tally:
    """What has been done so far, across reconnects. attempt: ours at the split, 0 before the first claim.

    seat: which of the tasks that run at a time this is, from 1; it ends early when fewer are asked for. 0: it stays.

    home, source: where we are connected; source is used where it is another server.
    """

    home: Connected = field(default_factory=Connected)
    source: Connected = field(default_factory=Connected)
    attempt: int = 0
    chunks: int = 0
    rows_copied: int = 0
    seat: int = 0
    is_done: bool = True

    def result(self, number: int, error: VReplicationError | None = None) -> SplitResult:
        done = self.is_done and error is None
        return SplitResult(number=number, chunks=self.chunks, rows_copied=self.rows_copied, is_done=done, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a split is copied.

    check: is called wherever the copy waits (in the driver's process; on an executor there is nobody to ask). seat: as
    in `Tally`. beside: single keys to be copied with it, for a split of one chunk. is_over: asked between two chunks;
    what is left is another's then. compare: is called between two chunks, with the split's number, to compare some that
    were copied before.
    """

    check: Callable[[], None] = lambda: None
    seat: int = 0
    beside: tuple[Bound, ...] = ()
    is_over: Callable[[], bool] = lambda: False
    compare: Callable[[Ends, int], None] = lambda ends, split: None


USUAL = Terms()


def copy_split(
    route: Route, lease: Lease, mapping: TableMapping, job: CopyJob, number: int, terms: Terms = USUAL
) -> SplitResult:
    """Copy a split to its end, from the route's source to its home, which is the target.

    Raises Transient where doing it again may help; any other error is in the result.
    """
    tally = Tally(seat=terms.seat)

    def walk(ends: Ends) -> None:
        Walk(ends, lease, mapping, job, number, tally, terms).run()

    try:
        _copy_reconnecting(route, job, number, tally, walk, terms.check)
    except Transient:
        raise
    except VReplicationError as error:
        return tally.result(number, error)
    return tally.result(number)


def _copy_reconnecting(
    route: Route,
    job: CopyJob,
    number: int,
    tally: Tally,
    walk: Callable[[Ends], None],
    check: Callable[[], None],
) -> None:
    """Claiming again after a lost connection waits for what the old one still has in flight, if it cannot be ended."""
    deadline, seen = time.monotonic() + RECONNECT_SECONDS, 0
    while True:
        try:
            with _connected(route, job) as ends:
                # Before anything else: lost on our side, the old connection may still hold the rows of a landing, or be
                # about to commit it. Once it is gone, the claim below sees which of the two it was.
                tally.home.anew(ends.home)
                if ends.is_across:
                    tally.source.anew(ends.source)
                return walk(ends)
        except (ConnectionLost, Ambiguous) as error:
            # A chunk has landed since: the server was there in between, so the time of its absence begins anew.
            if tally.chunks != seen:
                deadline, seen = time.monotonic() + RECONNECT_SECONDS, tally.chunks
            if time.monotonic() > deadline:
                raise ConnectionLost(f"Split {number} could not be copied: {error.message}") from None
            log.warning("split %d lost its connection and goes on with a new one: %s", number, error.message)
            check()
            time.sleep(random.uniform(0.1, 0.5))


@contextlib.contextmanager
def _connected(route: Route, job: CopyJob) -> Iterator[Ends]:
    """A process that is stopped cannot let go of its locks, and who takes over waits for them: it may not idle.

    On another server we hold none, and wait there while we write or while the gate is closed.
    """
    lock_wait = job.limits.lock_wait_seconds
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(
            # F9b: catch-up wins. Copy waits one second for a row lock and then does its transaction again.
            connect_bulk(route.home, read_timeout=WORK_SECONDS, lock_wait_seconds=lock_wait, idle_seconds=ALIVE_SECONDS)
        )
        if not route.is_across:
            yield Ends.on(home)
            return
        patience: dict[str, Any] = {
            "read_timeout": WORK_SECONDS,
            "lock_wait_seconds": lock_wait,
            "idle_seconds": LONG_IDLE_SECONDS,
        }
        source = stack.enter_context(connect(route.source, **patience))
        replica = stack.enter_context(connect(route.replica, **patience)) if route.replica else None
        yield Ends(source=source, target=home, home=home, is_across=True, replica=replica)


class Walk:
    """Work on a split with one connection to each server."""

    def __init__(
        self,
        ends: Ends,
        lease: Lease,
        mapping: TableMapping,
        job: CopyJob,
        number: int,
        tally: Tally,
        terms: Terms = USUAL,
    ) -> None:
        self.ends = ends
        self.reading = ends.reading
        self.home = ends.home
        self.lease = lease
        self.mapping = mapping
        self.job = job
        self.number = number
        self.tally = tally
        self.terms = terms
        self.worked = 0.0
        """Seconds that the chunk before took."""
        self.since_compared = 0
        """Rows copied since the last look for what can be compared."""
        self.path: CopyPath = make_path(self.reading, mapping, job)
        self.turn = turn_for(self.home, mapping, is_wanted=job.by_turns)
        limits = job.limits.tuned(tuning.read(self.home, job.workflow))
        self.sizer = Sizer(limits=limits, rows=_size_so_far(self.home, job.table, limits.chunk_millis))

    def run(self) -> None:
        """Claim the split, copy again what an earlier attempt left open, go on behind the last chunk."""
        split = ledger.find_split(self.home, self.job.table, self.number)
        if split.is_done:
            return
        # Claim first, then ask what is open: the claim waits for a landing that is in flight (R11), so the list below
        # is final.
        self._claim()
        for chunk in ledger.chunks(self.home, self.job.table, split=self.number, states=(ledger.OPEN,)):
            # R15: with the bounds that the ledger has, and without cleaning the range. No row of the earlier attempt is
            # there, and a late DELETE of the range would take out changes that catch-up has applied since "opened".
            self._copy(chunk, None)
        self.tally.is_done = self._walk(split) is None
        # On condition of our attempt: who was superseded may not call a split done in which the newer one has a chunk
        # open.
        if self.tally.is_done:
            self._persist(lambda: ledger.finish_split(self.home, self.job.table, self.number, self.tally.attempt))

    def _walk(self, split: Split) -> KeyRange | None:
        """Chunk by chunk; returns what is left for another, and has no chunk, when this task is one too many."""
        rest, ordinal = self._rest(split)
        while rest is not None and not self._is_surplus():
            following = self._open(ordinal, self._next(rest))
            while following is not None:
                chunk = following
                rest, ordinal = _behind(split.range, chunk.range), chunk.ordinal + 1
                following = self._copy(chunk, rest)
                self._compare()
        return rest

    def _claim(self) -> None:
        self._check()
        expected = self.tally.attempt or None
        try:
            self.tally.attempt = self._persist(
                lambda: ledger.claim_split(
                    self.home, self.job.table, self.number, expected=expected, our_lease=self.lease
                )
            )
        except Ambiguous as error:
            # A lost claim cannot be told from another attempt's; a fresh task simply claims.
            raise Transient(error.message) from None

    def _rest(self, split: Split) -> tuple[KeyRange | None, int]:
        """What of the split has no chunk yet, and the next chunk's number."""
        last = ledger.last_chunk(self.home, self.job.table, self.number)
        if last is None:
            return split.range, 0
        return _behind(split.range, last.range), last.ordinal + 1

    def _is_surplus(self) -> bool:
        """Fewer tasks are asked for than are at work, and this is one too many; or the others have come."""
        return self.terms.is_over() or self.tally.seat > self.sizer.limits.copy_parallelism

    def _next(self, rest: KeyRange) -> KeyRange:
        """Bounds of the next chunk: the probe spends the LIMIT, so that rows inserted later push none out."""
        upper = nth_key(self.reading.source, self.mapping, rest, self.sizer.rows) or rest.upper
        pausepoints.reach("copy.after_probe")
        return KeyRange(lower=rest.lower, upper=upper, has_lower=rest.has_lower)

    def _open(self, ordinal: int, bounds: KeyRange) -> Chunk | None:
        """Wait for the gate and open the chunk: then its low watermark is set. None: meanwhile we are one too many."""
        pausepoints.reach("copy.before_open")
        chunk = self._chunk(ordinal, bounds)
        while not self._persist(lambda: self._open_alone(chunk)):
            self._check()
            if self._is_surplus():
                return None
            time.sleep(GATE_WAIT_SECONDS)
        return chunk

    def _open_alone(self, chunk: Chunk) -> bool:
        with self.home.transaction():
            # opening_lease: a task that wakes up behind a takeover would become the newest attempt and end the living
            # one's.
            fence(self.home, self.lease)
            return self._open_in_ledger(chunk)

    def _chunk(self, ordinal: int, bounds: KeyRange) -> Chunk:
        return Chunk(split=self.number, ordinal=ordinal, attempt=self.tally.attempt, state=ledger.OPEN, range=bounds)

    def _copy(self, chunk: Chunk, rest: KeyRange | None) -> Chunk | None:
        """Read and land a chunk that is open; returns the next one of `rest` if that could be opened with it."""
        # R10, M1: the ledger's "open" has been committed, the marker follows, and only then rows are read. In reverse
        # order the applier drops tombstones of an attempt that still lands.
        self._mark(chunk)
        pausepoints.reach("copy.after_open")
        # Not between two chunks: this one was opened in the transaction that landed the one before.
        self._rest_from(self.worked)
        self._check()
        # One too many by now: nothing is opened with this landing, for a split is left with no chunk open.
        if self._is_surplus():
            rest = None
        # A replica shows the past: what catch-up has applied before "open" might be missing in what we read (M3).
        self._await_replica(chunk)
        # F1b: MariaDB shows an XA COMMIT later than its place in the log (96 of 1,785 reads behind a marker missed
        # one); MySQL never did (0 of 1,334).
        if is_mariadb(self.ends.source):
            wait_for_branches(self.reading.source, self._markers(), self._check, self._level)
        began = time.monotonic()
        with self._home_idle():
            self.path.read(replace(chunk.range, beside=self.terms.beside))
        read_seconds = time.monotonic() - began
        pausepoints.reach("copy.after_select")
        # Done again after a lock wait with the rows that were read the first time: an old image does no harm here, for
        # tombstones are kept since "opened" (R7).
        landing, following = self._persist(lambda: self._land(chunk, read_seconds, rest))
        self.worked = time.monotonic() - began
        self.tally.chunks += 1
        self.tally.rows_copied += landing.rows_copied
        self.since_compared += landing.rows_read
        pausepoints.reach("copy.after_land")
        return following

    def _mark(self, chunk: Chunk) -> None:
        """Where the ledger is not in the source's log: what stands there first is the chunk's low watermark."""
        if self.ends.is_across:
            stream, table = self.job.workflow, self.job.table
            self._persist(lambda: source_marks.open_chunk(self.ends.source, stream, table, chunk))

    def _await_replica(self, chunk: Chunk) -> None:
        """Until it shows all that catch-up may have passed before "open". Raises Transient when it stands still."""
        if (replica := self.ends.replica) is None:
            return
        self._level()
        until = time.monotonic() + MARK_SECONDS
        # GTIDs alone do not do: a replica that leaves our schema out is level by them, and never shows the mark.
        while not self._is_marked(replica, chunk):
            self._check()
            if not self._is_marked(self.ends.source, chunk):
                # An older attempt, which was stopped before it wrote, has written its own over ours.
                self._mark(chunk)
                self._level()
            elif time.monotonic() > until:
                raise Terminal(
                    f"The replica {replica.url} counts as level, and does not hold what was written on the source.",
                    cure="See that it replicates every schema, _vreplication too, or read on the source.",
                )
            time.sleep(GATE_WAIT_SECONDS)

    def _is_marked(self, session: Session, chunk: Chunk) -> bool:
        return source_marks.is_open(session, self.job.workflow, self.job.table, chunk)

    def _level(self) -> None:
        """Until the replica, if one is read, has applied what is in the source's log now."""
        if (replica := self.ends.replica) is None:
            return
        wanted, at, since = replicas.logged(self.ends.source), "", time.monotonic()
        while not replicas.has_applied(replica, wanted, 1.0):
            self._check()
            # What counts is whether it moves, not how far it is behind: one that catches up slowly is waited for.
            if at != (now_at := replicas.applied(replica)):
                at, since = now_at, time.monotonic()
            if time.monotonic() - since > REPLICA_SECONDS:
                raise Transient(f"The replica {replica.url} has applied nothing for {REPLICA_SECONDS:g} s.")

    def _markers(self) -> Markers:
        if self.ends.is_across:
            return source_marks.AcrossServers(self.home, self.ends.source, self.job.workflow)
        return OnServer(self.home, self.job.workflow)

    @contextlib.contextmanager
    def _home_idle(self) -> Iterator[None]:
        """While we read elsewhere for as long as that takes; no lock of ours is held at home."""
        if not self.ends.is_across:
            yield
            return
        self.home.execute_raw(f"SET SESSION wait_timeout={LONG_IDLE_SECONDS}")
        yield
        self.home.execute_raw(f"SET SESSION wait_timeout={ALIVE_SECONDS}")

    def _compare(self) -> None:
        """Counts as work, beside writers."""
        if self.since_compared < min(COMPARE_ROWS, _COMPARE_BYTES // self.mapping.source.row_bytes):
            return
        began, self.since_compared = time.monotonic(), 0
        with self._home_idle():
            self.terms.compare(self.ends, self.number)
        self.worked += time.monotonic() - began

    def _rest_from(self, seconds: float) -> None:
        """Beside writers the server may bear less than a task that works without a pause."""
        until = time.monotonic() + min(seconds * self.sizer.limits.rest, MOST_REST_SECONDS)
        self.worked = 0.0
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, GATE_WAIT_SECONDS))
            self.terms.check()

    def _land(self, chunk: Chunk, read_seconds: float, rest: KeyRange | None) -> tuple[Landing, Chunk | None]:
        """Rows and "landed" in one transaction, and in it, to save a commit, the next chunk's "open"."""
        # The turn before the transaction: who waits for it holds no row that catch-up could need.
        with self.turn.taken(), self.home.transaction():
            began = time.monotonic() - read_seconds
            # R8: locked to the commit. A claim of a newer attempt waits for us, or we find the row changed and roll
            # back.
            ledger.fence_chunk(self.home, self.job.table, chunk)
            fence(self.home, self.lease)
            bounds = replace(chunk.range, beside=self.terms.beside)
            copied = self.path.write(bounds)
            # Before the commit: the next task inserts while we sync to disk.
            self.turn.end()
            if self.mapping.may_collide and copied.outcome.duplicates:
                # U4: in this transaction. What gave way and is noted later is lost by a crash in between, for no event
                # ever tells of it.
                where = within(self.mapping, bounds, alias="s")
                dirty.note_missing(self.home, self.mapping, self.job.table, where)
            pausepoints.reach("copy.before_land")
            landing = _landing(copied, time.monotonic() - began)
            # R7: rows and "landed" in one transaction. "landed" alone would be matched while its rows are still to
            # come, and the deletes that were repeated would be too early.
            ledger.land(self.home, self.job.table, chunk, landing)
            self.sizer.learn(landing.rows_read, landing.millis, at_most=self.path.fitting_rows)
            following = self._open_behind(chunk, rest)
        return landing, following

    def _open_behind(self, chunk: Chunk, rest: KeyRange | None) -> Chunk | None:
        """The chunk behind this one, open once the transaction has committed; None while the gate is closed.

        None, too, where its bounds are looked up on a replica: it may keep us waiting, with locks on the rows written.
        """
        if rest is None or self.ends.replica:
            return None
        following = self._chunk(chunk.ordinal + 1, self._next(rest))
        return following if self._open_in_ledger(following) else None

    def _open_in_ledger(self, chunk: Chunk) -> bool:
        return ledger.open_chunk(self.home, self.job.table, chunk, stream=self.job.workflow)

    def _persist(self, act: Callable[[], T]) -> T:
        """Repeat a transaction while locks are in its way (catch-up wins), or while somebody kills its statements."""
        pause = _FIRST_BACKOFF_SECONDS
        while True:
            try:
                return act()
            except (LockWait, SqlError) as error:
                if not is_passing(error):
                    raise
                log.debug("split %d does it again: %s", self.number, error.message)
            self._check()
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LAST_BACKOFF_SECONDS)

    def _check(self) -> None:
        """Take over what is asked for now. Raises Superseded or Cancelled when there is nothing more to do here."""
        self.terms.check()
        asked, borne = check_standing(self.home, self.lease, self.job.table, self.number, self.tally.attempt)
        self.sizer.limits = self.job.limits.tuned(asked).paced(borne)


def _behind(whole: KeyRange, done: KeyRange) -> KeyRange | None:
    """What of `whole` lies behind `done`; None at its end."""
    if done.upper == whole.upper:
        return None
    return KeyRange(lower=done.upper, upper=whole.upper, has_lower=False)


def _landing(copied: Copied, seconds: float) -> Landing:
    return Landing(
        rows_read=copied.rows_read,
        rows_copied=copied.rows_copied,
        swallowed=copied.outcome.swallowed,
        millis=round(seconds * 1000),
    )


def _size_so_far(session: Session, table: str, chunk_millis: int) -> int:
    """Begin with the size that the table's last landed chunks suggest; one alone may be the tail of its split."""
    landed = ledger.last_landed(session, table, _LAST_CHUNKS)
    found = [rows * min(1.0, chunk_millis / max(millis, 1)) for rows, millis in landed]
    return int(max([FIRST_ROWS, *found]))
