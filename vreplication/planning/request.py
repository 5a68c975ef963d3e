"""What every kind of workflow that copies tables may be asked for.

What must stay true: a request holds no URL of a server and no password, so it may be stored and shown.
"""

from __future__ import annotations

import os
import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from vreplication import names
from vreplication.errors import Refused
from vreplication.planning.fields import SparkMaster, ask
from vreplication.planning.window import Window
from vreplication.settings import (
    AUTO_PARALLELISM,
    LATENCY_FACTOR,
    LEAST_CHUNK_MILLIS,
    MAX_APPLY_PARALLELISM,
    MAX_CHUNK_ROWS,
    MOST_CHUNK_MILLIS,
    MOST_COUNTED,
    MOST_PARALLELISM,
)
from vreplication.throttle.reasons import parse_load, parse_places, parse_size

EFFORT = ("copy_parallelism", "chunk_millis")
"""Fields that may be changed under way: how hard a copy works."""
HELD_BY = (
    "max_load", "critical_load", "max_lag", "lag_replicas", "max_history_list", "min_disk_free",
    "throttle_query", "throttle_http", "nice_ratio", "latency_factor", "least_copy_share",
)  # fmt: skip
"""The same: what holds it back."""


class Request(BaseModel):
    """What every kind of workflow may be asked for. `workflow` None: the face makes an id up before it runs."""

    # extra: a misspelt option of a file or a queued entry would be passed over without a word, and the default taken.
    # inf would be stored as a limit that never holds.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    workflow: str | None = Field(
        default=None,
        title="Id of the workflow",
        description="Id of the workflow; an existing one goes on.",
        json_schema_extra=ask("what", metavar="ID", default_words="made"),
    )
    cutover: Literal["auto", "manual"] = Field(
        title="Cut-over",
        default="auto",
        description="manual: hold before the cut-over until `release`.",
        json_schema_extra=ask("when"),
    )
    cutover_window: str | None = Field(
        default=None,
        title="Maintenance window",
        description="Maintenance window that releases the cut-over.",
        json_schema_extra=ask("when", metavar="WINDOW", said="Switch in a window: Sat 02:00-04:00 Europe/Berlin."),
    )
    copy_parallelism: int | None = Field(
        default=None,
        ge=1,
        le=MOST_PARALLELISM,
        title="Copying tasks at a time",
        description="Copying tasks at a time; not given: as many as do good.",
        json_schema_extra=ask("how", metavar="N|auto", auto=True, default_words="auto"),
    )
    chunk_rows: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CHUNK_ROWS,
        title="Size of a chunk (rows)",
        description="Rows a chunk; fixes its size.",
        json_schema_extra=ask("how", default_words="by the time it may take"),
    )
    chunk_millis: int = Field(
        default=500,
        ge=LEAST_CHUNK_MILLIS,
        le=MOST_CHUNK_MILLIS,
        title="Time for a chunk (milliseconds)",
        description="Time a chunk may take, milliseconds.",
        json_schema_extra=ask("how", metavar="MS"),
    )
    latency_factor: float = Field(
        default=LATENCY_FACTOR,
        ge=0,
        le=100,
        title="Commits may take so many times as long",
        description="How many times as long commits may take while we work beside writers; 0: work on regardless.",
        json_schema_extra=ask("how"),
    )
    max_load: str | None = Field(
        default=None,
        title="Hold back above this load",
        examples=["Threads_running=25"],
        description="Copy nothing while one of these status variables is above its limit.",
        json_schema_extra=ask("how", metavar="NAME=N,…", said="Hold back above: Threads_running=25,…"),
    )
    critical_load: str | None = Field(
        default=None,
        title="End above this load",
        examples=["Threads_running=1000"],
        description="End, resumable, when one of these is above its limit at two looks in a row.",
        json_schema_extra=ask("rare", metavar="NAME=N,…", said="End above: Threads_running=1000,…"),
    )
    max_lag: float | None = Field(
        default=None,
        gt=0,
        title="Hold back above this lag of replicas (seconds)",
        description="Copy nothing while a replica is further behind, seconds.",
        json_schema_extra=ask("how", metavar="SECONDS"),
    )
    lag_replicas: str | None = Field(
        default=None,
        title="Replicas whose lag counts",
        description="Replicas whose lag counts, with the user and password of their source.",
        json_schema_extra=ask("how", metavar="HOST:PORT,…", default_words="those that the server lists"),
    )
    max_history_list: int | None = Field(
        default=None,
        ge=1,
        le=MOST_COUNTED,
        title="Hold back above this history list (entries)",
        description="Copy nothing while InnoDB's history list is longer.",
        json_schema_extra=ask("rare", metavar="N"),
    )
    min_disk_free: str | None = Field(
        default=None,
        title="Hold back below this free disk space",
        examples=["20G"],
        description="Copy nothing while the file system of the server's data or binary logs has less free.",
        json_schema_extra=ask("how", metavar="SIZE"),
    )
    throttle_query: str | None = Field(
        default=None,
        min_length=1,
        title="Hold back by a query",
        description="Copy nothing while the first value of this SELECT is above 0.",
        json_schema_extra=ask("rare", metavar="SQL"),
    )
    throttle_http: str | None = Field(
        default=None,
        title="Hold back by an HTTP check",
        description="Copy nothing while this address answers with anything but 200, or not at all.",
        json_schema_extra=ask("rare", metavar="URL"),
    )
    nice_ratio: float = Field(
        default=0.0,
        ge=0,
        le=100,
        title="Rest so many times as long as a chunk took",
        description="Rest so many times as long as each chunk took.",
        json_schema_extra=ask("how", metavar="R"),
    )
    least_copy_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        title="Least share of time for the copy (0 to 1)",
        description="Share of the time in which the copy goes on although catch-up is behind.",
        json_schema_extra=ask("rare", metavar="SHARE"),
    )
    # Under a new unique key two connections apply 260,000 changes in under four fifths of the time that one takes
    # (bench/README.md).
    apply_parallelism: int = Field(
        default=2,
        ge=1,
        le=MAX_APPLY_PARALLELISM,
        title="Connections that apply changes",
        description="Connections that apply changes.",
        json_schema_extra=ask("how"),
    )
    spark_master: SparkMaster = Field(
        title="Spark master",
        default="local[*]",
        min_length=1,
        description="Where Spark runs.",
        json_schema_extra=ask("where", metavar="URL"),
    )
    retired: Literal["keep", "drop"] = Field(
        default="keep",
        title="The original afterwards",
        description="What becomes of the original in the end: it keeps another name, or goes.",
        json_schema_extra=ask("when"),
    )
    xa_wait_seconds: float = Field(
        default=60.0,
        ge=0,
        title="Wait for XA branches (seconds)",
        description="Patience with XA branches that were prepared before the start, seconds.",
        json_schema_extra=ask("rare", option="--xa-wait", metavar="SECONDS"),
    )
    # A verdict of last night says little in the morning, when a person releases the cut-over.
    verify_every_minutes: float = Field(
        default=60.0,
        ge=0,
        title="At the gate, verify again every (minutes)",
        description="While it is held at the gate, verify again so often, minutes; 0: never.",
        json_schema_extra=ask("when", option="--verify-every", metavar="MINUTES"),
    )

    @field_validator("latency_factor")
    @classmethod
    def _is_factor(cls, value: float) -> float:
        # Below 1 commits would be too slow even without any work of ours.
        if 0 < value < 1:
            raise ValueError("it is 0, for no regard, or at least 1")
        return value

    @field_validator("max_load", "critical_load")
    @classmethod
    def _is_load(cls, value: str | None) -> str | None:
        if value is not None:
            parse_load(value)
        return value

    @field_validator("lag_replicas")
    @classmethod
    def _are_places(cls, value: str | None) -> str | None:
        if value is not None:
            parse_places(value)
        return value

    @field_validator("min_disk_free")
    @classmethod
    def _is_size(cls, value: str | None) -> str | None:
        if value is not None:
            parse_size(value)
        return value

    @field_validator("throttle_query")
    @classmethod
    def _is_query(cls, value: str | None) -> str | None:
        # It is run by `plan` as well, which touches nothing.
        if value is not None and not re.match(r"[\s(]*(select|with|show|table|values)\b", value, re.I):
            raise ValueError("it is no query: it begins with SELECT, WITH, SHOW, TABLE or VALUES")
        return value

    @field_validator("throttle_http")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None:
            found = urlsplit(value)
            if found.scheme not in ("http", "https") or not found.hostname:
                raise ValueError("it is no http:// or https:// address")
            if found.username or found.password:
                raise ValueError("it holds a user or a password, which would be stored and shown")
        return value

    @field_validator("workflow")
    @classmethod
    def _checked(cls, value: str | None) -> str | None:
        return None if value is None else names.check_workflow(value)

    @field_validator("cutover_window")
    @classmethod
    def _is_window(cls, value: str | None) -> str | None:
        if value is not None:
            Window.parse(value)
        return value

    @property
    def tasks(self) -> int:
        """Copying tasks at a time, at the most."""
        least, most = AUTO_PARALLELISM
        return self.copy_parallelism or max(least, min(os.cpu_count() or least, most))

    def place(self, default_schema: str) -> tuple[str, str]:
        """(schema, table) at home, for a queue: of several tables the first, or `*`. Raises Refused."""
        raise NotImplementedError

    @property
    def needs_release(self) -> bool:
        """Somebody, or the window, has to release the cut-over."""
        return self.cutover == "manual" or self.cutover_window is not None


def check_limit(places: str | None, limit: float | None) -> None:
    """Of what somebody asks for: places alone would hold nothing back, and say nothing of it. Raises Refused."""
    if places is not None and limit is None:
        raise Refused(
            "--lag-replicas says whose lag counts, but no lag is too much.", cure="Give --max-lag SECONDS with it."
        )
