"""Numbers that a user may set, and those that are ours, in one place with their units.

What must stay true: a limit is a value that is handed down; nothing below reads the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1 << 20

SIDECAR = "_vreplication"
"""Schema that holds our state, beside the target table."""

LEASE_STALE_SECONDS = 10.0
"""A holder whose heartbeat is older (server clock) may be taken over, after its connections are killed."""
ALIVE_SECONDS = round(LEASE_STALE_SECONDS)
"""A process that is stopped cannot let go of its locks: the server ends its connections when they have been idle so
long. For those that lock the lease while they do something, and are never idle as long as the process lives."""
LOCK_WAIT_SECONDS = 50
"""How long a row lock is waited for, where nothing else is said."""
ANSWER_SECONDS = 75.0
"""A server that is silent inside a statement for so long counts as lost: longer than a lock is waited for."""
BEAT_SECONDS = 15.0
"""The same, on connections that only give signs of life."""
WORK_SECONDS = 300.0
"""The same, for statements that handle many rows: a chunk, a batch, a span of the verification."""
TABLE_SECONDS = 3600.0
"""The same, for the few statements that may go over a whole table (planning, ANALYZE, DROP TABLE)."""
IDLE_SECONDS = 600
"""The server ends a connection of ours that has asked nothing for so long; some ask for longer (LONG_IDLE_SECONDS)."""
# As long as both servers wait by default (wait_timeout).
LONG_IDLE_SECONDS = 28_800
OUTAGE_SECONDS = 300.0
"""How long a server may be away before the command ends; then the same command goes on."""
SIGNAL_SECONDS = 2.0
"""A signal to all our processes may end Spark's before it reaches the command: so long a failure of Spark's waits for
it, and is an interrupt then."""
GATE_PERIOD_SECONDS = 0.25
"""How often the replicating process rewrites the gate row; it is the stream's heartbeat too."""
GATE_STALE_SECONDS = 2.0
"""A gate row older than this counts as closed."""
PACE_STALE_SECONDS = 10.0
"""A pace that was not renewed for so long is not heeded."""
CUTOVER_DEADLINE_SECONDS = 3.0
"""Writers wait at most this long, from sending LOCK to UNLOCK."""
CUTOVER_RETRY_SECONDS = (0.0, 5.0, 10.0, 30.0, 60.0)
BY = "by --"
"""Begins the words of what an operator lets hold a copy back: behind it stands the option."""
PAUSED = "paused by the operator"
_OF_WRITES = ("max-lag", "min-disk-free")
"""Options that look at what comes of writing: reading makes no replica late and fills no disk."""


def holds_verification(reason: str) -> bool:
    """What holds the copy back: does it the verification?"""
    option = reason.removeprefix(BY).partition(":")[0] if reason.startswith(BY) else ""
    return reason == PAUSED or (bool(option) and option not in _OF_WRITES)


GATE_LAG_SECONDS = 1.0
GATE_BACKLOG_CHANGES = 1_000
MAX_CHUNK_ROWS = 65_535
"""SHOW WARNINGS holds no more than this many, and each must be read (docs/correctness.md)."""
MOST_PARALLELISM = 64
MOST_COUNTED = 1_000_000_000_000
"""Of limits that count rows or entries: above it they would not fit, and never hold."""
AHEAD_ROWS = 100_000
"""Smaller tables are copied in less than a second, whoever does it, and verifying them waits for Spark anyway."""
LEAST_CHUNK_MILLIS, MOST_CHUNK_MILLIS = 10, 60_000
TABLES_AT_ONCE = 4
"""Of several tables, so many are copied at a time unless told otherwise."""
MEMORY_BYTES = 256 * 1024 * 1024
"""What catch-up keeps in memory of changes that wait; what is more is put aside on disk."""
MATCHER_BUDGET_BYTES = MEMORY_BYTES // 2
"""Of it, for rows of transactions whose outcome is not known yet."""
CHANNEL_BUDGET_BYTES = MEMORY_BYTES // 8
"""Of it, for changes that have been read and not applied. The rest is for what is being read and written."""
MAX_HOT_KEYS = 1_000
VERIFY_ROUNDS = 5


AUTO_PARALLELISM = 2, 4
"""Copying tasks at a time where nobody says how many: by the cores that are here, within these."""
LEAST_EFFORT = 0.05
"""The share of the full pace that always remains."""
LATENCY_FACTOR = 1.5
"""How much longer commits may take while we work beside writers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the server bears at the moment: so many tasks at a time, of which each rests, and the longest chunk.

    effort: tasks' worth of work; below `tasks`, they rest in between. is_held: nothing is to be compared now.
    """

    effort: float
    tasks: int
    chunk_millis: int
    is_held: bool = False

    @property
    def rest(self) -> float:
        """Seconds that a task rests for each second of work."""
        return max(0.0, self.tasks / self.effort - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What an operator asks for while a workflow runs; None: as it began."""

    copy_parallelism: int | None = None
    chunk_millis: int | None = None


MAX_APPLY_PARALLELISM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How hard a workflow may work. `chunk_rows` None: sized by `chunk_millis`. `most_…`: no tuning goes beyond.

    rest: seconds that a task rests for each second of work.
    """

    copy_parallelism: int = 2
    chunk_rows: int | None = None
    chunk_millis: int = 500
    apply_parallelism: int = 2
    xa_wait_seconds: float = 60.0
    lock_wait_seconds: int = 1
    most_chunk_millis: int = MOST_CHUNK_MILLIS
    rest: float = 0.0

    def paced(self, pace: Pace | None) -> Limits:
        """As the server bears it now; None: nobody has looked."""
        if pace is None:
            return self
        tasks = min(self.copy_parallelism, pace.tasks)
        return replace(
            self, copy_parallelism=tasks, chunk_millis=min(self.chunk_millis, pace.chunk_millis), rest=pace.rest
        )

    def tuned(self, tuning: Tuning) -> Limits:
        """As asked for, where that is allowed."""
        return replace(
            self,
            copy_parallelism=min(tuning.copy_parallelism or self.copy_parallelism, MOST_PARALLELISM),
            chunk_millis=min(tuning.chunk_millis or self.chunk_millis, self.most_chunk_millis),
        )
