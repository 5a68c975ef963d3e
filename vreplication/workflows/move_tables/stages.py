"""The stages of a move: one tuple that the command runs, Airflow's tasks are made from, and a plan prints.

What must stay true: nobody has a list of stages beside this one; statements are what the servers will see.
"""

from __future__ import annotations

from vreplication.mysql.quoting import ident, qualified
from vreplication.phases import Phase
from vreplication.planning.stages import Explained, Stage
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.workflows.move_tables.facts import MovedTable, MoveFacts


def _first(facts: MoveFacts) -> MovedTable | None:
    return facts.tables[0] if facts.tables else None


def _source(table: MovedTable | None) -> str:
    return qualified(table.source.schema, table.source.name) if table else "…"


def _target(table: MovedTable | None, name: str) -> str:
    return qualified(table.target_schema, name) if table and name else "…"


def _shadow(table: MovedTable | None) -> str:
    return _target(table, table.shadow if table else "")


def _prepare(facts: MoveFacts) -> Explained:
    made = [table.carried.create_sql for table in facts.tables if table.carried.create_sql]
    return Explained(
        sentence="Install our schemas on both servers, take the lease, make the tables on the target, note where the"
        " source's binary log stands.",
        statements=tuple(sql.partition("\n")[0] + " …" for sql in made),
    )


def _replicate(facts: MoveFacts) -> Explained:
    shadow = _shadow(_first(facts))
    return Explained(
        sentence="Apply on the target what the source's binary log says has changed since the start; beside all that"
        " follows.",
        statements=(f"REPLACE INTO {shadow} … VALUES …", f"DELETE FROM {shadow} WHERE …"),
    )


def _copy(facts: MoveFacts) -> Explained:
    first = _first(facts)
    rows = sum(table.source.estimated_rows for table in facts.tables)
    where = f", read on the replica {facts.replica.url}" if facts.replica else ""
    return Explained(
        sentence=f"Copy about {rows:,} rows of {_counted(len(facts.tables))} in chunks{where}, beside catch-up.",
        statements=(f"SELECT … FROM {_source(first)} WHERE …", f"INSERT IGNORE INTO {_shadow(first)} VALUES …"),
    )


def _counted(tables: int) -> str:
    return "1 table" if tables == 1 else f"{tables} tables"


def _verify(_: MoveFacts) -> Explained:
    return Explained(sentence="Compare all rows of both servers, under live writes.")


def _gate(facts: MoveFacts) -> Explained:
    spec = facts.spec
    until = f"the window {spec.cutover_window}, or " if spec.cutover_window else ""
    hold = f"Hold until {until}`vreplication release {spec.workflow or 'ID'}`."
    return Explained(
        sentence=f"All tables caught up, verified, nothing in the way? "
        f"{hold if spec.needs_release else 'Go on when level.'}"
    )


def _switch(facts: MoveFacts) -> Explained:
    first = _first(facts)
    source = _source(first)
    hook = " Then tell the application (on_switch), again and again until it says yes." if facts.spec.on_switch else ""
    target = _target(first, first.target_name if first else "")
    return Explained(
        sentence="Deny writes on the source, apply the last of them, open the target; writers wait or fail for"
        f" {CUTOVER_DEADLINE_SECONDS:.0f} s at most, or nothing was switched.{hook}",
        statements=(
            f"LOCK TABLES {source} WRITE, …",
            f"CREATE TRIGGER … BEFORE INSERT ON {source} FOR EACH ROW SIGNAL SQLSTATE …",
            f"RENAME TABLE {_shadow(first)} TO {target}, …",
        ),
    )


def _reverse_stream(facts: MoveFacts) -> Explained:
    workflow = facts.spec.workflow or "ID"
    if not facts.spec.reverse:
        return Explained(sentence="There is no way back: --no-reverse.")
    return Explained(
        sentence="Apply on the source what changes on the target, so that both stay level, until"
        f" `vreplication complete {workflow}`; `vreplication reverse {workflow}` switches back.",
        statements=(f"REPLACE INTO {_source(_first(facts))} … VALUES …",),
    )


def _clean_up(facts: MoveFacts) -> Explained:
    if facts.spec.retired == "drop":
        tables = ", ".join(map(_source, facts.tables))
        return Explained(sentence="Drop the tables on the source.", statements=(f"DROP TABLE {tables or '…'}",))
    statements = (f"RENAME TABLE {_source(_first(facts))} TO {ident(facts.schema)}.…",)
    return Explained(
        sentence="The source's tables stay there under another name, until `vreplication cleanup`.",
        statements=statements,
    )


STAGES: tuple[Stage[MoveFacts], ...] = (
    Stage(name="prepare", after=(), phases=(Phase.PREPARING,), explain=_prepare),
    Stage(name="replicate", after=("prepare",), phases=(), explain=_replicate),
    Stage(name="copy", after=("prepare",), phases=(Phase.COPYING, Phase.CATCHING_UP), explain=_copy),
    Stage(name="verify", after=("copy",), phases=(Phase.VERIFYING,), explain=_verify),
    Stage(name="gate", after=("verify",), phases=(Phase.WAITING,), explain=_gate),
    Stage(name="switch", after=("gate", "replicate"), phases=(Phase.CUTTING_OVER,), explain=_switch),
    Stage(name="reverse_stream", after=("switch",), phases=(Phase.SWITCHED,), explain=_reverse_stream),
    Stage(name="clean_up", after=("reverse_stream",), phases=(Phase.COMPLETE,), explain=_clean_up),
)
