"""Every check, run and listed: a user fixes all at once, not one after another.

What must stay true: no check is left out because another refused.
"""

from __future__ import annotations

from vreplication.planning import forcing, privileges, server_checks, space, table_checks
from vreplication.planning.facts import Check, Facts, looked, ok
from vreplication.schema import stand_in


def run_checks(facts: Facts, alter: Check) -> tuple[Check, ...]:
    """All verdicts; `alter` is what reading and trying the ALTER gave."""
    return (
        *server_checks.run(facts, server_checks.OF_ALTER),
        looked("privileges", lambda: privileges.check(facts)),
        looked("force", lambda: forcing.check(facts)),
        *table_checks.run(facts),
        alter,
        copy_path(facts),
        looked("space", lambda: space.check(facts)),
    )


def copy_path(facts: Facts) -> Check:
    return ok("copy path", copy_path_reason(facts))


def holds_counter(facts: Facts) -> bool:
    """INSERT … SELECT holds the table's AUTO-INC lock to its end where innodb_autoinc_lock_mode < 2."""
    mode = facts.server.setting("innodb_autoinc_lock_mode") or "2"
    table = facts.target or facts.source
    counts = any(column.is_auto_increment for column in table.columns)
    return mode in ("0", "1") and counts


def has_stand_in(facts: Facts) -> bool:
    """Rows go through a table without the counter (schema/stand_in.py): a large table, and cores for several tasks."""
    # MariaDB sizes its thread pool by its cores, so this tells them unless somebody has set it.
    cores = int(facts.server.setting("thread_pool_size") or 0) if facts.server.is_mariadb else 0
    # One task alone waits for no other: a stand-in spares the lock on the counter's page, for which tasks wait in
    # turn.
    is_large = facts.source.estimated_rows >= stand_in.LEAST_ROWS and facts.spec.tasks > 1
    is_plain = facts.mapping is not None and not (facts.mapping.may_collide or facts.spec.keeps_one)
    target = facts.target
    # On two cores, which Spark and catch-up use as well, it gains little without further indexes.
    has_room = target is not None and is_large and cores >= stand_in.least_cores(target)
    return bool(has_room and is_plain and target and stand_in.statement(target, target.name))


def may_collide(facts: Facts) -> bool:
    """A unique key is new, and rows are written under it by copy and catch-up."""
    return facts.mapping is not None and facts.mapping.may_collide and not facts.spec.keeps_one


def copy_path_reason(facts: Facts) -> str:
    """Why the path is what it is."""
    if facts.copy_path == "rows" and facts.spec.copy_path == "rows":
        return "Rows travel through Spark, as asked for."
    if facts.copy_path == "rows":
        return (
            "Rows travel through Spark: beside a new unique key catch-up writes by many statements, and each would wait"
            " for INSERT … SELECT, which locks the AUTO_INCREMENT counter."
        )
    found = "Rows are copied on the server by INSERT … SELECT, without locks on the source."
    if has_stand_in(facts):
        return (
            f"{found} Tasks insert side by side: into a table without the AUTO_INCREMENT counter, whose rows become the"
            " new table's in one EXCHANGE PARTITION."
        )
    if not holds_counter(facts):
        return found
    mode = facts.server.setting("innodb_autoinc_lock_mode")
    return (
        f"{found} With innodb_autoinc_lock_mode={mode} each statement locks the new table's AUTO_INCREMENT counter,"
        " which catch-up needs: tasks insert by turns, in chunks sized for 100 ms at the most."
    )
