"""The definition that a table has on another server, of the same flavor or of the other one.

What must stay true: what the target cannot hold as it is refuses by name, and what is written otherwise there is listed
in `changes`; nothing is left to a default that differs between servers, so every text column says its character set and
collation; the table that comes out is compared with the source's, column by column and key by key (`carried.compare`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import Server
from vreplication.mysql.text import tokens
from vreplication.schema.expressions import introduced, is_json_check
from vreplication.schema.literals import GEOMETRIES, INTEGERS, PLAIN_TEXT, is_character
from vreplication.schema.model import Column, Table
from vreplication.schema.shadow import is_generated_name
from vreplication.schema.written import CheckText, Clause, ColumnText, KeyText, Option, TableText, read_table

COLLATIONS_APART = frozenset(
    {
        "big5_chinese_ci", "tis620_thai_ci", "ucs2_croatian_ci", "utf16_croatian_ci", "utf32_croatian_ci",
        "utf8mb3_croatian_ci", "utf8mb4_croatian_ci",
    }
)  # fmt: skip
"""Of the 219 that both flavors have: those that sort or compare otherwise on the other one (measured, all characters
below U+30000 and 7,000 words)."""
_NOT_ON_MARIADB = re.compile(r"_0900_|^gb18030_")
_NOT_ON_MYSQL = re.compile(r"_uca1400_|_nopad_|_mysql561_|_myanmar_ci$|_thai_520_w2$")
_WIDTHS = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
"""Display widths that MariaDB gives: signed, unsigned."""
_LONG = frozenset(f"{size}{kind}" for size in ("tiny", "", "medium", "long") for kind in ("text", "blob"))
"""Types whose default is an expression on MySQL; JSON and geometries, too."""
_JSON_ON_MARIADB = "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_SHARED_OPTIONS = frozenset(
    {
        "ENGINE", "AUTO_INCREMENT", "DEFAULT CHARSET", "COLLATE", "ROW_FORMAT", "KEY_BLOCK_SIZE", "COMMENT", "MIN_ROWS",
        "MAX_ROWS", "AVG_ROW_LENGTH", "PACK_KEYS", "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES",
        "CHECKSUM", "DELAY_KEY_WRITE",
    }
)  # fmt: skip
_LOSABLE_OPTIONS = frozenset(
    {
        "PAGE_CHECKSUM", "TRANSACTIONAL", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "COMPRESSION", "TABLESPACE",
        "AUTOEXTEND_SIZE",
    }
)  # fmt: skip
"""What says how a table is stored and nothing of what is in it."""
_OF_STORAGE = frozenset({"KEY_BLOCK_SIZE", "TABLESPACE", "COMPRESSION", "AUTOEXTEND_SIZE"})
"""Options that a temporary table may not have; ROW_FORMAT=COMPRESSED neither."""
CHANGE_IT = "Change the column by an online DDL on the source first."


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The CREATE TABLE for the target.

    changes: sentences on what is not as on the source. trial_sql: the same as a temporary table, which may not
    have all. untried: what is only seen when the table is made, as words.
    """

    create_sql: str
    changes: tuple[str, ...]
    trial_sql: str = ""
    untried: tuple[str, ...] = ()


def carry(table: Table, source: Server, target: Server, *, schema: str, name: str) -> Carried:
    """The definition of `table` as schema.name of the target. Raises Refused, with column or feature and the cure."""
    text = read_table(table.create_sql)
    _refuse_features(table, text)
    if not source.is_mariadb:
        _refuse_garbled(table)
    carrier = _Carrier(table=table, text=text, name=name, source=source, target=target)
    made = carrier.carried()
    trial = replace(
        made,
        # A temporary table can have none of these, and a real one is no trial: a plan touches nothing.
        keys=tuple(key for key in made.keys if not key.kind.startswith("FULLTEXT")),
        options=tuple(option for option in made.options if not _is_of_storage(option)),
        partitions="",
    )
    place = qualified(schema, name)
    return Carried(
        create_sql=_sql("TABLE", place, made),
        changes=tuple(carrier.changes),
        trial_sql=_sql("TEMPORARY TABLE", place, trial),
        untried=tuple(_untried(made)),
    )


