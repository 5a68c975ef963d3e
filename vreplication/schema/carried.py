"""A definition that was carried over, tried on the other server and compared with what it was carried from.

What must stay true: nothing is left of a trial; what is not as on the source refuses, apart from what `carry` lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.text import Token, tokens
from vreplication.schema.carry import CHANGE_IT, Carried
from vreplication.schema.expressions import introduced, is_json_check
from vreplication.schema.introspect import introspect_temporary
from vreplication.schema.model import Column, Key, Table
from vreplication.schema.written import CheckText, ColumnText, TableText, read_table

# Access denied: to the schema, to the table, for want of a privilege.
_NO_TABLE = frozenset({1044, 1142, 1227})


def try_carried(session: Session, table: Table, carried: Carried, *, schema: str, name: str) -> Table:
    """Make it on the target as a temporary table, and compare. The table; it lacks what is in `carried.untried`.

    Raises Refused with the server's words, or with what is not as on the source.
    """
    try:
        session.execute_raw(carried.trial_sql)
    except SqlError as error:
        raise _refusal(error, table, schema) from None
    try:
        made = introspect_temporary(session, schema, name)
    finally:
        # Where the connection is lost the server drops it with the session.
        with contextlib.suppress(VReplicationError):
            session.execute_raw(f"DROP TEMPORARY TABLE {qualified(schema, name)}")
    compare(table, made, is_trial=True)
    return made


def _refusal(error: SqlError, table: Table, schema: str) -> Refused:
    if error.code in _NO_TABLE:
        return Refused(
            f"The definition cannot be tried on the target: {error.message}",
            cure=f"GRANT CREATE TEMPORARY TABLES ON {ident(schema)}.* TO the user.",
        )
    words = error.message
    column = next((c.name for c in table.columns if c.collation and f"'{c.collation}'" in words), None)
    what = f"Column {column}: " if column else ""
    return Refused(f"{what}the target does not take the definition of {table.name}: {words}", cure=CHANGE_IT)


def compare(source: Table, made: Table, *, is_trial: bool = False) -> None:
    """Raises Refused where a table that was made from `carry` is not as its source, apart from what `carry` lists.

    is_trial: without what a temporary table cannot have.
    """
    if differing := next(_differences(source, made, is_trial=is_trial), None):
        raise Refused(
            f"The definition of {source.name} comes out otherwise on the target: {differing}.",
            cure="Make both servers' settings alike, or change the definition on the source first.",
        )


def _differences(source: Table, made: Table, *, is_trial: bool) -> Iterator[str]:
    before, after = (_without_json_checks(read_table(table.create_sql)) for table in (source, made))
    if [column.name for column in source.columns] != [column.name for column in made.columns]:
        yield f"its columns are {', '.join(column.name for column in made.columns)}"
        return
    for column, other in zip(source.columns, made.columns, strict=True):
        mine, theirs = before.column(column.name), after.column(other.name)
        for what, a, b in _column_facts(column, other, mine, theirs):
            if a != b:
                yield f"{what} of column {column.name} is {b}, not {a}"
    # A temporary table cannot have FULLTEXT (`carry`); the real one is compared with it once more when it is made.
    wanted = {_key_facts(key) for key in source.keys if not (is_trial and key.index_type == "FULLTEXT")}
    if wanted != (there := {_key_facts(key) for key in made.keys}):
        yield f"the key {min(str(key[0]) for key in wanted ^ there)} differs"
    # Counted, not compared: each flavor writes an expression in its own way. What one does not enforce `carry` lists.
    enforced = [sum(check.is_enforced for check in text.checks) for text in (before, after)]
    if enforced[0] != enforced[1]:
        yield f"it has {enforced[1]} CHECK constraints, not {enforced[0]}"


def _without_json_checks(text: TableText) -> TableText:
    """CHECK constraints of columns with the table's, but for those that are MariaDB's JSON."""
    own = [(column, column.get("check")) for column in text.columns if column.get("check")]
    more = [CheckText(name="", expression=sql) for column, sql in own if not is_json_check(column.name, sql)]
    return replace(text, checks=(*text.checks, *more))


def _column_facts(a: Column, b: Column, mine: ColumnText, theirs: ColumnText) -> Iterator[tuple[str, object, object]]:
    is_json = "json" in (a.data_type, b.data_type)
    yield "type", _type(a, is_json=is_json), _type(b, is_json=is_json)
    if not is_json:
        yield "collation", a.collation, b.collation
    # MariaDB takes no NOT NULL for a generated column, so `carry` leaves it out there.
    if not a.generated:
        yield "NULL", a.is_nullable, b.is_nullable
        yield "default", _default(mine, a), _default(theirs, b)
    yield "generation", a.generated, b.generated
    yield "INVISIBLE", a.is_invisible, b.is_invisible
    yield "AUTO_INCREMENT", a.is_auto_increment, b.is_auto_increment
    yield "ON UPDATE", bool(mine.get("on update")), bool(theirs.get("on update"))
    yield "comment", mine.get("comment"), theirs.get("comment")


def _type(column: Column, *, is_json: bool) -> object:
    """What decides which values it holds."""
    if is_json:
        # MariaDB has no type of that name: there it is LONGTEXT with a CHECK, which is left out of both sides' CHECKs.
        return "json" if column.data_type in ("json", "longtext") else column.column_type
    # The same type: MySQL shows the short name, MariaDB the long one.
    kind = "geometrycollection" if column.data_type == "geomcollection" else column.data_type
    size = (column.characters, column.length, column.precision, column.scale, column.fraction)
    return (kind, *size, column.labels, column.is_unsigned, column.is_zerofill)


def _key_facts(key: Key) -> tuple[object, ...]:
    # MariaDB tells no expression, and MySQL's is carried as it is.
    return key.name, tuple((part.column.lower(), part.prefix) for part in key.parts), key.is_unique, key.index_type


def _default(text: ColumnText, column: Column) -> object:
    """As both flavors write it: `(_utf8mb4'a')` and `'a'`, `current_timestamp()` and `CURRENT_TIMESTAMP`, '1' and 1.

    Bytes as 0x4142 (MySQL), 'AB' (MariaDB) and x'4142' (MariaDB 11.8).
    """
    clause = text.get("default")
    introducers = {word.start for word, _ in introduced(clause)}
    found = [token for token in tokens(clause)[1:] if token.start not in introducers]
    while len(found) > 1 and found[0].is_punct("(") and _closes_at(found) == len(found) - 1:
        found = found[1:-1]
    values = [_value(token) for token in found]
    if values[:1] == ["-"] and len(values) == 2:
        values = ["-" + values[1]]
    if values[:1] == ["current_timestamp"]:
        return [value for value in values if value not in ("(", ")")]
    if values in ([], ["null"]):
        # MySQL prints no DEFAULT NULL behind a TEXT or BLOB, MariaDB does: where a column may be NULL both are the
        # same.
        return None if column.is_nullable else values
    return values


def _closes_at(found: list[Token]) -> int:
    depth = 0
    for i, token in enumerate(found):
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0:
            return i
    return -1


def _value(token: Token) -> str:
    if token.kind == "word":
        return token.text.lower()
    if token.kind == "number" and token.text[:2].lower() == "0x":
        return bytes.fromhex(token.text[2:]).decode("latin-1")
    if token.kind == "string" and token.text[:1] in "xX":
        return bytes.fromhex(token.value).decode("latin-1")
    return token.value
