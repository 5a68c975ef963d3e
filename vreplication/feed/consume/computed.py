"""Generated columns that the target finds by the session: a TIMESTAMP by its time zone, a day's name by its language, a
quotient to its digits.

Our sessions are in UTC; those of the application, which wrote the source's rows, need not be. A stored column would get
another value, and under a unique key two rows would be one, of which REPLACE takes out the first without a word.

What must stay true: each row that a batch has written is there behind it, with the source's value in every such column;
a unique key that no message tells the values of ends the consumer before a row is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from vreplication.errors import Terminal
from vreplication.feed.formats.open import Cell
from vreplication.mysql import values
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session
from vreplication.schema.expressions import asks_for_the_zone, is_read_by_session, is_settled, odd_days_of
from vreplication.schema.model import Key, KeyPart, Table

_ROWS = 500
_CURE = "Make it a plain column there, which takes the feed's values; then start the consumer again."
_CURE_OF_KEYS = "Drop that key there, or put it over a plain column, which takes the feed's values."


def compared(table: Table, image: Mapping[str, Cell]) -> tuple[str, ...]:
    """Columns of the image whose values are to be looked at behind each batch. Raises Terminal."""
    keys = _apart(table, {name.lower() for name, cell in image.items() if cell.is_unique})
    for key in keys:
        if any(_is_untold(table, part, image) for part in key.parts):
            raise Terminal(
                f"The unique key {key.name} of {table.schema}.{table.name} on the target is over values that each"
                " session finds by its own time zone, SQL mode or precision: two rows of the feed may be one there, and"
                " one be lost.",
                cure=_CURE_OF_KEYS,
            )
    return tuple(name for name in image if _is_compared(table, name, keys))


def _apart(table: Table, own: Set[str]) -> list[Key]:
    """Unique keys by which two rows may be one that the feed's own key tells apart."""
    found = [key for key in table.keys if key.is_unique]
    return [key for key in found if not own <= {part.column.lower() for part in key.parts if _is_plain(table, part)}]


def _is_plain(table: Table, part: KeyPart) -> bool:
    return bool(part.column) and not part.prefix and not table.column(part.column).generated


def _is_untold(table: Table, part: KeyPart, image: Mapping[str, Cell]) -> bool:
    """Of a virtual column each reader of the source has found another value: what was sent may not be the key's."""
    column = table.column(part.column) if part.column else None
    if column is not None and not column.generated:
        return False
    is_sent = column is not None and column.name.lower() in {name.lower() for name in image}
    # Its values are looked at behind each batch (`check`), so nothing can be lost without a word.
    if column is not None and column.generated == "stored" and is_sent:
        return False
    text = column.expression if column is not None else part.expression
    return asks_for_the_zone(table, text) or is_read_by_session(table, text)


def _is_compared(table: Table, name: str, keys: Sequence[Key]) -> bool:
    """A virtual one holds nothing, but for its keys."""
    column = table.column(name)
    is_odd = bool(column.generated) and bool(odd_days_of(table, column.expression))
    if not column.generated or (is_settled(table, column.expression) and not is_odd):
        return False
    return column.generated == "stored" or any(name.lower() in map(str.lower, key.columns) for key in keys)


def check(session: Session, table: Table, names: Sequence[str], rows: Sequence[str]) -> None:
    """rows: for each that was written SQL that is true of it alone, as the source has it. Raises Terminal."""
    target = qualified(table.schema, table.name)
    for part in values.statements(rows, max_rows=_ROWS):
        # Each is true of one row: a row that was replaced by another one, or has another value, is one less.
        if int(session.value(f"SELECT COUNT(*) FROM {target} WHERE {' OR '.join(part)}")) != len(part):
            raise Terminal(
                f"The target has found other values than the feed's in {', '.join(names)} of {table.schema}."
                f"{table.name}: they depend on the session that writes a row (its time zone, language or digits).",
                cure=_CURE,
            )
