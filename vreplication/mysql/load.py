"""How busy a server is, by its own figures, and which replicas it knows of.

What must stay true: every look is one cheap statement that locks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session

REPORTED = "vreplication"
"""The host that our own readers of the log report."""


def status(session: Session, names: Sequence[str]) -> dict[str, float]:
    """Global status variables that are numbers, by their names in lower case; unknown ones are missing."""
    marks = ",".join(["%s"] * len(names))
    found = session.rows(f"SHOW GLOBAL STATUS WHERE LOWER(Variable_name) IN ({marks})", [n.lower() for n in names])
    return {str(name).lower(): float(value) for name, value in found if _is_number(str(value))}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def history_list(session: Session) -> int:
    """Length of InnoDB's history list: what purge has not come to. Raises SqlError where PROCESS is missing."""
    sql = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len'"
    return int(session.value(sql) or 0)


def replicas(session: Session) -> list[tuple[str, int]]:
    """Host and port of those that say where they are (report_host). Raises SqlError where the right is missing."""
    found = session.rows("SHOW SLAVE HOSTS" if is_mariadb(session) else "SHOW REPLICAS")
    return sorted({(str(row[1]), int(row[2])) for row in found if row[1] and row[1] != REPORTED})
