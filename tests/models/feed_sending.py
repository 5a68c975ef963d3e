"""What a producer gives to its client library for a transaction: messages, their partitions, their numbers.

What must stay true: nothing here is a step of its own; feed_producer.py says when what is sent happens.
"""

from __future__ import annotations

from typing import Any

from tests.models.feed_world import (
    DDL,
    IDLE,
    NUMBERED,
    OPEN,
    RESOLVED,
    ROW,
    Log,
    Message,
    Producer,
    State,
    World,
    changes,
    is_ddl,
    place,
)


def moved(p: Producer, **changed: Any) -> Producer:
    return p._replace(at=p.at._replace(**changed))


def queued(w: World, p: Producer, partition: int, m: Message) -> Producer:
    """A numbered message that was found in the partition is counted, and not sent."""
    counts = m.kind in NUMBERED
    n = p.at.ns[partition] + counts
    p = moved(p, ns=(*p.at.ns[:partition], n, *p.at.ns[partition + 1 :]))
    m = m._replace(n=n if counts or w.rules.resolved_carries_n else 0)
    if counts and w.rules.tails_skipped and m in p.known[partition]:
        return p
    return p._replace(queues=with_one(p.queues, partition, m))


def last_of_batch(w: World, p: Producer) -> int:
    last = min(p.at.t + w.bounds.batch, len(w.bounds.source))
    return min(last, w.bounds.giant - 1) if p.at.t < w.bounds.giant else last


def begun(w: World, p: Producer, t: int) -> dict[str, Any]:
    at = p.at._replace(t=t, done=0)
    return {"at": at, "queues": p.queues, "phase": IDLE if w.bounds.is_loose else OPEN}


def sent(w: World, s: State, p: Producer, last: int) -> Producer:
    if w.rules.resolved_behind_rows:
        return resolved(w, s, batch(w, s, p, last), last)
    return batch(w, s, resolved(w, s, p, last), last)


def batch(w: World, s: State, p: Producer, last: int) -> Producer:
    rows = [m for t in range(p.at.t + 1, last + 1) for m in messages(w, p, t)]
    if not w.rules.order_of_log:
        rows.sort(key=lambda m: m.keys)
    for m in rows:
        for partition in partitions_of(w, s, p, m):
            p = queued(w, p, partition, m)
    return p


def messages(w: World, p: Producer, t: int) -> list[Message]:
    transaction = w.bounds.source[t - 1]
    if is_ddl(transaction):
        return [Message(DDL, 0, t, p.at.gen)]
    rows = changes(transaction, w.rules.key_changes_split)
    return [Message(ROW, 0, t, p.at.gen, seq, keys) for seq, keys in rows]


def count_of(w: World, s: State, p: Producer) -> int:
    return p.at.count if w.rules.pinned else s.topic


def partitions_of(w: World, s: State, p: Producer, m: Message) -> list[int]:
    count = count_of(w, s, p)
    if m.kind == ROW:
        return [place(m.keys, count)]
    return list(range(count if w.rules.ddl_to_all else 1))


def resolved(w: World, s: State, p: Producer, t: int) -> Producer:
    """Where more was sent ahead, that is said again."""
    for partition in range(count_of(w, s, p) if w.rules.resolved_to_all else 1):
        is_ahead = p.ahead > t and partition in elsewhere(w, p)
        p = queued(w, p, partition, Message(RESOLVED, 0, p.ahead if is_ahead else t, p.at.gen))
    return p


def elsewhere(w: World, p: Producer) -> list[int]:
    """Partitions that get nothing of the giant transaction."""
    its = {place(m.keys, p.at.count) for m in messages(w, p, w.bounds.giant)} if w.rules.ahead_elsewhere else set()
    return [partition for partition in range(p.at.count) if partition not in its]


def with_one(logs: tuple[Log, ...], number: int, m: Message) -> tuple[Log, ...]:
    return (*logs[:number], (*logs[number], m), *logs[number + 1 :])
