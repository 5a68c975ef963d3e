"""The server's connections, as SHOW PROCESSLIST tells them.

What must stay true: a statement of anybody's, whatever characters it holds, never makes us fail. So nothing asks
information_schema.processlist: MySQL converts every connection's statement to utf8mb3 there, and ends our query with
error 3854 as soon as one holds a character of four bytes (measured on 9.7). And statements are read as bytes: one that
is cut may end in the middle of a character, one that holds binary values is no text at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vreplication import names
from vreplication.mysql.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One connection. `schema` and `statement` may be ''; `seconds`: how long it has been in this state."""

    id: int
    user: str
    host: str
    schema: str
    seconds: float
    state: str
    statement: str
    command: str = ""
    """Sleep, Query, Binlog Dump …"""


def processes(session: Session, *, is_full: bool = False) -> dict[int, Process]:
    """All connections by id. Without `is_full` the server cuts statements at 100 bytes."""
    rows = session.bytes_rows("SHOW FULL PROCESSLIST" if is_full else "SHOW PROCESSLIST")
    return {process.id: process for process in map(_process, rows)}


def still_there(session: Session, ids: Iterable[int], *, user: str = "") -> list[int]:
    """Those of the connections that have not ended; with a user only those that are logged in as that, or as we are."""
    wanted = sorted(set(ids))
    found = processes(session) if wanted else {}
    # The server may list a login by another name than it was given: as it lists us.
    ours = {user, *(each.user for each in (found.get(session.id),) if each)}
    return [number for number in wanted if number in found and (not user or found[number].user in ours)]


def signed(session: Session, ids: Iterable[int]) -> tuple[int, ...]:
    """Those of the connections that are ours for certain, by the sign that each of ours holds."""
    wanted = sorted(set(ids))
    if not wanted:
        return ()
    asked = ",".join(f"IS_USED_LOCK('{names.sign(number)}')" for number in wanted)
    return tuple(number for number, by in zip(wanted, session.rows(f"SELECT {asked}")[0], strict=True) if number == by)


def _process(row: tuple[object, ...]) -> Process:
    number, user, host, schema, command, seconds, state, statement = row[:8]
    return Process(
        id=int(str(number)),
        user=_text(user),
        host=_text(host),
        schema=_text(schema),
        seconds=float(str(seconds or 0)),
        state=_text(state),
        statement=_text(statement),
        command=_text(command),
    )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
