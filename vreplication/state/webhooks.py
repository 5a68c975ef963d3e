"""Which journal entries a webhook has had.

What must stay true: an entry is left out only when it was delivered, or stood there before the webhook was first used
on this server. Ids are given out before the commit, so that one with a smaller id may become visible after one with a
larger id: deliveries are noted one by one, and put together only up to what has been settled for SETTLED_MINUTES.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vreplication.mysql.session import Session, SqlError
from vreplication.settings import SIDECAR

SETTLED_MINUTES = 10
"""No transaction of ours is open for so long."""
_MISSING = frozenset({1049, 1146})
"""No such schema, no such table."""
_OPEN = (
    f"FROM {SIDECAR}.journal j LEFT JOIN {SIDECAR}.webhook_delivered d ON d.hook=%s AND d.entry=j.id "
    f"WHERE j.id > (SELECT since FROM {SIDECAR}.webhook WHERE hook=%s) AND d.entry IS NULL"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """id: of the journal. at: UTC."""

    id: int
    workflow: str
    at: datetime
    actor: str
    event: str
    details: str


def newest(session: Session) -> int:
    """Id of the newest entry; 0 where there is no journal yet."""
    return int(_value(session, f"SELECT MAX(id) FROM {SIDECAR}.journal") or 0)


def begin(session: Session, hook: str, since: int) -> str | None:
    """See to it that this webhook is known; entries up to `since` are none of its. What its ids begin with.

    None: there are no tables for it yet.
    """
    select = f"SELECT source FROM {SIDECAR}.webhook WHERE hook=%s"
    try:
        found = session.value(select, (hook,))
        if found is None:
            # Of two that begin at once the first one's row stays, with its `source`, by which receivers know a repeat.
            session.execute(
                f"INSERT IGNORE INTO {SIDECAR}.webhook (hook, source, since) VALUES (%s,%s,%s)",
                (hook, secrets.token_hex(8), since),
            )
            found = session.value(select, (hook,))
    except SqlError as error:
        if error.code not in _MISSING:
            raise
        return None
    return str(found)


def is_ours(session: Session, hook: str) -> bool:
    """True when nobody but this session delivers, until it ends."""
    # A lock's name has 64 characters at the most.
    return bool(session.value("SELECT GET_LOCK(%s,0)", (f"vreplication.webhook.{hook[:32]}",)) == 1)


def pending(session: Session, hook: str, limit: int, behind: int = 0) -> list[Entry]:
    """Oldest first; behind: those with a larger id."""
    columns = "j.id, j.workflow, j.at, j.actor, j.event, j.details"
    sql = f"SELECT {columns} {_OPEN} AND j.id > {behind:d} ORDER BY j.id LIMIT {limit:d}"
    found = session.named_rows(sql, (hook, hook))
    return [Entry(**row) for row in found]


def count_pending(session: Session, hook: str) -> int:
    return int(session.value(f"SELECT COUNT(*) {_OPEN}", (hook, hook)))


def note(session: Session, hook: str, entry: int) -> None:
    """It is delivered."""
    session.execute(f"INSERT IGNORE INTO {SIDECAR}.webhook_delivered (hook, entry) VALUES (%s,%s)", (hook, entry))


def put_together(session: Session, hook: str) -> None:
    """Remember by one number what is delivered without a gap and settled."""
    old = f"at < NOW(6) - INTERVAL {SETTLED_MINUTES} MINUTE"
    settled = session.value(f"SELECT MAX(id) FROM {SIDECAR}.journal WHERE {old}")
    first_open = session.value(f"SELECT MIN(j.id) {_OPEN}", (hook, hook))
    if settled is None:
        return
    to = int(settled) if first_open is None else min(int(settled), int(first_open) - 1)
    with session.transaction():
        session.execute(f"UPDATE {SIDECAR}.webhook SET since=GREATEST(since,%s) WHERE hook=%s", (to, hook))
        session.execute(f"DELETE FROM {SIDECAR}.webhook_delivered WHERE hook=%s AND entry<=%s", (hook, to))


def _value(session: Session, sql: str) -> Any:
    try:
        return session.value(sql)
    except SqlError as error:
        if error.code not in _MISSING:
            raise
        return None
