"""What a run is given, and what it asks and tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vreplication.feed.large import Fit
from vreplication.feed.messages import Format
from vreplication.feed.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """feed: its id. topic of its progress. format: of Resolved and Admin.

    commit_seconds: between two commits at the most; gap_seconds: at the least, while nothing more is there to be sent.

    fit: makes rows and DDL no larger than the topic takes. is_each: each table has a topic of its own.
    """

    feed: str
    progress_topic: str
    format: Format
    fit: Fit
    commit_seconds: float = 0.2
    gap_seconds: float = 0.0
    is_each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """After a commit. rows: sent by this process; by_partition: of them, of each."""

    progress: Progress
    rows: int
    by_partition: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Hooks:
    """What the run asks and tells: check raises what ends it; wanted: how many partitions there shall be."""

    check: Callable[[], None] = lambda: None
    wanted: Callable[[], int | None] = lambda: None
    told: Callable[[Status], None] = lambda status: None
    warn: Callable[[str], None] = lambda text: None
    """Told what an operator should know and what does not end the run; may be told the same again."""
    is_ours: Callable[[], bool] = lambda: False
    """Whether the feed is known to be ours still, when Kafka says that somebody has taken over."""
