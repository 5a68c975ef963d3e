"""The world of the changefeed model: rules, bounds, and broker, producers and consumer as one value.

The source is a list of transactions, t = 1, 2, …; a transaction is a list of rows, a row the keys that it changes: "A",
or "AB" where A becomes B. "D" alone is a DDL. A row is told by the t of its last change, and so is what a database
holds. Hashes are such that B and C leave partition 1 of two for different ones of three.

What must stay true: as in rows_world.py. A record that was aborted is taken out of its partition, for nobody may see
it; only where readers are taken to be careless it stays, and says so. Partitions beyond `topic` are not there yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

ROW, DDL, RESOLVED, ADMIN = "row", "ddl", "resolved", "admin"
NUMBERED = (ROW, DDL, ADMIN)
HASHES = {"A": 0, "B": 5, "C": 3}
KEYS = tuple(HASHES)
PROGRESS = 1 << 7
"""The partition of the progress topic, in a mask of partitions."""

# -- a producer -------------------------------------------------------------------------------------------------------
STARTING, IDLE, OPEN, TOLD, BESIDE, FAILED = range(6)
"""TOLD: progress is in the transaction. BESIDE: rows are committed, progress is not (only with a rule taken out)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """P…, D…, E are the paragraphs of the design, R… the numbers of its traces. True: what our code, the broker or the
    client library does."""

    # Producer
    fence: bool = True
    """All producers of a feed have one transactional.id: init_transactions refuses the former (P1, R1, R26)."""
    fence_first: bool = True
    """Progress is read behind init_transactions, not before (P1)."""
    progress_inside: bool = True
    """Progress is a record in the transaction of its rows (P2, R2)."""
    progress_behind_flush: bool = True
    """... and is produced when all the rest is acknowledged (P3, R30; without transactions R22)."""
    progress_leased: bool = True
    """Without transactions: progress is saved under the lease (R23)."""
    reborn_after_abort: bool = True
    """After an abort: init_transactions, which bumps the epoch (P4)."""
    reborn_after_slow: bool = True
    """After a commit during which the client may have sent EndTxn twice: the same (P4)."""
    verified: bool = True
    """The broker refuses a record of a partition that is not in the transaction (KIP-890, part 1)."""
    in_order: bool = True
    """A partition gets its records in the order of sending: idempotence (P5, R20)."""
    order_of_log: bool = True
    """Rows are sent in (t, seq) order (P6)."""
    tails_skipped: bool = True
    """At a start the partitions behind progress are read, and what is there is not sent again (P7)."""
    tails_awaited: bool = True
    """... and the topic is scaled only when all times found there have been reached (P7, R29, R24)."""
    resolved_behind_rows: bool = True
    """Resolved(t) stands behind its partition's rows (P8, R21)."""
    resolved_to_all: bool = True
    """Resolved goes to every partition (2.4, R7)."""
    resolved_behind_giant: bool = True
    """... of a giant transaction behind its last part (P9, decision 6, R10)."""
    ddl_to_all: bool = True
    """A DDL goes to every partition (2.4, P8, R8)."""
    key_changes_split: bool = True
    """UPDATE of the partition key = DELETE + INSERT (P9)."""
    tails_kept: bool = True
    """... and until then the offsets in progress stay, so that the next one finds the same (not in the design)."""
    ahead_elsewhere: bool = True
    """What is sent ahead of a giant transaction goes into partitions that get nothing of it (not in the design)."""
    ahead_noted: bool = True
    """... and counts as what was found there: it is not sent again when its turn comes."""
    ahead_found_kept: bool = True
    """... and what was found further ahead counts as found, however much of it is come to ahead once more."""
    ahead_resolved_apart: bool = True
    """... and so does its Resolved."""
    # Scaling
    pinned: bool = True
    """A generation pins the count of partitions; metadata never decides (decision 4, R3)."""
    resolved_before_admin: bool = True
    """Resolved of all that was sent comes first (E1)."""
    admin_sent: bool = True
    """A generation begins with Admin (E4, R4)."""
    admin_to_old: bool = True
    """... in the partitions of the one before (E4, R5)"""
    admin_to_new: bool = True
    """... and in its own (E4, R6)."""
    intent: bool = True
    """The intent is committed before (E2, R31)."""
    not_in_giant: bool = True
    """Nothing is scaled within a giant transaction (P9, E0, R11)."""
    # Consumer
    read_committed: bool = True
    """(D1)"""
    saved_with_rows: bool = True
    """Offsets change in the rows' transaction (D1, R14)."""
    compared: bool = True
    """... if they are still the ones that it began with (D1, R15)."""
    least_resolved: bool = True
    """Transaction mode: the least Resolved of all partitions (D2, R16)."""
    numbers_compared: bool = True
    """A row not above the applied n is dropped; else: one below the table's highest time, as in the seed (3, R17)."""
    gaps_stop: bool = True
    """A gap in n stops the consumer (decision 3)."""
    resolved_carries_n: bool = True
    """... and Resolved tells the last n (A)."""
    applied_stored: bool = True
    """n stored is of what was applied, not received (D3, R18)."""
    offset_waits: bool = True
    """The offset stored is that of the oldest waiting row (D3, R19)."""
    resolved_waits: bool = True
    """... and in transaction mode not behind a Resolved above the watermark (not in the design)."""
    rows_before_ddl: bool = True
    """The rows before a DDL are applied first (D4)."""
    ddl_awaits_all: bool = True
    """A DDL waits for all listeners (D4, R12)."""
    ddl_looked_up: bool = True
    """After a crash: has it been run? (D4)"""
    older_ignored: bool = True
    """Messages of older generations are ignored (D5, R27)."""
    admin_awaits_all: bool = True
    """A generation waits for all listeners of the one before (E, R13)"""
    admin_resolves: bool = True
    """... which have applied what waits up to its time, as if it were a Resolved (E)"""
    waiting_dropped: bool = True
    """... then rows that still wait are dropped (E, R28)"""
    watermark_set: bool = True
    """... and the watermark is Admin's time, even if that is less (E, R25)."""


