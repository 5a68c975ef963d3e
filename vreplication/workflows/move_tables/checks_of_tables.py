"""Checks of each table that moves.

What must stay true: as in checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import qualified
from vreplication.planning import table_checks
from vreplication.planning.facts import Check, Verdict, looked, ok, refuse, warn
from vreplication.schema.carried import compare
from vreplication.schema.expressions import has_escapes
from vreplication.schema.introspect import exists, introspect
from vreplication.schema.keys import usable_keys
from vreplication.schema.model import Table
from vreplication.schema.shadow import checks_of
from vreplication.state import workflows
from vreplication.workflows.move_tables.facts import MovedTable, MoveFacts, OneTable, named


def per_table(facts: MoveFacts) -> Iterator[Check]:
    """One line for a check that all tables pass; else one for each that does not."""
    for name, check in _TABLES:
        found = [looked(name, partial(check, facts, table)) for table in facts.tables]
        said = [one for one in found if one.verdict is not Verdict.OK]
        yield from said or found[:1]


def _of(facts: MoveFacts, table: MovedTable) -> OneTable:
    return OneTable(session=facts.source.session, server=facts.source.server, spec=facts.spec, source=table.source)


def _engine(facts: MoveFacts, table: MovedTable) -> Check:
    if names.is_ours(table.source.name) or table.source.schema.lower() in table_checks.SYSTEM_SCHEMAS:
        return refuse("tables", f"{table.name} is not a table of an application.", "Name one of your own tables.")
    if table.source.engine.lower() != "innodb":
        return refuse(
            "tables",
            f"{table.name} is {table.source.engine}, not InnoDB.",
            "Make it InnoDB first, or move it by a dump.",
        )
    return ok("tables", "All are InnoDB tables.")


def _foreign_keys(facts: MoveFacts, table: MovedTable) -> Check:
    """Rows that a cascade changes are denied by no trigger."""
    if own := table_checks.own_foreign_keys(table.source):
        return refuse(
            "foreign keys",
            f"{table.name} has foreign keys ({named(own)}).",
            "Drop them first, and add them on the target when all of their tables have been moved.",
        )
    if children := sorted(table_checks.children(_of(facts, table))):
        return refuse(
            "foreign keys", f"{table.name} is the parent of foreign keys in {named(children)}.", "Drop them first."
        )
    if waiting := sorted(table_checks.children(_on_target(facts, table))):
        # They hold as soon as the table has its name, and a row that is replaced is deleted first.
        return refuse(
            "foreign keys",
            f"On the target {named(waiting)} has foreign keys to {table.target_schema}.{table.target_name}.",
            "Drop them first, and add them again when the move is complete.",
        )
    return ok("foreign keys", "No foreign keys from or to the tables.")


def _on_target(facts: MoveFacts, table: MovedTable) -> OneTable:
    """What has its name there, or is to have it."""
    there = replace(table.source, schema=table.target_schema, name=table.target_name)
    return OneTable(session=facts.target.session, server=facts.target.server, spec=facts.spec, source=there)


def _triggers(facts: MoveFacts, table: MovedTable) -> Check:
    """A trigger of before would run again on the target, on rows that hold its effect already."""
    source = facts.source.session
    there = [t for t in table_checks.triggers_of(source, table.source.schema, table.source.name)]
    found = [trigger for trigger in there if not names.is_deny_trigger(trigger)]
    if found:
        return refuse(
            "triggers",
            f"{table.name} has triggers ({named(found)}), which do not move.",
            "Drop them first, and create them on the target when the move is complete: before, they end the way back.",
        )
    if there:
        return refuse(
            "triggers",
            f"{table.name} has triggers that deny writes ({named(there)}): another workflow is switching it, or has.",
            "End that workflow, or drop them.",
        )
    return ok("triggers", "No triggers.")


def _shared_key(facts: MoveFacts, table: MovedTable) -> Check:
    if table.mapping is None:
        if usable_keys(table.source):
            return ok("shared key", "The tables have keys.")
        return refuse(
            "shared key",
            f"{table.name} has no unique key over NOT NULL columns of numbers, strings (no CHAR under a NOPAD "
            "collation), binaries or dates.",
            "Add a primary key by a plain ALTER TABLE first.",
        )
    if added := table.mapping.added_unique:
        return refuse(
            "shared key",
            f"Rows of {table.name} may be one under the unique key {added[0].name} on the target, which computes or"
            " compares it otherwise.",
            "Drop that key first, or put it over plain columns.",
        )
    return ok("shared key", "Rows of each table are told apart by a key that both servers have.")


def _generated(facts: MoveFacts, table: MovedTable) -> Check:
    own = [column.name for column in table.source.columns if column.generated]
    if own and facts.source.server.flavor != facts.target.server.flavor:
        return warn(
            "generated columns",
            f"{named(own)} of {table.name} is computed by the other flavor; the verification compares what comes out.",
        )
    return ok("generated columns", "None that the other server could compute otherwise.")


def _expressions(facts: MoveFacts, table: MovedTable) -> Check:
    """Between two of MySQL nothing is new; behind MariaDB, which reads them right, it is."""
    if facts.target.server.is_mariadb or table.made is None or not has_escapes(table.made):
        return ok("expressions", "All sessions read them alike.")
    said = (
        f"An expression of {table.name} (generated column, default or CHECK) holds a backslash as MySQL writes it, and"
        " MySQL reads that otherwise where a session opens the table under sql_mode NO_BACKSLASH_ESCAPES"
    )
    cure = "See that no session of the application has NO_BACKSLASH_ESCAPES, or write the expression without it."
    modes = [side.server.setting("sql_mode") or "" for side in facts.sides]
    # MariaDB reads it alike under any mode, so what comes out would be another value after the move.
    if facts.source.server.is_mariadb and any("NO_BACKSLASH_ESCAPES" in mode for mode in modes):
        return refuse("expressions", f"{said}, as sessions here do.", cure)
    return warn("expressions", f"{said}.", cure)


def _changes(facts: MoveFacts, table: MovedTable) -> Check:
    if table.carried.changes:
        return warn("definition", f"{table.name}: {' '.join(table.carried.changes)}")
    if table.carried.untried:
        return ok("definition", f"It is taken; {named(table.carried.untried)} of {table.name} is tried at prepare.")
    return ok("definition", "The target takes the definitions as they are.")


def _target_table(facts: MoveFacts, table: MovedTable) -> Check:
    session, schema, name = facts.target.session, table.target_schema, table.target_name
    if not table.shadow:
        return refuse("target table", f"{table.name}: its name is too long.", "Shorten the table's name.")
    if exists(session, schema, table.shadow):
        return refuse(
            "target table",
            f"There is a table {schema}.{table.shadow} on the target already, where ours is to be.",
            "Cancel the workflow that made it (`vreplication status`), or drop it.",
        )
    if not exists(session, schema, name):
        return ok("target table", "All names are free on the target.")
    if not facts.spec.resume_into:
        return refuse(
            "target table",
            f"There is a table {schema}.{name} on the target already.",
            "Drop it, or say --resume-into if it is empty and defined like the source's.",
        )
    return _taken_over(facts, table)


def _taken_over(facts: MoveFacts, table: MovedTable) -> Check:
    session, schema, name = facts.target.session, table.target_schema, table.target_name
    there = introspect(session, schema, name)
    if session.row(f"SELECT 1 FROM {qualified(schema, name)} LIMIT 1") is not None:
        return refuse("target table", f"{schema}.{name} on the target is not empty.", "Empty or drop it.")
    if triggers := table_checks.triggers_of(session, schema, name):
        return refuse("target table", f"{schema}.{name} on the target has triggers ({named(triggers)}).", "Drop them.")
    try:
        _compare_definitions(table.source, there)
    except Refused as error:
        return refuse("target table", error.message, "Drop the table on the target: it is made anew.")
    return warn("target table", f"{schema}.{name} is there, empty and defined alike: it is replaced at the switch.")


def _compare_definitions(source: Table, there: Table) -> None:
    compare(source, there)


def _check_names(facts: MoveFacts, table: MovedTable) -> Check:
    """MySQL lets no two tables of a schema have CHECK constraints of one name."""
    if facts.target.server.is_mariadb or table.made is None:
        return ok("CHECK names", "They are free on the target.")
    wanted = {check.name.lower(): check.name for check in checks_of(table.made.create_sql)}
    sql = (
        "SELECT CONSTRAINT_NAME, TABLE_NAME FROM information_schema.TABLE_CONSTRAINTS"
        " WHERE CONSTRAINT_TYPE='CHECK' AND CONSTRAINT_SCHEMA=%s"
    )
    for name, other in facts.target.session.rows(sql, (table.target_schema,)):
        if str(name).lower() in wanted:
            return refuse(
                "CHECK names",
                f"{table.name} has a CHECK constraint {name}, and so has {other} on the target.",
                "Drop one of them and add it under another name.",
            )
    return ok("CHECK names", "They are free on the target.")


def _other_workflow(facts: MoveFacts, table: MovedTable) -> Check:
    asked = (
        (facts.source.session, table.source.schema, table.source.name),
        (facts.target.session, table.source.schema, table.source.name),
        (facts.target.session, table.target_schema, table.target_name),
    )
    for session, schema, name in asked:
        found = workflows.live_on_table(session, schema, name)
        found.pop(facts.spec.workflow or "", None)
        for other, phase in found.items():
            return refuse(
                "other workflows",
                f"Workflow {other} on {schema}.{name} has not ended (phase {phase}).",
                f"`vreplication resume {other}` goes on with it, `vreplication cancel {other}` removes it.",
            )
    return ok("other workflows", "None on these tables.")


def _primary_key(facts: MoveFacts, table: MovedTable) -> Check:
    if facts.target.server.is_on("sql_require_primary_key"):
        return table_checks.needs_primary_key(table.name, table.source)
    return ok("primary key", "The target asks for none.")


_TABLES: tuple[tuple[str, Callable[[MoveFacts, MovedTable], Check]], ...] = (
    ("tables", _engine),
    ("foreign keys", _foreign_keys),
    ("triggers", _triggers),
    ("shared key", _shared_key),
    ("primary key", _primary_key),
    ("generated columns", _generated),
    ("expressions", _expressions),
    ("definition", _changes),
    ("target table", _target_table),
    ("CHECK names", _check_names),
    ("other workflows", _other_workflow),
)
