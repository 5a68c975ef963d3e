"""Whether a lake knows the rows that are there under their keys of behind an ALTER (retyped.py).

What must stay true: it is asked before the statement is noted and before a row behind it is stored, so that no manifest
has a row twice; only a table with rows of which some would be written otherwise ends the lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vreplication.errors import Refused, Terminal
from vreplication.feed.lake import retyped, types
from vreplication.feed.lake.ddl import Catalog, Statement, is_of_unread_columns
from vreplication.feed.lake.manifest import Alter, Column, Store, Table, Version
from vreplication.feed.lake.spark_reading import folded

_CURE = "Fill another lake from a new feed (--snapshot initial) that begins behind it. What is there can still be read."


class Carrying:
    def __init__(self, spark: Any, store: Store) -> None:
        self._spark, self._store = spark, store

    def check(self, catalog: Catalog, statement: Statement) -> None:
        """Before it is run. Raises Terminal."""
        if (found := catalog.altered(statement)) is None:
            return
        pair, number = found
        table, new = catalog.tables[number], retyped.declared(statement)
        for column in _of_key(table):
            type = new.get(column.name.lower())
            where = retyped.lost(column, type) if type is not None else None
            if where is not None and self._has_rows(table, where, statement.t):
                raise _lost(f"{pair[0]}.{pair[1]}", column.name, statement.sql)

    def _has_rows(self, table: Table, where: str, at: int) -> bool:
        try:
            return bool(folded(self._spark, self._store, table, at).filter(where).limit(1).count())
        except Refused:
            # It cannot be read by state from before it on.
            return False


def check_rows(name: str, table: Table, behind: Version) -> None:
    """Before rows of a new version are stored, where no statement told their types. Raises Terminal."""
    alter = _unread(table)
    if alter is None or not table.files:
        return
    kinds = {behind.sources.get(column.name): column.kind for column in behind.columns if column.name in behind.key}
    for column in _of_key(table):
        kind = kinds.get(column.name, column.kind)
        # Length and digits are in no row, so values that only some types cut are not judged (docs/limits.md).
        if kind != column.kind and retyped.lost(column, retyped.of_kind(kind)) == retyped.ALL:
            raise _lost(name, column.name, alter.sql)


def _unread(table: Table) -> Alter | None:
    since = table.versions[-1].t if table.versions else 0
    return next((each for each in table.alters if each.t > since and is_of_unread_columns(each)), None)


def _of_key(table: Table) -> Iterator[Column]:
    """Of a table without a key nothing tells rows apart but all that is in them (docs/limits.md)."""
    if table.versions and table.files:
        last = table.versions[-1]
        yield from (column for column in last.columns if column.name in last.key)


def _lost(table: str, column: str, sql: str) -> Terminal:
    return Terminal(
        f"Values of {types.quoted(column)}, which is in the key of {table}, are written otherwise from here on, and no"
        f" message tells what became of those of rows that are there, which would be there twice. It is: {sql[:500]}",
        cure=_CURE,
    )
