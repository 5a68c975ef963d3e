"""What a user asks for when changes are to go into Kafka.

What must stay true: as of `planning.request`: no URL of a server and no secret in it, and one clear sentence for every
wrong value. What decides how rows are numbered (tables, columns, protocol, dispatch) stays as it was begun.
"""

from __future__ import annotations

import glob
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from vreplication import names
from vreplication.feed import address, dispatch, large
from vreplication.feed.catalog import Filter, parse_columns
from vreplication.feed.dispatch import MOST_PARTITIONS
from vreplication.planning.fields import ask, make_request

_GTID = r"(\d+-\d+-\d+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(:[\w-]+)+)"
_GTIDS = re.compile(rf"{_GTID}(\s*,\s*{_GTID})*")
"""MariaDB's and MySQL's, the latter with tags, too."""


class FeedSpec(BaseModel):
    """tables, exclude: patterns of schema.table; none: all tables of the source's database."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sink: str = Field(
        min_length=1,
        title="Topic",
        description="Where the changes go: kafka://host:9092[,host:9092]/topic[?option=value].",
        json_schema_extra=ask("what", metavar="URL"),
    )
    tables: tuple[str, ...] = Field(
        default=(),
        title="Tables",
        description="Tables to follow, as schema.table with * and ?. Several times: several patterns.",
        json_schema_extra=ask("what", metavar="PATTERN", default_words="all tables of the source's database"),
    )
    exclude: tuple[str, ...] = Field(
        title="Tables to leave out",
        default=(),
        description="Tables to leave out.",
        json_schema_extra=ask("what", metavar="PATTERN"),
    )
    columns: tuple[str, ...] = Field(
        default=(),
        title="Columns",
        description="Send these columns of a table only, and its key: schema.table:a,b.",
        json_schema_extra=ask("what", metavar="TABLE:COLUMNS"),
    )
    protocol: Literal["open", "debezium", "canal-json", "maxwell"] = Field(
        title="Format of messages", default="open", description="How messages look.", json_schema_extra=ask("how")
    )
    dispatch: str = Field(
        default="table",
        title="Partition of a row",
        description="Which partition a row goes to: table, index-value, columns:a,b, ts or conflict.",
        json_schema_extra=ask("how", metavar="RULE"),
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PARTITIONS,
        title="Partitions of a new topic",
        description="Partitions of a topic that is made.",
        json_schema_extra=ask("how", metavar="N", default_words="those that the topic has, or 1"),
    )
    topic_per_table: bool = Field(
        default=False,
        title="A topic for each table",
        description="Give each table a topic of its own, TOPIC.schema.table; DDL goes into TOPIC, too.",
        json_schema_extra=ask("how"),
    )
    start: str = Field(
        default="now",
        title="Begins at",
        description="Where it begins: now, earliest, or behind these GTIDs.",
        json_schema_extra=ask("what", metavar="now|earliest|GTIDS"),
    )
    snapshot: Literal["initial", "never"] = Field(
        default="never",
        title="Rows that are there already",
        description="initial: send the rows that are in the tables at the start, too.",
        json_schema_extra=ask("what"),
    )
    commit_interval: int = Field(
        default=200,
        ge=10,
        le=10_000,
        title="Longest time between commits (milliseconds)",
        description="Milliseconds between two commits, at the most.",
        json_schema_extra=ask("how", metavar="MS"),
    )
    commit_gap: int = Field(
        default=0,
        ge=0,
        le=10_000,
        title="Shortest time between commits (milliseconds)",
        description="Milliseconds between two commits, at the least, where nothing more is there to be sent.",
        json_schema_extra=ask(
            "how",
            metavar="MS",
            default_words="three times as long as a commit takes, or once if the interval is 100 ms or less",
        ),
    )
    max_message: str | None = Field(
        default=None,
        title="Messages that are too large",
        description="What becomes of a message that is larger than the topic takes: parts, claim-check:DIRECTORY,"
        " key-only or stop.",
        json_schema_extra=ask(
            "how", metavar="POLICY", default_words="parts with open; else a row that could be too large is refused"
        ),
    )
    max_message_bytes: int | None = Field(
        default=None,
        ge=large.LEAST_BYTES,
        le=large.MOST_BYTES,
        title="Largest message (bytes)",
        description="The largest message, in bytes, where that is less than the topic's max.message.bytes.",
        json_schema_extra=ask("rare", metavar="N", default_words="what the topic takes"),
    )
    cascades: Literal["refuse", "ignore"] = Field(
        default="refuse",
        title="Changes by foreign keys",
        description="Of rows that foreign keys change and the server does not log (MariaDB).",
        json_schema_extra=ask("rare"),
    )
    workflow: str | None = Field(
        default=None,
        title="Id of the feed",
        description="Id of the feed; an existing one goes on.",
        json_schema_extra=ask("what", metavar="ID", default_words="made"),
    )
    xa_wait_seconds: float = Field(
        default=60.0,
        ge=0,
        title="Wait for XA branches (seconds)",
        description="Patience with XA branches that were prepared before the start, seconds.",
        json_schema_extra=ask("rare", option="--xa-wait", metavar="SECONDS"),
    )

    @field_validator("workflow")
    @classmethod
    def _checked(cls, value: str | None) -> str | None:
        return None if value is None else names.check_workflow(value)

    @field_validator("sink")
    @classmethod
    def _is_sink(cls, value: str) -> str:
        return str(address.parse(value.strip()))

    @field_validator("start")
    @classmethod
    def _is_place(cls, value: str) -> str:
        """Which of the two forms a server takes is known when it is asked."""
        if value.strip() not in ("now", "earliest") and not _GTIDS.fullmatch(value.strip()):
            raise ValueError(f"{value!r} is neither now nor earliest nor GTIDs")
        return value.strip()

    @field_validator("dispatch")
    @classmethod
    def _is_rule(cls, value: str) -> str:
        return str(dispatch.parse(value.strip()))

    @field_validator("max_message")
    @classmethod
    def _is_policy(cls, value: str | None) -> str | None:
        return None if value is None else str(large.parse(value))

    @field_validator("tables", "exclude")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if pattern.count(".") != 1 or not all(pattern.split(".")):
                raise ValueError(f"{pattern!r} is no pattern like schema.table")
        return value

    @model_validator(mode="after")
    def _has_columns(self) -> FeedSpec:
        parse_columns(self.columns)
        if self.snapshot == "initial" and self.start != "now":
            raise ValueError("--snapshot initial sends what is there now, so --start has to be now")
        if self.topic_per_table and self.dispatch == "conflict":
            raise ValueError(
                "--topic-per-table does not go with --dispatch conflict, whose rows wait for each other across"
                " partitions of one topic: use index-value or table"
            )
        if self.commit_gap > self.commit_interval:
            raise ValueError("--commit-gap is longer than --commit-interval")
        return self

    @property
    def policy(self) -> large.Policy:
        """What becomes of large messages."""
        return large.policy_of(self.protocol, self.max_message)

    def filter(self, default_schema: str) -> Filter:
        # The database's name may hold * or ?, which a pattern would read otherwise.
        tables = self.tables or ((f"{glob.escape(default_schema)}.*",) if default_schema else ("*.*",))
        return Filter(tables=tables, exclude=self.exclude, columns=parse_columns(self.columns))


def make_feed_spec(**given: Any) -> FeedSpec:
    """A FeedSpec from what a face was given; None means the default. Raises Refused with one sentence."""
    return make_request(FeedSpec, given)
