"""Read a table's definition from the server.

What must stay true: one way for base tables and for temporary ones (which information_schema does not show), so
that a trial table and a real one with the same definition read the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vreplication.errors import Refused, Terminal
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import NO_SUCH_SCHEMA, NO_SUCH_TABLE, Session, SqlError
from vreplication.mysql.text import Token, tokens
from vreplication.schema.model import Column, Key, KeyPart, Table
from vreplication.schema.written import cut_at_commas

_TIME_TYPES = ("time", "datetime", "timestamp")
_STRING_TYPES = ("char", "varchar", "binary", "varbinary")
COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_WIDTHS: dict[str, int] = {}
_OCTETS = {"tiny": 255, "": 65_535, "medium": 16_777_215, "long": 4_294_967_295}


class Unreadable(Terminal):
    """A definition that is no text."""


def introspect(session: Session, schema: str, table: str) -> Table:
    """Read a base table. Raises Refused when it is not there, or not a table."""
    found = session.row(
        # MySQL caches these numbers for a day; MariaDB takes the hint for a comment.
        "SELECT /*+ SET_VAR(information_schema_stats_expiry=0) */ TABLE_TYPE, ENGINE, TABLE_ROWS, DATA_LENGTH,"
        " INDEX_LENGTH, CREATE_OPTIONS, TABLE_COLLATION, TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s",
        (schema, table),
    )
    if found is None:
        raise Refused(
            f"There is no table {schema}.{table}, or the user may not see it.",
            cure="Check the name (--table), the database of the URL, and the user's SELECT privilege.",
        )
    # A system-versioned one is read, and refused by name by the plan's check of features.
    if found[0] not in ("BASE TABLE", "SYSTEM VERSIONED"):
        raise Refused(f"{schema}.{table} is a {str(found[0]).lower()}, not a table.", cure="Name a base table.")
    # The names as they are stored: where names are folded, the binary log holds these and not what was typed.
    return _read(session, str(found[7]), str(found[8]), found[:7])


def base_tables(session: Session, without: Sequence[str], most: int) -> list[tuple[str, str]]:
    """(schema, name) of those that the user may see, by name; not of the schemas `without`."""
    holes = ",".join(["%s"] * len(without))
    sql = (
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE='BASE TABLE'"
        f" AND TABLE_SCHEMA NOT IN ({holes}) ORDER BY TABLE_SCHEMA, TABLE_NAME LIMIT {int(most)}"
    )
    return [(str(schema), str(table)) for schema, table in session.rows(sql, tuple(without))]


def read_columns(session: Session, schema: str, table: str) -> tuple[Column, ...]:
    """Of a table that is there, its columns alone."""
    name = qualified(schema, table)
    return _columns(session, name, _create_sql(session, name))


def introspect_temporary(session: Session, schema: str, table: str) -> Table:
    """Read a temporary table of this session."""
    return _read(session, schema, table, ("TEMPORARY", None, 0, 0, 0, "", None))


def read_create_sql(session: Session, schema: str, table: str) -> str:
    """SHOW CREATE TABLE, which also who holds LOCK TABLES on the table may ask for."""
    return _create_sql(session, qualified(schema, table))


def _read(session: Session, schema: str, table: str, facts: tuple[Any, ...]) -> Table:
    name = qualified(schema, table)
    create_sql = _create_sql(session, name)
    columns = _columns(session, name, create_sql)
    return Table(
        schema=schema,
        name=table,
        engine=str(facts[1] or _engine(create_sql)),
        columns=columns,
        keys=_read_keys(session, name, create_sql, is_temporary=facts[0] == "TEMPORARY"),
        create_sql=create_sql,
        estimated_rows=int(facts[2] or 0),
        data_bytes=int(facts[3] or 0),
        index_bytes=int(facts[4] or 0),
        is_partitioned="partitioned" in str(facts[5] or "").lower(),
        collation=str(facts[6] or ""),
        auto_increment=counter_of(create_sql) if any(c.is_auto_increment for c in columns) else None,
    )


def _create_sql(session: Session, name: str) -> str:
    """Raises Unreadable."""
    # Read as bytes: PyMySQL gives the connection up where it cannot decode them.
    found = session.bytes_rows(f"SHOW CREATE TABLE {name}")
    try:
        return bytes(found[0][1]).decode() if found else ""
    except UnicodeDecodeError:
        # MariaDB shows the DEFAULT of a binary column as it is.
        raise Unreadable(
            f"The definition of {name} has bytes that are no text, as a binary column's DEFAULT may, so it cannot be"
            " read.",
            cure="Take that DEFAULT off there (ALTER TABLE … ALTER COLUMN … DROP DEFAULT), and start again.",
        ) from None


def _engine(create_sql: str) -> str:
    found = re.search(r"\bENGINE=(\w+)", create_sql[create_sql.rfind("\n)") :])
    return found.group(1) if found else ""


def counter_of(create_sql: str) -> int:
    """AUTO_INCREMENT in a CREATE TABLE's options; 1 when it is not written."""
    # In the options alone: a column's comment may hold the same words.
    match = COUNTER.search(create_sql, create_sql.rfind("\n)"))
    return int(match.group().partition("=")[2]) if match else 1


