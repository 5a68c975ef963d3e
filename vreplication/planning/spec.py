"""An online DDL as a user asks for it, or the way back of one: a value that is checked once.

What must stay true: as of `planning.request`; a wrong value, a table's name among them, is refused in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, field_validator

from vreplication.errors import Refused
from vreplication.planning.fields import ask, make_request
from vreplication.planning.request import Request
from vreplication.settings import MOST_COUNTED


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
        le=MOST_COUNTED,
        title="Spare sessions that changed more than (rows)",
        description="Never end a session whose transaction has changed more rows.",
        json_schema_extra=ask("rare", metavar="N"),
    )

    @field_validator("table")
    @classmethod
    def _is_name(cls, value: str) -> str:
        # Refused passes pydantic as it is, with its cure; of a ValueError the sentence alone would be left.
        split_table(value, "")
        return value

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
    if any(character > "\uffff" for character in text):
        # To ask for it is an error on both servers.
        raise Refused(f"The table name {text!r} is not valid.", cure="No server has names with such characters.")
    parts: list[str] = []
    rest = text
    while rest:
        if rest[0] == "`":
            # Two for two: the place that is found is one in `rest`, too.
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
            # Else `t.` would pass as `t`.
            parts.append("")
        rest = rest[1:]
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise Refused(f"The table name {text!r} is not valid.", cure="Use name or schema.name.")
    return (parts[0], parts[1]) if len(parts) == 2 else (default_schema, parts[0])


def make_spec(**given: Any) -> Spec:
    """A Spec from what a face was given; None means the default. Raises Refused with one sentence."""
    return make_request(Spec, given)
