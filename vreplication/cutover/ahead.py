"""Who would be served before RENAME: DDL statements that queued for the table while it was locked.

RENAME goes before every waiting reader and writer, but not before a statement that asks for as much as itself: a
TRUNCATE, or an ALTER of partitions. Queued first it runs first, on the old table, and nobody does it to the new one.

What must stay true: asked once RENAME is seen waiting, so that whatever comes later queues behind it; a statement is
known by its text, which the server has from before it asks for a lock (measured on both servers, for statements inside
of procedures and prepared ones as well). It is asked while writers wait: of anything but a definition, which may be a
bulk INSERT of megabytes, no more than the first words are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vreplication.binlog.control import Query
from vreplication.binlog.grammar import ANSI_QUOTES, Kind
from vreplication.binlog.statements import meaning
from vreplication.mysql.processes import Process, processes
from vreplication.mysql.session import Session
from vreplication.mysql.text import Token, Unreadable, scan

DEFINING = ("TRUNCATE", "ALTER", "DROP", "RENAME", "OPTIMIZE", "CREATE")


def ahead(session: Session, tables: Iterable[tuple[str, str]], own: Iterable[int]) -> list[Process]:
    """Connections, but for our own, that are at a DDL statement which names one of the tables (schema, name)."""
    wanted, found = tuple(tables), processes(session, is_full=True)
    others = [process for number, process in found.items() if number not in {*own, session.id}]
    return [p for p in others if any(defines(p.statement, p.schema, table) for table in wanted)]


def defines(statement: str, default: str, table: tuple[str, str]) -> bool:
    """Is it a DDL statement that names the table (schema, name)? One that cannot be read may be.

    default: the schema that names without one are of.
    """
    try:
        first = verb(scan(statement))
    # Taken for one, it costs an attempt; a TRUNCATE that is not seen empties the old table alone.
    except Unreadable:
        return True
    if first is None or not first.is_word(*DEFINING):
        return False
    # What the server could not send in our character set it has replaced.
    # In both readings of a double quote: the list of connections does not tell the session's sql_mode.
    return "\ufffd" in statement or any(_names(statement, default, table, mode) for mode in (0, ANSI_QUOTES))


def verb(words: Iterator[Token]) -> Token | None:
    """Read up to the verb: behind comments, and behind MariaDB's SET STATEMENT name = value FOR."""
    first = next(words, None)
    if first and first.is_word("SET") and (second := next(words, None)) and second.is_word("STATEMENT"):
        return next(words, None) if any(word.is_word("FOR") for word in words) else None
    return first


def _names(statement: str, default: str, table: tuple[str, str], sql_mode: int) -> bool:
    query = Query(schema=default, text=statement.encode(), collation=0, sql_mode=sql_mode)
    return meaning(query, "utf-8", frozenset({table})).kind is Kind.STOP
