"""A key whose columns may be NULL, where that is allowed by name: no row may have NULL in it.

By such a key nobody tells rows with NULL apart: a unique key bears any number of them, and no comparison finds one.

What must stay true: none is there before the first bound is read, and each that comes later stands in the log, where it
ends the workflow at its place; so what a statement of ours leaves out for its NULL is never left out of a table that is
switched. No bound of a range is NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication.errors import SourceChanged
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.model import Column, TableMapping

ADVICE = "Give the table a primary key, or see that no row has NULL there, and begin again."


def known(columns: Sequence[Column]) -> str:
    """Predicate for rows without NULL in these columns, to be put behind AND; '' where none may be NULL."""
    return "".join(f" AND {ident(column.name)} IS NOT NULL" for column in columns if column.is_nullable)


def find(session: Session, mapping: TableMapping) -> str | None:
    """A column of the key that is NULL in some row of the source."""
    # In the index, which has less to read than the table: of a column that is not the key's first all of it is read.
    table = f"{qualified(mapping.source.schema, mapping.source.name)} FORCE INDEX ({ident(mapping.source_index)})"
    for column in (pair.source for pair in mapping.key if pair.source.is_nullable):
        if session.row(f"SELECT 1 FROM {table} WHERE {ident(column.name)} IS NULL LIMIT 1"):
            return column.name
    return None


def is_in(key: str) -> bool:
    """True for a comma list of literals with NULL among them."""
    # Asked of the key of every change: the first half spares nearly all of them being taken apart.
    return "NULL" in key and "NULL" in split_literals(key)


def words(mapping: TableMapping, column: str) -> str:
    name = f"{mapping.source.schema}.{mapping.source.name}"
    return f"A row of {name} has NULL in {column}, of the key {mapping.source_index} by which rows are told apart."


def written(mapping: TableMapping, key: str, workflow: str) -> SourceChanged:
    """What ends a workflow in whose log the key of a row has NULL."""
    pairs = zip(mapping.key, split_literals(key), strict=True)
    column = next(pair.source.name for pair, literal in pairs if literal == "NULL")
    return SourceChanged(words(mapping, column), cure=f"Run `vreplication cancel {workflow}`. {ADVICE}")
