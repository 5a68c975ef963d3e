"""What a statement in the log defines, in the words of the statement: tables, indexes and databases.

What must stay true: it is asked only of statements that `statements.meaning` lets pass, and says of each that defines a
table of which one, watched or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from vreplication.binlog.control import Query
from vreplication.binlog.grammar import (
    FIRST_WORDS,
    NOT_A_TABLE,
    PASS,
    Meaning,
    Names,
    StatementReader,
    cut,
    has_version_comment,
)
from vreplication.mysql.quoting import qualified
from vreplication.mysql.remark import is_of_keys
from vreplication.mysql.text import Token, Unreadable

_OF_SESSION = ("sql_mode", "flags", "time_zone", "explicit_timestamps", "utf8mb4", "at", "connection", "language")
_SENT = {"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """DDL that defines tables or a database, as names are written there.

    verb: CREATE, ALTER, DROP, RENAME or TRUNCATE. what: TABLE, INDEX or DATABASE. tables: (schema, table); of a
    database the table is ''; none where the text cannot be read. schema: the session's. renamed: of a RENAME, old and
    new names in turn. replaced: those of them under which other tables stand behind it. session: what the log says of
    the statement's session, as fields of `Query` are called; empty where the statement is ours.
    moment: as of `Altered`, where it is. is_garbled: the text is not what was written, for it cannot be decoded.
    """

    verb: str
    what: str
    schema: str
    sql: str
    tables: tuple[tuple[str, str], ...]
    renamed: tuple[tuple[str, str], ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    session: dict[str, Any] = field(default_factory=dict)
    moment: int = 0
    is_garbled: bool = False

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


_IF_EXISTS = re.compile(r"\bIF\s+EXISTS\b", re.I)
_START_TRANSACTION = re.compile(r"\s+START TRANSACTION\s*;?\s*$", re.I)


def definition(query: Query, codec: str | None) -> Definition | None:
    """What a statement defines that `meaning` lets pass; None: no table and no database."""
    found = _definition(query, codec)
    return None if found is None else replace(found, session={name: getattr(query, name) for name in _OF_SESSION})


def _definition(query: Query, codec: str | None) -> Definition | None:
    try:
        sql = query.text.decode(codec or "ascii")
    except UnicodeDecodeError:
        # The escapes are for people: a consumer ends by name at such a statement, and never runs them as SQL.
        unread = _unreadable_definition(query, query.text.decode("utf-8", "backslashreplace"))
        return None if unread is None else replace(unread, is_garbled=True)
    try:
        found, has_comment = cut(sql, query), has_version_comment(sql, query)
    except Unreadable:
        return _unreadable_definition(query, sql)
    # A target that ran it would lose the only key of that kind that it has.
    if is_of_keys(sql):
        return None
    return _Names(found, query.schema, frozenset(), has_comment).definition(sql, query.schema)


def only(found: Definition, is_wanted: Callable[[tuple[str, str]], bool]) -> Definition:
    """Of a statement that drops or renames several tables what it does to the wanted ones; any other as it is."""
    steps = _steps(found, is_wanted)
    named = tuple(name for step in steps for name in step)
    tables = tuple(dict.fromkeys(named))
    if len(tables) in (0, len(found.tables)):
        return found
    exists = "IF EXISTS " if _IF_EXISTS.search(found.sql) else ""
    listed = ", ".join(" TO ".join(qualified(*name) for name in step) for step in steps)
    renamed = named if found.verb == "RENAME" else ()
    return replace(found, sql=f"{found.verb} TABLE {exists}{listed}", tables=tables, renamed=renamed)


def _steps(found: Definition, is_wanted: Callable[[tuple[str, str]], bool]) -> list[tuple[tuple[str, str], ...]]:
    if found.verb == "RENAME" and len(found.renamed) % 2 == 0:
        return _linked(list(zip(found.renamed[::2], found.renamed[1::2], strict=True)), is_wanted)
    if (found.verb, found.what) == ("DROP", "TABLE"):
        return [(name,) for name in found.tables if is_wanted(name)]
    return []


def _linked(
    pairs: list[tuple[tuple[str, str], ...]], is_wanted: Callable[[tuple[str, str]], bool]
) -> list[tuple[tuple[str, str], ...]]:
    """Pairs with a wanted name, and those that take or give a name of these: half of an exchange would be another."""
    names, before = {_folded(name) for pair in pairs for name in pair if is_wanted(name)}, -1
    while before < len(names):
        before = len(names)
        names.update(_folded(name) for pair in pairs if names & set(map(_folded, pair)) for name in pair)
    return [pair for pair in pairs if _folded(pair[0]) in names]


def _folded(name: tuple[str, str]) -> tuple[str, str]:
    """A server may take names for the same that differ in case."""
    return name[0].casefold(), name[1].casefold()


def without_settings(cut: list[Token]) -> list[Token]:
    """MariaDB: of SET STATEMENT a=1 FOR ALTER … what stands behind the FOR that is in no parentheses."""
    if not (len(cut) > 1 and cut[0].is_word("SET") and cut[1].is_word("STATEMENT")):
        return cut
    depth = 0
    for index, token in enumerate(cut):
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0 and token.is_word("FOR"):
            return cut[index + 1 :]
    return cut[1:]


def _unreadable_definition(query: Query, sql: str) -> Definition | None:
    found = FIRST_WORDS.match(query.text)
    verb = found.group(1).decode().upper() if found else ""
    if verb not in _SENT or b"table" not in query.text.lower():
        return None
    # No names can be told, so whoever follows takes it for a statement about any table.
    return Definition(verb=verb, what="TABLE", schema=query.schema, sql=sql, tables=())


class _Names(StatementReader):
    """Finds what a statement defines, in the words of the statement."""

    def __init__(self, cut: list[Token], schema: str, watched: Names, has_version_comment: bool) -> None:
        super().__init__(cut, schema, watched, has_version_comment)
        self.schema = schema
        self.found: list[tuple[str, str]] = []
        self.what = ""

    def definition(self, sql: str, schema: str) -> Definition | None:
        start = self.cut[0] if self.cut else None
        # MariaDB logs SET STATEMENT … FOR ALTER … as the client wrote it.
        if len(bare := without_settings(self.cut)) < len(self.cut):
            return _Names(bare, self.schema, frozenset(), False).definition(sql, schema)
        verb = start.text.upper() if start is not None and start.kind == "word" else ""
        if verb not in _SENT:
            return None
        self._definition(verb)
        if not self.found:
            return None
        return Definition(
            verb=verb,
            what=self.what or "TABLE",
            schema=schema,
            # MySQL writes so of CREATE TABLE … SELECT, whose rows follow.
            sql=_START_TRANSACTION.sub("", sql) if verb == "CREATE" else sql,
            tables=tuple(dict.fromkeys(self.found)),
            renamed=tuple(self.found) if verb == "RENAME" else (),
            replaced=self._replaced() if verb == "RENAME" else (),
        )

    def _replaced(self) -> tuple[tuple[str, str], ...]:
        """Given up by one of the pairs, and taken by a later one."""
        old, new = self.found[::2], self.found[1::2]
        return tuple(name for at, name in enumerate(old) if name in new[at + 1 :])

    def _fold(self, name: str) -> str:
        # As it was written: who follows knows whether its server tells t and T apart, as it does by default on Linux.
        return name

    def _unless_ours(self, what: str, names: Iterable[tuple[str, str] | None]) -> Meaning:
        if what != "CREATE SEQUENCE":
            self.what = "INDEX" if what.endswith("INDEX") else "TABLE"
            self.found += [name for name in names if name is not None]
        return PASS

    def _database(self, verb: str) -> Meaning:
        """ALTER DATABASE may leave out the name."""
        self.what = "DATABASE"
        at = self._behind_if_exists(self.at + 1)
        is_named = verb != "ALTER" or not self._is(
            at, "CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "ENCRYPTION", "READ"
        )
        self.found.append((self._value(at) if is_named else self.schema, ""))
        return PASS

    def _other_tables(self, at: int) -> Iterator[tuple[str, str] | None]:
        """Those that get another name, or whose rows are exchanged; what a foreign key names is not changed."""
        for index in range(at, len(self.cut)):
            if self.cut[index].is_word("TABLE") and self._is(index - 1, "WITH", "CONVERT", "TO"):
                # EXCHANGE PARTITION p WITH TABLE t; MariaDB: CONVERT TABLE t TO PARTITION p, and back.
                yield self._name(index + 1)[0]
            elif self.cut[index].is_word("RENAME") and not self._is(index + 1, *NOT_A_TABLE):
                is_word = self._is(index + 1, "TO", "AS") or self._is_punct(index + 1, "=")
                yield self._name(index + 1 + is_word)[0]

    def _trigger(self, verb: str) -> Meaning:
        return PASS

    def _sets_counter_only(self, at: int) -> bool:
        return False

    def _renamed(self, at: int) -> Iterator[tuple[str, str] | None]:
        """`a TO b, c TO d`: a bare TO is no name."""
        while at < len(self.cut):
            if self.cut[at].is_word("TO") or self.cut[at].is_punct(","):
                at += 1
                continue
            found, behind = self._name(at)
            yield found
            at = max(behind, at + 1)
            # MariaDB: `a WAIT 5 TO b`, `a NOWAIT TO b`.
            at += 2 * self._is(at, "WAIT") + self._is(at, "NOWAIT")
