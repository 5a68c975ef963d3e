"""A DDL that the target refuses because its effect is there already: another source has told it, or somebody did it.

It is tried on a temporary table that is like the target's, without what the statement adds and with what it takes away.
Where that becomes what the target has, the statement would change nothing there.

What must stay true: only a definition that is the same, but for the order of its lines, counts as done, and of a table
that is to be made only an empty one; whatever cannot be read, tried or compared does not. No table of the target's is
touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.binlog.definitions import Definition
from vreplication.errors import Refused
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.speaking import cut_of
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.text import Token, Unreadable, tokens
from vreplication.schema.alter import AlterClauses, parse_alter
from vreplication.schema.introspect import introspect_temporary, read_create_sql
from vreplication.schema.model import Table
from vreplication.schema.shadow import comparable
from vreplication.schema.written import cut_at_commas

TRIAL = "vreplication_trial"
_NO_SUCH_KEY = 1091
_KEY_KINDS = ("UNIQUE", "FULLTEXT", "SPATIAL", "INDEX", "KEY")


def is_there(session: Session, ddl: Ddl, said: Definition, code: int) -> bool:
    """code: what the server has refused it with. The session has the statement's schema."""
    if len(said.tables) != 1 or said.verb not in ("CREATE", "ALTER", "DROP"):
        return False
    if (said.verb, said.what) == ("DROP", "INDEX"):
        # There is nothing to compare: that the key is gone is all that the statement makes.
        return code == _NO_SUCH_KEY
    # Then the consumer ends with what the server said of the statement itself.
    with contextlib.suppress(Unreadable, Refused, SqlError):
        return _makes_the_same(session, ddl, said)
    return False


def _makes_the_same(session: Session, ddl: Ddl, said: Definition) -> bool:
    schema, table = said.tables[0]
    trial = qualified(schema, TRIAL)
    sql, (start, end) = ddl.sql, place_of_name(cut_of(ddl), said)
    is_new = (said.verb, said.what) == ("CREATE", "TABLE")
    # Rows of before would stay in it, and the source's new table has none.
    if is_new and session.value(f"SELECT 1 FROM {qualified(schema, table)} LIMIT 1") is not None:
        return False
    try:
        if is_new:
            session.execute_raw(f"CREATE TEMPORARY TABLE {trial}{sql[end:]}")
        else:
            session.execute_raw(f"CREATE TEMPORARY TABLE {trial} LIKE {qualified(schema, table)}")
            _undo(session, introspect_temporary(session, schema, TRIAL), sql[:start], sql[end:], said)
            session.execute_raw(f"{sql[:start]}{trial}{sql[end:]}")
        return _lines(session, schema, TRIAL) == _lines(session, schema, table)
    finally:
        # TEMPORARY, for without the word a table of the target's own that has this name would go.
        session.execute_raw(f"DROP TEMPORARY TABLE IF EXISTS {trial}")


def place_of_name(cut: list[Token], said: Definition) -> tuple[int, int]:
    """Where the table's name stands. Raises Unreadable."""
    at = next((at for at, each in enumerate(cut) if each.is_word("ON" if said.what == "INDEX" else "TABLE")), len(cut))
    at += 1
    while at < len(cut) and cut[at].is_word("IF", "NOT", "EXISTS"):
        at += 1
    last = at + 2 if at + 2 < len(cut) and cut[at + 1].is_punct(".") else at
    if last >= len(cut) or cut[last].value != said.tables[0][1]:
        raise Unreadable("no table's name")
    return cut[at].start, cut[last].end


def _lines(session: Session, schema: str, table: str) -> list[str]:
    text = comparable(read_create_sql(session, schema, table), table)
    return sorted(line.strip().rstrip(",") for line in text.splitlines())


# What the table was before.


def _undo(session: Session, now: Table, before: str, behind: str, said: Definition) -> None:
    if said.what == "INDEX":
        cut = tokens(before)
        at = next(at for at, each in enumerate(cut) if each.is_word("INDEX")) + 1
        at += 3 if cut[at].is_word("IF") and cut[at + 1].is_word("NOT") else 0
        steps = [f"DROP INDEX {ident(cut[at].value)}"]
    else:
        steps = [*_undone_keys(now, behind), *_undone_columns(now, parse_alter(behind))]
    if steps:
        session.execute_raw(f"ALTER TABLE {qualified(now.schema, now.name)} {', '.join(steps)}")


def _undone_columns(now: Table, clauses: AlterClauses) -> Iterator[str]:
    """Raises Refused where a column goes and another one of its name comes: what it held then is not known."""
    there = {column.name.lower() for column in now.columns}
    gone = {name.lower() for name in clauses.dropped}
    if gone.intersection(name.lower() for name in clauses.added):
        raise Refused("A column is dropped and added.")
    for name in clauses.added:
        if name.lower() in there:
            yield f"DROP COLUMN {ident(name)}"
    for old, new in clauses.renames:
        if new.lower() in there and old.lower() not in there:
            yield f"RENAME COLUMN {ident(new)} TO {ident(old)}"
    for name in clauses.dropped:
        if name.lower() not in there:
            # Of any type, for the statement takes it away.
            yield f"ADD COLUMN {ident(name)} INT"


def _undone_keys(now: Table, text: str) -> Iterator[str]:
    there, some = {key.name.lower() for key in now.keys}, ident(now.keys[0].columns[0] if now.keys else "")
    for clause in filter(None, cut_at_commas(tokens(text))):
        names = _key_names(clause)
        is_there = [name.lower() in there for name in names]
        if clause[0].is_word("ADD") and is_there == [True]:
            yield f"DROP INDEX {ident(names[0])}"
        elif clause[0].is_word("DROP") and is_there == [False]:
            # Over any column, for the statement takes it away.
            yield f"ADD INDEX {ident(names[0])} ({some})"
        elif clause[0].is_word("RENAME") and is_there == [False, True]:
            yield f"RENAME INDEX {ident(names[1])} TO {ident(names[0])}"


def _key_names(clause: list[Token]) -> list[str]:
    """Of ADD, DROP and RENAME INDEX; the two of a RENAME."""
    rest = clause[1:]
    if rest and rest[0].is_word("CONSTRAINT"):
        rest = rest[2:] if len(rest) > 2 and rest[2].is_word("UNIQUE") else []
        names = clause[2:3]
    else:
        names = []
    if not rest or not rest[0].is_word(*_KEY_KINDS):
        return []
    while rest and rest[0].is_word(*_KEY_KINDS, "IF", "NOT", "EXISTS"):
        rest = rest[1:]
    named = [each for each in rest[:3] if each.is_name and not each.is_word("TO", "USING")]
    if clause[0].is_word("RENAME"):
        return [each.value for each in named]
    return [each.value for each in (rest[:1] if rest and rest[0].is_name else names)]
