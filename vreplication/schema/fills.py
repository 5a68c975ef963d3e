"""What a column that the ALTER adds holds in the rows that are there already.

What must stay true: the value is the one that a plain ALTER TABLE gives; where a literal of ours is needed (NOT NULL
without a default, which INSERT would refuse; the current time) it is the same in every row; the rest is left to the
column's default.
"""

from __future__ import annotations

import re
from datetime import datetime

from vreplication.errors import Refused
from vreplication.mysql.quoting import text
from vreplication.mysql.text import Token
from vreplication.schema.introspect import definitions
from vreplication.schema.literals import APPROXIMATE, DECIMALS, GEOMETRIES, INTEGERS, TEMPORALS
from vreplication.schema.model import Column, Table

_NOW = re.compile(r"(?:current_timestamp|now|localtime|localtimestamp)(?:\((\d*)\))?$", re.I)
_IMPLICIT = {
    "date": "'0000-00-00'",
    "time": "'00:00:00'",
    "datetime": "'0000-00-00 00:00:00'",
    "timestamp": "'0000-00-00 00:00:00'",
    "uuid": "'00000000-0000-0000-0000-000000000000'",
    "inet6": "'::'",
    "inet4": "'0.0.0.0'",
    # MySQL's, where a plain ALTER gives JSON's null; MariaDB's JSON is LONGTEXT.
    "json": "'null'",
}
_CURE = "Give the new column a DEFAULT, or let it be NULL."


def fill_literal(
    table: Table, column: Column, *, is_json: bool, zone: str | None, moment: datetime | None
) -> str | None:
    """SQL of the constant that the added column of the table takes; None: the server fills it. Raises Refused."""
    if column.generated or column.is_auto_increment:
        return None
    if column.has_default:
        return None if has_quoted_default(table, column) else _now(column, zone, moment)
    # No constant stands for these: an empty value is no geometry and no vector, and does not meet MariaDB's CHECK of
    # JSON.
    if column.data_type in GEOMETRIES or column.data_type == "vector" or is_json:
        raise Refused(f"Column {column.name} is added NOT NULL without a value for existing rows.", cure=_CURE)
    return _implicit(column)


def _implicit(column: Column) -> str:
    """What a plain ALTER puts into a column that is NOT NULL and has no default."""
    kind = column.data_type
    if kind in INTEGERS or kind in DECIMALS or kind in APPROXIMATE or kind in ("bit", "year"):
        return "0"
    if kind == "enum":
        return text(column.labels[0])
    return _IMPLICIT.get(kind, "''")


def has_quoted_default(table: Table, column: Column) -> bool:
    """DEFAULT 'now', which SHOW COLUMNS shows as `now`, like an expression; SHOW CREATE TABLE keeps the quotes."""
    value = next((_default(parts) for parts in definitions(table.create_sql) if _is_of(parts, column)), [])
    return bool(value) and value[0].kind == "string"


def _is_of(parts: list[Token], column: Column) -> bool:
    return bool(parts) and parts[0].kind == "quoted" and parts[0].value == column.name


def is_moment(table: Table, column: Column) -> bool:
    """Its default is the time at which the ALTER began: the same in every row."""
    return _NOW.match(column.default or "") is not None and not has_quoted_default(table, column)


def _default(parts: list[Token]) -> list[Token]:
    """What stands behind DEFAULT in a column's definition."""
    at = next((at for at, token in enumerate(parts) if token.is_word("DEFAULT")), len(parts))
    return parts[at + 1 :]


def _now(column: Column, zone: str | None, moment: datetime | None) -> str | None:
    """The time at which the ALTER began, by the server's zone in a DATETIME."""
    found = _NOW.match(column.default or "")
    if moment is None or found is None:
        return None
    literal = f"'{moment:%Y-%m-%d %H:%M:%S.%f}'"
    # The moment is in UTC. So are our sessions, in which a TIMESTAMP takes it as it is; a DATETIME keeps what the clock
    # of the server's zone shows.
    if zone and column.data_type != "timestamp":
        literal = f"CONVERT_TZ({literal},'+00:00',{text(zone)})"
    # NOW(6) gives text and numbers all its digits; a time has those of its type at the most.
    digits = int(found[1] or 0)
    digits = min(digits, column.fraction) if column.data_type in TEMPORALS else digits
    # Cut, as the clock is read: rounding would give a time that has not been.
    return f"CAST({_cut(literal, digits)} AS DATETIME({digits}))"


def _cut(literal: str, digits: int) -> str:
    return f"LEFT({literal},{20 + digits if digits else 19})"
