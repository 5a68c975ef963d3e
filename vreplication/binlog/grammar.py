"""The grammar of statements in the log, as far as it decides what one means for us.

What must stay true: the list is closed. A statement passes when it is known to run nothing and to define no watched
table, never because it does not name one: through a view, a trigger or a routine, text that writes rows may write to
any table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from vreplication.binlog.control import Query
from vreplication.mysql.server import Xid
from vreplication.mysql.text import Token, has_opened_comment, tokens
from vreplication.names import is_deny_trigger, is_handed_over, is_moved_key, is_ours, is_shadow, is_stood_in

ANSI_QUOTES = 1 << 2

NO_BACKSLASH_ESCAPES = 1 << 20

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
    """`name`: of a savepoint. `xid`: of an XA statement. `why`: why we stop. `cure`: where it is one of its own."""

    kind: Kind
    name: str = ""
    xid: Xid | None = None
    why: str = ""
    cure: str = ""


SIMPLE = {
    b"BEGIN": Meaning(kind=Kind.BEGIN),
    b"COMMIT": Meaning(kind=Kind.COMMIT),
    b"ROLLBACK": Meaning(kind=Kind.ROLLBACK),
}

PASS = Meaning(kind=Kind.PASS)

# Whatever the client wrote, servers log the name of a branch in hexadecimal.
_XA = re.compile(
    r"XA\s+(START|BEGIN|END|PREPARE|COMMIT|ROLLBACK)\s+X'([0-9a-f]*)'(?:\s*,\s*X'([0-9a-f]*)')?(?:\s*,\s*(-?\d+))?",
    re.I,
)

_XA_KINDS = {
    "START": Kind.XA_START,
    "BEGIN": Kind.XA_START,
    "END": Kind.XA_END,
    # That the branch is prepared an event of its own tells, which ends the group.
    "PREPARE": Kind.XA_END,
    "COMMIT": Kind.XA_COMMIT,
    "ROLLBACK": Kind.XA_ROLLBACK,
}

_LOCALLY = ("NO_WRITE_TO_BINLOG", "LOCAL")

_HARMLESS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ANALYZE", "CHECK", "CHECKSUM"), ("TABLE", "TABLES", "VIEW")),
    "SET": ("PASSWORD", "DEFAULT"),
    **dict.fromkeys(("FLUSH", "GRANT", "REVOKE", "USE", "KILL", "INSTALL", "UNINSTALL"), ()),
}
"""What changes no row and no definition of a table, whatever it names: first word, and those that may come next.

Servers refuse routines and subqueries in them; or the text that they log is their own and holds the outcome only.
"""

# ANALYZE is here as well as above: MariaDB's ANALYZE UPDATE … runs the statement that it explains.
_WRITING = {
    *("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "DO", "SELECT", "WITH", "VALUES", "TABLE", "ANALYZE"),
    *("HANDLER", "EXECUTE", "MERGE", "BEGIN", "XA", "LOCK", "BINLOG", "SET", "EXPLAIN", "DESCRIBE", "SHOW", "IF"),
}

DEFINING = {"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE", "OPTIMIZE", "REPAIR"}
"""InnoDB answers OPTIMIZE by making the table anew: at the cut-over it is not the one that was copied."""

_OBJECTS = {
    *("VIEW", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER", "PACKAGE", "TABLESPACE"),
    *("LOGFILE", "UNDO", "RESOURCE", "SPATIAL", "LIBRARY", "INSTANCE", "AGGREGATE", "CATALOG", "JSON"),
}
"""Kinds of objects that hold no rows of ours."""

_MODIFIERS = (
    *("OR", "REPLACE", "TEMPORARY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "IGNORE"),
    *("MATERIALIZED", "EXTERNAL", *_LOCALLY),
)

NOT_A_TABLE = ("COLUMN", "INDEX", "KEY", "CONSTRAINT", "PARTITION")

_ROW_FORMAT = "Have every client write in row format (binlog_format=ROW); then cancel the workflow and start it again."

FIRST_WORDS = re.compile(rb"\s*([A-Za-z]+)\s+(?:(?:LOCAL|NO_WRITE_TO_BINLOG)\s+)?([A-Za-z]*)", re.I)


def cut(sql: str, query: Query, skipped: Sequence[re.Pattern[str]] = ()) -> list[Token]:
    """Tokens, read under the session's sql_mode. skipped: as of `tokens`. Raises Unreadable."""
    return tokens(sql, skipped=skipped, **_mode(query))


