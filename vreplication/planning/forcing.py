"""May the sessions that block a cut-over be ended, where --force-cutover-after asks for it?

What must stay true: it is refused before anything begins where the right is missing, or where the server could not tell
who blocks: then nobody would ever be ended.
"""

from __future__ import annotations

from vreplication.mysql.session import Session, SqlError
from vreplication.planning.facts import Check, Facts, ok, refuse
from vreplication.planning.privileges import missing, read_grants

_RIGHT = {True: "CONNECTION ADMIN", False: "CONNECTION_ADMIN"}
_NAME = "force"


def check(facts: Facts) -> Check:
    spec, is_mariadb = facts.spec, facts.server.is_mariadb
    if spec.force_cutover_after is None:
        return ok(_NAME, "Nobody who blocks the cut-over is ended.")
    right = _RIGHT[is_mariadb]
    grants = read_grants(facts.session, is_mariadb=is_mariadb)
    if missing(grants, frozenset({right}), "*") and missing(grants, frozenset({"SUPER"}), "*"):
        words = "The user may not end other users' sessions, which --force-cutover-after asks for."
        return refuse(_NAME, words, f"GRANT {right} ON *.* TO the user;")
    # MySQL tells it in performance_schema, whose rights are among those of every online DDL.
    if is_mariadb and not _names_locks(facts.session):
        words = "Without the plugin metadata_lock_info MariaDB does not tell who holds a lock on the table."
        return refuse(_NAME, words, "INSTALL SONAME 'metadata_lock_info'")
    return ok(
        _NAME,
        f"Sessions that block the cut-over for {spec.force_cutover_after} s are ended, unless they are older than "
        f"{spec.force_cutover_max_age} s or have changed more than {spec.force_cutover_max_rows:,} rows.",
    )


def _names_locks(session: Session) -> bool:
    try:
        session.rows("SELECT 1 FROM information_schema.metadata_lock_info LIMIT 0")
    except SqlError:
        return False
    return True