class Message(NamedTuple):
    """n: of Resolved the last one given. t: of Admin the time up to which the generation before goes."""

    kind: str
    n: int
    t: int
    gen: int
    seq: int = 0
    keys: str = ""
    count: int = 0
    is_aborted: bool = False


Log = tuple[Message, ...]


class Part(NamedTuple):
    """A partition. log: up to the last stable offset; open: what is behind, each with its producer, 0 where that one's
    transaction has been committed."""

    log: Log = ()
    open: tuple[tuple[int, Message], ...] = ()


class Progress(NamedTuple):
    """done: rows of a giant transaction that are sent. intent: the count that is to come. ns, offsets: a partition's
    last n and its end."""

    t: int = 0
    done: int = 0
    gen: int = 1
    count: int = 1
    intent: int = 0
    ns: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()


class Producer(NamedTuple):
    """at: as progress, in memory. queues: sent, not yet in the partition. told: progress in its transaction. added: the
    transaction's partitions as the client knows them; registered: as the coordinator does. ended: by a late EndTxn,
    "commit" or "abort". floors: the highest time found behind progress in each partition, known: what was found; both
    also of what was sent ahead. ahead: up to which time that was. owes: what it has sent, or found, may have no
    Resolved behind it."""

    number: int = 1
    phase: int = IDLE
    at: Progress = Progress()
    queues: tuple[Log, ...] = ()
    told: Progress | None = None
    added: int = 0
    registered: int = 0
    ended: str = ""
    floors: tuple[int, ...] = ()
    known: tuple[Log, ...] = ()
    ahead: int = 0
    owes: bool = False


class Stand(NamedTuple):
    """A partition's row in the target: next offset, last n, Resolved."""

    next: int = 0
    n: int = 0
    resolved: int = 0


class Hung(NamedTuple):
    """A consumer's database transaction that has not been committed yet: what it expects, and what it does."""

    gen: int
    before: tuple[tuple[int, Stand], ...]
    after: tuple[tuple[int, Stand], ...]
    rows: Log


class Consumer(NamedTuple):
    """All of it is in the target, so a crash between two steps changes nothing. rows: t of each key. ddl: the last one
    run; is_saved: that has been written down."""

    gen: int = 1
    count: int = 1
    stands: tuple[Stand, ...] = ()
    rows: tuple[int, ...] = ()
    ddl: int = 0
    is_saved: bool = True
    hung: Hung | None = None


