"""How a value of one type is written to a column of another, so that the result is that of a plain ALTER TABLE.

A changed column's value reaches the target in two ways: as the source's column (server-side copy) and as a literal
(catch-up, client-side copy). A literal has forgotten its type, which matters where the types' families differ: a
template gives it back.

What must stay true: both ways and a plain ALTER agree (tests/integration/test_schema_conversions.py compares every
pair of types); TIMESTAMP meets other types by the server's global time zone, as in a plain ALTER, while our sessions
are in UTC; a pair of which that cannot be said is refused.
"""

from __future__ import annotations

from vreplication.errors import Refused
from vreplication.mysql.quoting import text
from vreplication.schema.literals import (
    APPROXIMATE,
    BYTES,
    CHARACTERS,
    DECIMALS,
    GEOMETRIES,
    INTEGERS,
    PLAIN_TEXT,
    TEMPORALS,
    is_character,
)
from vreplication.schema.model import Column

SAME = "{}"
_NUMBERS = INTEGERS | DECIMALS | APPROXIMATE
# All digits of a DOUBLE: as text it would be cut at 22 characters, and at the target's width without an error.
_DIGITS = "IF({0} IS NULL,NULL,TRIM(TRAILING '.0' FROM TRIM(TRAILING ']' FROM TRIM(LEADING '[' FROM JSON_ARRAY({0})))))"
_DATED = frozenset({"date", "datetime", "timestamp"})


def convert_template(source: Column, target: Column, *, zone: str | None) -> str:
    """The template of `ColumnPair.convert`. `zone`: the global time zone, None where it is UTC. Raises Refused."""
    checks = (_is_rounded_anew, _is_of_two_digits, _hides_an_error_value)
    is_refused = any(check(source, target) for check in checks)
    if source.data_type == target.data_type and not is_refused:
        return SAME
    found = None if is_refused else _template(source, target, zone)
    if found is None:
        raise Refused(
            f"Column {source.name}: {source.column_type} to {target.column_type} cannot be done online.",
            cure="Add a column of the new type, fill it by UPDATE, and drop the old one.",
        )
    return found


def _is_rounded_anew(source: Column, target: Column) -> bool:
    """FLOAT(m,d) and DOUBLE(m,d): a plain ALTER and an INSERT round differently."""
    is_changed = source.column_type != target.column_type
    return is_changed and target.data_type in APPROXIMATE and target.scale is not None


def _is_of_two_digits(source: Column, target: Column) -> bool:
    """MariaDB's YEAR(2): a plain ALTER makes 1970 of 70, and 2000 of 0; a literal of it is 70."""
    types = source.column_type, target.column_type
    return "year(2)" in types and types[0] != types[1]


def _hides_an_error_value(source: Column, target: Column) -> bool:
    """An ENUM's is shown as a label '' is, and where labels change their numbers it would become that one."""
    shared = min(len(source.labels), len(target.labels))
    is_moved = source.labels[:shared] != target.labels[:shared]
    return is_moved and {source.data_type, target.data_type} == {"enum"} and "" in (*source.labels, *target.labels)


def family(column: Column) -> str:
    """What decides how a literal of the column behaves."""
    kind = column.data_type
    if kind in INTEGERS or kind in DECIMALS:
        return "exact"
    if kind in APPROXIMATE:
        return "approximate"
    if is_character(column):
        return "characters"
    if kind == "vector":
        return kind
    if kind in BYTES or kind in CHARACTERS:
        return "bytes"
    return "geometry" if kind in GEOMETRIES else kind


def _template(source: Column, target: Column, zone: str | None) -> str | None:
    before, after = family(source), family(target)
    if after in ("year", "bit") and source.data_type not in INTEGERS:
        return None
    if source.data_type in TEMPORALS or target.data_type == "timestamp":
        return _temporal(source, target, zone)
    if before == after:
        return SAME
    if before in ("exact", "approximate"):
        return _from_number(source, after)
    if before in ("bit", "year"):
        return _from_bits(source, target)
    if before in ("enum", "set"):
        return _from_labels(source, before, after)
    if before == "bytes":
        return _from_bytes(after)
    return _from_text(before, after)


def _from_number(source: Column, after: str) -> str | None:
    if after in ("exact", "approximate", "bit", "year"):
        return SAME
    if after not in ("characters", "bytes"):
        return None
    if source.is_zerofill:
        return _with_zeros(source)
    if family(source) == "exact":
        return SAME
    if source.scale is not None:
        return f"CONCAT(CAST({{0}} AS DECIMAL({source.precision},{source.scale})))"
    return "CONCAT(CAST({0} AS FLOAT))" if source.data_type == "float" else _DIGITS


def _with_zeros(source: Column) -> str | None:
    """A plain ALTER writes the zeros of ZEROFILL into text."""
    width = source.column_type.partition("(")[2].partition(")")[0]
    if source.data_type not in INTEGERS or not width.isdigit():
        return None
    # LPAD alone would cut a number that has more digits than its display width.
    return f"LPAD({{0}},GREATEST({width},LENGTH({{0}})),'0')"


