"""Columns of a target's table that the feed does not have: a row that is written again keeps its values of them.

REPLACE makes the row anew, so what it has there is read before, with a lock, and written along. A column whose default
is CURRENT_TIMESTAMP, or that has ON UPDATE, says when a row was written, and goes on doing so.

What must stay true: a row that is new gets the defaults; one that gets another key takes its values along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from vreplication.errors import Terminal
from vreplication.feed.consume.asking import same_key
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.schema.literals import literal_sql
from vreplication.schema.model import Column, Table

_OF_THE_CLOCK = re.compile(r"(current_timestamp|now|localtime|localtimestamp)\b", re.I)
_SAYS_WHEN = re.compile(rf"\bDEFAULT \(*{_OF_THE_CLOCK.pattern}", re.I)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'")
"""Whatever it says: a default may be 'now', and a comment tell of ON UPDATE."""
Key = tuple[str, ...]


def columns(table: Table, sent: Set[str]) -> tuple[Column, ...]:
    """sent: names that the feed has; servers take those for the same that differ in case."""
    there = {name.lower() for name in sent}
    return tuple(each for each in table.columns if each.name.lower() not in there and _is_kept(table, each))


def _is_kept(table: Table, column: Column) -> bool:
    if column.generated:
        return False
    name, lines = f"{ident(column.name)} ", (line.strip() for line in table.create_sql.splitlines())
    bare = _QUOTED.sub("''", next((line.removeprefix(name) for line in lines if line.startswith(name)), ""))
    says_when = _OF_THE_CLOCK.match(column.default or "") and _SAYS_WHEN.search(bare)
    return not says_when and " ON UPDATE " not in bare


class Origins:
    """Of each row that a batch leaves behind: by which key the target has it before the batch, if it does."""

    def __init__(self) -> None:
        self._of: dict[Key, Key | None] = {}

    def note(self, before: Key | None, after: Key | None) -> None:
        """In the order of the changes. Of a row that has gone in this batch nothing is kept."""
        if before is None:
            if after is not None:
                self._of.setdefault(after, after)
            return
        origin = self._of.get(before, before)
        if before != after:
            self._of[before] = None
        if after is not None:
            self._of[after] = origin

    def of(self, key: Key) -> list[Key]:
        """Where to look for it, in turn. Where it has got its key before, as when it comes again, it has that one."""
        origin = self._of.get(key, key)
        return [] if origin is None else [origin] if origin == key else [origin, key]


def read(
    session: Session, table: Table, kept: tuple[Column, ...], names: tuple[str, ...], keys: Mapping[Key, list[Key]]
) -> dict[Key, str]:
    """Of each row that is there, under one of its keys, a comma list of literals. In a transaction. Raises Terminal."""
    shown = ",".join(literal_sql(column, ident(column.name)) for column in kept)
    head = f"SELECT {shown} FROM {qualified(table.schema, table.name)} WHERE "
    found: dict[Key, str] = {}
    for key, places in keys.items():
        for place in places:
            row = session.row(f"{head}{same_key(list(zip(names, place, strict=True)))} FOR UPDATE")
            if row is not None:
                found[key] = _list(table, row)
                break
    return found


def _list(table: Table, row: tuple[object, ...]) -> str:
    # Servers make NULL, with a warning alone, of what a function would return beyond max_allowed_packet; a NULL of the
    # column's is the word NULL here.
    if None in row:
        raise Terminal(
            f"A value of {table.schema}.{table.name} on the target, in a column that the feed does not have, is longer"
            " than max_allowed_packet, so it cannot be kept.",
            cure="Raise max_allowed_packet there; then start the consumer again.",
        )
    return ",".join(map(str, row))
