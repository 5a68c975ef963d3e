"""What is to be said of a change feed and of who consumes its topic, beside a workflow's snapshot.

What must stay true: read from the sidecar alone, a feed at its source, a group of consumers at their target; a figure
that is not known is None, and one about now is not known when its writer has been silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vreplication.mysql.session import Session
from vreplication.progress import numbers
from vreplication.progress.snapshot import STALE_SECONDS, Snapshot
from vreplication.state import feed_members, feed_offsets, feeds
from vreplication.state.feed_members import Members
from vreplication.state.feed_offsets import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """rows_sent, rows: since its process was started, rates: of the last seconds, ends: number of the last message; the
    last three by partition: rows of all topics, ends of `topic`. topics: how many there are. tables: of those
    of tables by name `topic_id`, `generation` and `ends`; none where they are too many. resolved: microseconds since
    1970. committed: seconds since the last commit. ahead: how far `resolved` is ahead of the source's clock, where it
    is. is_held: what one source has committed waits for the others.
    """

    age_seconds: float
    wanted: int | None
    topic: str | None
    topic_id: str | None
    topics: int
    tables: Mapping[str, Mapping[str, Any]]
    generation: int | None
    partitions: int | None
    rows_sent: int
    rows: tuple[int, ...]
    ends: tuple[int, ...]
    open_branches: int
    resolved: int | None
    lag_seconds: float | None
    ahead_seconds: float | None
    is_held: bool
    rows_per_second: float | None
    rates: tuple[float, ...]
    committed_seconds: float | None
    waiting_for: str | None

    @property
    def named(self) -> str | None:
        """Its topic, and how many more."""
        return f"{self.topic}, and {self.topics - 1} of tables" if self.topic and self.topics > 1 else self.topic

    def is_read_by(self, group: Consumers) -> bool:
        """It reads a topic of the feed; by its name where there are too many to know."""
        if group.topic_id == self.topic_id or self.topics == 1:
            return group.topic_id == self.topic_id
        found = self.tables.get(group.topic)
        return found["topic_id"] == group.topic_id if found else not self.tables and self._has(group.topic)

    def _has(self, topic: str) -> bool:
        return topic.startswith(f"{self.topic}.")

    def at(self, topic: str) -> tuple[int | None, Sequence[int]]:
        """Generation and ends of one of its topics."""
        if found := self.tables.get(topic):
            return found["generation"], found["ends"]
        return (self.generation, self.ends) if topic == self.topic else (None, ())

    @property
    def is_now(self) -> bool:
        """Somebody has written these figures just now."""
        return self.age_seconds <= STALE_SECONDS

    @property
    def why_no_lag(self) -> str:
        return why_no_lag({"ahead_seconds": self.ahead_seconds, "is_held": self.is_held})


def why_no_lag(figures: Mapping[str, Any]) -> str:
    """Where figures are told, and none of how late what was sent is; '': there is one, or none yet."""
    if (ahead := figures.get("ahead_seconds")) is not None:
        return f"times of the log are {numbers.duration(ahead)} ahead of the source's clock"
    return "one source is ahead of the others" if figures.get("is_held") else ""


AHEAD_MICROS = 60_000_000
"""A time so far ahead of the clock is no matter of clocks that differ a little."""
GONE_SECONDS = 3_600
"""A group is gone when none of its processes has been heard of for so long."""
FORGOTTEN_SECONDS = 86_400
"""And after so long its figures are told no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """A group. resolved: everything up to then is on the target. lag_seconds: by the target's clock; None where that
    is behind `resolved`.

    at_work: processes; seen_seconds: since when none was heard of, or, of one that was never, since its last progress.
    """

    group: str
    topic: str
    topic_id: str
    mode: str
    generation: int
    partitions: int
    resolved: int | None
    lag_seconds: float | None
    state: State
    at_work: int = 0
    seen_seconds: float | None = None

    @property
    def is_gone(self) -> bool:
        return self.seen_seconds is not None and self.seen_seconds > GONE_SECONDS

    @property
    def is_forgotten(self) -> bool:
        return self.seen_seconds is not None and self.seen_seconds > FORGOTTEN_SECONDS

    def behind(self, fed: Fed) -> int | None:
        """Messages of this feed that are not applied yet."""
        generation, ends = fed.at(self.topic)
        # A feed tells the ends of its own generation, and a group may still be reading the partitions of an earlier
        # one.
        if self.generation != generation or len(ends) < self.partitions:
            return None
        # The feed tells its ends once a second, so a group may be past those that were told last.
        return sum(max(0, ends[each.number] - each.n) for each in self.state.offsets)

    @property
    def stands_at(self) -> str:
        """What listeners wait at for the others."""
        return ", ".join(sorted({each.stand.value for each in self.state.offsets if each.stand.value}))


