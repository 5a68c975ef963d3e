"""The changefeed's consumer: a listener a partition, and one database, which holds rows and offsets.

    apply_rows     D2, row mode: a partition's rows up to its next Resolved or DDL, in one transaction with its offset
    apply_all      D2, transaction mode: all rows up to a Resolved that every partition has reached, the same way
    run_ddl        D4: all stand at it; it cannot be rolled back
    save_ddl       D4: ... and is noted as run
    go_on          E: all stand at Admin; the next generation begins
    hang           a consumer stops before its commit, another one reads from what is stored
    wake           D1: ... and commits, if the offsets are still what it began with

Whatever a listener holds in memory follows from what is stored and from the partition, so a crash is nothing that has
to happen here: every step begins from what is stored. Looked at in every step: no row goes back; a row comes behind the
DDLs before it and before those behind it; all rows up to the watermark are present; in transaction mode the database is
a state that the source has had.

What must stay true: the partition's content may be anything; what the producer would never send is told as wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.models.feed_world import (
    ADMIN,
    DDL,
    KEYS,
    RESOLVED,
    ROW,
    Consumer,
    Hung,
    Log,
    Message,
    Stand,
    State,
    World,
    ddls,
    said,
    said_rows,
    source_at,
)

Steps = Iterator[tuple[str, State]]
NOTHING, GAP = "nothing", "gap"


class Read(NamedTuple):
    """What a listener came to. kind: a Resolved, DDL or Admin, a gap, or nothing. rows: the ones that wait, with their
    places; n: the last one read."""

    kind: str
    index: int
    n: int
    rows: tuple[tuple[int, Message], ...]
    m: Message | None = None


def listeners(s: State) -> range:
    return range(min(s.consumer.count, len(s.parts)))


def may_act(w: World, s: State) -> bool:
    return s.is_at_rest or w.bounds.is_concurrent


def read(w: World, s: State, number: int, upto: int) -> Read:
    """From what is stored to the first Resolved ≥ upto, or a DDL or Admin that is new."""
    c, log = s.consumer, s.parts[number].log
    stand = c.stands[number]
    n, rows = stand.n, []
    for index in range(stand.next, len(log)):
        m = log[index]
        if m.kind == ADMIN and m.gen <= c.gen:
            n = max(n, m.n)
            continue
        if m.kind != ADMIN and m.gen < c.gen and w.rules.older_ignored:
            continue
        if is_gap(w, m, n):
            return Read(GAP, index, n, tuple(rows), m)
        if m.kind == ROW and (m.n > n or not w.rules.numbers_compared):
            rows.append((index, m))
        n = n if m.kind == RESOLVED else max(n, m.n if m.kind == ADMIN or w.rules.numbers_compared else n)
        if is_stop(w, c, stand, m, upto):
            return Read(m.kind, index, n, tuple(rows), m)
    return Read(NOTHING, len(log), n, tuple(rows))


def is_gap(w: World, m: Message, n: int) -> bool:
    """n of Resolved is the last one given. Admin's may be less where it follows rows that will be dropped."""
    if not (w.rules.gaps_stop and w.rules.numbers_compared):
        return False
    return m.n > n + (m.kind != RESOLVED)


def is_stop(w: World, c: Consumer, stand: Stand, m: Message, upto: int) -> bool:
    if m.kind == RESOLVED:
        return m.t >= upto
    if m.kind == DDL:
        is_run = m.t <= c.ddl and (c.is_saved or m.t < c.ddl)
        return not is_run and (m.n > stand.n or not w.rules.numbers_compared)
    return m.kind == ADMIN


# -- row mode ---------------------------------------------------------------------------------------------------------


def apply_rows(w: World, s: State) -> Steps:
    if w.bounds.by_transaction or not may_act(w, s):
        return
    for number in listeners(s):
        found = read(w, s, number, s.consumer.stands[number].resolved + 1)
        t = time_of(w, s, number, found)
        if found.kind == GAP:
            yield from stopped(s, number, found)
        elif t is not None:
            words = f"partition {number} to {said_end(found)}"
            yield from committed(w, s, words, {number: found}, t)


def time_of(w: World, s: State, number: int, found: Read) -> int | None:
    """The time up to which rows may be applied now."""
    if not found.m:
        return None
    if found.kind == ADMIN:
        is_new = s.consumer.stands[number].resolved < found.m.t
        return found.m.t if is_new and w.rules.admin_resolves else None
    if found.kind == DDL:
        is_new = s.consumer.stands[number].resolved < found.m.t - 1
        return found.m.t - 1 if is_new and w.rules.rows_before_ddl else None
    return found.m.t


def said_end(found: Read) -> str:
    return said(found.m) if found.m else "its end"


def stopped(s: State, number: int, found: Read) -> Steps:
    """A gap is what has to be found where the broker has lost something, and must not be where it has not."""
    if not s.has_lost:
        what = f"gap: partition {number} has {said_end(found)} behind n={found.n}"
        yield f"consumer stops at partition {number}", s._replace(wrong=what)


