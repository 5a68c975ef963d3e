"""What the DDL of a feed does to the names and columns of a lake.

A lake's table is a thing of its own, which names lead to for a time: RENAME moves a name, DROP ends it, and TRUNCATE
and CREATE lead it to a new table, so that what was there before can still be read as of before.

What must stay true: the same statements in the same order leave the same names; a statement that cannot be read changes
no name; what it may have done to rows that the log does not show is noted where a reader finds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vreplication.binlog.control import Query
from vreplication.binlog.definitions import Definition, definition, without_settings
from vreplication.binlog.grammar import cut
from vreplication.errors import Refused
from vreplication.feed.lake.manifest import FOREVER, Alter, Manifest, Name, Table, Version
from vreplication.feed.spoken import reading_mode
from vreplication.mysql.text import Token, Unreadable
from vreplication.schema.alter import AlterClauses, parse_alter
from vreplication.schema.written import cut_at_commas

_UTF8MB4 = 45
_BEFORE_NAME = ("ALTER", "RENAME", "ONLINE", "OFFLINE", "IGNORE", "TABLE", "TABLES", "IF", "EXISTS")
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
Pair = tuple[str, str]
_SAME: tuple[Callable[[str], str], ...] = (str, str.lower)
"""How names may be the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A DDL of the feed. schema: its session's. is_folded, sql_mode: as of `Spoken`."""

    t: int
    schema: str
    sql: str
    is_folded: bool | None = None
    sql_mode: str | None = None

    @property
    def mode(self) -> int:
        """What of its SQL mode decides how its text is read."""
        return reading_mode(self.sql_mode)


