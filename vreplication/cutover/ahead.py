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


def ahead(session: Session, schema: str, table: str, own: Iterable[int]) -> list[Process]:
    """Connections, but for our own, that are at a definition statement which names the table."""
    found = processes(session, is_full=True)
    others = [process for number, process in found.items() if number not in {*own, session.id}]
    return [p for p in others if defines(p.statement, p.schema, (schema, table))]


def defines(statement: str, default: str, table: tuple[str, str]) -> bool:
    """Is it a definition statement that names the table (schema, name)? One that cannot be read may be.

    default: the schema that names without one are of.
    """
    try:
        cut = _statement(tokens(statement))
    except Unreadable:
        return any(word in statement.upper() for word in DEFINING)
    if not cut or not cut[0].is_word(*DEFINING):
        return False
    return any(_may_be(cut, at, default, table) for at in range(1, len(cut)))


def _may_be(cut: list[Token], at: int, default: str, table: tuple[str, str]) -> bool:
    """Is the token there the table's name? In its session a string may be one (ANSI_QUOTES); what the server's answer
    has replaced may be any character.
    """
    is_qualified = at > 1 and cut[at - 1].is_punct(".") and _names(cut[at - 2])
    named = (cut[at - 2].value if is_qualified else default, cut[at].value)
    return _names(cut[at]) and all(
        "\ufffd" in found or found.lower() == wanted.lower() for found, wanted in zip(named, table, strict=True)
    )


def _names(token: Token) -> bool:
    return token.is_name or token.kind == "string"


def _statement(cut: list[Token]) -> list[Token]:
    """Behind MariaDB's SET STATEMENT name = value FOR."""
    if len(cut) > 1 and cut[0].is_word("SET") and cut[1].is_word("STATEMENT"):
        return list(itertools.dropwhile(lambda token: not token.is_word("FOR"), cut))[1:]
    return cut
