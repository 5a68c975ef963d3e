"""Predicates for ranges of a key, written so that the optimizer reads the range from the index and no more.

What must stay true: a range is (lo, hi] in the key's own order on the server; bounds are literals made by
`literals.bound_sql` (an ENUM sorts by its number and not by its label), or a row's own where lo and hi are one key;
where the target compares a key by another collation than the source, a row of the source is found on the target by the
bytes of its key, for a collation may call two rows one.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication.mysql.quoting import ident, text
from vreplication.schema.model import Column, ColumnPair, Table

Bound = Sequence[str]
"""One literal for each column of the key."""

_SHORT = frozenset(
    [
        "tinyint",
        "smallint",
        "mediumint",
        "int",
        "bigint",
        "decimal",
        "float",
        "double",
        "bit",
        "date",
        "time",
        "datetime",
        "timestamp",
        "year",
        "enum",
        "set",
    ]
)
_TEXT = frozenset({"char", "varchar", "binary", "varbinary"})


def key_names(columns: Sequence[Column], alias: str = "") -> list[str]:
    """The key's columns as SQL, behind `alias.` when there is one."""
    prefix = f"{ident(alias)}." if alias else ""
    return [prefix + ident(column.name) for column in columns]


def order_sql(columns: Sequence[Column], *, alias: str = "", descending: bool = False) -> str:
    """The list for ORDER BY."""
    return ",".join(name + (" DESC" if descending else "") for name in key_names(columns, alias))


def off_key_sql(table: Table, index: str) -> str:
    """A short expression of a column outside the primary key, or "1" when there is none or `index` is another key.

    To be selected with a range of the key. A statement that reads the key alone is "covered" by it, and where the
    statistics call the table tiny (they lag behind a table just filled) MySQL then scans the key from its beginning:
    seen, 0.6 s for each bound of a table of 2,000,000 rows. With another column it reads the range.
    """
    key = {part.column for k in table.keys if k.name == index for part in k.parts}
    usable = [c for c in table.columns if c.name not in key and not c.generated and c.data_type in _SHORT | _TEXT]
    if index != "PRIMARY" or not usable:
        return "1"
    shortest = min(usable, key=lambda c: (c.data_type in _TEXT, c.length or 0))
    return f"ISNULL({ident(shortest.name)})"


def range_sql(
    columns: Sequence[Column], lo: Bound | None, hi: Bound | None, *, lo_inclusive: bool = False, alias: str = ""
) -> str:
    """Predicate for lo < key <= hi (or lo <= key); a bound that is None is open. Safe behind AND as it is."""
    names = key_names(columns, alias)
    sides = []
    if lo is not None:
        sides.append(_beyond(columns, names, lo, ">", lo_inclusive))
    if hi is not None:
        sides.append(_beyond(columns, names, hi, "<", True))
    return " AND ".join(sides) or "1=1"


def equal_sql(columns: Sequence[Column], key: Bound, *, alias: str = "") -> str:
    """Predicate for one key, given by its literals (`literals.literal_sql`)."""
    return " AND ".join(f"{n}={v}" for n, v in zip(key_names(columns, alias), key, strict=True))


def _beyond(columns: Sequence[Column], names: Sequence[str], bound: Bound, sign: str, is_inclusive: bool) -> str:
    """(a, b) > (x, y) as `a>=x AND (a>x OR (a=x AND b>y))`: optimizers read the first part from the index."""
    if len(names) == 1:
        return _compare(columns[0], names[0], sign + "=" * is_inclusive, bound[0])
    nested = _nested(columns, names, bound, sign, is_inclusive)
    return f"{_compare(columns[0], names[0], sign + '=', bound[0])} AND ({nested})"


def _nested(columns: Sequence[Column], names: Sequence[str], bound: Bound, sign: str, is_inclusive: bool) -> str:
    if len(names) == 1:
        return _compare(columns[0], names[0], sign + "=" * is_inclusive, bound[0])
    inner = _nested(columns[1:], names[1:], bound[1:], sign, is_inclusive)
    beyond = _compare(columns[0], names[0], sign, bound[0])
    return f"{beyond} OR ({_compare(columns[0], names[0], '=', bound[0])} AND ({inner}))"


def _compare(column: Column, name: str, sign: str, literal: str) -> str:
    if column.data_type != "enum":
        return f"{name}{sign}{literal}"
    if literal.isdecimal():
        return _compare_enum(column, name, sign, int(literal))
    # A label, which sorts nowhere: lo and hi are the same key, and nothing is beyond it.
    return f"{name}={literal}" if "=" in sign else "1=0"


def _compare_enum(column: Column, name: str, sign: str, number: int) -> str:
    """By the labels that qualify: MySQL does not read `enum > 2` from an index (measured), `enum IN (…)` it does.

    Number 0 is the empty value that an insert in non-strict mode leaves.
    """
    # Without it a row with that value would be in no range: neither copied nor compared.
    labels = ["", *column.labels]
    tests = {">": number.__lt__, ">=": number.__le__, "<": number.__gt__, "<=": number.__ge__, "=": number.__eq__}
    found = ",".join(text(label) for i, label in enumerate(labels) if tests[sign](i))
    return f"{name} IN ({found})" if found else "1=0"


def as_source(pair: ColumnPair, name: str) -> str:
    """SQL of a target's key column as the source has its value; of text under another collation its bytes."""
    return f"CAST(CONVERT({name} USING {pair.source.charset}) AS BINARY)" if pair.is_recollated else name


def as_target(pair: ColumnPair, value: str) -> str:
    """SQL of `as_source`'s value in the target's type and collation, by which an index finds it."""
    if not pair.is_recollated:
        return value
    # The bytes get the source's character set back first: without one there is nothing to convert from.
    stored = f"CONVERT(CONVERT({value} USING {pair.source.charset}) USING {pair.target.charset})"
    return f"{stored} COLLATE {pair.target.collation}"


def same_row(pair: ColumnPair, name: str, value: str) -> str:
    """Predicate: the target's column `name` holds the source's key value `value` (of `as_source`)."""
    # The first predicate finds rows by the index, the second says which of them it is: several may be equal to the
    # target's collation.
    found = f"{name}={as_target(pair, value)}"
    return f"{found} AND {as_source(pair, name)}={value}" if pair.is_recollated else found