def _sql(kind: str, place: str, text: TableText) -> str:
    definitions = ",\n  ".join(map(str, (*text.columns, *text.keys, *text.checks)))
    options = " ".join(map(str, text.options))
    return f"CREATE {kind} {place} (\n  {definitions}\n) {options}{' ' if text.partitions else ''}{text.partitions}"


def _is_of_storage(option: Option) -> bool:
    return option.name in _OF_STORAGE or (option.name, option.value.upper()) == ("ROW_FORMAT", "COMPRESSED")


def _untried(text: TableText) -> Iterator[str]:
    yield from (f"FULLTEXT KEY {key.name}" for key in text.keys if key.kind.startswith("FULLTEXT"))
    yield from (str(option) for option in text.options if _is_of_storage(option))
    if text.partitions:
        yield "partitions"


# -- what refuses on any target ---------------------------------------------------------------------------------------


def _refuse_features(table: Table, text: TableText) -> None:
    where = f"{table.schema}.{table.name}"
    if table.engine.lower() != "innodb":
        raise Refused(
            f"{where} is {table.engine}, not InnoDB.", cure="Make it InnoDB first: ALTER TABLE … ENGINE=InnoDB."
        )
    for other in text.others:
        _refuse_definition(where, other)
    options = {option.name: option.value.strip("'").upper() for option in text.options}
    if (
        options.get("ENCRYPTION", "N") != "N"
        or options.get("ENCRYPTED", "NO") != "NO"
        or "ENCRYPTION_KEY_ID" in options
    ):
        raise Refused(
            f"{where} is encrypted; its option would be lost or need the source's keys.",
            cure="Take its encryption options off and move it, or move it by a dump.",
        )
    for name in ("DATA DIRECTORY", "INDEX DIRECTORY", "CONNECTION", "SECONDARY_ENGINE", "SEQUENCE"):
        if name in options:
            raise Refused(
                f"{where} has the option {name}, which only its own server can hold.", cure="Take it off first."
            )
    if {"VERSIONING", "SYSTEM"} & {word.upper() for word in text.unread}:
        raise Refused(
            f"{where} is system-versioned; a copy has no history.", cure="Drop its versioning, or move it by a dump."
        )
    if text.unread:
        raise Refused(f"The table option {text.unread[0]} of {where} is not known.", cure="Take it off first.")


def _refuse_definition(where: str, definition: str) -> None:
    words = [token.text.upper() for token in tokens(definition)]
    if "FOREIGN" in words:
        raise Refused(
            f"{where} has a foreign key, which would point into the wrong server: {definition}.",
            cure="Drop it first, and add it on the target when all its tables have been moved.",
        )
    if "PERIOD" in words:
        raise Refused(f"{where} has a period.", cure="Drop it first, or move the table by a dump.")
    raise Refused(f"A definition of {where} is not known: {definition}.", cure="Drop it first.")