def _from_bits(source: Column, target: Column) -> str | None:
    """BIT becomes the digits of its number, but its bytes in TEXT and BLOB (measured on both); YEAR four digits."""
    if target.data_type in _NUMBERS:
        return SAME
    if not _is_text(target):
        return None
    if source.data_type == "year":
        return "LPAD({0},4,'0')"
    if target.data_type in ("char", "varchar", "binary", "varbinary"):
        return "CONCAT({0}+0)"
    return f"UNHEX(LPAD(HEX({{0}}),{2 * (((source.precision or 1) + 7) // 8)},'0'))"


def _from_labels(source: Column, before: str, after: str) -> str | None:
    if after in ("characters", before):
        return SAME
    if after == "bytes" and source.charset:
        return f"CONVERT({{0}} USING {source.charset})"
    # A plain ALTER writes the label's number, but a literal is the label, of which the server would make a number. Of a
    # label '' it cannot be told whether it is that one or the error value, whose number is 0.
    if before == "enum" and after in ("exact", "approximate") and "" not in source.labels:
        labels = ",".join(map(text, source.labels)).replace("{", "{{").replace("}", "}}")
        # FIELD of NULL is 0, the number of an ENUM's error value.
        # By its bytes: in another collation FIELD finds 'a' where the label is 'A'.
        return f"IF({{0}} IS NULL,NULL,FIELD(CONVERT({{0}} USING utf8mb4) COLLATE utf8mb4_bin,{labels}))"
    return None


def _from_bytes(after: str) -> str | None:
    """X'31' is a number where a number is expected: say that it is a string."""
    if after in ("characters", "geometry"):
        return SAME
    return "CAST({0} AS BINARY)" if after in ("exact", "approximate", *TEMPORALS, *PLAIN_TEXT) else None


def _from_text(before: str, after: str) -> str | None:
    """Characters, JSON, UUID and the like."""
    if after in ("characters", "bytes") and before in ("characters", "json", "geometry", "vector"):
        return SAME if before in ("characters", "json") or after == "bytes" else None
    if before == "uuid" and after == "bytes":
        return "UNHEX(REPLACE({0},'-',''))"
    if before in PLAIN_TEXT:
        return {"characters": SAME, "bytes": "INET6_ATON({0})"}.get(after)
    return SAME if before == "characters" and after not in ("geometry", "vector", "set") else None


def _temporal(source: Column, target: Column, zone: str | None) -> str | None:
    """At least one side is a time type."""
    before, after = source.data_type, target.data_type
    if before == "time" and after in _DATED:
        return None  # it would take the day on which it runs
    if before not in TEMPORALS:
        return _text_to_timestamp(source, zone)
    if not (after in TEMPORALS or after in _NUMBERS or _is_text(target)):
        return None
    if after == "timestamp":
        return _to_timestamp(zone) if zone else _typed(source)
    return _from_timestamp(source, zone) if zone and before == "timestamp" else _typed(source)


def _text_to_timestamp(source: Column, zone: str | None) -> str | None:
    """Text has too many shapes for a conversion of zones."""
    if zone is not None or not (source.data_type in _NUMBERS or _is_text(source)):
        return None
    return "CAST({0} AS BINARY)" if family(source) == "bytes" else SAME


def _from_timestamp(source: Column, zone: str) -> str:
    """A zero timestamp has no zone."""
    local = f"CONVERT_TZ({{0}},'+00:00',{text(zone)})"
    return f"CAST(IF(LEFT({{0}},4)='0000',{{0}},{local}) AS DATETIME({source.fraction}))"


def _to_timestamp(zone: str) -> str:
    """Times that the zone does not have (a day that is none, the hour lost in spring) are errors, as in an ALTER."""
    utc = f"CONVERT_TZ({{0}},{text(zone)},'+00:00')"
    # CONVERT_TZ moves an hour that the zone leaves out without a word, and then it does not come back as it was. Such a
    # value becomes text that is no time, which strict mode refuses with the value in its words.
    back = f"CONVERT_TZ({utc},'+00:00',{text(zone)})"
    return (
        f"CASE WHEN LEFT({{0}},10)='0000-00-00' THEN {{0}} WHEN {back}={{0}} THEN {utc}"
        " ELSE CONCAT('no such time: ',{0}) END"
    )


def _is_text(column: Column) -> bool:
    return family(column) in ("characters", "bytes")


def _typed(source: Column) -> str:
    """The value with its time type, which a literal in quotes has lost."""
    if source.data_type == "date":
        return "CAST({0} AS DATE)"
    if source.data_type == "time":
        return f"CAST({{0}} AS TIME({source.fraction}))"
    return f"CAST({{0}} AS DATETIME({source.fraction}))"
