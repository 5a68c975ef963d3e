"""A plan in words, and as JSON.

What must stay true: both say what the plan says and decide nothing; they hold no URL and no password.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vreplication.mysql.disk import size
from vreplication.planning.facts import Check, Verdict
from vreplication.planning.plan import Plan
from vreplication.planning.stages import Explained
from vreplication.schema.difference import Definitions

_MARK = {Verdict.OK: "ok    ", Verdict.WARN: "note  ", Verdict.REFUSE: "REFUSE"}


def explain(plan: Plan) -> str:
    """Text for a person."""
    lines = [
        f"ALTER TABLE {plan.source.schema}.{plan.source.name} {plan.clauses.text}",
        "",
        *_facts(plan),
        "",
        *_definition(plan),
        "",
        *body(plan.checks, [(stage.name, found) for stage, found in plan.stages]),
        _verdict(plan),
    ]
    return "\n".join(lines)


def body(checks: Sequence[Check], stages: Sequence[tuple[str, Explained]]) -> list[str]:
    """The lines that plans of all kinds have in common."""
    return [
        "Checks",
        *(line for check in checks for line in _check(check)),
        "",
        "Steps",
        *(line for number, one in enumerate(stages, 1) for line in _stage(number, *one)),
        "",
    ]


def _definition(plan: Plan) -> list[str]:
    """What differs, as diff writes it."""
    found = plan.definitions
    lines = [f"  {line.mark} {line.text}" for line in found.changes]
    return [
        "Definition",
        *(lines or [f"  {stays(found)}."]),
        *(["  Foreign keys are not shown."] if found.has_foreign else []),
    ]


def stays(found: Definitions) -> str:
    """Why there is nothing to be shown."""
    # Partitions and FULLTEXT indexes: no temporary table has them.
    if found.after is None:
        return "What it becomes is known when the new table is made: a temporary table cannot try it"
    return "It stays as it is"


def definition_json(found: Definitions) -> dict[str, Any]:
    lines = [{"mark": line.mark, "text": line.text} for line in found.lines]
    return {"before": found.before, "after": found.after, "lines": lines, "has_foreign": found.has_foreign}


def _path(plan: Plan) -> list[str]:
    return [] if plan.strategy.is_in_place else [f"  copy path     {plan.copy_path}: {plan.copy_path_reason}"]


def _facts(plan: Plan) -> list[str]:
    key = ", ".join(pair.source.name for pair in plan.mapping.key) if plan.mapping else "known at prepare"
    index = f"{plan.mapping.source_index} ({key})" if plan.mapping else key
    return [
        f"  server        {plan.server}",
        f"  rows          about {plan.estimated_rows:,}",
        f"  disk          about {size(plan.copy_bytes)} for the copy, {size(plan.log_bytes)} for the binary log",
        f"  key           {index}",
        f"  strategy      {plan.strategy.name}: {plan.strategy.reason}",
        *_path(plan),
        f"  ALTER under   {_session(plan)}",
        *_columns(plan),
    ]


def _session(plan: Plan) -> str:
    """What a new session of the server has, and a plain ALTER in it."""
    mode, zone = plan.server.setting("sql_mode") or "''", plan.server.setting("time_zone")
    return f"sql_mode {mode}, time_zone {zone} (the server's own: SET GLOBAL changes them)"


def _columns(plan: Plan) -> list[str]:
    if not plan.mapping:
        return []
    sources = {pair.source.name.lower() for pair in plan.mapping.pairs if not pair.is_constant}
    dropped = [c.name for c in plan.source.columns if not c.generated and c.name.lower() not in sources]
    renamed = [
        f"{pair.source.name} → {pair.target.name}"
        for pair in plan.mapping.pairs
        if not pair.is_constant and pair.source.name.lower() != pair.target.name.lower()
    ]
    found = [f"  dropped       {', '.join(dropped)}"] if dropped else []
    return found + ([f"  renamed       {', '.join(renamed)}"] if renamed else [])


def _check(check: Check) -> list[str]:
    cure = [f"         {'':22}{check.cure}"] if check.cure else []
    return [f"  {_MARK[check.verdict]} {check.name:<21} {check.sentence}", *cure]


def _stage(number: int, name: str, found: Explained) -> list[str]:
    return [f"  {number}. {name}: {found.sentence}", *(f"       {text}" for text in found.statements)]


def _verdict(plan: Plan) -> str:
    if plan.refusals:
        return f"Refused: {len(plan.refusals)} of {len(plan.checks)} checks say no. Nothing was touched."
    if plan.strategy.is_in_place:
        return f"It can be done in place ({plan.strategy.name}). Nothing was touched."
    return "It can be done online. Nothing was touched."


def plan_json(plan: Plan) -> dict[str, Any]:
    """The same as plain data."""
    mapping = plan.mapping
    return {
        "table": f"{plan.source.schema}.{plan.source.name}",
        "alter": plan.clauses.text,
        "server": str(plan.server),
        "is_refused": bool(plan.refusals),
        "strategy": plan.strategy.name,
        "strategy_reason": plan.strategy.reason,
        "copy_path": plan.copy_path,
        "copy_path_reason": plan.copy_path_reason,
        "sql_mode": plan.server.setting("sql_mode"),
        "time_zone": plan.server.setting("time_zone"),
        "key": [pair.source.name for pair in mapping.key] if mapping else None,
        "may_collide": mapping.may_collide if mapping else None,
        "estimated_rows": plan.estimated_rows,
        "copy_bytes": plan.copy_bytes,
        "definition": definition_json(plan.definitions),
        "log_bytes": plan.log_bytes,
        "checks": [check_json(check) for check in plan.checks],
        "stages": [
            {"name": s.name, "phases": list(s.phases), "sentence": e.sentence, "statements": list(e.statements)}
            for s, e in plan.stages
        ],
    }


def check_json(check: Check) -> dict[str, str]:
    return {"name": check.name, "verdict": check.verdict.value, "sentence": check.sentence, "cure": check.cure}
