"""The changefeed's broker: partitions, transactions of producers, and what a reader may find in a partition.

A record enters a partition as a part of its producer's transaction, or for good where there are none (`append`); a
transaction ends in the partitions that the coordinator knows of (`end`), and what was committed becomes visible up to
the last stable offset. Each record that becomes visible is looked at (`fault_of`):

    1.1     a row is where its generation's hash says
    1.3     its changes come in order when they come first
    2.2     no row for the first time behind a Resolved of its time, 2.3 nor behind a DDL of a later one
    n       counts without gaps, and the same n is the same record
    prefix  what a partition holds is a prefix of what its generation brings it
    once    with transactions, each record comes once

What must stay true: a transaction's end is one step, for a producer waits for it, and to a reader a partition whose
marker comes later is one that he reads later.
"""

from __future__ import annotations

from tests.models.feed_world import (
    ADMIN,
    DDL,
    NUMBERED,
    PROGRESS,
    RESOLVED,
    ROW,
    Log,
    Message,
    Part,
    Producer,
    Progress,
    State,
    World,
    before,
    bits,
    part,
    place,
    said,
)


def append(w: World, s: State, number: int, partition: int, m: Message) -> State:
    at = s.parts[partition]
    if w.bounds.is_loose:
        return settled(w, part(s, partition, at._replace(open=(*at.open, (0, m)))), partition)
    return part(s, partition, at._replace(open=(*at.open, (number, m))))


def end(w: World, s: State, p: Producer, is_commit: bool) -> State:
    """EndTxn of what the coordinator knows."""
    for number in bits(p.registered, w.bounds.width):
        at = s.parts[number]
        s = part(s, number, at._replace(open=ended(w, at.open, p.number, is_commit)))
        s = settled(w, s, number)
    if is_commit and p.registered & PROGRESS and p.told:
        s = noted(s, p.told)
    return s


def ended(
    w: World, open_: tuple[tuple[int, Message], ...], number: int, is_commit: bool
) -> tuple[tuple[int, Message], ...]:
    if is_commit:
        return tuple((0 if owner == number else owner, m) for owner, m in open_)
    if w.rules.read_committed:
        return tuple(entry for entry in open_ if entry[0] != number)
    return tuple((0, m._replace(is_aborted=True)) if owner == number else (owner, m) for owner, m in open_)


def settled(w: World, s: State, number: int) -> State:
    """What is committed up to the first record of an open transaction becomes visible."""
    log, open_ = s.parts[number]
    while open_ and not open_[0][0]:
        m, open_ = open_[0][1], open_[1:]
        s = s._replace(wrong=s.wrong or fault_of(w, s, number, log, m))
        log = (*log, m)
    return part(s, number, Part(log, open_))


def noted(s: State, made: Progress) -> State:
    """Progress never goes back."""
    old = s.progress
    if made[:2] < old[:2] or made.gen < old.gen:
        s = s._replace(wrong=s.wrong or f"the checkpoint goes back: {old[:3]} to {made[:3]}")
    return s._replace(progress=made)


def lengths(s: State) -> tuple[int, ...]:
    return tuple(len(p.log) + len(p.open) for p in s.parts)


def tail(s: State, number: int) -> Log:
    """What a reader of committed records finds in a partition behind progress."""
    return tuple(m for m in s.parts[number].log[s.progress.offsets[number] :] if not m.is_aborted)


# -- what a partition may hold ----------------------------------------------------------------------------------------


def fault_of(w: World, s: State, number: int, log: Log, m: Message) -> str:
    log = tuple(old for old in log if not old.is_aborted)
    if m.is_aborted or m.kind == RESOLVED:
        return ""
    if fault := fault_of_number(w, number, log, m):
        return fault
    is_new = not any(is_same(old, m) for old in log)
    return fault_of_row(w, s, number, log, m) if is_new and m.kind in (ROW, DDL) else ""


def is_same(one: Message, other: Message) -> bool:
    return one[0:1] + one[2:7] == other[0:1] + other[2:7]


def fault_of_number(w: World, number: int, log: Log, m: Message) -> str:
    last = max((old.n for old in log if old.kind in NUMBERED), default=0)
    if m.n > last + 1:
        return f"n: {said(m)} in partition {number} behind n={last}"
    twin = next((old for old in log if old.kind in NUMBERED and old.n == m.n), m)
    if not is_same(twin, m) and not (w.bounds.is_loose and twin.gen != m.gen):
        return f"n: {said(m)} in partition {number}, where {said(twin)} was"
    return f"once: {said(m)} in partition {number} again" if m.n <= last and not w.bounds.is_loose else ""


def fault_of_row(w: World, s: State, number: int, log: Log, m: Message) -> str:
    count = w.bounds.counts[m.gen - 1]
    if any(place(key, count) != number for key in m.keys):
        return f"1.1: {said(m)} in partition {number}"
    if any(old.kind == ROW and old.keys == m.keys and old.t > m.t for old in log):
        return f"1.3: {said(m)} in partition {number} behind a later change"
    same = [old for old in log if old.gen == m.gen and old.kind in (RESOLVED, DDL)]
    if any(old.t >= m.t + (old.kind == DDL) for old in same):
        return f"2.2, 2.3: first {said(m)} in partition {number} behind {said(same[-1])}"
    wanted = before(w.bounds.source, number, count, s.bases[m.gen - 1], m._replace(n=0))
    if wanted and not any(is_same(old, wanted) for old in log if old.kind != ADMIN):
        return f"prefix: {said(m)} in partition {number} without {said(wanted)}"
    return ""