class Catalog:
    """The names and tables of a manifest, as they become."""

    def __init__(self, manifest: Manifest) -> None:
        self.names = list(manifest.names)
        self.tables = dict(manifest.tables)
        self._is_folded: bool | None = None
        """As of the statement that is being run."""

    def find(self, schema: str, name: str) -> int | None:
        found = self._find((schema, name))
        return None if found is None else self.names[found].table

    def of_rows(self, schema: str, name: str) -> int | None:
        """The table of rows that come under this name, which is as the server stores it."""
        pair = schema, name
        known = next((at for at, each in self._live if each.rows == pair), None)
        found = self._find(pair, has_rows=False) if known is None else known
        if found is None:
            self._give_way(pair)
            return None
        self.names[found] = replace(self.names[found], rows=pair)
        return self.names[found].table

    def _give_way(self, pair: Pair) -> None:
        """What has this name by a statement has rows of another spelling: two tables, and that is the other one."""
        for at, each in self._live:
            if (each.schema, each.name) == pair and each.rows is not None:
                self.names[at] = replace(each, schema=each.rows[0], name=each.rows[1])

    def begin(self, schema: str, name: str, t: int, like: Table | None = None, rows: Pair | None = None) -> int:
        """A new table of that name; what had exactly it ends. rows: as of Name."""
        self._end_at(self._at((schema, name), str), t)
        number = max(self.tables, default=0) + 1
        # A folder keeps its name when its table gets another one, for no file is ever moved: so it may be taken.
        taken = {table.folder for table in self.tables.values()}
        folder = f"{_safe(schema)}.{_safe(name)}"
        versions = () if like is None else like.versions[-1:]
        self.tables[number] = Table(folder=folder if folder not in taken else f"{folder}.{number}", versions=versions)
        self._name((schema, name), number, t, rows)
        return number

    def _name(self, pair: Pair, number: int, t: int, rows: Pair | None = None) -> None:
        is_exact = self._is_folded is False
        self.names.append(Name(schema=pair[0], name=pair[1], table=number, since=t, rows=rows, is_exact=is_exact))

    def altered(self, statement: Statement) -> tuple[Pair, int] | None:
        """The table of an ALTER TABLE, as `run` finds it: its name, and its number."""
        said = _read(statement)
        if said is None or (said.verb, said.what) != ("ALTER", "TABLE"):
            return None
        with self._as(statement):
            number = self.find(*said.tables[0])
        return None if number is None else (said.tables[0], number)

    def run(self, statement: Statement) -> None:
        said = _read(statement)
        if said is not None:
            with self._as(statement):
                self._run(said, statement)

    @contextlib.contextmanager
    def _as(self, statement: Statement) -> Iterator[None]:
        """Names are told apart as by the statement's source."""
        self._is_folded = statement.is_folded
        try:
            yield
        finally:
            self._is_folded = None

    def _run(self, said: Definition, statement: Statement) -> None:
        if said.verb == "RENAME":
            self._swap(said, statement)
        elif said.verb == "CREATE" and said.what == "TABLE":
            self._create(said, statement)
        elif said.verb == "TRUNCATE":
            self._truncate(said.tables[:1], statement.t)
        elif said.verb == "DROP" and said.what == "TABLE":
            for pair in said.tables:
                self._end(pair, statement.t)
        elif said.verb == "DROP" and said.what == "DATABASE":
            self._drop_schema(said.tables[0][0], statement.t)
        elif said.verb == "ALTER" and said.what == "TABLE" and said.tables:
            self._alter(said.tables[0], statement)
            self._exchange(said.tables, statement)

    @property
    def _live(self) -> list[tuple[int, Name]]:
        return [(at, each) for at, each in enumerate(self.names) if each.until == FOREVER]

    @property
    def _keeps_case(self) -> bool:
        """Rows have come under a name with capitals: a server that takes names for the same has none."""
        return any(each.rows is not None and _has_capitals(each.rows) for each in self.names)

    def _find(self, pair: Pair, *, has_rows: bool = True) -> int | None:
        """As the server does, or may if the feed does not tell: where no name is the same, one that differs in case.

        has_rows: also what has some.
        """
        is_of_rows = not has_rows
        guessed = not (self._keeps_case or (is_of_rows and _has_capitals(pair)))
        ways = _SAME if (guessed if self._is_folded is None else self._is_folded) else _SAME[:1]
        return next((at for same in ways if (at := self._at(pair, same, has_rows=has_rows)) is not None), None)

    def _at(self, pair: Pair, same: Callable[[str], str], *, has_rows: bool = True) -> int | None:
        wanted = same(pair[0]), same(pair[1])
        # Rows of `orders` are not of an `Orders` that was made beside it, though none has come there yet.
        may = same is str or self._is_folded
        live = (a for a, e in self._live if (same(e.schema), same(e.name)) == wanted and (may or not e.is_exact))
        return next((at for at in live if has_rows or self.names[at].rows is None), None)

    def _end(self, pair: Pair, t: int) -> int | None:
        """Returns what had the name."""
        return self._end_at(self._find(pair), t)

    def _end_at(self, at: int | None, t: int) -> int | None:
        if at is None:
            return None
        self.names[at] = replace(self.names[at], until=t)
        return self.names[at].table

    def _create(self, said: Definition, statement: Statement) -> None:
        cut, pair = _tokens(statement), said.tables[0]
        if any(each.is_word("REPLACE") for each in cut[:4]):
            self._end(pair, statement.t)
        # Of names that are the same to it the source would have refused the second one; another source means this one.
        is_either = self._is_folded or any(each.is_word("IF") for each in cut[:4])
        found = self._find(pair) if is_either else self._at(pair, str)
        if found is None:
            self.begin(*pair, statement.t)

    def _truncate(self, pairs: tuple[Pair, ...], t: int) -> None:
        for pair in pairs:
            number = self._end(pair, t)
            if number is not None:
                # With its columns, so that the empty table can be read before a row has come.
                self.begin(*pair, t, like=self.tables[number])

    def _drop_schema(self, schema: str, t: int) -> None:
        # Also where one is called exactly so: others may have come under another spelling of the same schema.
        is_folded = not self._keeps_case if self._is_folded is None else self._is_folded
        same = str.lower if is_folded else str
        for at, each in self._live:
            if same(each.schema) == same(schema):
                self._end_at(at, t)

    def _swap(self, said: Definition, statement: Statement) -> None:
        """A table that is not followed may take the place of one that is: then that goes on, otherwise defined."""
        pairs, made, kept = _pairs(statement), set[Pair](), set[Pair]()
        for old, new in pairs:
            is_known = old in made or self.find(*old) is not None
            made.add(new)
            if new in said.replaced and not is_known and (number := self.find(*new)) is not None:
                kept.add(new)
                self._note(number, statement)
        self._rename([(old, new) for old, new in pairs if old not in kept], statement.t)

    def _note(self, number: int, statement: Statement) -> None:
        table = self.tables[number]
        alters = (*table.alters, Alter(t=statement.t, sql=statement.sql[:500]))
        self.tables[number] = replace(table, alters=alters)

    def _rename(self, pairs: list[tuple[Pair, Pair]], t: int) -> None:
        for old, new in pairs:
            # Of several sources each tells it; and of a table no row of which has come there is nothing to move.
            number = self._end(old, t)
            if number is not None:
                self._end(new, t)
                self._name(new, number, t)

    def _alter(self, pair: Pair, statement: Statement) -> None:
        number = self.find(*pair)
        if number is None:
            return
        self._note(number, statement)
        table = self.tables[number]
        clauses, new = _clauses(statement)
        self.tables[number] = replace(table, versions=_altered(table, clauses, statement.t))
        if new is not None:
            self._rename([(pair, new)], statement.t)

    def _exchange(self, tables: tuple[Pair, ...], statement: Statement) -> None:
        """Rows of a partition and of a table; one that got another name is found under both."""
        first = self.find(*tables[0]) or self.find(*tables[-1])
        for pair in tables[1:]:
            number = self.find(*pair)
            if number not in (None, first):
                self._note(number, statement)


