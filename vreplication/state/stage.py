"""A temporary table of a session: rows on their way to a shadow that computes values by the time zone, or that has
columns which the rows do not have.

A TIMESTAMP comes as a literal in UTC and is exact there; a literal of the server's local time would be ambiguous for an
hour of each year. So the row is put here in UTC, and moves on inside the server under its own time zone, which changes
no stored TIMESTAMP and lets generated columns and defaults be what a plain ALTER makes of them.

Of a row that is in the shadow those columns keep their values: such rows go first, and all are read before the first is
replaced, so what REPLACE takes out of the way for another one is not lost. A new row has the defaults of the columns.

What must stay true: rows leave in the order in which they came; nothing of it reaches the binary log; whatever inserts
into the shadow or deletes from it does so in the server's zone: an index over a virtual column is searched by the value
that the session computes, and one that is not found there breaks the index (MySQL then stops, measured).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication import names
from vreplication.mysql.quoting import ident, idents, qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.schema.model import TableMapping

_NUMBER = ident("vreplication's number")


def table(mapping: TableMapping, workflow: str) -> str:
    """Its qualified name: beside the source, where the user may make temporary tables."""
    return qualified(mapping.target.schema, names.stage_table(workflow))


def create(session: Session, mapping: TableMapping, workflow: str) -> None:
    """Outside of any transaction."""
    shadow = qualified(mapping.target.schema, mapping.target.name)
    names = [ident(pair.target.name) for pair in mapping.pairs]
    moments = _moments(session, mapping)
    columns = ",".join(f"CAST({n} AS DATETIME({moments[n]})) AS {n}" if n in moments else n for n in names)
    session.execute_raw(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {table(mapping, workflow)}"
        f" ({_NUMBER} BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB SELECT {columns} FROM {shadow} LIMIT 0"
    )


def _moments(session: Session, mapping: TableMapping) -> dict[str, int]:
    """TIMESTAMP columns with their digits, which MySQL must not move as such: it goes through the local time.

    In the hour that comes twice a year that is another moment (measured). MariaDB moves them as they are.
    """
    if is_mariadb(session):
        return {}
    return {ident(p.target.name): p.target.fraction for p in mapping.pairs if p.target.data_type == "timestamp"}


def head(mapping: TableMapping, workflow: str) -> str:
    """INSERT INTO … (columns), to be followed by VALUES or a SELECT."""
    return f"INSERT INTO {table(mapping, workflow)} ({_columns(mapping)})"


@contextlib.contextmanager
def computing(session: Session, mapping: TableMapping) -> Iterator[None]:
    """Inside the block the shadow is written to, in the server's time zone where the shadow depends on it."""
    with session.in_the_servers_zone() if mapping.is_written_in_zone else contextlib.nullcontext():
        yield


def clear(session: Session, mapping: TableMapping, workflow: str) -> None:
    session.execute_raw(f"DELETE FROM {table(mapping, workflow)}")


def moves(session: Session, verb: str, into: str, mapping: TableMapping, workflow: str) -> list[str]:
    """The statements that move all rows on: `verb` INTO `into`, which has the shadow's columns."""
    moments = _moments(session, mapping)
    names = [ident(pair.target.name) for pair in mapping.pairs]
    # A zero timestamp has no zone.
    # MySQL reads an offset in a literal since 8.0.19.
    with_zone = "IF(LEFT({0},4)='0000',{0},CONCAT({0},'+00:00'))"
    values = ",".join(with_zone.format(f"staged.{n}") if n in moments else f"staged.{n}" for n in names)
    head, rows = f"{verb} INTO {into} ({_columns(mapping)}", f"FROM {table(mapping, workflow)} AS staged"
    order = f"ORDER BY staged.{_NUMBER}"
    if not mapping.spared:
        return [f"{head}) SELECT {values} {rows} {order}"]
    spared, join = idents(column.name for column in mapping.spared), _join(mapping)
    kept = ",".join(f"was.{ident(column.name)}" for column in mapping.spared)
    is_new = f"was.{ident(mapping.key[0].target.name)} IS NULL"
    return [
        f"{head},{spared}) SELECT {values},{kept} {rows} JOIN {join} {order}",
        f"{head}) SELECT {values} {rows} LEFT JOIN {join} WHERE {is_new} {order}",
    ]


def _join(mapping: TableMapping) -> str:
    """The shadow's row of the same key."""
    names = [ident(pair.target.name) for pair in mapping.key]
    on = " AND ".join(f"was.{name}=staged.{name}" for name in names)
    return f"{qualified(mapping.target.schema, mapping.target.name)} AS was ON {on}"


def _columns(mapping: TableMapping) -> str:
    return idents(pair.target.name for pair in mapping.pairs)
