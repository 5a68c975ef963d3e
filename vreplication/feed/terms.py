"""What a feed is, what a run of it is given, and what that asks and tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vreplication.feed.address import Address
from vreplication.feed.catalog import Filter
from vreplication.feed.dispatch import Rule
from vreplication.feed.large import PARTS, Fit, Policy
from vreplication.feed.messages import Format
from vreplication.feed.progress import PROGRESS, Progress
from vreplication.mysql.url import SourceUrl
from vreplication.settings import MATCHER_BUDGET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A server whose log the feed follows. filter: which tables of it; format: names the server in its messages."""

    url: SourceUrl
    filter: Filter
    format: Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """id: its transactional.id, too. sources: their order stays, for it decides the times of rows.

    start: now, earliest, or GTIDs (of one source). partitions None: as many as there are, or 1.
    """

    id: str
    sources: tuple[Origin, ...]
    address: Address
    rule: Rule
    home: Path
    partitions: int | None = None
    start: str = "now"
    commit_seconds: float = 0.2
    gap_seconds: float = 0.0
    xa_wait_seconds: float = 60.0
    budget_bytes: int = MATCHER_BUDGET_BYTES
    """What open transactions of all sources may take in memory."""
    is_snapshot: bool = False
    """Rows that are there at the start are sent, too."""
    is_each: bool = False
    """Each table has a topic of its own, named behind that of the address."""
    was_begun: bool = False
    """It has sent something before, whatever Kafka says."""
    are_cascades_ignored: bool = False
    """What foreign keys do and the server does not log may be missing."""
    large: Policy = PARTS
    most_bytes: int | None = None
    """Of a message, where that is less than the topic takes."""

    @property
    def progress_topic(self) -> str:
        return PROGRESS + self.id

    @property
    def rules(self) -> str:
        """What may not change while the feed lives, for a replay has to give the same."""
        # No word where it is not so: progress that an older version wrote has none.
        own = ("topic-per-table",) if self.is_each else ()
        return " ".join(map(str, (self.format.name, self.rule, *(each.filter for each in self.sources), *own)))

    @property
    def format(self) -> Format:
        """Of what is said of no source."""
        return self.sources[0].format


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
    """After a commit. rows: sent by this process; by_partition: of them, of each. held: as of Future."""

    progress: Progress
    rows: int
    by_partition: tuple[int, ...]
    held: str = ""


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
