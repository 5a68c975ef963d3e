"""What a workflow does, step by step, in the words of the phases.

What must stay true: a stage's name is a phase; its statements are what the server will see, by their real names.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.phases import Phase
from vreplication.planning.facts import Facts
from vreplication.settings import CUTOVER_DEADLINE_SECONDS, SIDECAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`statements` are examples where there are many alike (one a chunk, one a batch)."""

    name: str
    sentence: str
    statements: tuple[str, ...] = ()


def shadow_name(facts: Facts) -> str:
    try:
        return names.shadow_table(facts.source.name)
    except Refused:
        return f"{facts.source.name}…"


def make_stages(facts: Facts) -> tuple[Stage, ...]:
    """All stages in order."""
    return (_prepare(facts), _copy(facts), _catch_up(facts), *_verify_and_wait(facts), _cut_over(facts), _after(facts))


def _prepare(facts: Facts) -> Stage:
    shadow, table = _both(facts)
    return Stage(
        name=Phase.PREPARING,
        sentence=f"Install {SIDECAR}, take the lease, make the shadow table, note where the binary log stands.",
        statements=(
            f"CREATE TABLE {shadow} LIKE {table}",
            f"ALTER TABLE {shadow} {facts.clauses.text}",
        ),
    )


def _both(facts: Facts) -> tuple[str, str]:
    schema = facts.source.schema
    return qualified(schema, shadow_name(facts)), qualified(schema, facts.source.name)


def _copy(facts: Facts) -> Stage:
    shadow, table = _both(facts)
    pairs = facts.mapping.pairs if facts.mapping else ()
    columns = idents(pair.target.name for pair in pairs) or "…"
    values = ",".join(pair.convert.format(ident(pair.source.name)) for pair in pairs) or "…"
    rows = f"about {facts.source.estimated_rows:,} rows"
    if facts.copy_path == "server":
        statements: tuple[str, ...] = (f"INSERT IGNORE INTO {shadow} ({columns}) SELECT {values} FROM {table} WHERE …",)
    else:
        statements = (f"SELECT … FROM {table} WHERE …", f"INSERT IGNORE INTO {shadow} ({columns}) VALUES …")
    return Stage(name=Phase.COPYING, sentence=f"Copy {rows} in chunks, beside catch-up.", statements=statements)


def _catch_up(facts: Facts) -> Stage:
    shadow, _ = _both(facts)
    order = ", noting each row that is in another's way" if facts.mapping and facts.mapping.may_collide else ""
    return Stage(
        name=Phase.CATCHING_UP,
        sentence=f"Apply what the binary log says has changed since the start{order}.",
        statements=(f"REPLACE INTO {shadow} … VALUES …", f"DELETE FROM {shadow} WHERE …"),
    )


def _verify_and_wait(facts: Facts) -> tuple[Stage, Stage]:
    spec = facts.spec
    until = f"the window {spec.cutover_window}, or " if spec.cutover_window else ""
    hold = f"Hold until {until}`vreplication release {spec.workflow or 'ID'}`."
    release = hold if spec.needs_release else "Go on when level."
    return (
        Stage(name=Phase.VERIFYING, sentence="Compare checksums of all rows of both tables, under live writes."),
        Stage(name=Phase.WAITING, sentence=f"Caught up, verified, nothing in the way? {release}"),
    )


def _cut_over(facts: Facts) -> Stage:
    shadow, table = _both(facts)
    retired = qualified(facts.source.schema, retired_name(facts))
    return Stage(
        name=Phase.CUTTING_OVER,
        sentence=f"Switch atomically; writers wait at most {CUTOVER_DEADLINE_SECONDS:.0f} s, readers see no gap.",
        statements=(
            f"LOCK TABLES {table} WRITE, {retired} WRITE, …",
            f"RENAME TABLE {table} TO {retired}, {shadow} TO {table}",
        ),
    )


def retired_name(facts: Facts) -> str:
    """Known by the workflow's id; before there is one, its shape."""
    try:
        name = names.retired_table(facts.source.name, facts.spec.workflow or "")
    except Refused:
        return f"{facts.source.name}…"
    return name if facts.spec.workflow else name[:-6] + "…"


def _after(facts: Facts) -> Stage:
    retired = qualified(facts.source.schema, retired_name(facts))
    if facts.spec.retired == "drop":
        return Stage(name=Phase.COMPLETE, sentence="Drop the retired table.", statements=(f"DROP TABLE {retired}",))
    return Stage(name=Phase.COMPLETE, sentence=f"The original stays as {retired} until `vreplication cleanup`.")