# -- piece by piece ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Carrier:
    """One table on its way; `changes` grows meanwhile."""

    table: Table
    text: TableText
    name: str
    source: Server
    target: Server

    def __post_init__(self) -> None:
        self.changes = []
        self.is_across = self.source.is_mariadb != self.target.is_mariadb

    changes: list[str] = None  # type: ignore[assignment]
    is_across: bool = False

    def carried(self) -> TableText:
        columns, checks = [], []
        for column in self.text.columns:
            made, check = self._column(self.table.column(column.name), column)
            columns.append(made)
            checks += [check] if check else []
        return TableText(
            columns=tuple(columns),
            keys=tuple(self._key(key) for key in self.text.keys),
            checks=(*self._checks(), *checks),
            others=(),
            options=tuple(self._options()),
            partitions=self._partitions(),
            unread=(),
        )

    def _told(self, sentence: str) -> None:
        self.changes.append(sentence)

    # columns

    def _column(self, column: Column, text: ColumnText) -> tuple[ColumnText, CheckText | None]:
        """And its CHECK, where that has to be the table's."""
        text = _with_charset(column, text)
        _refuse_sequence(column, text)
        if not self.is_across:
            _refuse_compressed(column, text)
            return text, None
        self._refuse_column(column, text)
        self._tell_axes(column)
        return self._to_mysql(column, text) if self.source.is_mariadb else (self._to_mariadb(column, text), None)

    def _tell_axes(self, column: Column) -> None:
        """Both have the same bytes, longitude first; ST_AsText of them is another text (measured)."""
        if column.data_type in GEOMETRIES:
            self._told(
                f"Column {column.name}: of values with a geographic SRID (4326) MySQL's functions take latitude first,"
                " MariaDB's longitude; the application has to exchange them."
            )

    def _refuse_column(self, column: Column, text: ColumnText) -> None:
        """What the other flavor does not have."""
        flavor = "MySQL" if self.source.is_mariadb else "MariaDB"
        _refuse_compressed(column, text)
        if column.column_type == "year(2)":
            raise Refused(
                f"Column {column.name} is year(2), which MySQL does not have.",
                cure="Make it YEAR by a plain ALTER TABLE on the source first.",
            )
        if column.data_type in PLAIN_TEXT or column.data_type == "vector":
            raise Refused(
                f"Column {column.name} is {column.column_type}, which {flavor} does not have.", cure=CHANGE_IT
            )
        if text.get("srid"):
            raise Refused(
                f"Column {column.name} has {text.get('srid')}, which {flavor} does not have.",
                cure="Take the SRID off the column first.",
            )
        missing = _NOT_ON_MYSQL if self.source.is_mariadb else _NOT_ON_MARIADB
        if column.collation and missing.search(column.collation):
            raise Refused(
                f"Column {column.name} has the collation {column.collation}, which {flavor} does not have.",
                cure="Choose one that both have (utf8mb4_unicode_520_ci, say) by an online DDL on the source first.",
            )
        if column.generated and column.data_type == "json":
            raise Refused(
                f"The generated column {column.name} is JSON, which {flavor} writes otherwise.", cure=CHANGE_IT
            )
        if _is_apart(column.collation) and any(k.is_unique and column.name in k.columns for k in self.table.keys):
            raise Refused(
                f"Column {column.name} is in a unique key, and {column.collation} does not tell the same values apart"
                f" on {flavor}.",
                cure=CHANGE_IT,
            )

    def _to_mariadb(self, column: Column, text: ColumnText) -> ColumnText:
        name = column.name
        if column.data_type == "json":
            self._told(f"Column {name}: JSON becomes LONGTEXT with CHECK (json_valid({name})), as MariaDB has it.")
            text = _changed(text, "type", _JSON_ON_MARIADB)
            text = _with(text, "check", f"CHECK (json_valid({ident(name)}))")
        if column.data_type == "geomcollection":
            text = _changed(text, "type", "geometrycollection")
        if text.get("storage"):
            self._told(f"Column {name}: {text.get('storage')} is left out; it says nothing for InnoDB.")
            text = _without(text, "storage")
        if column.generated and "NOT" in text.get("null").upper():
            self._told(f"Column {name}: NOT NULL is left out, which MariaDB does not take for a generated column.")
            text = _without(text, "null")
        if column.generated:
            text = _changed(text, "generated", _plain_strings(text.get("generated")))
        return self._default_to_mariadb(column, text)

    def _default_to_mariadb(self, column: Column, text: ColumnText) -> ColumnText:
        default = text.get("default")
        if re.match(r"DEFAULT 0x", default, re.I) and any(b > 126 or b < 32 for b in bytes.fromhex(default[10:])):
            raise Refused(
                f"The default of {column.name} holds bytes that are no text, which MariaDB shows garbled.",
                cure="Drop the column's default first.",
            )
        is_hidden = column.is_invisible and not column.is_nullable and not default and not column.generated
        if is_hidden and not column.is_auto_increment:
            raise Refused(
                f"Column {column.name} is INVISIBLE and NOT NULL without a default, which MariaDB does not take.",
                cure="Give it a default first.",
            )
        return _changed(text, "default", _plain_strings(default)) if default else text

    def _to_mysql(self, column: Column, text: ColumnText) -> tuple[ColumnText, CheckText | None]:
        name, check = column.name, text.get("check")
        # As MariaDB makes a column that is declared as JSON. LONGTEXT under another collation stays text, which its
        # keys and comparisons go by.
        if is_json_check(name, check) and column.data_type == "longtext" and column.collation == "utf8mb4_bin":
            self._refuse_json(column)
            self._told(f"Column {name}: LONGTEXT with CHECK (json_valid({name})) becomes JSON, as MySQL has it.")
            # MySQL's JSON takes neither a character set nor a collation.
            text = _without(_changed(text, "type", "json"), "check", "charset", "collate")
            return self._default_to_mysql(text, is_long=True), None
        text = _changed(text, "type", self._type_to_mysql(column, text.get("type")))
        is_long = column.data_type in _LONG or column.data_type in GEOMETRIES
        text = self._default_to_mysql(text, is_long=is_long)
        if not check:
            return text, None
        self._told(f"Column {name}: its CHECK becomes one of the table's.")
        return _without(text, "check"), CheckText(name="", expression=check[check.index("(") :])

    def _refuse_json(self, column: Column) -> None:
        if column.generated:
            raise Refused(f"The generated column {column.name} is JSON, which MySQL writes otherwise.", cure=CHANGE_IT)
        if key := next((key.name for key in self.table.keys if column.name in key.columns), None):
            raise Refused(
                f"Column {column.name} is JSON and in the key {key}, which MySQL does not take.",
                cure="Drop the key first.",
            )

    def _type_to_mysql(self, column: Column, text: str) -> str:
        """Without the display width that MySQL has given up; it keeps tinyint(1) and ZEROFILL's."""
        kind = column.data_type
        if kind == "year":
            return "year"
        match = re.match(r"\w+\((\d+)\)", text)
        if kind not in INTEGERS or not match or column.is_zerofill:
            return text
        if kind == "tinyint" and match[1] == "1" and not column.is_unsigned:
            return text
        if int(match[1]) != _WIDTHS[kind][column.is_unsigned]:
            self._told(f"Column {column.name}: the display width of {column.column_type} is left out.")
        return kind + text[match.end() :]

    def _default_to_mysql(self, text: ColumnText, *, is_long: bool) -> ColumnText:
        """What is no literal and not the current time stands in parentheses there."""
        default = text.get("default")
        value = default[len("DEFAULT ") :]
        if not default or value.upper() == "NULL" or value.startswith("("):
            return text
        is_plain = re.fullmatch(
            r"[-+]?[\d.]+(?:e[-+]?\d+)?|[bx]?'.*'|current_timestamp(?:\(\d*\))?", value, re.I | re.S
        )
        if is_plain and not is_long:
            return text
        return _changed(text, "default", f"DEFAULT ({value})")

    # keys and constraints

    def _key(self, key: KeyText) -> KeyText:
        if not self.is_across:
            return key
        if key.has_expression:
            raise Refused(
                f"The key {key.name} is over an expression, which MariaDB does not have.",
                cure="Make it a generated column with a key over it.",
            )
        if "USING HASH" in key.options.upper() and self.source.is_mariadb:
            raise Refused(
                f"The unique key {key.name} is over whole columns of text, which MySQL does not have.",
                cure="Give it a prefix, or make its columns VARCHAR.",
            )
        if "PARSER" in key.options.upper():
            raise Refused(
                f"The key {key.name} has a parser, which may not be on the target.", cure="Drop the key first."
            )
        hidden = ("IGNORED", "INVISIBLE") if self.source.is_mariadb else ("INVISIBLE", "IGNORED")
        if hidden[0] in key.options.split():
            self._told(f"Key {key.name}: {hidden[0]} becomes {hidden[1]}.")
        return replace(key, options=" ".join(hidden[1] if w == hidden[0] else w for w in key.options.split(" ")))

    def _checks(self) -> Iterator[CheckText]:
        for check in self.text.checks:
            if not check.is_enforced and self.target.is_mariadb:
                self._told(f"CHECK {check.name} is left out: it is NOT ENFORCED, which MariaDB does not have.")
            elif not self.target.is_mariadb:
                yield replace(check, name=self._name_on_mysql(check.name))
            else:
                yield replace(check, expression=_plain_strings(check.expression)) if self.is_across else check

    def _name_on_mysql(self, name: str) -> str:
        """A name that a server gave follows the table there: it is made from the name under which the table is made."""
        if self.source.is_mariadb and re.fullmatch(r"CONSTRAINT_\d+", name):
            self._told(f"CHECK {name} takes a name from MySQL, where such names are unique in a schema.")
            return ""
        if is_generated_name(name, self.table.name):
            return f"{self.name}_chk_{name.rpartition('_')[2]}"
        return name

    def _partitions(self) -> str:
        if self.text.partitions and self.is_across:
            raise Refused(
                f"{self.table.schema}.{self.table.name} is partitioned, which the two flavors write otherwise.",
                cure="Take its partitions off first: ALTER TABLE … REMOVE PARTITIONING.",
            )
        return self.text.partitions

    # options

    def _options(self) -> Iterator[Option]:
        for option in self._written_options():
            if option.name == "AUTO_INCREMENT" and self.table.auto_increment is None:
                continue
            # A column under it has been refused by now, so nothing that is compared or sorted goes by it.
            if option.name == "COLLATE" and self._lacks(option.value):
                self._told(f"The table's default collation {option.value} becomes the target's own; no column has it.")
            elif not self.is_across or option.name in _SHARED_OPTIONS:
                yield option
            elif option.name in _LOSABLE_OPTIONS | {"ENCRYPTION", "ENCRYPTED"}:
                self._told(f"The table's option {option} is left out.")
            else:
                raise Refused(f"The table option {option} is not known to the target.", cure="Take it off first.")

    def _written_options(self) -> Iterator[Option]:
        """And the collation, which MySQL leaves out where it is its character set's own; MariaDB 11.5 has others."""
        is_left_out = self.table.collation and not any(option.name == "COLLATE" for option in self.text.options)
        for option in self.text.options:
            yield option
            if option.name == "DEFAULT CHARSET" and is_left_out:
                yield Option(name="COLLATE", value=self.table.collation)

    def _lacks(self, collation: str) -> bool:
        missing = _NOT_ON_MYSQL if self.source.is_mariadb else _NOT_ON_MARIADB
        return self.is_across and missing.search(collation) is not None


