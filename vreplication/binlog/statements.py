"""What a statement in the log means for us: control of a transaction, something we may pass over, or the end.

What must stay true: the list is closed. A statement passes only when it provably leaves the watched tables alone; one
that names them, or that we cannot read, stops the workflow. A statement that writes rows in statement form always
stops it: through a view, a trigger or a routine it may write to any table without naming it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from vreplication.binlog.control import Query
from vreplication.binlog.events import Xid
from vreplication.mysql.text import Token, Unreadable, has_opened_comment, tokens

ANSI_QUOTES = 1 << 2
_NO_BACKSLASH_ESCAPES = 1 << 20

Names = frozenset[tuple[str, str]]


class Kind(Enum):
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to"
    XA_START = "xa start"
    XA_END = "xa end"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    PASS = "pass"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """`name`: of a savepoint. `xid`: of an XA statement. `why`: why we stop."""

    kind: Kind
    name: str = ""
    xid: Xid | None = None
    why: str = ""


_SIMPLE = {
    b"BEGIN": Meaning(kind=Kind.BEGIN),
    b"COMMIT": Meaning(kind=Kind.COMMIT),
    b"ROLLBACK": Meaning(kind=Kind.ROLLBACK),
}
_PASS = Meaning(kind=Kind.PASS)
_XA = re.compile(
    r"XA\s+(START|BEGIN|END|PREPARE|COMMIT|ROLLBACK)\s+X'([0-9a-f]*)'(?:\s*,\s*X'([0-9a-f]*)')?(?:\s*,\s*(-?\d+))?",
    re.I,
)
_XA_KINDS = {
    "START": Kind.XA_START,
    "BEGIN": Kind.XA_START,
    "END": Kind.XA_END,
    "PREPARE": Kind.XA_END,
    "COMMIT": Kind.XA_COMMIT,
    "ROLLBACK": Kind.XA_ROLLBACK,
}

_HARMLESS = {
    *("ANALYZE", "REPAIR", "CHECK", "CHECKSUM", "FLUSH", "RESET", "PURGE", "GRANT", "REVOKE", "SET"),
    *("USE", "SHOW", "KILL", "INSTALL", "UNINSTALL", "CHANGE", "START", "STOP", "CACHE", "IMPORT"),
}
"""Statements that change no rows of a table and no definition of one, whatever they name."""
_WRITING = {
    *("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "DO", "SELECT", "WITH", "VALUES", "TABLE"),
    *("HANDLER", "EXECUTE", "MERGE", "BEGIN", "XA", "LOCK", "BINLOG"),
}
_DEFINING = {"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE", "OPTIMIZE"}
"""InnoDB answers OPTIMIZE by making the table anew: to the switch it is another table than the one that was copied."""
_OBJECTS = {
    *("VIEW", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER", "PACKAGE", "SEQUENCE", "TABLESPACE"),
    *("LOGFILE", "UNDO", "RESOURCE", "SPATIAL", "LIBRARY", "INSTANCE", "AGGREGATE", "CATALOG", "JSON"),
}
"""Kinds of objects that hold no rows of ours."""
_MODIFIERS = ("OR", "REPLACE", "TEMPORARY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "IGNORE")
_NOT_A_TABLE = ("COLUMN", "INDEX", "KEY", "CONSTRAINT", "PARTITION")


def meaning(query: Query, codec: str | None, watched: Names) -> Meaning:
    """Classify. `codec`: Python's name of the text's character set, if known. `watched`: (schema, table), any case."""
    simple = _SIMPLE.get(query.text)
    if simple is not None:
        return simple
    try:
        # Every client's character set has ASCII in it.
        sql = query.text.decode(codec or "ascii")
        cut = tokens(
            sql,
            ansi_quotes=bool(query.sql_mode & ANSI_QUOTES),
            backslash_escapes=not query.sql_mode & _NO_BACKSLASH_ESCAPES,
        )
    except (Unreadable, UnicodeDecodeError):
        return _of_unreadable(query.text, watched)
    found = _Reader(cut, query.schema, watched, has_opened_comment(sql)).meaning(sql)
    if found.kind is Kind.PASS and codec != "utf-8" and not query.text.isascii():
        # Text that the server itself writes is UTF-8 whatever the client's character set is.
        return _of_unreadable(query.text, watched)
    return found


def _of_unreadable(raw: bytes, watched: Names) -> Meaning:
    """A definition or something harmless that has none of our names in its bytes cannot mean us."""
    first = re.match(rb"\s*([A-Za-z]+)", raw)
    verb = first[1].decode().upper() if first else ""
    low = raw.lower()
    names = {name.lower().encode() for pair in watched for name in pair}
    if (verb in _HARMLESS or verb in _DEFINING) and all(name not in low for name in names):
        return _PASS
    return _stop("a statement that we cannot read")


def _stop(why: str) -> Meaning:
    return Meaning(kind=Kind.STOP, why=why)


class _Reader:
    """One statement's tokens, read from the left."""

    def __init__(self, cut: list[Token], schema: str, watched: Names, has_version_comment: bool) -> None:
        self.cut = cut
        self.schema = schema.lower()
        self.watched = {(s.lower(), t.lower()) for s, t in watched}
        self.has_version_comment = has_version_comment
        self.at = 0

    def meaning(self, sql: str) -> Meaning:
        if not self.cut:
            return _PASS
        first = self.cut[0].text.upper() if self.cut[0].kind == "word" else ""
        return self._control(first, sql) or self._statement(first)

    # Control of transactions.

    def _control(self, first: str, sql: str) -> Meaning | None:
        if first in ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"):
            return self._transaction(first)
        if first == "XA":
            return _xa(sql[self.cut[0].start :])
        if first == "START" and self._is(1, "TRANSACTION"):
            return Meaning(kind=Kind.BEGIN)
        return None

    def _transaction(self, first: str) -> Meaning:
        if first == "SAVEPOINT":
            return Meaning(kind=Kind.SAVEPOINT, name=self._value(1))
        if first == "RELEASE":
            return _PASS
        if first == "ROLLBACK" and any(t.is_word("TO") for t in self.cut):
            return Meaning(kind=Kind.ROLLBACK_TO, name=self.cut[-1].value)
        if len(self.cut) == 1 or self._is(1, "WORK"):
            return _SIMPLE[first.encode()]
        return _stop(f"an unknown form of {first}")

    # Everything else.

    def _statement(self, first: str) -> Meaning:
        if first == "SET" and self._is(1, "STATEMENT"):
            return self._behind_for()
        if self.has_version_comment and not self._is_temporary_drop() and self._names_anything_of_ours():
            return _stop("a statement with a version comment that may name it")
        if first in _HARMLESS:
            return _PASS
        if first in _WRITING or not first:
            return self._written(first)
        if first in _DEFINING:
            return self._definition(first)
        return _stop(f"an unknown statement ({first[:20]})")

    def _behind_for(self) -> Meaning:
        """MariaDB: SET STATEMENT name = value FOR statement."""
        for index, token in enumerate(self.cut):
            if token.is_word("FOR"):
                rest = _Reader(self.cut[index + 1 :], self.schema, frozenset(self.watched), self.has_version_comment)
                return rest.meaning("")
        return _stop("an unreadable SET STATEMENT")

    def _written(self, first: str) -> Meaning:
        """The server itself writes `DELETE FROM name` when it finds a MEMORY table empty after a restart."""
        if first == "DELETE" and self._is(1, "FROM"):
            found, end = self._name(2)
            if found and found not in self.watched and end == len(self.cut):
                return _PASS
        return _stop(f"a change written as a statement ({first or 'unknown'})")

    def _definition(self, verb: str) -> Meaning:
        self.at = 1
        self._skip_modifiers()
        if verb == "TRUNCATE":
            return self._unless_ours(verb, [self._name(2 if self._is(1, "TABLE") else 1)[0]])
        kind = self.cut[self.at].text.upper() if self.at < len(self.cut) else ""
        if kind in ("DATABASE", "SCHEMA"):
            return self._database(verb)
        if kind in ("TABLE", "TABLES"):
            return self._table(verb)
        if kind == "INDEX":
            return self._unless_ours(f"{verb} INDEX", self._names_behind("ON"))
        if kind == "TRIGGER":
            return _PASS if verb == "DROP" else self._unless_ours(f"{verb} TRIGGER", self._names_behind("ON"))
        if kind in _OBJECTS:
            return _PASS
        return _stop(f"an unknown statement ({verb} {kind[:20]})") if self._names_anything_of_ours() else _PASS

    def _skip_modifiers(self) -> None:
        """OR REPLACE, TEMPORARY, UNIQUE, DEFINER = user, ALGORITHM = …, SQL SECURITY …"""
        while self.at < len(self.cut):
            token = self.cut[self.at]
            if token.is_word("SPATIAL") and self._is(self.at + 1, "REFERENCE"):
                return
            if token.is_word(*_MODIFIERS):
                self.at += 1
            elif token.is_word("DEFINER", "ALGORITHM"):
                self._skip_assignment()
            elif token.is_word("SQL") and self._is(self.at + 1, "SECURITY"):
                self.at += 3
            else:
                return

    def _skip_assignment(self) -> None:
        """DEFINER = name | name@host | 'name'@'host' | CURRENT_USER | CURRENT_USER()"""
        self.at += 3
        while self.at < len(self.cut) and self.cut[self.at].is_punct("@", "(", ")"):
            self.at += 2 if self.cut[self.at].text == "@" else 1

    def _database(self, verb: str) -> Meaning:
        if verb != "DROP":
            return _PASS
        name = self.cut[-1].value.lower()
        ours = any(name == schema for schema, _ in self.watched)
        return _stop("DROP DATABASE") if ours or self._has_extra_words() else _PASS

    def _has_extra_words(self) -> bool:
        """More than DROP DATABASE [IF EXISTS] name."""
        return len(self.cut) not in (3, 5)

    def _table(self, verb: str) -> Meaning:
        if verb in ("CREATE", "DROP") and any(t.is_word("TEMPORARY") for t in self.cut[1 : self.at]):
            return _PASS
        at = self._behind_if_exists(self.at + 1)
        if verb in ("RENAME", "DROP", "OPTIMIZE"):
            return self._unless_ours(f"{verb} TABLE", self._all_names(at))
        if verb == "CREATE":
            return self._create(at)
        if self._sets_counter_only(at):
            return _PASS
        return self._unless_ours("ALTER TABLE", [self._name(at)[0], *self._other_tables(at)])

    def _sets_counter_only(self, at: int) -> bool:
        """ALTER TABLE t AUTO_INCREMENT [=] n: no row and no column changes; the cut-over itself does it."""
        rest = self.cut[self._name(at)[1] :]
        is_short = len(rest) == 2 or (len(rest) == 3 and rest[1].is_punct("="))
        return is_short and rest[0].is_word("AUTO_INCREMENT") and rest[-1].text.isdigit()

    def _create(self, at: int) -> Meaning:
        """CREATE TABLE IF NOT EXISTS of a table that is there does nothing, unless rows come with it."""
        found, end = self._name(at)
        is_no_op = self._is(at - 1, "EXISTS") and not self._is(1, "OR")
        if found in self.watched and is_no_op and not any(t.is_word("SELECT") for t in self.cut):
            return _PASS
        return self._unless_ours("CREATE TABLE", [found, *self._other_tables(end)])

    def _other_tables(self, at: int) -> Iterator[tuple[str, str] | None]:
        """Tables that the clauses name: REFERENCES t, WITH TABLE t, RENAME [TO|AS|=] t."""
        for index in range(at, len(self.cut)):
            if self.cut[index].is_word("REFERENCES") or (self._is(index, "TABLE") and self._is(index - 1, "WITH")):
                yield self._name(index + 1)[0]
            elif self.cut[index].is_word("RENAME") and not self._is(index + 1, *_NOT_A_TABLE):
                follows = index + 1
                if self._is(follows, "TO", "AS") or self._is_punct(follows, "="):
                    follows += 1
                yield self._name(follows)[0]

    def _behind_if_exists(self, at: int) -> int:
        while self._is(at, "IF", "NOT", "EXISTS"):
            at += 1
        return at

    def _all_names(self, at: int) -> Iterator[tuple[str, str] | None]:
        """Names of a list: `a, b`, `a TO b, c TO d`; other words (WAIT 5, RESTRICT) are looked at as names too."""
        while at < len(self.cut):
            found, at = self._name(at)
            if found:
                yield found
            else:
                at += 1

    def _names_behind(self, word: str) -> list[tuple[str, str] | None]:
        found = [self._name(i + 1)[0] for i, token in enumerate(self.cut) if token.is_word(word)]
        return found or [None]

    def _unless_ours(self, what: str, names: Iterable[tuple[str, str] | None]) -> Meaning:
        """A name that cannot be read counts as ours where our name is in the text."""
        for name in names:
            if name in self.watched or (name is None and self._names_anything_of_ours()):
                return _stop(what)
        return _PASS

    def _names_anything_of_ours(self) -> bool:
        ours = {name for pair in self.watched for name in pair}
        return any(token.value.lower() in ours for token in self.cut)

    def _is_temporary_drop(self) -> bool:
        """`DROP /*!40005 TEMPORARY */ TABLE`, which servers write at the end of a session."""
        return self._is(0, "DROP") and self._is(1, "TEMPORARY") and self._is(2, "TABLE")

    # Single tokens.

    def _name(self, at: int) -> tuple[tuple[str, str] | None, int]:
        """[schema.]table at `at`, in lower case, and the place behind it."""
        if self._is_punct(at, ".") and at + 1 < len(self.cut):
            at += 1
        if at >= len(self.cut) or not self.cut[at].is_name:
            return None, at
        if self._is_punct(at + 1, ".") and at + 2 < len(self.cut):
            return (self._value(at).lower(), self._value(at + 2).lower()), at + 3
        return (self.schema, self._value(at).lower()), at + 1

    def _value(self, at: int) -> str:
        return self.cut[at].value if at < len(self.cut) else ""

    def _is(self, at: int, *words: str) -> bool:
        return 0 <= at < len(self.cut) and self.cut[at].is_word(*words)

    def _is_punct(self, at: int, *signs: str) -> bool:
        return at < len(self.cut) and self.cut[at].is_punct(*signs)


def _xa(sql: str) -> Meaning:
    found = _XA.match(sql)
    if not found:
        return _stop("an XA statement that we cannot read")
    verb, gtrid, bqual, format_id = found.groups()
    xid = Xid(int(format_id or 1), bytes.fromhex(gtrid), bytes.fromhex(bqual or ""))
    return Meaning(kind=_XA_KINDS[verb.upper()], xid=xid)
