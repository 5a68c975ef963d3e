"""Who would be served before RENAME: definition statements that queued for the table while it was locked.

RENAME goes before every waiting reader and writer, but not before a statement that asks for as much as itself: a
TRUNCATE, or an ALTER of partitions. Queued first it runs first, on the old table, and nobody does it to the new one.

What must stay true: asked once RENAME is seen waiting, so that whatever comes later queues behind it; a statement is
known by its text, which the server has from before it asks for a lock (measured on both servers, for statements inside
of procedures and prepared ones as well).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from vreplication.mysql.processes import Process, processes
from vreplication.mysql.session import Session
from vreplication.mysql.text import Token, Unreadable, tokens

DEFINING = ("TRUNCATE", "ALTER", "DROP", "RENAME", "OPTIMIZE", "CREATE", "REPAIR", "IMPORT")


def ahead(session: Session, table: str, own: Iterable[int]) -> list[Process]:
    """Connections, but for our own, that are at a definition statement which names the table, in whatever schema."""
    ours = {*own, session.id}
    return [p for p in processes(session, is_full=True).values() if p.id not in ours and defines(p.statement, table)]


def defines(statement: str, table: str) -> bool:
    """Is it a definition statement that names the table? One that cannot be read may be."""
    try:
        cut = _statement(tokens(statement))
    except Unreadable:
        return any(word in statement.upper() for word in DEFINING)
    if not cut or not cut[0].is_word(*DEFINING):
        return False
    # A name that is not of the connection's own character set has been replaced.
    return any(t.is_name and (t.value.lower() == table.lower() or "\ufffd" in t.value) for t in cut)


def _statement(cut: list[Token]) -> list[Token]:
    """Behind MariaDB's SET STATEMENT name = value FOR."""
    if len(cut) > 1 and cut[0].is_word("SET") and cut[1].is_word("STATEMENT"):
        return list(itertools.dropwhile(lambda token: not token.is_word("FOR"), cut))[1:]
    return cut
