"""Which warnings of a writing statement say that a value was not stored as it is.

What must stay true: strict mode makes errors of nearly all of them; what is left is read after each statement of ours
that writes rows, and what is not known to be harmless is a loss.
"""

from __future__ import annotations

import re

from vreplication.schema.literals import TEMPORALS
from vreplication.schema.model import Table

Warned = tuple[str, int, str]
"""Level, code and message, as SHOW WARNINGS gives them."""
_DEPRECATIONS = frozenset({1287, 1681, 3719, 3720, 3778, 4095})
_CUT = 1265
# MySQL, of a literal or a chunk's bound that has a byte which stands for no character. Its bytes are kept (measured for
# all sets of single bytes); where they would be converted 1366 comes beside it. CONVERT of a multi-byte set gives NULL.
_UNASSIGNED = re.compile(r"Invalid (?:cp125\d|dec8|geostd8|greek|hebrew|hp8|swe7) character string")
_COLUMN = re.compile(r"for column (?:`[^`]*`\.`[^`]*`\.)?['`](.+?)['`](?: at row \d+)?$")


def loss(table: Table, warning: Warned) -> str:
    """What was lost, as the server says it with the code; empty: nothing.

    A time that a date has no place for is cut with a Note, by definition, and so is what a generated column computes
    (a price times a rate): the source was written with the same Note. The last digits of a DECIMAL and white space at
    the end of text are Notes as well, some of which a plain ALTER refuses and some of which it lets pass: each is a
    loss here (docs/limits.md).
    """
    level, code, message = warning
    if code in _DEPRECATIONS or _UNASSIGNED.match(message):
        return ""
    if level == "Note" and (code != _CUT or _is_to_be_cut(table, message)):
        return ""
    return f"{message} ({code})"


def _is_to_be_cut(table: Table, message: str) -> bool:
    found = _COLUMN.search(message)
    if found is None or not table.has_column(found[1]):
        return False
    column = table.column(found[1])
    return column.data_type in TEMPORALS or bool(column.generated)