def _is_apart(collation: str | None) -> bool:
    return collation is not None and (collation in COLLATIONS_APART or is_of_another_unicode(collation))


def is_of_another_unicode(collation: str) -> bool:
    """MariaDB has MySQL's names since 11.4.5, by a later version's weights (measured, below U+1F000)."""
    return re.search(r"_0900_a[is]_", collation) is not None


def _refuse_sequence(column: Column, text: ColumnText) -> None:
    """Who has one of that name on the target has it at another number: it would give out what is taken."""
    if any(token.is_word("NEXTVAL", "LASTVAL", "SETVAL") for token in tokens(text.get("default"))):
        raise Refused(
            f"The default of {column.name} is a sequence's next value, and sequences do not move.",
            cure="Make it AUTO_INCREMENT, or drop its default.",
        )


def _refuse_compressed(column: Column, text: ColumnText) -> None:
    """Their values stand compressed in the log, which we do not read."""
    if text.get("compressed"):
        raise Refused(f"Column {column.name} is COMPRESSED.", cure="Take COMPRESSED off the column first.")


def _with_charset(column: Column, text: ColumnText) -> ColumnText:
    """As the server has resolved them, whatever was written."""
    if not column.charset or not (is_character(column) or column.labels):
        return text
    text = _without(text, "charset", "collate")
    said = Clause(kind="charset", text=f"CHARACTER SET {column.charset} COLLATE {column.collation}")
    return replace(text, clauses=(text.clauses[0], said, *text.clauses[1:]))


