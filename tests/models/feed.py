"""The changefeed in all interleavings: binary log to Kafka with transactions, partitions that may grow, a consumer.

Each partition holds, once and in order, what belongs there; the checkpoint never goes back; what the consumer has is
what its watermark says. Broker, producers and consumer, and what each of their actions stands for: feed_broker.py,
feed_producer.py (and feed_sending.py), feed_consumer.py; rules, bounds and state: feed_world.py; what is explored:
feed_cases.py.

What must stay true: it ends well or the explorer says so: the only state without a step is the one in which all of the
source is in the database, or, where the broker has lost a record, one in which the consumer has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.models import feed_consumer as consumer
from tests.models import feed_producer as producer
from tests.models.explorer import Step
from tests.models.feed_consumer import watermark
from tests.models.feed_world import (
    KEYS,
    Bounds,
    Consumer,
    Part,
    Producer,
    Progress,
    Rules,
    Stand,
    State,
    World,
    ddls,
    source_at,
)

PRODUCING = (producer.send, producer.arrive, producer.come_to_rest)
AHEAD = (producer.go_ahead,)
IN_TRANSACTIONS = (producer.tell, producer.commit)
LOOSE = (producer.save, producer.resolve)
SCALING = (producer.note_intent, producer.create, producer.send_admin)
CONSUMING = (consumer.apply_rows, consumer.apply_all, consumer.run_ddl, consumer.save_ddl, consumer.go_on)
OTHERS = (
    *LOOSE,
    producer.abort,
    producer.come_late,
    producer.crash,
    producer.replace,
    producer.begin,
    producer.end_zombie,
    producer.intrude,
    consumer.wake,
)
ACTIONS = (*PRODUCING, *AHEAD, *IN_TRANSACTIONS, *SCALING, *CONSUMING, *OTHERS)
"""All but those of a rule that is taken out."""


def actions_of(b: Bounds, r: Rules) -> Iterator[Callable[..., Iterable[Step[State]]]]:
    """Those that can happen within the bounds."""
    yield from (*PRODUCING, *(LOOSE if b.is_loose else IN_TRANSACTIONS), *SCALING, *CONSUMING)
    if b.ahead:
        yield from AHEAD
    if b.aborts:
        yield producer.abort
    if b.lates:
        yield producer.come_late
    if b.crashes or b.has_zombie or b.aborts or b.lates:
        yield from (producer.crash, producer.replace, producer.begin, producer.end_zombie)
    if b.outsiders:
        yield producer.intrude
    if b.hangs:
        yield consumer.wake
    if not r.progress_inside:
        yield producer.tell_beside


@dataclass(frozen=True, slots=True)
class FeedModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        world = World(rules=self.rules, bounds=self.bounds)
        object.__setattr__(self, "actions", tuple(partial(a, world) for a in actions_of(self.bounds, self.rules)))

    def initial(self) -> list[State]:
        return [begun(self.bounds)]

    def wrong(self, s: State) -> str | None:
        return s.wrong or None

    def is_end(self, s: State) -> bool:
        if not s.is_at_rest:
            return False
        return s.has_lost or is_level(self.bounds, s)


def begun(b: Bounds) -> State:
    """Generation 1 has its partitions, and nothing is in them."""
    count, none = b.counts[0], (0,) * b.width
    progress = Progress(count=count, ns=none, offsets=none)
    at = progress._replace(offsets=())
    return State(
        parts=(Part(),) * b.width,
        consumer=Consumer(count=count, stands=(Stand(),) * b.width, rows=(0,) * len(KEYS)),
        progress=progress,
        topic=count,
        main=Producer(at=at, queues=((),) * b.width, known=((),) * b.width, floors=none),
        crashes=b.crashes,
        lates=b.lates,
        aborts=b.aborts,
        hangs=b.hangs,
        outsiders=b.outsiders,
    )


def is_level(b: Bounds, s: State) -> bool:
    """The consumer has all, in the last generation, and no transaction stays open."""
    c, last = s.consumer, len(b.source)
    is_whole = c.rows == source_at(b.source, last) and c.ddl == max(ddls(b.source), default=0) and c.is_saved
    is_last = c.gen == len(b.counts) and watermark(s) == last
    return is_whole and is_last and not any(p.open for p in s.parts)
