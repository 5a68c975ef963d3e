"""What belongs to the cut-over beside the RENAME: fresh statistics, the AUTO_INCREMENT counter, the clearing up.

What must stay true: the new table's counter is never below the old one's, so that an id that was given out once, even
to a row that is deleted again, is not given out twice; a table is dropped only if its recorded identity is its own.
"""

from __future__ import annotations

from vreplication.cutover.sentry import drop_table
from vreplication.mysql.quoting import qualified, text
from vreplication.mysql.session import Session
from vreplication.schema.introspect import counter_of

__all__ = ["analyze", "carry_auto_increment", "drop_table"]


def analyze(session: Session, schema: str, table: str) -> None:
    """Collect statistics, so that plans do not change at the cut-over. Logged: replicas switch too."""
    session.rows(f"ANALYZE TABLE {qualified(schema, table)}")


def carry_auto_increment(session: Session, schema: str, source: str, shadow: str, *, is_mariadb: bool) -> int | None:
    """Raise the shadow's counter to the source's. None: nothing to do.

    The source may be WRITE-locked by another session: only definitions are read. In place, without a rebuild, on both
    servers (measured: the TABLE_ID stays).
    """
    if not is_mariadb:
        # MySQL keeps statistics, the counter among them, for a day.
        session.execute_raw("SET SESSION information_schema_stats_expiry=0")
    counters = _counters(session, schema, source, shadow)
    ours, theirs = counters.get(shadow), counters.get(source)
    if ours is None or theirs is None or theirs <= ours:
        return None
    session.execute_raw(f"ALTER TABLE {qualified(schema, shadow)} AUTO_INCREMENT={theirs}")
    return theirs


def raise_auto_increment(
    source: Session, of: tuple[str, str], target: Session, to: tuple[str, str], *, is_mariadb: bool
) -> None:
    """The same between two servers. of, to: (schema, table); source may be the session that holds the lock.

    is_mariadb: the source is.
    """
    if not is_mariadb:
        source.execute_raw("SET SESSION information_schema_stats_expiry=0")
    found = _counters(source, *of).get(of[1])
    if found is None:
        return
    theirs = _create_counter(target, *to)
    if theirs is not None and theirs < found:
        target.execute_raw(f"ALTER TABLE {qualified(*to)} AUTO_INCREMENT={found}")


def _create_counter(session: Session, schema: str, table: str) -> int | None:
    """As SHOW CREATE TABLE has it, which is not remembered from yesterday."""
    sql = str((session.row(f"SHOW CREATE TABLE {qualified(schema, table)}") or ("", ""))[1])
    return counter_of(sql) if "AUTO_INCREMENT" in sql else None


def _counters(session: Session, schema: str, *tables: str) -> dict[str, int]:
    """Next value of each table that has an AUTO_INCREMENT column."""
    names = ",".join(map(text, tables))
    rows = session.rows(
        "SELECT table_name, auto_increment FROM information_schema.tables "
        f"WHERE table_schema={text(schema)} AND table_name IN ({names})"
    )
    return {str(name): int(value) for name, value in rows if value is not None}
