"""Every kind of workflow: what may be asked for, how it is planned, and its stages.

What must stay true: faces read kinds, options and stages here and know none of their own; a plan's stages are the very
tuple that is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vreplication.planning import plan as online_ddl
from vreplication.planning import stages as online_ddl_stages
from vreplication.planning.spec import Request, Spec
from vreplication.planning.stages import Stage
from vreplication.workflows.move_tables import plan as move_tables
from vreplication.workflows.move_tables import stages as move_tables_stages
from vreplication.workflows.move_tables.spec import MoveSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowKind:
    """plan: takes a session of each server (source, then target where there are two) and the spec; touches nothing."""

    name: str
    spec: type[Request]
    plan: Callable[..., Any]
    stages: tuple[Stage[Any], ...]
    help: str


_ALL = (
    WorkflowKind(
        name="online_ddl",
        spec=Spec,
        plan=online_ddl.make_plan,
        stages=online_ddl_stages.STAGES,
        help="Change a live table's definition.",
    ),
    WorkflowKind(
        name="move_tables",
        spec=MoveSpec,
        plan=move_tables.make_move_plan,
        stages=move_tables_stages.STAGES,
        help="Move live tables to another server.",
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
