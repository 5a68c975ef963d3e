"""Reading keys of the source table along the index that the copy walks.

What must stay true: keys are full tuples of literals made by the server (`schema.literals.bound_sql`), none of them
NULL; LIMIT is spent here, on finding a bound, and never on a statement that copies (docs/correctness.md, F2).
"""

from __future__ import annotations

from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.schema import nulls
from vreplication.schema.bounds import equal_sql, key_names, off_key_sql, order_sql, range_sql
from vreplication.schema.literals import bound_sql
from vreplication.schema.model import Column, TableMapping
from vreplication.state.ledger import Bound, KeyRange


def source_key(mapping: TableMapping) -> tuple[Column, ...]:
    return tuple(pair.source for pair in mapping.key)


def source_sql(mapping: TableMapping) -> str:
    """The source table, read along the shared key."""
    name = qualified(mapping.source.schema, mapping.source.name)
    return f"{name} FORCE INDEX ({ident(mapping.source_index)})"


def within(mapping: TableMapping, bounds: KeyRange, alias: str = "") -> str:
    """Predicate for the source rows of a range, and of the single keys beside it."""
    columns = source_key(mapping)
    whole = range_sql(columns, bounds.lower, bounds.upper, lo_inclusive=bounds.has_lower, alias=alias)
    singles = [equal_sql(columns, key, alias=alias) for key in bounds.beside]
    return f"({' OR '.join(f'({p})' for p in (whole, *singles))})" if singles else whole


def key_sql(mapping: TableMapping) -> str:
    """Select list that gives a row's key as bound literals."""
    columns = source_key(mapping)
    return ",".join(bound_sql(c, name) for c, name in zip(columns, key_names(columns), strict=True))


def nth_key(session: Session, mapping: TableMapping, bounds: KeyRange, n: int) -> Bound | None:
    """Key of the n-th row of the range (counted from 1), or None when it holds fewer."""
    order = order_sql(source_key(mapping))
    return _first(session, mapping, within(mapping, bounds), f"{order} LIMIT 1 OFFSET {n - 1}")


def end_key(session: Session, mapping: TableMapping, *, is_last: bool) -> Bound | None:
    """The table's first or last key."""
    order = order_sql(source_key(mapping), descending=is_last)
    return _first(session, mapping, "1=1", f"{order} LIMIT 1")


def last_key_up_to(session: Session, mapping: TableMapping, bounds: KeyRange, leading: int) -> Bound | None:
    """The highest key of the range whose first column is at most `leading`."""
    columns = source_key(mapping)
    where = f"{within(mapping, bounds)} AND {key_names(columns)[0]}<={leading}"
    return _first(session, mapping, where, f"{order_sql(columns, descending=True)} LIMIT 1")


def first_null(session: Session, mapping: TableMapping, bounds: KeyRange, column: Column) -> Bound | None:
    """The lowest key of the range whose row has NULL in `column`."""
    where = f"{within(mapping, bounds)} AND {ident(column.name)} IS NULL"
    return _first(session, mapping, where, f"{order_sql(source_key(mapping))} LIMIT 1")


def _first(session: Session, mapping: TableMapping, where: str, order: str) -> Bound | None:
    # A bound is never NULL, for `key > NULL` is true of no row: what lay behind it would be copied by nobody.
    rest = f"WHERE ({where}){nulls.known(source_key(mapping))} ORDER BY {order}"
    # Through execute with no arguments: literals of ours hold no per cent sign.
    beside = off_key_sql(mapping.source, mapping.source_index)
    row = session.row(f"SELECT {key_sql(mapping)},{beside} FROM {source_sql(mapping)} {rest}")
    return tuple(map(as_text, row[:-1])) if row else None


def as_text(value: object) -> str:
    """A literal as the server rendered it; an expression of binaries alone comes as bytes."""
    return value.decode("ascii") if isinstance(value, bytes) else str(value)