def committed(w: World, s: State, words: str, found: dict[int, Read], t: int) -> Steps:
    """One transaction in the target: rows ≤ t of some partitions, and where each of these goes on."""
    c = s.consumer
    after = {number: stand_after(w, s, number, one, t) for number, one in found.items()}
    rows = taken(w, c, found, t)
    told = f"consumer: {words}: {said_rows(rows)}"
    yield told, checked(w, done(w, s, rows, after), t)
    if not w.rules.saved_with_rows and rows:
        yield f"consumer: {words}: saves offsets, is killed before the rows", s._replace(consumer=stood(c, after))
    if s.hangs:
        hung = Hung(c.gen, tuple((p, c.stands[p]) for p in after), tuple(after.items()), rows)
        yield f"*{told}: hangs before its commit", s._replace(consumer=c._replace(hung=hung), hangs=s.hangs - 1)


def taken(w: World, c: Consumer, found: dict[int, Read], t: int) -> Log:
    rows = [m for one in found.values() for _, m in one.rows if m.t <= t]
    if not w.rules.numbers_compared:
        rows = [m for m in rows if m.t >= max(c.rows)]
    return tuple(sorted(rows, key=lambda m: (m.t, m.seq))) if w.bounds.by_transaction else tuple(rows)


def stand_after(w: World, s: State, number: int, found: Read, t: int) -> Stand:
    """The oldest row that waits is read again after a crash; of it nothing has been applied."""
    old = s.consumer.stands[number]
    waiting = [(index, m) for index, m in found.rows if m.t > t]
    is_used = end_of(found) == t or not w.rules.resolved_waits
    following = found.index + (found.kind == RESOLVED and is_used)
    n = waiting[0][1].n - 1 if waiting else min(found.n, found.m.n - 1) if is_at(found) else found.n
    if waiting and w.rules.offset_waits:
        following = waiting[0][0]
    if not w.rules.applied_stored:
        n = read(w, s, number, 1 << 9).n
    return Stand(following, max(n, old.n) if w.rules.numbers_compared else 0, max(t, old.resolved))


def is_at(found: Read) -> bool:
    """It stands before a message that will be numbered when it is passed."""
    return found.kind in (DDL, ADMIN) and found.m is not None


def stood(c: Consumer, after: dict[int, Stand]) -> Consumer:
    return c._replace(stands=tuple(after.get(p, stand) for p, stand in enumerate(c.stands)))


def done(w: World, s: State, rows: Log, after: dict[int, Stand]) -> State:
    c = s.consumer
    database, wrong = list(c.rows), s.wrong
    for m in rows:
        wrong = wrong or fault_of(w, c, database, m)
        for key in m.keys:
            database[KEYS.index(key)] = m.t
    return s._replace(consumer=stood(c, after)._replace(rows=tuple(database)), wrong=wrong)


def fault_of(w: World, c: Consumer, database: list[int], m: Message) -> str:
    for key in m.keys:
        if database[KEYS.index(key)] > m.t:
            return f"row order: {key} goes from {database[KEYS.index(key)]} back to {m.t} in the database"
    for t in ddls(w.bounds.source):
        if t < m.t and c.ddl < t:
            return f"{m.keys}@{m.t} is applied before DDL {t}"
        if m.t < t <= c.ddl:
            return f"{m.keys}@{m.t} is applied behind DDL {t}"
    return ""


def checked(w: World, s: State, t: int) -> State:
    """All rows ≤ watermark are present; in transaction mode nothing else is."""
    c = s.consumer
    if w.bounds.by_transaction:
        wanted = source_at(w.bounds.source, t)
        if c.rows != wanted:
            return told_wrong(s, f"the database is {c.rows} at {t}, which the source has been never: {wanted}")
        return s
    t = watermark(s)
    missing = [k for k, now, old in zip(KEYS, c.rows, source_at(w.bounds.source, t), strict=True) if now < old]
    if missing:
        return told_wrong(s, f"lost: every partition has resolved at {t}, but {', '.join(missing)} is older")
    if any(c.ddl < d <= t for d in ddls(w.bounds.source)):
        return told_wrong(s, f"lost: every partition has resolved at {t}, but no DDL")
    return s


def told_wrong(s: State, what: str) -> State:
    return s._replace(wrong=s.wrong or what)


def watermark(s: State) -> int:
    return min(s.consumer.stands[p].resolved for p in listeners(s))


# -- transaction mode -------------------------------------------------------------------------------------------------


def apply_all(w: World, s: State) -> Steps:
    if not w.bounds.by_transaction or not may_act(w, s):
        return
    now = watermark(s) if w.rules.least_resolved else 0
    for t in range(now + 1, len(w.bounds.source) + 1):
        found = {p: read(w, s, p, t) for p in listeners(s) if now < t}
        for number, one in found.items():
            if one.kind == GAP:
                yield from stopped(s, number, one)
        yield from applied(w, s, t, found)