def has_version_comment(sql: str, query: Query, skipped: Sequence[re.Pattern[str]] = ()) -> bool:
    """As `cut`."""
    return has_opened_comment(sql, skipped=skipped, **_mode(query))


def _mode(query: Query) -> dict[str, bool]:
    return {
        "ansi_quotes": bool(query.sql_mode & ANSI_QUOTES),
        "backslash_escapes": not query.sql_mode & NO_BACKSLASH_ESCAPES,
    }


def is_harmless(verb: str, follows: str) -> bool:
    wanted = _HARMLESS.get(verb)
    return wanted == () or (wanted is not None and follows in wanted)


def folded(name: str) -> str:
    """Lower case letter by letter, as servers do it: Python's knows a Σ at the end of a word, and an İ of two."""
    return name.lower() if name.isascii() else "".join(letter.lower()[0] for letter in name)


def stop(why: str, cure: str = "") -> Meaning:
    return Meaning(kind=Kind.STOP, why=why, cure=cure)


def written(what: str) -> Meaning:
    """Rows changed by a statement's text instead of row events."""
    return stop(f"a change written as a statement ({what})", _ROW_FORMAT)


class StatementReader:
    """One statement's tokens, read from the left."""

    def __init__(self, cut: list[Token], schema: str, watched: Names, has_version_comment: bool) -> None:
        self.cut = cut
        self.schema = folded(schema)
        self.watched = {(folded(s), folded(t)) for s, t in watched}
        self.has_version_comment = has_version_comment
        self.at = 0

    def meaning(self, sql: str) -> Meaning:
        if not self.cut:
            return PASS
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
            return PASS
        if first == "ROLLBACK" and any(t.is_word("TO") for t in self.cut):
            return Meaning(kind=Kind.ROLLBACK_TO, name=self.cut[-1].value)
        # MariaDB's BEGIN NOT ATOMIC is none of these: statements that write may follow in it.
        if len(self.cut) == 1 or self._is(1, "WORK"):
            return SIMPLE[first.encode()]
        return stop(f"an unknown form of {first}")

    # Everything else.

    def _statement(self, first: str) -> Meaning:
        if first == "SET" and self._is(1, "STATEMENT"):
            return self._behind_for()
        # The server that wrote the log and the one that we know may read it otherwise, by their versions.
        if self.has_version_comment and not self._is_temporary_drop() and self._names_anything_of_ours():
            return stop("a statement with a version comment that may name it")
        at = 2 if self._is(1, *_LOCALLY) else 1
        if is_harmless(first, self.cut[at].text.upper() if at < len(self.cut) else ""):
            return PASS
        if first in DEFINING:
            return self._definition(first)
        # Both end it. What is known to write has a cure that can be named.
        return written(first or "unknown") if first in _WRITING or not first else _unknown(first)

    def _behind_for(self) -> Meaning:
        """MariaDB: SET STATEMENT name = value FOR statement. A value may hold a FOR in parentheses."""
        depth = 0
        for index, token in enumerate(self.cut):
            depth += token.is_punct("(") - token.is_punct(")")
            if depth == 0 and token.is_word("FOR"):
                rest = StatementReader(
                    self.cut[index + 1 :], self.schema, frozenset(self.watched), self.has_version_comment
                )
                # No XA statement stands there; without its text one would stop.
                return rest.meaning("")
        return stop("an unreadable SET STATEMENT")

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
            return self._trigger(verb)
        if kind == "SEQUENCE" and verb == "CREATE":
            return self._unless_ours("CREATE SEQUENCE", [self._name(self._behind_if_exists(self.at + 1))[0]])
        return PASS if kind in _OBJECTS or kind == "SEQUENCE" else _unknown(f"{verb} {kind[:20]}")

    def _trigger(self, verb: str) -> Meaning:
        """Those of a switch between servers change no row: they refuse writes. Those on a table of ours are ours: the
        cut-over makes them before it, and nothing is written to a table that has some.
        """
        found = self._name(self._behind_if_exists(self.at + 1))[0]
        # DROP TRIGGER names no table. Whose it was the cut-over sees, which compares triggers under its lock.
        if verb == "DROP" or (verb == "CREATE" and found and is_deny_trigger(found[1])):
            return PASS
        behind_on = self._names_behind("ON")
        if verb == "CREATE" and behind_on[0] and is_ours(behind_on[0][1]):
            return PASS
        return self._unless_ours(f"{verb} TRIGGER", behind_on)

    def _skip_modifiers(self) -> None:
        """OR REPLACE, TEMPORARY, UNIQUE, LOCAL, DEFINER = user, ALGORITHM = …, SQL SECURITY …"""
        while self.at < len(self.cut):
            token = self.cut[self.at]
            # CREATE SPATIAL REFERENCE SYSTEM makes an object; in front of INDEX the word is a modifier.
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
        """MariaDB's CREATE OR REPLACE drops everything in it first, and ALTER … UPGRADE gives it another name."""
        if verb != "DROP" and not self._is(1, "OR") and not any(t.is_word("UPGRADE") for t in self.cut):
            return PASS
        name = folded(self._value(self._behind_if_exists(self.at + 1)))
        ours = any(name == schema for schema, _ in self.watched)
        # A longer statement than we know may name it in a way that we do not see.
        return stop(f"{verb} DATABASE") if ours or self._has_extra_words(verb) else PASS

    def _has_extra_words(self, verb: str) -> bool:
        """More than DROP DATABASE [IF EXISTS] name."""
        return verb == "ALTER" or (verb == "DROP" and len(self.cut) not in (3, 5))

    def _table(self, verb: str) -> Meaning:
        # Before TEMPORARY is looked at: the SELECT behind a temporary table may call a function that writes to any
        # other.
        if verb == "CREATE" and self._brings_rows():
            return written("CREATE TABLE with rows")
        # A temporary table hides ours in its own session alone.
        if verb in ("CREATE", "DROP") and any(t.is_word("TEMPORARY") for t in self.cut[1 : self.at]):
            return PASS
        at = self._behind_if_exists(self.at + 1)
        if verb == "RENAME":
            return self._unless_ours("RENAME TABLE", self._renamed(at))
        if verb in ("DROP", "OPTIMIZE", "REPAIR"):
            return self._unless_ours(f"{verb} TABLE", self._all_names(at))
        if verb == "CREATE":
            return self._create(at)
        if self._sets_counter_only(at) or self._moves_keys(at) or self._hands_rows_over(at):
            return PASS
        return self._unless_ours("ALTER TABLE", [self._name(at)[0], *self._other_tables(at)])

    def _brings_rows(self) -> bool:
        """CREATE TABLE … SELECT, … VALUES (…), … TABLE t: in row format servers log the bare table, then its rows."""
        for at in range(self.at + 1, len(self.cut)):
            is_partition = self._is(at, "VALUES") and self._is(at + 1, "LESS", "IN")
            if self._is(at, "SELECT", "VALUES", "TABLE") and not is_partition and not self._is_punct(at - 1, "."):
                return True
        return False

    def _sets_counter_only(self, at: int) -> bool:
        """ALTER TABLE t AUTO_INCREMENT [=] n: no row and no column changes; the cut-over itself does it."""
        rest = self.cut[self._name(at)[1] :]
        is_short = len(rest) == 2 or (len(rest) == 3 and rest[1].is_punct("="))
        return is_short and rest[0].is_word("AUTO_INCREMENT") and rest[-1].text.isdigit()

    def _moves_keys(self, at: int) -> bool:
        """What the cut-over does to foreign keys (cutover/foreign.py), by their names: no row and no column changes.

        Nothing of that is done to the table that is followed itself.
        """
        table, end = self._name(at)
        is_followed = table in self.watched and not (table and is_shadow(table[1]))
        clauses = _clauses(self.cut[end:])
        return not is_followed and all(map(_is_of_keys, clauses)) and any(map(_has_moved_key, clauses))

    def _hands_rows_over(self, at: int) -> bool:
        """What a workflow does with its own stand-in, while nobody writes to either table (schema/stand_in.py)."""
        (table, end) = self._name(at)
        words = [token.value.upper() for token in self.cut[end : end + 5]]
        is_exchange = words[:2] == ["EXCHANGE", "PARTITION"] and words[3:] == ["WITH", "TABLE"]
        (other, behind) = self._name(end + 5)
        are_ours = table and other and is_stood_in(table[1]) and is_shadow(other[1])
        return bool(is_exchange and are_ours) and behind == len(self.cut)

    def _create(self, at: int) -> Meaning:
        """CREATE TABLE IF NOT EXISTS of a table that is there does nothing."""
        found, end = self._name(at)
        if found in self.watched and self._is(at - 1, "EXISTS") and not self._is(1, "OR"):
            return PASS
        return self._unless_ours("CREATE TABLE", [found, *self._other_tables(end)])

    def _other_tables(self, at: int) -> Iterator[tuple[str, str] | None]:
        """Tables that the clauses name: REFERENCES t, WITH TABLE t, CONVERT TABLE t, RENAME [TO|AS|=] t."""
        for index in range(at, len(self.cut)):
            # A foreign key that comes later would go with the old table: RENAME takes along the references to a table.
            if self.cut[index].is_word("REFERENCES", "TABLE"):
                yield self._name(index + 1)[0]
            elif self.cut[index].is_word("RENAME") and not self._is(index + 1, *NOT_A_TABLE):
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

    def _renamed(self, at: int) -> Iterator[tuple[str, str] | None]:
        """As `_all_names`, but for a table that moves and gets its name: that is how its stream's log begins.

        By then no table has that name; where one had it, the log shows first how it lost it. And but for a stand-in
        that hands its rows over.
        """
        while at < len(self.cut):
            old, behind = self._name(at)
            new, end = self._name(behind + 1) if self._is(behind, "TO") else (None, behind)
            if old and new and new[0] == old[0] and self._is_apart(old, new):
                at = end
            elif old:
                yield old
                at = behind
            else:
                at += 1

    def _is_apart(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        return (is_shadow(old[1]) and old not in self.watched) or is_handed_over(old[1], new[1])

    def _names_behind(self, word: str) -> list[tuple[str, str] | None]:
        found = [self._name(i + 1)[0] for i, token in enumerate(self.cut) if token.is_word(word)]
        return found or [None]

    def _unless_ours(self, what: str, names: Iterable[tuple[str, str] | None]) -> Meaning:
        """A name that cannot be read counts as ours where our name is in the text."""
        for name in names:
            if name in self.watched or (name is None and self._names_anything_of_ours()):
                return stop(what)
        return PASS

    def _names_anything_of_ours(self) -> bool:
        ours = {name for pair in self.watched for name in pair}
        return any(folded(token.value) in ours for token in self.cut)

    def _is_temporary_drop(self) -> bool:
        """`DROP /*!40005 TEMPORARY */ TABLE`, which servers write at the end of a session."""
        return self._is(0, "DROP") and self._is(1, "TEMPORARY") and self._is(2, "TABLE")

    # Single tokens.

    def _name(self, at: int) -> tuple[tuple[str, str] | None, int]:
        """[schema.]table at `at`, in lower case, and the place behind it.

        What the server writes for a session with ANSI_QUOTES has that session's quotes, and MySQL tells another mode.
        """
        if self._is_punct(at, ".") and at + 1 < len(self.cut):
            at += 1
        if at >= len(self.cut) or not (self.cut[at].is_name or self.cut[at].text.startswith('"')):
            return None, at
        if self._is_punct(at + 1, ".") and at + 2 < len(self.cut):
            return (self._fold(self._value(at)), self._fold(self._value(at + 2))), at + 3
        return (self.schema, self._fold(self._value(at))), at + 1

    def _fold(self, name: str) -> str:
        return folded(name)

    def _value(self, at: int) -> str:
        return self.cut[at].value if at < len(self.cut) else ""

    def _is(self, at: int, *words: str) -> bool:
        return 0 <= at < len(self.cut) and self.cut[at].is_word(*words)

    def _is_punct(self, at: int, *signs: str) -> bool:
        return at < len(self.cut) and self.cut[at].is_punct(*signs)


def _clauses(cut: list[Token]) -> list[list[Token]]:
    """Of an ALTER, as commas outside of parentheses part them."""
    found, depth = [list[Token]()], 0
    for token in cut:
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0 and token.is_punct(","):
            found.append([])
        else:
            found[-1].append(token)
    return found


def _is_of_keys(clause: list[Token]) -> bool:
    """Of a foreign key, of the name of its index, or of how it is done."""
    first, second, _, fourth, *_ = [*(token.text.upper() for token in clause), "", "", "", ""]
    if first == "ADD":
        return (second, fourth) == ("CONSTRAINT", "FOREIGN")
    return first == "ALGORITHM" or (first, second) in (("DROP", "FOREIGN"), ("RENAME", "INDEX"))


def _has_moved_key(clause: list[Token]) -> bool:
    return any(token.is_name and is_moved_key(token.value) for token in clause[2:4])


def _unknown(what: str) -> Meaning:
    return stop(f"an unknown statement ({what[:20]})")


def _xa(sql: str) -> Meaning:
    found = _XA.match(sql)
    if not found:
        return stop("an XA statement that we cannot read")
    verb, gtrid, bqual, format_id = found.groups()
    # A client's statement that leaves the format out means 1.
    xid = Xid(int(format_id or 1), bytes.fromhex(gtrid), bytes.fromhex(bqual or ""))
    return Meaning(kind=_XA_KINDS[verb.upper()], xid=xid)
