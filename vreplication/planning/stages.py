"""The stages of an online DDL: one tuple that the command runs, Airflow's tasks are made from, and a plan prints.

What each does is bound to its name: workflows/online_ddl/run.py (`ACTS`), workflows/stages.py (`TASKS`).

What must stay true: nobody has a list of stages beside this one; statements are what the server will see, by their real
names (the RENAME that is sent has a comment behind it, mysql/remark.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.phases import Phase
from vreplication.planning.checks import has_stand_in
from vreplication.planning.facts import Facts
from vreplication.settings import CUTOVER_DEADLINE_SECONDS, SIDECAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """`statements` are examples where there are many alike (one a chunk, one a batch)."""

    sentence: str
    statements: tuple[str, ...] = ()


F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[F]):
    """A step of the command, a task of Airflow, a line of a plan. F: the facts that it is explained by.

    after: the stages that have ended when it begins. phases: what `status` shows meanwhile; none where it runs beside
    others.
    """

    name: str
    after: tuple[str, ...]
    phases: tuple[Phase, ...]
    explain: Callable[[F], Explained]


def shadow_name(facts: Facts) -> str:
    try:
        return names.shadow_table(facts.source.name)
    # A name for which there is none refuses in `table_checks.names_free`; here it would take all other verdicts of the
    # plan away.
    except Refused:
        return f"{facts.source.name}…"


def _prepare(facts: Facts) -> Explained:
    shadow, table = qualified(facts.source.schema, shadow_name(facts)), _both(facts)[1]
    full = (f"CREATE TABLE {_both(facts)[0]} LIKE {shadow}",) if facts.spec.keeps_one else ()
    if has_stand_in(facts):
        full = (f"CREATE TABLE {_stand_in(facts)} … PARTITION BY RANGE COLUMNS(…) …",)
    return Explained(
        sentence=f"Install {SIDECAR}, take the lease, make the shadow table, note where the binary log stands.",
        statements=(
            f"CREATE TABLE {shadow} LIKE {table}",
            f"ALTER TABLE {shadow} {facts.clauses.text}",
            *full,
        ),
    )


def _both(facts: Facts) -> tuple[str, str]:
    """The table that rows are copied to, and the source."""
    schema = facts.source.schema
    written = full_name(facts) if facts.spec.keeps_one else shadow_name(facts)
    return qualified(schema, written), qualified(schema, facts.source.name)


def _stand_in(facts: Facts) -> str:
    return qualified(facts.source.schema, _of_workflow(facts, names.stand_in))


def full_name(facts: Facts) -> str:
    """As `retired_name`."""
    return _of_workflow(facts, names.full_copy)


def _copy(facts: Facts) -> Explained:
    shadow, table = _both(facts)
    stands_in = has_stand_in(facts)
    written = _stand_in(facts) if stands_in else shadow
    pairs = facts.mapping.pairs if facts.mapping else ()
    columns = idents(pair.target.name for pair in pairs) or "…"
    values = ",".join(pair.convert.format(ident(pair.source.name)) for pair in pairs) or "…"
    rows = f"about {facts.source.estimated_rows:,} rows"
    if facts.copy_path == "server":
        statements: tuple[str, ...] = (
            f"INSERT IGNORE INTO {written} ({columns}) SELECT {values} FROM {table} WHERE …",
        )
    else:
        statements = (f"SELECT … FROM {table} WHERE …", f"INSERT IGNORE INTO {written} ({columns}) VALUES …")
    if stands_in:
        statements += (f"ALTER TABLE … EXCHANGE PARTITION … WITH TABLE {shadow}",)
    if facts.spec.keeps_one:
        new = qualified(facts.source.schema, shadow_name(facts))
        statements += (f"CREATE TRIGGER … ON {shadow} …", f"REPLACE INTO {new} … SELECT … FROM {shadow} WHERE …")
        sentence = f"Copy {rows} in chunks, beside catch-up; then fill the new table with those that stay."
        return Explained(sentence=sentence, statements=statements)
    return Explained(sentence=f"Copy {rows} in chunks, beside catch-up.", statements=statements)


def _replicate(facts: Facts) -> Explained:
    shadow, _ = _both(facts)
    collides = facts.mapping is not None and facts.mapping.may_collide and not facts.spec.keeps_one
    order = ", noting each row that is in another's way" if collides else ""
    return Explained(
        sentence=f"Apply what the binary log says has changed since the start{order}; beside all that follows.",
        statements=(f"REPLACE INTO {shadow} … VALUES …", f"DELETE FROM {shadow} WHERE …"),
    )


def _verify(_: Facts) -> Explained:
    return Explained(sentence="Compare checksums of all rows of both tables, under live writes.")


def _gate(facts: Facts) -> Explained:
    spec = facts.spec
    until = f"the window {spec.cutover_window}, or " if spec.cutover_window else ""
    hold = f"Hold until {until}`vreplication release {spec.workflow or 'ID'}`."
    release = hold if spec.needs_release else "Go on when level."
    return Explained(sentence=f"Caught up, verified, nothing in the way? {release}")


def rename_sql(tables: Iterable[tuple[str, str, str, str]]) -> str:
    """One statement, so that it is atomic. tables: (schema, table, its new table, what it is called afterwards)."""
    pairs = [
        f"{qualified(schema, table)} TO {qualified(schema, retired)}, "
        f"{qualified(schema, shadow)} TO {qualified(schema, table)}"
        for schema, table, shadow, retired in tables
    ]
    return f"RENAME TABLE {', '.join(pairs)}"


def switched(facts: Facts) -> tuple[str, str, str, str]:
    """What `rename_sql` is told of the table."""
    return facts.source.schema, facts.source.name, shadow_name(facts), retired_name(facts)


def _cut_over(facts: Facts) -> Explained:
    _, table = _both(facts)
    retired = qualified(facts.source.schema, retired_name(facts))
    carried = (f"CREATE TRIGGER … ON {_both(facts)[0]} …",) if facts.spec.triggers == "preserve" else ()
    how = "INSTANT" if facts.server.is_mariadb else "INPLACE"
    keys = (f"ALTER TABLE … DROP FOREIGN KEY …, ADD CONSTRAINT … FOREIGN KEY …, ALGORITHM={how}",) * (
        facts.spec.foreign_keys == "rebuild"
    )
    # With keys, on MySQL, there is no sentry, and the new table is locked as well.
    beside = retired if facts.server.is_mariadb or not keys else _both(facts)[0]
    return Explained(
        sentence=f"Switch atomically; writers wait at most {CUTOVER_DEADLINE_SECONDS:.0f} s, readers see no gap.",
        statements=(
            f"LOCK TABLES {table} WRITE, {beside} WRITE, …",
            *carried,
            *keys,
            rename_sql([switched(facts)]),
        ),
    )


def together(tables: Sequence[tuple[str, str, str, str]]) -> Explained:
    """The cut-over of tables that are switched in one statement, in the order of their names."""
    # The order in which RENAME takes its locks, by bytes (docs/cut-over.md).
    found = sorted(tables, key=lambda names: (names[0].encode(), names[1].encode()))
    locks = [
        f"LOCK TABLES {qualified(schema, table)} WRITE, {qualified(schema, retired)} WRITE"
        for schema, table, _, retired in found
    ]
    seconds = f"{CUTOVER_DEADLINE_SECONDS:.0f} s"
    return Explained(
        sentence=f"Switch all {len(found)} tables atomically, in one statement, when each of them is ready; "
        f"writers wait at most {seconds}, readers see no gap and never one new table beside an old one.",
        statements=(*locks, rename_sql(found)),
    )


def retired_name(facts: Facts) -> str:
    """Known by the workflow's id; before there is one, its shape."""
    return _of_workflow(facts, names.retired_table)