def _changed(text: ColumnText, kind: str, new: str) -> ColumnText:
    return replace(text, clauses=tuple(replace(c, text=new) if c.kind == kind else c for c in text.clauses))


def _without(text: ColumnText, *kinds: str) -> ColumnText:
    return replace(text, clauses=tuple(clause for clause in text.clauses if clause.kind not in kinds))


def _with(text: ColumnText, kind: str, new: str) -> ColumnText:
    return replace(text, clauses=(*text.clauses, Clause(kind=kind, text=new)))


def _plain_strings(sql: str) -> str:
    """Without the character sets before strings: MariaDB garbles backslashes behind them."""
    for word, _ in reversed(introduced(sql)):
        if not word.is_word("_BINARY"):
            sql = sql[: word.start] + sql[word.end :]
    return sql


def _refuse_garbled(table: Table) -> None:
    """MySQL shows a letter of an expression that is not in UTF-8 as a question mark."""
    for word, string in introduced(table.create_sql):
        if not word.is_word("_UTF8MB4", "_UTF8MB3") and ("?" in string.value or not string.value.isascii()):
            raise Refused(
                f"The definition of {table.name} holds the text {word.text}{string.text}, which MySQL may not show"
                " as it is.",
                cure="Drop the generated column, default or CHECK that holds it, and add it on the target.",
            )