def _columns(session: Session, name: str, create_sql: str) -> tuple[Column, ...]:
    expressions = generated_expressions(create_sql)
    # Of a temporary table MySQL shows those too that it has hidden behind indexes on expressions.
    written = {parts[0].value for parts in definitions(create_sql) if parts and parts[0].is_name}
    rows = [row for row in session.named_rows(f"SHOW FULL COLUMNS FROM {name}") if str(row["field"]) in written]
    widths = _widths_of(session, {charset for row in rows if (charset := _charset(row))})
    return tuple(_column(row, i, widths, expressions) for i, row in enumerate(rows, 1))


def _widths_of(session: Session, charsets: set[str]) -> dict[str, int]:
    """Bytes of a character at the most. They are a character set's own, so a process asks for them once."""
    if not charsets <= _WIDTHS.keys():
        found = session.rows("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")
        _WIDTHS.update({str(name): int(width) for name, width in found})
    return _WIDTHS


def _charset(row: dict[str, Any]) -> str | None:
    return charset_of(str(row["collation"])) if row["collation"] not in (None, "NULL") else None


def _column(row: dict[str, Any], ordinal: int, widths: dict[str, int], expressions: dict[str, str]) -> Column:
    name, column_type = str(row["field"]), str(row["type"])
    data_type = re.match(r"[A-Za-z0-9_]+(?: precision)?", column_type)
    kind = data_type.group().lower() if data_type else column_type.lower()
    extra = str(row["extra"] or "").upper()
    charset = _charset(row)
    is_nullable = row["null"] == "YES"
    generated = "virtual" if "VIRTUAL" in extra else "stored" if "STORED" in extra or "PERSISTENT" in extra else ""
    return Column(
        name=name,
        ordinal=ordinal,
        data_type=kind,
        column_type=column_type,
        is_nullable=is_nullable,
        # A label of an ENUM or SET may be called so, too.
        is_unsigned="unsigned" in column_type.lower().split("(")[-1] and kind not in ("enum", "set"),
        charset=charset,
        collation=row["collation"] if charset else None,
        generated=generated,
        is_invisible="INVISIBLE" in extra,
        is_auto_increment="AUTO_INCREMENT" in extra,
        # SHOW COLUMNS shows the default NULL like none: a column that may be NULL is taken to have that one.
        has_default=is_nullable or row["default"] is not None,
        default=None if row["default"] is None else str(row["default"]),
        expression=expressions.get(name.lower(), ""),
        **_sizes(kind, column_type, widths.get(charset or "", 1)),
    )


def charset_of(collation: str) -> str:
    """Character set of a collation, by its name."""
    return collation.split("_", 1)[0]


