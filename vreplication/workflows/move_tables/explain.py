"""The plan of a move in words, and as JSON.

What must stay true: both say what the plan says and decide nothing; they hold no URL and no password.
"""

from __future__ import annotations

from typing import Any

from vreplication.mysql.disk import size
from vreplication.planning.explain import body, check_json
from vreplication.workflows.move_tables.facts import MovedTable
from vreplication.workflows.move_tables.plan import MovePlan


def explain(plan: MovePlan) -> str:
    """Text for a person."""
    lines = [
        f"Move {len(plan.tables)} tables from {plan.source_server} to {plan.target_server}",
        "",
        *(_table(table) for table in plan.tables),
        f"  rows          about {plan.estimated_rows:,}",
        f"  disk          about {size(plan.copy_bytes)} on the target, {size(plan.log_bytes)} for its binary log",
        "",
        *body(plan.checks, [(stage.name, found) for stage, found in plan.stages]),
        _verdict(plan),
    ]
    return "\n".join(lines)


def _table(table: MovedTable) -> str:
    key = f", key {_key(table)}" if table.mapping else ""
    return f"  table         {table.name} → {table.target_schema}.{table.target_name}{key}"


def _key(table: MovedTable) -> str:
    mapping = table.mapping
    return f"{mapping.source_index} ({', '.join(pair.source.name for pair in mapping.key)})" if mapping else ""


def _verdict(plan: MovePlan) -> str:
    if plan.refusals:
        return f"Refused: {len(plan.refusals)} of {len(plan.checks)} checks say no. Nothing was touched."
    return "The tables can be moved. Nothing was touched."


def plan_json(plan: MovePlan) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "source": str(plan.source_server),
        "target": str(plan.target_server),
        "is_refused": bool(plan.refusals),
        "tables": [_table_json(table) for table in plan.tables],
        "estimated_rows": plan.estimated_rows,
        "copy_bytes": plan.copy_bytes,
        "log_bytes": plan.log_bytes,
        "checks": [check_json(check) for check in plan.checks],
        "stages": [
            {"name": s.name, "phases": list(s.phases), "sentence": e.sentence, "statements": list(e.statements)}
            for s, e in plan.stages
        ],
    }


def _table_json(table: MovedTable) -> dict[str, Any]:
    return {
        "table": table.name,
        "target": f"{table.target_schema}.{table.target_name}",
        "key": [pair.source.name for pair in table.mapping.key] if table.mapping else None,
        "definition": table.carried.create_sql,
        "changes": list(table.carried.changes),
        "estimated_rows": table.source.estimated_rows,
    }
