"""A column that is there and becomes AUTO_INCREMENT: a plain ALTER numbers the rows that have 0 or NULL in it.

What must stay true: a copy writes the values that the rows have, so where there is such a row it is refused.
"""

from __future__ import annotations

from vreplication.mysql.quoting import ident, qualified
from vreplication.planning.facts import Check, Facts, ok, refuse, warn
from vreplication.schema.model import Column

_NAME = "numbering"


def numbering(facts: Facts) -> Check:
    pairs = facts.mapping.pairs if facts.mapping else ()
    became = [
        p.source for p in pairs if p.target.is_auto_increment and not (p.is_constant or p.source.is_auto_increment)
    ]
    if not became:
        return ok(_NAME, "No column becomes AUTO_INCREMENT that is none.")
    column = became[0]
    if wanted := _would_be_numbered(facts, column):
        return refuse(
            _NAME,
            f"{column.name} becomes AUTO_INCREMENT, and rows of {facts.name} have {wanted} in it: a plain ALTER TABLE"
            " gives these numbers, and a copy does not.",
            "Give them numbers by UPDATE first, or run a plain ALTER TABLE.",
        )
    null = ", and one with NULL ends the workflow" if column.is_nullable else ""
    return warn(
        _NAME,
        f"{column.name} becomes AUTO_INCREMENT: a row that is written with 0 in it before the cut-over keeps it{null}.",
    )


def _would_be_numbered(facts: Facts, column: Column) -> str:
    """What of it is there: 0 or NULL; empty: nothing."""
    keeps_zero = "NO_AUTO_VALUE_ON_ZERO" in (facts.server.setting("sql_mode") or "")
    looked_for = {} if keeps_zero else {"0": "=0"}
    looked_for |= {"NULL": " IS NULL"} if column.is_nullable else {}
    table = qualified(facts.source.schema, facts.source.name)
    for what, condition in looked_for.items():
        if facts.session.row(f"SELECT 1 FROM {table} WHERE {ident(column.name)}{condition} LIMIT 1"):
            return what
    return ""