def _sizes(kind: str, column_type: str, width: int) -> dict[str, Any]:
    """length, characters, precision, scale, fraction and labels, as far as the type has them."""
    if kind in ("enum", "set"):
        return {"labels": tuple(t.value for t in tokens(column_type, backslash_escapes=True) if t.kind == "string")}
    numbers = [int(n) for n in re.findall(r"\d+", column_type.partition("(")[2].partition(")")[0])]
    if kind in _STRING_TYPES:
        characters = numbers[0] if numbers else 1
        return {"characters": characters, "length": characters * width}
    if match := re.fullmatch(r"(tiny|medium|long|)(blob|text)", kind):
        octets = _OCTETS[match.group(1)]
        return {"length": octets, "characters": octets // width}
    if kind in _TIME_TYPES:
        return {"fraction": numbers[0] if numbers else 0}
    if kind in ("decimal", "numeric", "float", "double", "bit", "vector"):
        return {
            "precision": numbers[0] if numbers else None,
            "scale": numbers[1] if len(numbers) > 1 else None,
        }
    return {}


def _read_keys(session: Session, name: str, create_sql: str, *, is_temporary: bool) -> tuple[Key, ...]:
    """MySQL 8.0 (8.0.36 for one) dies of SHOW INDEX of a temporary table with a key of a column and an expression."""
    if is_temporary:
        written = keys_written(create_sql)
        if any(key.has_expression for key in written):
            return written
    return _keys(session.named_rows(f"SHOW INDEX FROM {name}"))


def keys_written(create_sql: str) -> tuple[Key, ...]:
    """The keys of MySQL's SHOW CREATE TABLE, as SHOW INDEX tells them."""
    heads = ((definition, _opening(definition)) for definition in definitions(create_sql))
    return tuple(_key_written(create_sql, words, at) for words, at in heads if _is_key(words[:at]))


def _opening(words: list[Token]) -> int:
    return next((i for i, token in enumerate(words) if token.is_punct("(")), 0)


def _is_key(head: list[Token]) -> bool:
    """What stands before the parentheses: PRIMARY KEY, or words and a name. FOREIGN KEY stands behind a CONSTRAINT."""
    return bool(head) and head[0].is_word("PRIMARY", "UNIQUE", "FULLTEXT", "SPATIAL", "KEY")


def _key_written(create_sql: str, words: list[Token], at: int) -> Key:
    kind, last = words[0].text.upper(), words[at - 1]
    inside = _balanced(words[at:])
    parts = tuple(_part_written(create_sql, part) for part in cut_at_commas(inside[1:-1]))
    # As SHOW INDEX has it: a spatial key is of the 32 bytes of a rectangle.
    parts = tuple(replace(part, prefix=32) for part in parts) if kind == "SPATIAL" else parts
    return Key(
        name="PRIMARY" if kind == "PRIMARY" else last.value,
        parts=parts,
        is_unique=kind in ("PRIMARY", "UNIQUE"),
        is_primary=kind == "PRIMARY",
        has_expression=any(part.expression for part in parts),
        index_type=kind if kind in ("FULLTEXT", "SPATIAL") else "BTREE",
        is_hidden=any(token.is_word("INVISIBLE") for token in words[at + len(inside) :]),
    )


def _part_written(create_sql: str, words: list[Token]) -> KeyPart:
    """`c`, `c`(9) or (expression), and DESC, which does not matter here."""
    if words[0].is_punct("("):
        inside = _balanced(words)
        text = create_sql[inside[0].end : inside[-1].start]
        # SHOW INDEX escapes its quotes once more.
        return KeyPart(column="", expression=re.sub(r"([\\'])", r"\\\1", text))
    prefix = int(words[2].text) if len(words) > 2 and words[1].is_punct("(") else None
    return KeyPart(column=words[0].value, prefix=prefix)


def _keys(rows: list[dict[str, Any]]) -> tuple[Key, ...]:
    """SHOW INDEX has a row for each part, in key order."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(str(row["key_name"]), []).append(row)
    return tuple(_key(name, parts) for name, parts in by_name.items())


def _key(name: str, rows: list[dict[str, Any]]) -> Key:
    return Key(
        name=name,
        parts=tuple(map(_part, rows)),
        is_unique=int(rows[0]["non_unique"]) == 0,
        is_primary=name == "PRIMARY",
        has_expression=any(row.get("expression") for row in rows),
        index_type=str(rows[0]["index_type"]).upper(),
        # MySQL says whether it is visible, MariaDB whether it is ignored.
        is_hidden=rows[0].get("visible") == "NO" or rows[0].get("ignored") == "YES",
    )


def _part(row: dict[str, Any]) -> KeyPart:
    prefix = row["sub_part"]
    return KeyPart(
        column=str(row["column_name"] or ""),
        prefix=None if prefix in (None, "NULL") else int(prefix),
        expression=str(row.get("expression") or ""),
    )


def generated_expressions(create_sql: str) -> dict[str, str]:
    """Lower-case name of each generated column → its expression, out of SHOW CREATE TABLE."""
    found = {}
    for definition in definitions(create_sql):
        expression = _expression(create_sql, definition)
        if expression is not None and definition[0].kind == "quoted":
            found[definition[0].value.lower()] = expression
    return found


def _expression(create_sql: str, definition: list[Token]) -> str | None:
    """Text of `GENERATED ALWAYS AS ( … )` as it is written, or None: to MySQL `substr (` is no call of a function."""
    for i, token in enumerate(definition[:-1]):
        if token.is_word("AS") and i and definition[i - 1].is_word("ALWAYS") and definition[i + 1].is_punct("("):
            inside = _balanced(definition[i + 1 :])
            return create_sql[inside[0].start : inside[-1].end]
    return None


def check_expressions(create_sql: str) -> list[str]:
    """Of all CHECK constraints, those that stand behind a column included."""
    found = []
    for definition in definitions(create_sql):
        for i, token in enumerate(definition[:-1]):
            if token.is_word("CHECK") and definition[i + 1].is_punct("("):
                inside = _balanced(definition[i + 1 :])
                found.append(create_sql[inside[0].start : inside[-1].end])
    return found


def _balanced(parts: list[Token]) -> list[Token]:
    """From an opening parenthesis to the one that closes it."""
    depth = 0
    for i, token in enumerate(parts):
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0:
            return parts[: i + 1]
    return parts


@functools.lru_cache(64)
def definitions(create_sql: str) -> list[list[Token]]:
    """The comma-separated definitions (columns, keys, constraints) between a CREATE TABLE's parentheses.

    Nobody changes what it returns: the same few tables are read again and again.
    """
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens(create_sql):
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0 and token.is_punct(")"):
            break
        if depth == 1 and token.is_punct(","):
            found.append([])
        elif depth > 1 or (depth == 1 and not (token.is_punct("(") and found == [[]])):
            found[-1].append(token)
    return found


def size_of(session: Session, schema: str, table: str) -> int | None:
    """Bytes of a table's rows and indexes, as the server counts its pages; None: it is not there."""
    found = session.row(
        "SELECT /*+ SET_VAR(information_schema_stats_expiry=0) */ DATA_LENGTH + INDEX_LENGTH"
        " FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s",
        (schema, table),
    )
    return None if found is None else int(found[0] or 0)


def tables_of(session: Session, schema: str) -> list[str]:
    """Names of the schema's tables, in order; neither views nor MariaDB's sequences, which it lists among them."""
    sql = (
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_TYPE NOT IN"
        " ('VIEW','SYSTEM VIEW','SEQUENCE') ORDER BY TABLE_NAME"
    )
    return [str(name) for (name,) in session.rows(sql, (schema,))]


def exists(session: Session, schema: str, table: str) -> bool:
    """True when the name is taken by a table or a view."""
    try:
        session.rows(f"SHOW CREATE TABLE {qualified(schema, table)}")
    except SqlError as error:
        # Any other refusal, a missing right say, does not tell that the name is free.
        if error.code in (NO_SUCH_TABLE, NO_SUCH_SCHEMA):
            return False
        raise
    return True
