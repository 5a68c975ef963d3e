"""A workflow's row, as prepare would make it, for tests that need no workflow behind it."""

from __future__ import annotations

from typing import Any

from vreplication.phases import Phase
from vreplication.state.workflows import WorkflowRow


def workflow_row(workflow: str, **fields: Any) -> WorkflowRow:
    known: dict[str, Any] = {
        "id": workflow, "kind": "online_ddl", "protocol": 1, "source_schema": "shop", "source_table": "orders",
        "spec": {}, "phase": Phase.WAITING, "is_paused": False, "is_cancel_requested": False, "reason": None,
        "shadow_table": "s", "retired_table": "r", "copy_path": "server", "source_identity": None,
        "shadow_identity": None, "source_definition": None, "server_identity": None, "start_position": None,
        "is_cut": False, "rows_total": None,
    }  # fmt: skip
    return WorkflowRow(**{**known, **fields})