class State(NamedTuple):
    """epoch: the number of the last producer that has fenced the others. bases: each generation's first time, less one.
    late: an EndTxn on its way, of which producer and which kind. is_at_rest: the producer has sent everything."""

    parts: tuple[Part, ...]
    consumer: Consumer
    progress: Progress = Progress()
    topic: int = 1
    main: Producer = Producer()
    zombie: Producer | None = None
    lease: int = 1
    epoch: int = 1
    bases: tuple[int, ...] = (0,)
    late: tuple[int, str] | None = None
    crashes: int = 0
    lates: int = 0
    aborts: int = 0
    hangs: int = 0
    outsiders: int = 0
    has_lost: bool = False
    is_at_rest: bool = False
    wrong: str = ""

    def __str__(self) -> str:
        c, p = self.consumer, self.main
        where = "; ".join(f"{number}: " + ", ".join(map(said, at.log)) for number, at in enumerate(self.parts))
        stands = ", ".join(f"{stand.next} (R({stand.resolved}))" for stand in c.stands)
        of = "" if self.is_at_rest else f", producer {p.number} in phase {p.phase} at t={p.at.t}, topic {self.topic}"
        return f"{where} | consumer in generation {c.gen} at {stands} has {c.rows}, DDL {c.ddl}{of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. counts: of each generation. batch: source transactions in one of Kafka. giant: the t of one
    that is sent row by row, 0: none. ahead: the last t that may be sent before the giant one is. is_loose: no Kafka
    transactions. is_fine: records enter partitions one by one (else all at once, where a part is never seen). lates:
    EndTxn that come late; is_noticed: the client can tell. losses: records that the broker loses. outsiders: partitions
    that somebody else adds. is_concurrent: the consumer reads while the producer writes; else it begins when all is
    sent, which is the same to it: it takes any of the next steps at any time, the partitions only grow, and the
    producer knows nothing of it."""

    source: tuple[tuple[str, ...], ...] = (("A", "B"), ("B",), ("A", "B"))
    counts: tuple[int, ...] = (1, 2, 1)
    batch: int = 2
    giant: int = 0
    ahead: int = 0
    crashes: int = 0
    has_zombie: bool = False
    aborts: int = 0
    lates: int = 0
    is_noticed: bool = False
    hangs: int = 0
    losses: int = 0
    outsiders: int = 0
    is_loose: bool = False
    is_fine: bool = False
    by_transaction: bool = False
    is_concurrent: bool = False

    @property
    def width(self) -> int:
        return max(self.counts) + self.outsiders


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    rules: Rules
    bounds: Bounds


def place(keys: str, count: int) -> int:
    """A row's partition; of one that changes its key the new key's."""
    return HASHES[keys[-1]] % count


@cache
def changes(transaction: tuple[str, ...], is_split: bool) -> tuple[tuple[int, str], ...]:
    """(seq, keys) of a transaction's rows."""
    rows = [k for keys in transaction for k in (keys if is_split else (keys,))]
    return tuple(enumerate(rows))


def is_ddl(transaction: tuple[str, ...]) -> bool:
    return transaction == ("D",)


@cache
def source_at(source: tuple[tuple[str, ...], ...], t: int) -> tuple[int, ...]:
    """The last change ≤ t of each key."""
    rows = [0] * len(KEYS)
    for time, transaction in enumerate(source[:t], 1):
        for _, keys in () if is_ddl(transaction) else changes(transaction, True):
            rows[KEYS.index(keys)] = time
    return tuple(rows)


@cache
def ddls(source: tuple[tuple[str, ...], ...]) -> tuple[int, ...]:
    return tuple(t for t, transaction in enumerate(source, 1) if is_ddl(transaction))


@cache
def before(source: tuple[tuple[str, ...], ...], partition: int, count: int, base: int, m: Message) -> Message | None:
    """The row or DDL that a partition must hold before this one, if its generation has one."""
    found = None
    for t, transaction in enumerate(source[: m.t], 1):
        for seq, keys in ((0, ""),) if is_ddl(transaction) else changes(transaction, True):
            is_its = is_ddl(transaction) or place(keys, count) == partition
            if base < t and is_its and (t, seq) < (m.t, m.seq):
                found = Message(DDL if is_ddl(transaction) else ROW, 0, t, m.gen, seq, keys)
    return found


def part(s: State, number: int, made: Part) -> State:
    return s._replace(parts=(*s.parts[:number], made, *s.parts[number + 1 :]))


def bits(mask: int, width: int) -> list[int]:
    return [p for p in range(width) if mask >> p & 1]


def said(m: Message) -> str:
    if m.kind == ADMIN:
        return f"Admin({m.gen}, {m.count}, {m.t})"
    name = f"R({m.t})" if m.kind == RESOLVED else f"{m.keys or 'DDL'}@{m.t}"
    return f"{name} n={m.n} gen {m.gen}"


def said_rows(rows: Log) -> str:
    return ", ".join(f"{m.keys}@{m.t}" for m in rows) or "no rows"
