"""Every check, run and listed: a user mends all at once, not one after another.

What must stay true: no check is left out because another refused.
"""

from __future__ import annotations

from vreplication.planning import privileges, server_checks, space, table_checks
from vreplication.planning.facts import Check, Facts, looked, ok, warn


def run_checks(facts: Facts, alter: Check) -> tuple[Check, ...]:
    """All verdicts; `alter` is what reading and trying the ALTER gave."""
    return (
        *server_checks.run(facts),
        looked("privileges", lambda: privileges.check(facts)),
        *table_checks.run(facts),
        alter,
        copy_path(facts),
        looked("space", lambda: space.check(facts)),
    )


def copy_path(facts: Facts) -> Check:
    reason = copy_path_reason(facts)
    if facts.copy_path == "server" and holds_counter(facts):
        return warn(
            "copy path",
            f"{reason} One task copies at a time, in chunks of at most 100 ms.",
            "Use --copy-path auto.",
        )
    return ok("copy path", reason)


def holds_counter(facts: Facts) -> bool:
    """INSERT … SELECT holds the table's AUTO-INC lock to its end where innodb_autoinc_lock_mode < 2."""
    mode = facts.server.setting("innodb_autoinc_lock_mode") or "2"
    table = facts.target or facts.source
    counts = any(column.is_auto_increment for column in table.columns)
    return mode in ("0", "1") and counts


def copy_path_reason(facts: Facts) -> str:
    """Why the path is what it is; one sentence."""
    mode = facts.server.setting("innodb_autoinc_lock_mode")
    if facts.copy_path == "rows" and holds_counter(facts):
        return (
            f"Rows travel through Spark: with innodb_autoinc_lock_mode={mode} INSERT … SELECT would hold the"
            " AUTO_INCREMENT lock against catch-up."
        )
    if facts.copy_path == "rows":
        return "Rows travel through Spark, as asked for."
    if holds_counter(facts):
        return f"Rows are copied by INSERT … SELECT, as asked for, under innodb_autoinc_lock_mode={mode}."
    return "Rows are copied on the server by INSERT … SELECT, without locks on the source."