_OF_NOW = frozenset(
    ("waiting_for", "lag_seconds", "ahead_seconds", "is_held", "rows_per_second", "rates", "committed_seconds")
)
"""Figures that say nothing once their writer has been silent."""


def told(figures: Mapping[str, Any], age_seconds: float) -> dict[str, Any]:
    """Figures as they may be told, with their age."""
    # What stands in the topic stays true when its process has died; how late and how fast it was does not.
    is_now = age_seconds <= STALE_SECONDS
    known = {name: value if is_now or name not in _OF_NOW else None for name, value in figures.items()}
    return {**known, "age_seconds": age_seconds}


def as_snapshot(seen: Snapshot, fed: Fed) -> Snapshot:
    """The snapshot with what a feed keeps elsewhere."""
    return replace(
        seen,
        rows_copied=fed.rows_sent,
        rows_per_second=fed.rows_per_second,
        lag_seconds=fed.lag_seconds,
        waiting_for=fed.waiting_for,
        updated_seconds_ago=fed.age_seconds,
    )


def find(session: Session, workflow: str) -> Fed | None:
    """None: it is no feed."""
    return read(session, workflow).get(workflow)


def read(session: Session, workflow: str | None = None) -> dict[str, Fed]:
    """Every feed that has this server as its source, by id; or one."""
    return {name: _fed(wanted, figures, age) for name, wanted, figures, age in feeds.read(session, workflow)}


def _fed(wanted: int | None, figures: Mapping[str, Any], age: float) -> Fed:
    figures = told(figures, age)
    return Fed(
        age_seconds=age,
        wanted=wanted,
        topic=figures.get("topic"),
        topic_id=figures.get("topic_id"),
        topics=int(figures.get("topics") or 1),
        tables=figures.get("table_topics") or {},
        generation=figures.get("generation"),
        partitions=figures.get("partitions"),
        rows_sent=int(figures.get("rows_sent") or 0),
        rows=tuple(figures.get("rows_by_partition") or ()),
        ends=tuple(figures.get("ends") or ()),
        open_branches=int(figures.get("open_branches") or 0),
        resolved=figures.get("resolved_micros"),
        lag_seconds=figures.get("lag_seconds"),
        ahead_seconds=figures.get("ahead_seconds"),
        is_held=bool(figures.get("is_held")),
        rows_per_second=figures.get("rows_per_second"),
        rates=tuple(figures.get("rates") or ()),
        committed_seconds=figures.get("committed_seconds"),
        waiting_for=figures.get("waiting_for"),
    )


def consumers(session: Session) -> list[Consumers]:
    """Every group that writes into this server."""
    now, found = feed_offsets.read_all(session)
    members = feed_members.read(session) if found else {}
    return [_consumers(key, state, now, members.get(key)) for key, state in found.items()]


def _consumers(key: feed_offsets.Key, state: State, now: int, members: Members | None) -> Consumers:
    group = state.group
    least = min(each.resolved for each in state.offsets) if group.generation else 0
    # `resolved` is a time of the source, and the target's clock may be behind the source's.
    lag = max(0.0, (now - least) / 1e6) if least and least <= now + AHEAD_MICROS else None
    return Consumers(
        group=key.consumer_group,
        topic=key.topic,
        topic_id=group.topic_id,
        mode=group.mode,
        generation=group.generation,
        partitions=group.partitions,
        resolved=least or None,
        lag_seconds=lag,
        state=state,
        at_work=members.at_work if members else 0,
        seen_seconds=members.seen_seconds if members else lag,
    )
