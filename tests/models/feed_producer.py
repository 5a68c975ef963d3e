"""The changefeed's producers: the one that has the lease, and the one before it that may not know that.

    send           P2, P6, P8, P9: a transaction's rows and Resolved are given to the client library; a DDL to all
    go_ahead       rows and Resolved behind a giant transaction, for partitions that get nothing of it, while it is sent
    arrive         a record enters its partition, or all that are on their way do
    resolve        ... without Kafka transactions Resolved may come later
    tell           P3: progress, as a record of the transaction
    commit         EndTxn; a second one may be on its way
    save           without Kafka transactions: progress, in the sidecar; tell_beside: in a transaction of its own
    abort          EndTxn that aborts
    come_late      an EndTxn of an earlier transaction arrives and ends the one that is open now
    crash          kill -9, with all that was on its way
    replace        another takes the lease; the old one goes on
    begin          P1: init_transactions, progress, P7: tails; after any failure as well (P4)
    end_zombie     the replaced one stops
    note_intent    E2: the intent is committed
    create         E3: partitions are created
    send_admin     E4: Admin to the old and the new partitions; progress of the new generation behind it
    intrude        somebody else adds a partition
    come_to_rest   all is sent; the broker may have lost a record by then

What must stay true: between two steps anything else may happen. The consumer is not asked for anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.models.feed_broker import append, end, lengths, noted, tail
from tests.models.feed_sending import (
    batch,
    begun,
    count_of,
    elsewhere,
    last_of_batch,
    messages,
    moved,
    queued,
    resolved,
    sent,
    with_one,
)
from tests.models.feed_world import (
    ADMIN,
    BESIDE,
    FAILED,
    IDLE,
    NUMBERED,
    OPEN,
    PROGRESS,
    RESOLVED,
    STARTING,
    TOLD,
    Message,
    Part,
    Producer,
    Progress,
    State,
    World,
    is_ddl,
    part,
    place,
    said,
)

Steps = Iterator[tuple[str, State]]


def producers(w: World, s: State) -> Iterator[Producer]:
    """Those that the broker listens to."""
    if s.is_at_rest:
        return
    yield from (p for p in (s.zombie, s.main) if p and (not w.rules.fence or p.number >= s.epoch))


def put(s: State, p: Producer, **changed: Any) -> State:
    made = p._replace(**changed)
    return s._replace(main=made) if p.number == s.main.number else s._replace(zombie=made)


def who(p: Producer) -> str:
    return f"producer {p.number}"


# -- rows -------------------------------------------------------------------------------------------------------------


def send(w: World, s: State) -> Steps:
    for p in producers(w, s):
        if p.phase != IDLE or p.at.intent or p.at.t == len(w.bounds.source):
            continue
        if p.at.t + 1 == w.bounds.giant:
            yield from send_part(w, s, p)
            continue
        for last in range(p.at.t + 1, last_of_batch(w, p) + 1):
            made = sent(w, s, p, last)
            yield f"{who(p)} sends t={p.at.t + 1}..{last}", put(s, p, **begun(w, made, last), owes=False)
            if w.bounds.is_loose and w.rules.resolved_behind_rows:
                made = batch(w, s, p, last)
                after = put(s, p, **begun(w, made, last), owes=True)
                yield f"{who(p)} sends t={p.at.t + 1}..{last}, no Resolved yet", after


def resolve(w: World, s: State) -> Steps:
    """Each second when idle."""
    for p in producers(w, s) if w.bounds.is_loose else ():
        if p.phase == IDLE and p.owes and not p.at.done:
            made = resolved(w, s, p, p.at.t)
            yield f"{who(p)} sends R({p.at.t})", put(s, p, queues=made.queues, owes=False)


def send_part(w: World, s: State, p: Producer) -> Steps:
    """One row of a giant transaction."""
    t = p.at.t + 1
    rows = messages(w, p, t)
    m, is_last = rows[p.at.done], p.at.done + 1 == len(rows)
    made = queued(w, p, place(m.keys, count_of(w, s, p)), m)
    if is_last or not w.rules.resolved_behind_giant:
        made = resolved(w, s, made, t)
    changed = begun(w, made, t if is_last else t - 1)
    changed["at"] = changed["at"]._replace(done=0 if is_last else p.at.done + 1)
    yield f"{who(p)} sends part {m.keys} of t={t}", put(s, p, **changed)


def go_ahead(w: World, s: State) -> Steps:
    """One transaction; its numbers follow those before it. What was found there is not sent again either."""
    for p in producers(w, s):
        t = max(p.ahead, w.bounds.giant) + 1
        if p.phase not in (IDLE, OPEN) or p.at.intent or p.at.t + 1 != w.bounds.giant or t > w.bounds.ahead:
            continue
        if is_ddl(w.bounds.source[t - 1]):
            continue
        made = p
        for partition in elsewhere(w, p):
            made = sent_ahead(w, made, partition, t)
        for partition in elsewhere(w, p) if w.rules.ahead_resolved_apart else range(p.at.count):
            made = put_ahead(w, made, partition, Message(RESOLVED, len_ahead(w, p, partition, t), t, p.at.gen))
        yield (
            f"{who(p)} sends t={t} ahead",
            put(s, p, queues=made.queues, known=made.known, floors=made.floors, ahead=t, phase=OPEN),
        )


def len_ahead(w: World, p: Producer, partition: int, t: int) -> int:
    """The number of the last row of a partition up to t, by what is to come since."""
    rows = [m for each in range(p.at.t + 1, t + 1) for m in messages(w, p, each)]
    return p.at.ns[partition] + sum(place(m.keys, p.at.count) == partition for m in rows)


def sent_ahead(w: World, p: Producer, partition: int, t: int) -> Producer:
    n = len_ahead(w, p, partition, t - 1)
    for m in messages(w, p, t):
        if place(m.keys, p.at.count) == partition:
            n += 1
            p = put_ahead(w, p, partition, m._replace(n=n))
    return p


def put_ahead(w: World, p: Producer, partition: int, m: Message) -> Producer:
    if m in p.known[partition] and w.rules.tails_skipped:
        return p if w.rules.ahead_found_kept or m.kind == RESOLVED else with_floor(p, partition, m.t)
    p = p._replace(queues=with_one(p.queues, partition, m))
    if m.kind == RESOLVED or not w.rules.ahead_noted:
        return p
    known = p._replace(known=with_one(p.known, partition, m))
    return with_floor(known, partition, max(p.floors[partition], m.t))


def with_floor(p: Producer, partition: int, t: int) -> Producer:
    return p._replace(floors=(*p.floors[:partition], t, *p.floors[partition + 1 :]))


# -- the way to the broker --------------------------------------------------------------------------------------------


def arrive(w: World, s: State) -> Steps:
    for p in producers(w, s):
        if p.phase not in (IDLE, OPEN, TOLD) or not any(p.queues):
            continue
        if not (w.bounds.is_fine or w.bounds.is_loose):
            yield f"all of {who(p)} is appended", all_arrived(w, s, p)
            continue
        for number, line in enumerate(p.queues):
            for place_ in range(min(len(line), 1 if w.rules.in_order else 2)):
                words = f"{said(line[place_])} of {who(p)} is appended to {number}"
                yield words if not place_ else f"{words} before others", arrived(w, s, p, number, place_)


def all_arrived(w: World, s: State, p: Producer) -> State:
    for number, line in enumerate(p.queues):
        for _ in line:
            now = s.main if p.number == s.main.number else s.zombie
            assert now
            s = arrived(w, s, now, number, 0)
    return s


def arrived(w: World, s: State, p: Producer, number: int, place_: int) -> State:
    """The client asks the coordinator for each partition once."""
    line = p.queues[number]
    rest = line[:place_] + line[place_ + 1 :]
    queues = (*p.queues[:number], rest, *p.queues[number + 1 :])
    bit = 0 if w.bounds.is_loose else 1 << number
    if p.added & bit and not p.registered & bit and w.rules.verified:
        return put(s, p, phase=FAILED, queues=((),) * w.bounds.width)
    registered = p.registered if p.added & bit else p.registered | bit
    s = put(s, p, queues=queues, added=p.added | bit, registered=registered)
    return append(w, s, p.number, number, line[place_])


def tell(w: World, s: State) -> Steps:
    if w.bounds.is_loose or not w.rules.progress_inside:
        return
    for p in producers(w, s):
        if p.phase == OPEN and not (any(p.queues) and w.rules.progress_behind_flush):
            told = told_by(w, s, p)
            masks = {"added": p.added | PROGRESS, "registered": p.registered | PROGRESS}
            yield f"{who(p)} produces progress t={told.t}", put(s, p, phase=TOLD, told=told, **masks)


def told_by(w: World, s: State, p: Producer) -> Progress:
    """Of a partition in which something stands that is still to come the end stays."""
    ends = zip(p.floors, lengths(s), s.progress.offsets, strict=True)
    offsets = tuple(new if p.at.t >= floor or not w.rules.tails_kept else old for floor, new, old in ends)
    return p.at._replace(offsets=offsets)


FREE = {"told": None, "added": 0, "registered": 0, "ended": ""}


def commit(w: World, s: State) -> Steps:
    for p in producers(w, s):
        if p.phase != (TOLD if w.rules.progress_inside else OPEN) or any(p.queues):
            continue
        if not p.registered and p.ended == "abort":
            yield f"{who(p)} cannot commit what has been aborted", put(s, p, phase=FAILED)
            continue
        phase = IDLE if w.rules.progress_inside else BESIDE
        after = put(end(w, s, p, True), p, phase=phase, **FREE)
        yield f"{who(p)} commits", after
        if s.lates and p.number == s.main.number:
            yield f"{who(p)} commits, has sent EndTxn twice", doubted(w, after, p)


def doubted(w: World, s: State, p: Producer) -> State:
    s = s._replace(late=(p.number, "commit"), lates=s.lates - 1)
    if w.bounds.is_noticed and w.rules.reborn_after_slow:
        return put(s, p, phase=FAILED, **FREE)
    return s


def tell_beside(w: World, s: State) -> Steps:
    for p in producers(w, s):
        if p.phase == BESIDE:
            yield f"{who(p)} saves progress t={p.at.t}", put(noted(s, told_by(w, s, p)), p, phase=IDLE)


def save(w: World, s: State) -> Steps:
    if not w.bounds.is_loose:
        return
    for p in producers(w, s):
        is_its = p.number == s.lease or not w.rules.progress_leased
        is_new = p.phase == IDLE and p.at != s.progress._replace(offsets=())
        if is_its and is_new and not (any(p.queues) and w.rules.progress_behind_flush):
            words = f"{who(p)} saves t={p.at.t} of generation {p.at.gen}"
            yield f"{words}, to be {p.at.intent}" if p.at.intent else words, noted(s, told_by(w, s, p))


def abort(w: World, s: State) -> Steps:
    p = s.main
    if s.is_at_rest or not s.aborts or p.phase not in (OPEN, TOLD):
        return
    after = end(w, s, p, False)._replace(aborts=s.aborts - 1)
    if w.rules.reborn_after_abort:
        after = put(after, p, phase=FAILED, **FREE)
    else:
        after = put(after, p, phase=IDLE, at=s.progress._replace(offsets=()), queues=((),) * w.bounds.width, **FREE)
    yield f"{who(p)} aborts", after
    if s.lates:
        late = after._replace(late=(p.number, "abort"), lates=s.lates - 1)
        yield f"{who(p)} aborts, has sent EndTxn twice", late


def come_late(w: World, s: State) -> Steps:
    """It is refused where the epoch has been bumped, and of no effect where nothing is open."""
    if not s.late or s.is_at_rest:
        return
    number, kind = s.late
    s = s._replace(late=None)
    p = s.main
    if number == p.number == s.epoch and p.registered and p.phase in (OPEN, TOLD):
        after = end(w, s, p, kind == "commit")
        yield f"late EndTxn: {kind} of what is open", put(after, p, registered=0, told=None, ended=kind)
    else:
        yield f"late EndTxn ({kind}) of producer {number} does nothing", s


# -- one after the other ----------------------------------------------------------------------------------------------


def fresh(w: World, s: State) -> Producer:
    """Who has just taken the lease. Without init_transactions to come it reads progress at once."""
    none = ((),) * w.bounds.width
    made = Producer(number=s.lease + 1, phase=STARTING, queues=none, known=none)
    return read(w, s, made) if not w.rules.fence_first else made


def read(w: World, s: State, p: Producer) -> Producer:
    tails = [tail(s, number) for number in range(w.bounds.width)]
    floors = tuple(max((m.t for m in log if m.kind != ADMIN), default=0) for log in tails)
    ns = s.progress.ns
    known = tuple(tuple(m for m in log if m.kind in NUMBERED and m.n > n) for log, n in zip(tails, ns, strict=True))
    at = s.progress._replace(offsets=())
    floors = tuple(floor if floor > at.t else 0 for floor in floors)
    return p._replace(at=at, floors=floors, known=known, owes=w.bounds.is_loose and at.t > 0)


def crash(w: World, s: State) -> Steps:
    if s.crashes and not s.is_at_rest and s.main.phase != STARTING:
        after = s._replace(main=fresh(w, s), lease=s.lease + 1, crashes=s.crashes - 1)
        if not w.rules.fence:
            after = end(w, after, s.main, False)
        yield f"*{who(s.main)} is killed, {s.lease + 1} has the lease", after


def replace(w: World, s: State) -> Steps:
    if w.bounds.has_zombie and s.lease == 1 and not s.is_at_rest:
        after = s._replace(main=fresh(w, s), zombie=s.main, lease=s.lease + 1)
        yield f"*{who(s.main)} is cut off (zombie), {s.lease + 1} has the lease", after


def begin(w: World, s: State) -> Steps:
    p = s.main
    if s.is_at_rest or p.phase not in (STARTING, FAILED):
        return
    for old in (s.zombie, p):
        if old and old.registered and w.rules.fence:
            s = end(w, s, old, False)
    s = opened_aborted(w, s) if w.rules.fence else s
    number = p.number if p.phase == STARTING else p.number + 1
    at = Producer(number, queues=((),) * w.bounds.width)
    made = read(w, s, at) if w.rules.fence_first or p.phase == FAILED else p._replace(phase=IDLE)
    words = f"producer {number} goes on behind t={made.at.t} of generation {made.at.gen}"
    yield words, s._replace(main=made, lease=number, epoch=number)


def opened_aborted(w: World, s: State) -> State:
    """What a killed producer left open is aborted as well; with `verified` the coordinator knows of all of it."""
    owners = {owner for at in s.parts for owner, _ in at.open if owner}
    for owner in owners:
        dead = Producer(owner, registered=(1 << w.bounds.width) - 1)
        s = end(w, s, dead, False)
    return s


def end_zombie(w: World, s: State) -> Steps:
    z = s.zombie
    if z and not s.is_at_rest and s.main.phase != STARTING:
        after = s._replace(zombie=None)
        is_refused = w.rules.fence and z.number < s.epoch
        yield f"{who(z)} is {'refused' if is_refused else 'gone'}", after if is_refused else end(w, after, z, False)


# -- scaling ----------------------------------------------------------------------------------------------------------


def note_intent(w: World, s: State) -> Steps:
    for p in producers(w, s):
        if not may_scale(w, s, p) or p.at.intent:
            continue
        to = w.bounds.counts[p.at.gen]
        phase = IDLE if w.bounds.is_loose else OPEN
        if w.rules.intent:
            yield f"{who(p)} notes that it scales to {to}", put(s, moved(p, intent=to), phase=phase)
        else:
            yield f"{who(p)} wants to scale to {to}", put(s, moved(p, intent=to))


def may_scale(w: World, s: State, p: Producer) -> bool:
    is_free = p.phase == IDLE and not any(p.queues) and p.number == s.main.number
    is_saved = p.at == s.progress._replace(offsets=()) or not w.bounds.is_loose
    is_whole = not (p.at.done and w.rules.not_in_giant)
    is_level = p.at.t >= max(p.floors, default=0) or not w.rules.tails_awaited
    is_level = is_level and not (p.owes and w.rules.resolved_before_admin)
    return p.at.gen < len(w.bounds.counts) and is_free and is_saved and is_whole and is_level


def create(w: World, s: State) -> Steps:
    p = s.main
    if not s.is_at_rest and is_intending(w, s, p) and s.topic < p.at.intent:
        yield f"{who(p)} grows the topic to {p.at.intent}", s._replace(topic=p.at.intent)


def is_intending(w: World, s: State, p: Producer) -> bool:
    is_noted = s.progress.intent == p.at.intent or not w.rules.intent
    return p.phase == IDLE and bool(p.at.intent) and is_noted


def send_admin(w: World, s: State) -> Steps:
    p = s.main
    if s.is_at_rest or not is_intending(w, s, p) or s.topic < p.at.intent:
        return
    old, new, t = p.at.count, p.at.intent, p.at.t
    m = Message(ADMIN, 0, t, p.at.gen + 1, count=new)
    for number in admin_partitions(w, old, new):
        p = queued(w, p, number, m)
    p = moved(p, gen=p.at.gen + 1, count=new, intent=0)
    after = put(s, p, phase=IDLE if w.bounds.is_loose else OPEN)
    yield f"{who(p)} sends {said(m)}", after._replace(bases=(*s.bases[: p.at.gen - 1], t))


def admin_partitions(w: World, old: int, new: int) -> list[int]:
    """Old ∪ new."""
    if not w.rules.admin_sent:
        return []
    found = set(range(old) if w.rules.admin_to_old else ()) | set(range(new) if w.rules.admin_to_new else ())
    return sorted(found if w.rules.admin_to_new else found & set(range(old)))


def intrude(w: World, s: State) -> Steps:
    if s.outsiders and not s.is_at_rest and s.topic < w.bounds.width:
        yield f"*somebody adds partition {s.topic}", s._replace(topic=s.topic + 1, outsiders=s.outsiders - 1)


# -- the end ----------------------------------------------------------------------------------------------------------


def come_to_rest(w: World, s: State) -> Steps:
    """The producer's side is forgotten: what differs only in it has the same future."""
    if s.is_at_rest or not is_done(w, s):
        return
    rest = State(parts=s.parts, consumer=s.consumer, progress=s.progress, hangs=s.hangs, is_at_rest=True, bases=s.bases)
    yield "all is sent", rest
    for number, at in enumerate(s.parts) if w.bounds.losses else ():
        for place_, m in enumerate(at.log):
            log = at.log[:place_] + at.log[place_ + 1 :]
            yield f"*the broker loses {said(m)} of {number}", part(rest, number, Part(log))._replace(has_lost=True)


def is_done(w: World, s: State) -> bool:
    p = s.main
    is_saved = p.at == s.progress._replace(offsets=()) and p.phase == IDLE and not any(p.queues)
    is_whole = p.at.t == len(w.bounds.source) and p.at.gen == len(w.bounds.counts) and not p.at.intent
    return is_saved and is_whole and not p.owes and not s.zombie
