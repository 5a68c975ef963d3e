"""What a user asks for when tables are to move to another server.

What must stay true: as of `planning.request`: no URL of a server and no password in it, and one clear sentence for
every wrong value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from vreplication.cutover.hook import check_target
from vreplication.errors import Refused
from vreplication.planning.fields import ask, make_request
from vreplication.planning.request import Request
from vreplication.planning.spec import split_table


class MoveSpec(Request):
    """Tables of the source's schema; `tables`, or all of them but `exclude`."""

    tables: tuple[str, ...] = Field(
        default=(),
        title="Tables",
        description="Tables to move, by name.",
        json_schema_extra=ask(
            "what",
            option="--table",
            metavar="NAME",
            said="A table of the source's database, `name` or `schema.name`. Several times: several tables.",
        ),
    )
    all_tables: bool = Field(
        title="All tables",
        default=False,
        description="All tables of the source's database.",
        json_schema_extra=ask("what"),
    )
    exclude: tuple[str, ...] = Field(
        title="Tables that stay",
        default=(),
        description="With all tables: one that stays.",
        json_schema_extra=ask("what", metavar="NAME"),
    )
    target_schema: str | None = Field(
        default=None,
        title="Database on the target",
        description="Where they go on the target.",
        json_schema_extra=ask("what", metavar="NAME", default_words="its URL's database"),
    )
    on_switch: str | None = Field(
        default=None,
        title="Tells the application",
        description="What tells the application where to write: a command line, or an https:// URL to POST to.",
        json_schema_extra=ask("when", metavar="COMMAND|URL"),
    )
    reverse: bool = Field(
        default=True,
        title="Keep a way back",
        description="Keep the source level after the switch, for the way back.",
        json_schema_extra=ask("when"),
    )
    deny: Literal["fail", "wait"] = Field(
        default="fail",
        title="Writers during the switch",
        description="What the switch does to writers until it is decided. fail: they get an error, readers go on; wait:"
        " readers and writers wait, and continue if the switch fails.",
        json_schema_extra=ask("when"),
    )
    resume_into: bool = Field(
        default=False,
        title="Take tables that are there",
        description="Take tables that are on the target: empty, and defined like the source's.",
        json_schema_extra=ask("rare"),
    )

    @field_validator("tables", "exclude")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name.strip() for name in value)
        if not all(names):
            raise ValueError("a name is empty")
        if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
            raise ValueError(f"{twice} is named twice")
        return names

    @field_validator("target_schema")
    @classmethod
    def _is_schema(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("it is empty")
        return value and value.strip()

    @field_validator("on_switch")
    @classmethod
    def _is_hook(cls, value: str | None) -> str | None:
        """Whether a command is there is looked at by a plan, on the machine that is to run it."""
        if value is None:
            return None
        text = value.strip()
        if re.match(r"\w+://", text):
            check_target(text)
        else:
            _check_command(text)
        return text

    def place(self, default_schema: str) -> tuple[str, str]:
        return self.target_schema or default_schema, self.tables[0] if self.tables else "*"

    @model_validator(mode="after")
    def _names_tables_one_way(self) -> MoveSpec:
        if self.tables and self.all_tables:
            raise ValueError("tables are named, and all tables are asked for: choose one")
        if not self.tables and not self.all_tables:
            raise ValueError("no table is named: name some, or ask for all tables")
        # Passed over it would look as if a table had been left out that no one had asked for.
        if self.exclude and not self.all_tables:
            raise ValueError("exclude goes with all tables only")
        return self


def _check_command(text: str) -> None:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"it is no command line: {error}") from None
    if not words:
        raise ValueError("it is empty")


def plain_name(asked: str, schema: str, there: Collection[str]) -> str:
    """`name` or `schema.name` without the schema. there: the schema's tables. Raises Refused for another schema's."""
    # A table may have a dot in its own name.
    if asked in there or not set(".`") & set(asked):
        return asked
    of, name = split_table(asked, schema)
    if of != schema:
        raise Refused(
            f"{asked} is in another database than {schema}, and a move takes tables of the source's URL alone.",
            cure=f"Move it by a command of its own, with {of} in --source.",
        )
    return name


def make_move_spec(**given: Any) -> MoveSpec:
    """A MoveSpec from what a face was given; None means the default. Raises Refused with one sentence."""
    return make_request(MoveSpec, given)
