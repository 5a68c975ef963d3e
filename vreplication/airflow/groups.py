"""Workflows as groups of tasks in one's own DAGs: the stages of `online_ddl` and `move_tables`, with arguments.

What must stay true: what may be asked for is what the form of that DAG has, by the same names, and a name that it has
not is told when the DAG is read; what comes behind a group waits for its end, and for no person's answer or way back.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from airflow.sdk import TaskGroup

from vreplication.airflow.operators import make_flow
from vreplication.airflow.params import params
from vreplication.workflows.registry import KINDS

_END = "clean_up"


class _WorkflowGroup(TaskGroup):
    """asked: the form's params, by name; templates are rendered. options: of the group itself, such as `tooltip`.

    `workflow`, where it is not given, is made of DAG, group and run: the same for every try.
    """

    kind = ""

    def __init__(self, group_id: str, *, options: Mapping[str, Any] | None = None, **asked: Any) -> None:
        super().__init__(group_id, **(options or {}))
        self._check(asked)
        with self:
            made = make_flow(self.kind, {"asked": asked, "group": self.group_id})
        self._last = made[_END]

    def _check(self, asked: Mapping[str, Any]) -> None:
        # While the DAG is read: a name that is mistyped would else be an option that is silently not there.
        known = params(self.kind)
        if wrong := sorted(set(asked) - set(known)):
            raise TypeError(f"{type(self).__name__} {self.group_id!r}: {wrong[0]} is none of {', '.join(known)}.")
        fields = KINDS[self.kind].spec.model_fields
        if needed := [name for name, field in fields.items() if field.is_required() and name not in asked]:
            raise TypeError(f"{type(self).__name__} {self.group_id!r}: {needed[0]} is needed.")

    def get_leaves(self) -> Generator[Any, None, None]:
        """Neither `approve`, which is skipped mostly, nor `revert_window`, which lasts as long as the way back."""
        yield self._last


class OnlineDdlGroup(_WorkflowGroup):
    """Alters a live table, as the DAG `online_ddl`: `source_conn_id`, `table`, `alter`, `cutover` and so on."""

    kind = "online_ddl"


class MoveTablesGroup(_WorkflowGroup):
    """Moves live tables to another server, as the DAG `move_tables`."""

    kind = "move_tables"
