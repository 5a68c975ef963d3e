"""How busy a server is, by its own figures, and which replicas it knows of.

What must stay true: every look is one cheap statement that locks nothing, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import ConnectionLost, Row, Session, SqlError

REPORTED = "vreplication"
"""The host that our own readers of the log report."""


LOOK_SECONDS = 3
"""A statement of a look that takes longer is ended by the server."""


@contextlib.contextmanager
def only_reading(session: Session) -> Iterator[None]:
    """Inside the block the server refuses what would write, and ends what takes too long."""
    # MariaDB counts in seconds, MySQL in milliseconds.
    name, unit = ("max_statement_time", 1) if is_mariadb(session) else ("max_execution_time", 1000)
    session.execute_raw(f"SET SESSION {name}={LOOK_SECONDS * unit}")
    # By the server's word, not ours: an operator's --throttle-query is run here, in `plan` too, and may call what it
    # likes.
    session.execute_raw("START TRANSACTION READ ONLY")
    try:
        yield
    finally:
        session.rollback()
        with contextlib.suppress(ConnectionLost):
            session.execute_raw(f"SET SESSION {name}=DEFAULT")


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
    """Length of InnoDB's history list: what purge has not come to. Raises SqlError where it is not told."""
    # MySQL says `enabled` there, MariaDB 1.
    is_on = "ENABLED" if is_mariadb(session) else "STATUS"
    sql = f"SELECT `COUNT`, {is_on} FROM information_schema.INNODB_METRICS WHERE NAME='trx_rseg_history_len'"
    row = session.row(sql)
    # A metric that is switched off says 0, which would be taken for an empty list.
    if row is None or str(row[1]).lower() not in ("enabled", "1"):
        raise SqlError("InnoDB does not count its history list (the metric trx_rseg_history_len is off)")
    return int(row[0])


def replicas(session: Session) -> list[tuple[str, int]]:
    """Host and port of those that say where they are (report_host). Raises SqlError where the right is missing."""
    return sorted({(str(row[1]), int(row[2])) for row in _listed(session) if row[1] and row[1] != REPORTED})


def nowhere(session: Session) -> list[int]:
    """server_id of those that are listed and do not say where they are."""
    return sorted(int(row[0]) for row in _listed(session) if not row[1])


def _listed(session: Session) -> list[Row]:
    return session.rows("SHOW SLAVE HOSTS" if is_mariadb(session) else "SHOW REPLICAS")
