"""A workflow's row, as prepare would make it, for tests that need no workflow behind it."""

from __future__ import annotations

from typing import Any

from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.state import moves, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.workflows import TableRow, WorkflowRow


def workflow_row(workflow: str, **fields: Any) -> WorkflowRow:
    known: dict[str, Any] = {
        "id": workflow, "kind": "online_ddl", "protocol": 1, "source_schema": "shop", "source_table": "orders",
        "spec": {}, "phase": Phase.WAITING, "is_paused": False, "is_cancel_requested": False, "reason": None,
        "shadow_table": "s", "retired_table": "r", "copy_path": "server", "source_identity": None,
        "shadow_identity": None, "source_definition": None, "server_identity": None, "start_position": None,
        "is_cut": False, "rows_total": None,
    }  # fmt: skip
    return WorkflowRow(**{**known, **fields})


def make_move(session: Session, workflow: str, schema: str, *, number: int = 1, **fields: Any) -> None:
    """Rows of a workflow that moves `orders` and `items` here from elsewhere. number: of the switch that comes next."""
    is_cut = number % 2 == 0
    spec = {"tables": ["orders", "items"], "cutover": "manual", "reverse": True}
    given = {"kind": "move_tables", "spec": spec, "phase": Phase.SWITCHED if is_cut else Phase.WAITING}
    workflows.create(session, workflow_row(workflow, **(given | fields)))
    workflows.set_fields(session, workflow, is_cut=int(is_cut), rows_total=40_000)
    second = TableRow(
        number=1, source_schema="shop", source_table="items", shadow_table="i", retired_table="j", source_identity=None,
        shadow_identity=None, source_definition=None, rows_total=5_000,
    )  # fmt: skip
    workflows.add_table(session, workflow, second)
    move = Move(
        workflow=workflow, target_schema=schema, source_at="old.example:3306", target_at="new.example:3307",
        source_server="uuid", serving=Side.TARGET if is_cut else Side.SOURCE, decision=Decision.RUNNING, number=number,
        secret="s3cr3t-of-the-move", forward_start=None, back_start=None, asked=None, asked_by=None, stall_millis=None,
    )  # fmt: skip
    moves.create(session, move)