def applied(w: World, s: State, t: int, found: dict[int, Read]) -> Steps:
    """t is a Resolved of one of them, and none is before it."""
    kinds = (RESOLVED, DDL, ADMIN) if w.rules.admin_resolves else (RESOLVED, DDL)
    ready = {p: one for p, one in found.items() if one.kind in kinds and end_of(one) >= t}
    exact = [p for p, one in ready.items() if end_of(one) == t]
    if not w.rules.least_resolved:
        for p in exact:
            if t > s.consumer.stands[p].resolved:
                yield from committed(w, s, f"watermark {t} of partition {p}", {p: ready[p]}, t)
    elif exact and len(ready) == s.consumer.count:
        yield from committed(w, s, f"watermark {t}", ready, t)


def end_of(found: Read) -> int:
    """Up to when all is there."""
    return found.m.t - (found.kind == DDL) if found.m else -1


# -- DDL --------------------------------------------------------------------------------------------------------------


def run_ddl(w: World, s: State) -> Steps:
    c = s.consumer
    for m in next_ddls(w, s) if may_act(w, s) else ():
        if c.ddl < m.t:
            after = c._replace(ddl=m.t, is_saved=False)
            yield f"consumer runs DDL {m.t}", s._replace(consumer=after)
        elif not w.rules.ddl_looked_up:
            yield f"consumer runs DDL {m.t} after a crash", s._replace(wrong=f"DDL {m.t} is run twice")


def next_ddls(w: World, s: State) -> list[Message]:
    """The DDL that all listeners stand at."""
    found = {p: m for p in listeners(s) if (m := ddl_at(w, s, p))}
    is_all = len(found) == s.consumer.count and len({m.t for m in found.values()}) == 1
    if w.rules.ddl_awaits_all and not is_all:
        return []
    return sorted(set(found.values()))[:1]


def ddl_at(w: World, s: State, number: int) -> Message | None:
    stand = s.consumer.stands[number]
    found = read(w, s, number, 1 << 9) if w.bounds.by_transaction else read(w, s, number, stand.resolved + 1)
    if found.kind != DDL or not found.m:
        return None
    is_behind_rows = stand.resolved >= found.m.t - 1 and not found.rows
    return found.m if is_behind_rows or not w.rules.rows_before_ddl else None


def save_ddl(w: World, s: State) -> Steps:
    c = s.consumer
    if c.is_saved or not may_act(w, s):
        return
    at = {p: read(w, s, p, 1 << 9) for p in listeners(s) if ddl_at(w, s, p)}
    after = {p: c.stands[p]._replace(next=one.index + 1, n=one.n) for p, one in at.items()}
    yield f"consumer notes DDL {c.ddl} as run", s._replace(consumer=stood(c, after)._replace(is_saved=True))


# -- generations ------------------------------------------------------------------------------------------------------


def go_on(w: World, s: State) -> Steps:
    if not may_act(w, s):
        return
    at = {p: one for p in listeners(s) if (one := at_admin(w, s, p))}
    if at and (len(at) == s.consumer.count or not w.rules.admin_awaits_all):
        first = next(iter(at.values())).m
        assert first
        words = f"consumer goes to generation {first.gen}, {first.count} partitions, behind {first.t}"
        yield words, generation(w, s, first, at)


def at_admin(w: World, s: State, number: int) -> Read | None:
    """In transaction mode a Resolved that not all have can be left behind, but none of Admin's time."""
    stand = s.consumer.stands[number]
    found = read(w, s, number, 1 << 9 if w.bounds.by_transaction else stand.resolved + 1)
    if found.kind != ADMIN or not found.m:
        return None
    is_level = stand.resolved >= found.m.t
    return found if is_level or not (w.bounds.by_transaction or w.rules.admin_resolves) else None


def generation(w: World, s: State, m: Message, at: dict[int, Read]) -> State:
    c = s.consumer
    waiting = tuple(row for one in at.values() for _, row in one.rows)
    if not w.rules.waiting_dropped:
        s = done(w, s, waiting, {})
    stands = []
    for p, stand in enumerate(c.stands):
        is_set = w.rules.watermark_set or p >= c.count
        t = m.t if is_set else max(stand.resolved, m.t)
        passed = at.get(p)
        n = passed.m.n if passed and passed.m else stand.n
        stands.append(Stand(passed.index + 1 if passed else stand.next, n, t))
    return s._replace(consumer=s.consumer._replace(gen=m.gen, count=m.count, stands=tuple(stands)))


# -- another consumer -------------------------------------------------------------------------------------------------


def wake(w: World, s: State) -> Steps:
    c = s.consumer
    if not c.hung or not may_act(w, s):
        return
    gen, before, after, rows = c.hung
    s = s._replace(consumer=c._replace(hung=None))
    is_same = gen == c.gen and all(c.stands[p] == stand for p, stand in before)
    if is_same or not w.rules.compared:
        t = min(stand.resolved for _, stand in after)
        yield f"the hung consumer commits {said_rows(rows)}", checked(w, done(w, s, rows, dict(after)), t)
    else:
        yield "the hung consumer finds other offsets, rolls back", s