def _altered(table: Table, clauses: AlterClauses | None, t: int) -> tuple[Version, ...]:
    """A further version where columns are called otherwise, or are not the same ones any more."""
    if clauses is None or not table.versions:
        return table.versions
    last = table.versions[-1]
    names = tuple(column.name for column in last.columns)
    sources = {new: old for new, old in _sources(clauses, names).items() if old in names}
    # Of types alone the rows behind the statement tell, by their kinds.
    if sources == {name: name for name in names}:
        return table.versions
    columns = {column.name: column for column in last.columns}
    renamed = {old: new for new, old in sources.items()}
    made = Version(
        number=last.number + 1,
        t=t,
        columns=tuple(replace(columns[old], name=new) for new, old in sources.items()),
        # Without one of its columns it is none any more; which one comes instead the next rows say.
        key=tuple(renamed[name] for name in last.key) if set(last.key) <= renamed.keys() else (),
        sources=sources,
    )
    return (*table.versions, made)


def _sources(clauses: AlterClauses, names: tuple[str, ...]) -> dict[str, str]:
    """Column → the one that it was, as they are written; clauses tell it in lower case."""
    # Of several sources each adds a column, and rows of the first one have it by then.
    gone = {name.lower() for name in clauses.dropped} | {old.lower() for old, _ in clauses.renames}
    there = {name.lower() for name in names} - gone
    clauses = replace(clauses, added=tuple(name for name in clauses.added if name.lower() not in there))
    as_written = {new.lower(): new for _, new in clauses.renames} | {
        name.lower(): name for name in names if name.lower() not in {new.lower() for _, new in clauses.renames}
    }
    found = {as_written.get(new, new): old for new, old in clauses.sources(names).items()}
    found |= _added_again(clauses, names)
    return dict(sorted(found.items(), key=lambda pair: names.index(pair[1]) if pair[1] in names else len(names)))


def _added_again(clauses: AlterClauses, names: tuple[str, ...]) -> dict[str, str]:
    """What is added and there already: another source has told it before."""
    gone = {name.lower() for name in clauses.dropped} | {old.lower() for old, _ in clauses.renames}
    fresh = {name.lower() for name in clauses.added} - gone
    return {name: name for name in names if name.lower() in fresh}


def has_unread_alter(table: Table) -> bool:
    """Since its last version: its columns are then what its rows say."""
    since = table.versions[-1].t if table.versions else 0
    return any(_is_unread(each) for each in table.alters if each.t > since)


def is_of_unread_columns(alter: Alter) -> bool:
    """Nothing but the rows behind it tells what its columns are; also where another table has taken the place."""
    return _is_unread(alter) or is_rename(alter)


def is_rename(alter: Alter) -> bool:
    """Another table has taken the place, which a tool may do in the same words each time."""
    return alter.sql.lstrip()[:6].upper() == "RENAME"


