"""What a user asks for, as a value that is checked once: what all workflows share, and an online DDL.

What must stay true: a Spec holds no URL and no password, so it may be stored and shown; every wrong value is one clear
sentence (`Refused`), whichever face it came through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vreplication import names
from vreplication.errors import Refused
from vreplication.planning.window import Window
from vreplication.settings import (
    AUTO_PARALLELISM,
    LATENCY_FACTOR,
    LEAST_CHUNK_MILLIS,
    MAX_APPLY_PARALLELISM,
    MAX_CHUNK_ROWS,
    MOST_CHUNK_MILLIS,
    MOST_PARALLELISM,
)
from vreplication.throttle.reasons import parse_load, parse_places, parse_size

R = TypeVar("R", bound=BaseModel)
_WHOLE = "it has to be a whole number"
SECTION, OPTION, METAVAR, AUTO, DEFAULT_WORDS, SAID = "section", "option", "metavar", "auto", "default_words", "said"
"""What faces read of a field (`json_schema_extra`)."""


def ask(section: str, **more: Any) -> dict[str, Any]:
    """How a field is asked for. section: of a form: what, when, how, where or rare.

    Of the command line: option, where it is not called as the field; metavar; auto: the word for no number;
    default_words: where the default says too little; said: where the description is of a form. format: of the form.
    """
    return {SECTION: section, **more}


def own_fields(model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """Names of the fields that this kind alone has, and of those that it shares with all."""
    own = [name for name in model.model_fields if name in model.__annotations__]
    return own, [name for name in model.model_fields if name not in own]


class Request(BaseModel):
    """What every kind of workflow may be asked for. `workflow` None: the face makes an id up before it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    apply_parallelism: int = Field(
        default=2,
        ge=1,
        le=MAX_APPLY_PARALLELISM,
        title="Connections that apply changes",
        description="Connections that apply changes.",
        json_schema_extra=ask("how"),
    )
    spark_master: str = Field(
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


class Spec(Request):
    """An online DDL. As `RevertSpec` where it is the way back of another one."""

    table: str = Field(
        min_length=1,
        title="Table",
        description="Table to change, `name` or `schema.name`.",
        examples=["orders"],
        json_schema_extra=ask("what", metavar="NAME"),
    )
    alter: str = Field(
        min_length=1,
        title="ALTER TABLE …",
        description="What would follow ALTER TABLE name, several clauses too.",
        json_schema_extra=ask("what", metavar="CLAUSES", format="multiline"),
    )
    strategy: Literal["auto", "instant", "inplace", "online"] = Field(
        default="auto",
        title="Strategy",
        description="instant, inplace: the server alters the table; online: by copy; auto: instant if it can.",
        json_schema_extra=ask("how"),
    )
    copy_path: Literal["auto", "server", "rows"] = Field(
        default="auto",
        title="How rows travel",
        description="How rows travel. server: INSERT … SELECT; rows: through Spark; auto: the plan decides.",
        json_schema_extra=ask("rare"),
    )
    triggers: Literal["refuse", "preserve"] = Field(
        default="refuse",
        description="preserve: the table's triggers are made on the new table within the cut-over.",
        json_schema_extra=ask("how"),
    )
    foreign_keys: Literal["refuse", "rebuild"] = Field(
        default="refuse",
        title="Foreign keys",
        description="rebuild: foreign keys from and to the table go over within the cut-over, with risks.",
        json_schema_extra=ask("how"),
    )
    on_duplicate: Literal["fail", "keep-first", "keep-last"] = Field(
        default="fail",
        title="Rows that a new unique key does not allow",
        description="keep-first, keep-last: of rows with one value under a new unique key the one with the lowest, or "
        "highest, shared key stays; the others are put into a side table.",
        json_schema_extra=ask("rare"),
    )
    allow_nullable_key: bool = Field(
        default=False,
        title="Allow a key that may be NULL",
        description="Where there is no other key take a unique one that may be NULL; a NULL in it ends the workflow.",
        json_schema_extra=ask("rare"),
    )
    ignore_old_snapshots: bool = Field(
        default=False,
        title="Switch despite old snapshots",
        description="Switch although a transaction from before the end of the copy is open; it may read half a table.",
        json_schema_extra=ask("rare"),
    )
    revert_window: str | None = Field(
        default=None,
        title="Way back stays open for",
        examples=["24h"],
        description="How long `revert` can switch back, such as 24h; the original is dropped afterwards.",
        json_schema_extra=ask("when", metavar="TIME", default_words="no way back"),
    )

    @field_validator("revert_window")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        if value is not None:
            seconds_of(value)
        return value

    force_cutover_after: int | None = Field(
        default=None,
        ge=1,
        title="End sessions that block it for (seconds)",
        description="End sessions that block the cut-over for so long, seconds; not given: nobody is ended.",
        json_schema_extra=ask("rare", metavar="SECONDS"),
    )
    force_cutover_max_age: int = Field(
        default=3600,
        ge=1,
        title="Spare sessions at it for longer than (seconds)",
        description="Never end a session that has been at it for longer, seconds.",
        json_schema_extra=ask("rare", metavar="SECONDS"),
    )
    force_cutover_max_rows: int = Field(
        default=10_000,
        ge=0,
        title="Spare sessions that changed more than (rows)",
        description="Never end a session whose transaction has changed more rows.",
        json_schema_extra=ask("rare", metavar="N"),
    )

    @field_validator("alter", "table")
    @classmethod
    def _stripped(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("it is empty")
        return value.strip()

    @property
    def keeps_one(self) -> bool:
        """Of several rows of one value under a new unique key."""
        return self.on_duplicate != "fail"

    def place(self, default_schema: str) -> tuple[str, str]:
        return self.table_parts(default_schema)

    def table_parts(self, default_schema: str) -> tuple[str, str]:
        """(schema, table). Backticks are taken off; a dot inside them is part of the name."""
        return split_table(self.table, default_schema)


class RevertSpec(Spec):
    """The way back of an online DDL that is complete; made by the cut-over, asked for by nobody.

    reverts: id of the workflow that switched. alter: by what that one changed the table. until: by the server's clock.
    """

    reverts: str
    until: datetime


def spec_of(given: Mapping[str, Any]) -> Spec:
    """The spec of an online DDL, or of the way back of one, as a workflow's row has it."""
    return (RevertSpec if "reverts" in given else Spec).model_validate(dict(given))


_UNITS = {"m": 60, "h": 3_600, "d": 86_400}
_LONGEST_DAYS = 365


def seconds_of(text: str) -> int:
    """Of `90m`, `24h` or `7d`. Raises ValueError, in words for people."""
    found = re.fullmatch(r"(\d{1,9})([mhd])", text.strip().lower())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_DAYS * _UNITS["d"]:
        raise ValueError(f"{text!r} is no time from 1m to {_LONGEST_DAYS}d; write it as 90m, 24h or 7d")
    return seconds


def split_table(text: str, default_schema: str) -> tuple[str, str]:
    """Read `t`, `s.t`, or either part in backticks. Raises Refused."""
    parts: list[str] = []
    rest = text
    while rest:
        if rest[0] == "`":
            end = rest.replace("``", "\0\0").find("`", 1)
            if end < 0:
                raise Refused(f"The table name {text!r} has a backtick without its pair.")
            part, rest = rest[1:end].replace("``", "`"), rest[end + 1 :]
        else:
            part, dot, rest = rest.partition(".")
            rest = dot + rest
        parts.append(part)
        if rest and not rest.startswith("."):
            raise Refused(f"The table name {text!r} is not valid.", cure="Use name or schema.name.")
        if rest == ".":
            parts.append("")
        rest = rest[1:]
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise Refused(f"The table name {text!r} is not valid.", cure="Use name or schema.name.")
    return (parts[0], parts[1]) if len(parts) == 2 else (default_schema, parts[0])


def make_spec(**given: Any) -> Spec:
    """A Spec from what a face was given; None means the default. Raises Refused with one sentence."""
    return make_request(Spec, given)


def make_request(model: type[R], given: dict[str, Any]) -> R:
    """Likewise, of any kind."""
    try:
        return model.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise Refused(said(error)) from None


_WRONG = {
    "greater_than_equal": "it has to be at least {ge}",
    "greater_than": "it has to be more than {gt}",
    "less_than_equal": "it has to be at most {le}",
    "less_than": "it has to be less than {lt}",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": "it has to be a number",
    "float_parsing": "it has to be a number",
    "bool_type": "it has to be true or false",
    "bool_parsing": "it has to be true or false",
    "string_type": "it has to be text",
    "string_too_short": "it is empty",
    "literal_error": "it has to be one of {expected}",
    "missing": "it is missing",
    "extra_forbidden": "there is no such option",
}


class Wrong(Protocol):
    """pydantic's error, and FastAPI's of a request."""

    def errors(self) -> Sequence[Any]: ...


def said(error: Wrong) -> str:
    """The first of what is wrong, as one sentence: the field, and what its value has to be."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "request"
    context = {name: f"{value:,}" if isinstance(value, int) else value for name, value in first.get("ctx", {}).items()}
    known = _WRONG.get(first["type"])
    words = known.format(**context) if known else str(first["msg"]).removeprefix("Value error, ")
    return f"{field}: {words}."
