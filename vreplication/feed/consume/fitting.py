"""Values that the target's column would store otherwise, and whose server says nothing of it.

Strict mode and warnings tell of nearly all (rows.py). A fraction of a second, the digits of a FLOAT and the time of a
DATE are rounded or cut without a word, and of NULL an AUTO_INCREMENT column or an old TIMESTAMP makes a value.

What must stay true: a column that holds all values of the source's is never refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from vreplication.errors import Terminal
from vreplication.feed.formats.open import Cell
from vreplication.schema.model import Column, Table

_TIMES = frozenset({"date", "time", "datetime", "timestamp", "year"})
_HELD = {
    **{"Date": ("date", "datetime", "timestamp"), "Time": ("time",)},
    **dict.fromkeys(("DateTime", "Timestamp"), ("datetime", "timestamp")),
}
# A FLOAT has 24 bits and a DOUBLE 53: further ones are rounded off, and strict mode says nothing.
_ROUNDED = {"float": ("Double", "Decimal", "Long", "LongLong"), "double": ("Decimal", "LongLong")}
# Of a second: no column has more.
_MOST_DIGITS = 6
_CURE = "Give it the source's type there; then start the consumer again."


def check(table: Table, image: Mapping[str, Cell]) -> None:
    """By types alone. Raises Terminal."""
    for name, cell in image.items():
        column = table.column(name)
        if not column.generated and _is_narrow(column, cell.type):
            where = f"{table.schema}.{table.name}"
            raise Terminal(
                f"The target's column {name} of {where} is {column.column_type}, which does not hold each {cell.type}"
                " of the feed.",
                cure=_CURE,
            )


def _is_narrow(column: Column, kind: str) -> bool:
    # In a column of text a time stays as it is; that it is long enough the server looks at.
    if kind in _HELD and column.data_type in _TIMES:
        return column.data_type not in _HELD[kind]
    return kind in _ROUNDED.get(column.data_type, ())


def fractions(table: Table, image: Mapping[str, Cell]) -> tuple[tuple[str, int], ...]:
    """Columns that hold fewer digits of a second than there may be, and how many."""
    columns = ((name, table.column(name)) for name, cell in image.items() if cell.type in _HELD)
    held = ((name, column.fraction) for name, column in columns if column.data_type in _TIMES and not column.generated)
    return tuple((name, fraction) for name, fraction in held if fraction < _MOST_DIGITS)


def check_fractions(table: Table, image: Mapping[str, Cell], fractions: tuple[tuple[str, int], ...]) -> None:
    """Raises Terminal."""
    for name, fraction in fractions:
        value = image[name].value
        if value is not None and len(value.partition(".")[2].rstrip("0")) > fraction:
            raise _unfit(table, name, str(value), f"holds {fraction} digits of a second")


def check_nulls(table: Table, image: Mapping[str, Cell], names: tuple[str, ...]) -> None:
    """names: columns that are written. Raises Terminal."""
    for name in names:
        if image[name].value is None and not table.column(name).is_nullable:
            raise _unfit(table, name, "NULL", "takes none")


def _unfit(table: Table, name: str, what: str, why: str) -> Terminal:
    return Terminal(
        f"A row of {table.schema}.{table.name} in the feed has {what} in column {name}, of which the target's {why}.",
        cure=_CURE,
    )