def _is_unread(alter: Alter) -> bool:
    return _clauses(Statement(t=alter.t, schema="", sql=alter.sql)) == (None, None)


def _has_capitals(pair: Pair) -> bool:
    return any(part != part.lower() for part in pair)


# Reading statements.


def _query(statement: Statement) -> Query:
    return Query(schema=statement.schema, text=statement.sql.encode(), collation=_UTF8MB4, sql_mode=statement.mode)


def _read(statement: Statement) -> Definition | None:
    found = definition(_query(statement), "utf-8")
    return found if found is not None and found.tables else None


def _tokens(statement: Statement) -> list[Token]:
    try:
        return without_settings(cut(statement.sql, _query(statement)))
    except Unreadable:
        return []


def _name(cut: list[Token], at: int, schema: str) -> tuple[Pair, int] | None:
    """A table's name, and where it ends."""
    if at >= len(cut) or not _is_name(cut[at]):
        return None
    if at + 2 < len(cut) and cut[at + 1].is_punct(".") and _is_name(cut[at + 2]):
        return (cut[at].value, cut[at + 2].value), at + 3
    return (schema, cut[at].value), at + 1


def _is_name(token: Token) -> bool:
    """Also of a session with ANSI_QUOTES: no string stands where a table's name does."""
    return token.is_name or (token.kind == "string" and token.text.startswith('"'))


def _behind(cut: list[Token]) -> int:
    """Where the first name stands."""
    at = 0
    while at < len(cut) and cut[at].is_word(*_BEFORE_NAME):
        at += 1
    return at


def _pairs(statement: Statement) -> list[tuple[Pair, Pair]]:
    """Of RENAME TABLE a TO b, c TO d."""
    cut = _tokens(statement)
    return list(_renames(cut, _behind(cut), statement.schema))


def _renames(cut: list[Token], at: int, schema: str) -> Iterator[tuple[Pair, Pair]]:
    while old := _name(cut, at, schema):
        at = old[1]
        while at < len(cut) and not cut[at].is_word("TO"):
            at += 1
        new = _name(cut, at + 1, schema)
        if new is None:
            return
        yield old[0], new[0]
        at = new[1] + 1


def clauses_of(statement: Statement) -> list[list[Token]]:
    """Of ALTER TABLE; none where it cannot be read."""
    cut = _tokens(statement)
    found = _name(cut, _behind(cut), statement.schema)
    if found is None or found[1] >= len(cut):
        return []
    return [clause for clause in cut_at_commas(_behind_wait(cut[found[1] :])) if clause]


def _clauses(statement: Statement) -> tuple[AlterClauses | None, Pair | None]:
    """Of ALTER TABLE: what is done to columns, None where that cannot be told; and another name."""
    if not (parts := clauses_of(statement)):
        return None, None
    new = next((name for clause in parts if (name := _new_name(clause, statement.schema))), None)
    rest = ",".join(_text(clause, statement.sql) for clause in parts if not _new_name(clause, statement.schema))
    try:
        return (parse_alter(rest) if rest else None), new
    except Refused:
        # Then columns are what the rows behind it show (`has_unread_alter`).
        return None, new


def _behind_wait(cut: list[Token]) -> list[Token]:
    """MariaDB: ALTER TABLE t WAIT 5 …, t NOWAIT …"""
    return cut[2 * cut[0].is_word("WAIT") + cut[0].is_word("NOWAIT") :]


def _text(clause: list[Token], sql: str) -> str:
    return sql[clause[0].start : clause[-1].end]


def _new_name(clause: list[Token], schema: str) -> Pair | None:
    if not clause[0].is_word("RENAME") or len(clause) < 2 or clause[1].is_word("COLUMN", "INDEX", "KEY"):
        return None
    at = 1 + (clause[1].is_word("TO", "AS") or clause[1].is_punct("="))
    found = _name(clause, at, schema)
    return found[0] if found else None


def _safe(name: str) -> str:
    """As a folder's, in characters that mean nothing to anybody."""
    # Two of these, the dot and a number behind it are a name of less than the 255 bytes that file systems take.
    return "".join(letter if letter in _SAFE else f"~{ord(letter):x}~" for letter in name)[:120]