def _of_workflow(facts: Facts, named: Callable[[str, str], str]) -> str:
    try:
        name = named(facts.source.name, facts.spec.workflow or "")
    except Refused:
        return f"{facts.source.name}…"
    # The last six letters are a digest of the id, and there is none yet.
    return name if facts.spec.workflow else name[:-6] + "…"


def _clean_up(facts: Facts) -> Explained:
    retired = qualified(facts.source.schema, retired_name(facts))
    if facts.spec.revert_window:
        return Explained(
            sentence=f"The original stays as {retired}, and `vreplication revert` switches back to it, for "
            f"{facts.spec.revert_window}; then it is emptied and dropped.",
        )
    if facts.spec.keeps_one:
        side = qualified(facts.source.schema, _of_workflow(facts, names.side_table))
        return Explained(
            sentence=f"Put the rows that did not stay into {side}, until `vreplication cleanup --duplicates`; drop the "
            f"full copy; the original {'goes' if facts.spec.retired == 'drop' else f'stays as {retired}'}.",
            statements=(f"INSERT IGNORE INTO {side} … SELECT … FROM {_both(facts)[0]} WHERE …",),
        )
    if facts.spec.retired == "drop":
        return Explained(sentence="Drop the retired table.", statements=(f"DROP TABLE {retired}",))
    return Explained(sentence=f"The original stays as {retired} until `vreplication cleanup`.")


CUT_OVER = "cut_over"
STAGES: tuple[Stage[Facts], ...] = (
    Stage(name="prepare", after=(), phases=(Phase.PREPARING,), explain=_prepare),
    Stage(name="replicate", after=("prepare",), phases=(), explain=_replicate),
    Stage(name="copy", after=("prepare",), phases=(Phase.COPYING, Phase.CATCHING_UP), explain=_copy),
    Stage(name="verify", after=("copy",), phases=(Phase.VERIFYING,), explain=_verify),
    Stage(name="gate", after=("verify",), phases=(Phase.WAITING,), explain=_gate),
    Stage(name=CUT_OVER, after=("gate", "replicate"), phases=(Phase.CUTTING_OVER,), explain=_cut_over),
    Stage(name="clean_up", after=("cut_over",), phases=(Phase.COMPLETE,), explain=_clean_up),
)
