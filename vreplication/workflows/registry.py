"""Every kind of workflow: what may be asked for, how it is planned, its stages and what they do.

What must stay true: faces read kinds, options and stages here and know none of their own; a plan's stages are the very
tuple that is registered.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from vreplication.planning import plan as online_ddl
from vreplication.planning import stages as online_ddl_stages
from vreplication.planning.fields import OPTION
from vreplication.planning.spec import Spec
from vreplication.planning.stages import Stage
from vreplication.workflows import stages
from vreplication.workflows.changefeed import plan as changefeed
from vreplication.workflows.changefeed import stages as changefeed_stages
from vreplication.workflows.changefeed import tasks as changefeed_tasks
from vreplication.workflows.changefeed.spec import FeedSpec
from vreplication.workflows.lake.spec import CompactSpec, LakeSpec
from vreplication.workflows.move_tables import plan as move_tables
from vreplication.workflows.move_tables import stages as move_tables_stages
from vreplication.workflows.move_tables import tasks as move_tables_tasks
from vreplication.workflows.move_tables.spec import MoveSpec
from vreplication.workflows.online_ddl import tasks as online_ddl_tasks
from vreplication.workflows.stages import BaseStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What a scheduler calls, each with what `called` makes of the servers' URLs by role and a spec.

    check: plans. stages: by name. release: opens the gate. verify_again: at the gate, False: not this time; None: there
    is no gate.
    keep_level: behind the end, while there is a way back; False: there is none. None: this kind has no such thing.
    """

    called: Callable[..., BaseStage[Any]]
    check: Callable[[Any], Any]
    stages: Mapping[str, Callable[[Any], Any]]
    release: Callable[[Any, str], None] | None = None
    verify_again: Callable[[Any, Callable[[], bool]], bool] | None = None
    keep_level: Callable[[Any], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowKind:
    """plan: takes a session of each server, in the order of `ends`, and the spec; touches nothing.

    ends: the servers' roles. home: the one where the state is. optional: roles of servers that need not be there.
    has_sink: it writes into a broker, too, whose password `tasks.called` takes. has_end: it ends by itself.
    """

    name: str
    spec: type[BaseModel]
    plan: Callable[..., Any]
    stages: tuple[Stage[Any], ...]
    tasks: Tasks
    help: str
    ends: tuple[str, ...]
    home: str
    optional: tuple[str, ...] = ()
    has_sink: bool = False
    has_end: bool = True


_ALL = (
    WorkflowKind(
        name="online_ddl",
        spec=Spec,
        plan=online_ddl.make_plan,
        stages=online_ddl_stages.STAGES,
        tasks=Tasks(
            called=online_ddl_tasks.Stage.at,
            check=online_ddl_tasks.plan,
            stages=online_ddl_tasks.TASKS,
            release=stages.release,
            verify_again=online_ddl_tasks.verify_again,
            keep_level=online_ddl_tasks.keep_level,
        ),
        help="Change a live table's definition.",
        ends=("source",),
        home="source",
    ),
    WorkflowKind(
        name="move_tables",
        spec=MoveSpec,
        plan=move_tables.make_move_plan,
        stages=move_tables_stages.STAGES,
        tasks=Tasks(
            called=move_tables_tasks.MoveStage.at,
            check=move_tables_tasks.plan,
            stages=move_tables_tasks.TASKS,
            release=move_tables_tasks.release,
            verify_again=move_tables_tasks.verify_again,
        ),
        help="Move live tables to another server.",
        ends=("source", "target"),
        home="target",
        optional=("replica",),
    ),
    WorkflowKind(
        name="changefeed",
        spec=FeedSpec,
        plan=changefeed.make_feed_plan,
        stages=changefeed_stages.STAGES,
        tasks=Tasks(
            called=changefeed_tasks.FeedStage.at,
            check=changefeed_tasks.plan,
            stages=changefeed_tasks.TASKS,
        ),
        help="Send changes of live tables into Kafka.",
        ends=("source",),
        home="source",
        optional=changefeed_tasks.FURTHER,
        has_sink=True,
        has_end=False,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What has a command and a DAG, and is no workflow: no server has its state. has_sink: it reads a broker."""

    name: str
    spec: type[BaseModel]
    help: str
    has_sink: bool = False


def connection_param(end: str) -> str:
    """What names the connection of a server, by its role, where a scheduler keeps connections."""
    return f"{end}_conn_id"


KINDS = {kind.name: kind for kind in _ALL}
COMMANDS = {
    each.name: each
    for each in (
        Command(name="lake", spec=LakeSpec, help="Write a feed's topic as Parquet files.", has_sink=True),
        Command(name="lake_compact", spec=CompactSpec, help="Make few files of a lake's many, and fold its history."),
    )
}
_OPTION = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*")


def for_forms(text: str) -> str:
    """A sentence with options of the command line, as who fills in a form reads it: by the labels of its fields."""
    return _OPTION.sub(lambda found: _labels().get(found[0], found[0]), text)


def named_field(message: str) -> tuple[str, str]:
    """The field of an online DDL that a refusal begins with, or ''; and the refusal by that field's label."""
    named, _, words = message.partition(": ")
    field = Spec.model_fields.get(named)
    return (named, f"{field.title or named}: {words}") if field is not None else ("", message)


@functools.cache
def _labels() -> dict[str, str]:
    # The first kind that has an option names it: it is the one that most forms are of.
    fields = [item for kind in reversed(KINDS.values()) for item in kind.spec.model_fields.items()]
    return {_option(name, field.json_schema_extra): f'"{field.title or name}"' for name, field in fields}


def _option(name: str, extra: Any) -> str:
    return str((extra if isinstance(extra, dict) else {}).get(OPTION) or f"--{name.replace('_', '-')}")
