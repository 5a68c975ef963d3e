"""A CREATE TABLE as SHOW CREATE TABLE writes it, in pieces that can be put together again otherwise.

What must stay true: nothing of the text is lost without a word: each definition, clause and option is in exactly one
piece, those in `/*! … */` included; a word that nobody knows stays in the clause where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.mysql.quoting import ident
from vreplication.mysql.text import Token, tokens

_CLAUSES = {
    "CHARACTER": "charset", "COLLATE": "collate", "GENERATED": "generated", "VIRTUAL": "kind", "STORED": "kind",
    "PERSISTENT": "kind", "NOT": "null", "NULL": "null", "INVISIBLE": "invisible", "DEFAULT": "default",
    "ON": "on update", "AUTO_INCREMENT": "auto_increment", "COMMENT": "comment", "CHECK": "check", "SRID": "srid",
    "COMPRESSED": "compressed", "REF_SYSTEM_ID": "srid", "WITHOUT": "versioning", "STORAGE": "storage",
    "COLUMN_FORMAT": "storage", "ENGINE_ATTRIBUTE": "attribute", "SECONDARY_ENGINE_ATTRIBUTE": "attribute",
}  # fmt: skip
_CONTINUED = {"NULL": ("NOT", "DEFAULT"), "AUTO_INCREMENT": ("DEFAULT",)}
"""Words that begin no clause behind these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A piece of a column's definition. kind: "type", or one of `_CLAUSES`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnText:
    """A column's definition, clause by clause."""

    name: str
    clauses: tuple[Clause, ...]

    def get(self, kind: str) -> str:
        """Text of the clause; '' where there is none."""
        return next((clause.text for clause in self.clauses if clause.kind == kind), "")

    def __str__(self) -> str:
        return " ".join((ident(self.name), *(clause.text for clause in self.clauses if clause.text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyText:
    """A key. options: what stands behind its columns."""

    kind: str
    """'PRIMARY KEY', 'UNIQUE KEY', 'KEY', 'FULLTEXT KEY', …"""
    name: str
    parts: str
    """With their parentheses."""
    options: str
    has_expression: bool
    columns: tuple[str, ...]

    def __str__(self) -> str:
        name = f" {ident(self.name)}" if self.name else ""
        return f"{self.kind}{name} {self.parts}{' ' if self.options else ''}{self.options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckText:
    """A CHECK constraint. name: '' where it has none of its own. expression: with its parentheses."""

    name: str
    expression: str
    is_enforced: bool = True

    def __str__(self) -> str:
        named = f"CONSTRAINT {ident(self.name)} " if self.name else ""
        return f"{named}CHECK {self.expression}{'' if self.is_enforced else ' NOT ENFORCED'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A table option: name in upper case (as DEFAULT CHARSET), value as written."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableText:
    """others: definitions that are neither column, key nor CHECK (foreign keys, periods). partitions: with its words.

    unread: words among the options that are none we know the shape of.
    """

    columns: tuple[ColumnText, ...]
    keys: tuple[KeyText, ...]
    checks: tuple[CheckText, ...]
    others: tuple[str, ...]
    options: tuple[Option, ...]
    partitions: str
    unread: tuple[str, ...]

    def column(self, name: str) -> ColumnText:
        return next(column for column in self.columns if column.name == name)

    def option(self, name: str) -> str:
        return next((option.value for option in self.options if option.name == name), "")


def read_table(create_sql: str) -> TableText:
    """The pieces of what SHOW CREATE TABLE gave."""
    parts = tokens(create_sql)
    start = next(i for i, token in enumerate(parts) if token.is_punct("("))
    end = _closing(parts, start)
    columns, keys, checks, others = [], [], [], []
    for definition in cut_at_commas(parts[start + 1 : end]):
        if definition[0].kind == "quoted":
            columns.append(_column(create_sql, definition))
        elif check := _check(create_sql, definition):
            checks.append(check)
        elif key := _key(create_sql, definition):
            keys.append(key)
        else:
            others.append(create_sql[definition[0].start : definition[-1].end])
    options, partitions, unread = _options(create_sql, parts[end + 1 :])
    return TableText(
        columns=tuple(columns),
        keys=tuple(keys),
        checks=tuple(checks),
        others=tuple(others),
        options=options,
        partitions=partitions,
        unread=unread,
    )


def _closing(parts: list[Token], start: int) -> int:
    """Place of the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(parts)):
        depth += parts[i].is_punct("(") - parts[i].is_punct(")")
        if depth == 0:
            return i
    raise ValueError("a parenthesis is not closed")


def cut_at_commas(parts: list[Token]) -> list[list[Token]]:
    """The parts between the commas that are outside parentheses."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in parts:
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0 and token.is_punct(","):
            found.append([])
        else:
            found[-1].append(token)
    return found


def _column(sql: str, parts: list[Token]) -> ColumnText:
    starts = [1, *(i for i in range(2, len(parts)) if _begins_clause(parts, i))]
    ends = [*starts[1:], len(parts)]
    clauses = [
        Clause(kind="type" if i == 1 else _CLAUSES[parts[i].text.upper()], text=sql[parts[i].start : parts[j - 1].end])
        for i, j in zip(starts, ends, strict=True)
    ]
    return ColumnText(name=parts[0].value, clauses=tuple(clauses))


def _begins_clause(parts: list[Token], at: int) -> bool:
    depth = sum(token.is_punct("(") - token.is_punct(")") for token in parts[:at])
    word = parts[at].text.upper()
    # Words inside parentheses are an expression's.
    if depth or parts[at].kind != "word" or word not in _CLAUSES:
        return False
    return not parts[at - 1].is_word(*_CONTINUED.get(word, ()))


def _check(sql: str, parts: list[Token]) -> CheckText | None:
    name = parts[1].value if parts[0].is_word("CONSTRAINT") else ""
    rest = parts[2:] if name else parts
    if not (len(rest) > 1 and rest[0].is_word("CHECK") and rest[1].is_punct("(")):
        return None
    end = _closing(rest, 1)
    return CheckText(
        name=name,
        expression=sql[rest[1].start : rest[end].end],
        is_enforced=not any(t.is_word("ENFORCED") for t in rest[end:]),
    )


def _key(sql: str, parts: list[Token]) -> KeyText | None:
    words = [token.text.upper() for token in parts[:2] if token.kind == "word"]
    if "KEY" not in words and "INDEX" not in words:
        return None
    start = next(i for i, token in enumerate(parts) if token.is_punct("("))
    end = _closing(parts, start)
    inside = cut_at_commas(parts[start + 1 : end])
    return KeyText(
        kind=" ".join(words),
        name=next((token.value for token in parts[:start] if token.kind == "quoted"), ""),
        parts=sql[parts[start].start : parts[end].end],
        options=" ".join(token.text for token in parts[end + 1 :]),
        has_expression=any(part[0].is_punct("(") for part in inside),
        columns=tuple(part[0].value for part in inside if part[0].kind == "quoted"),
    )


def _options(sql: str, parts: list[Token]) -> tuple[tuple[Option, ...], str, tuple[str, ...]]:
    found: list[Option] = []
    unread: list[str] = []
    at = 0
    while at < len(parts):
        if parts[at].is_word("PARTITION"):
            text = sql[parts[at].start : parts[-1].end]
            return tuple(found), text, tuple(unread)
        width, option = _option(parts[at:])
        found += [option] if option else []
        unread += [] if option else [parts[at].text]
        at += width
    return tuple(found), "", tuple(unread)


def _option(parts: list[Token]) -> tuple[int, Option | None]:
    """How many tokens it takes, and the option: `NAME=value`, `TWO NAMES=value`, TABLESPACE `value`."""
    for width in (1, 2):
        # A list (UNION=(…)) is not read as half of one: its words are left as unread, and that refuses.
        if len(parts) > width + 1 and parts[width].is_punct("=") and not parts[width + 1].is_punct("("):
            name = " ".join(token.value.upper() for token in parts[:width])
            return width + 2, Option(name=name, value=parts[width + 1].text)
    if len(parts) > 1 and parts[0].is_word("TABLESPACE"):
        return 2, Option(name="TABLESPACE", value=parts[1].text)
    return 1, None
