"""The lease: at most one living holder a role of a workflow, with a fencing token.

What must stay true: every transaction of ours begins with `fence`, which locks the lease row in share mode, so a
takeover (which updates the row) waits for transactions in flight, and whoever comes later with an old token finds
nothing. A token comes from the server's clock, so it is never given out twice, not even after the row has been deleted
and made anew. A holder is taken over when its heartbeat is older than LEASE_STALE_SECONDS or none of its connections is
left; its connections are killed first and seen to be gone, and it has not come back with others meanwhile. None is
killed that is not ours: numbers begin again where the server is restarted, so each of ours holds a sign. Times are the
server's. Source: docs/correctness.md, lease.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from vreplication.errors import LeaseHeld, Superseded, Transient
from vreplication.mysql.processes import signed, still_there
from vreplication.mysql.server import started_at
from vreplication.mysql.session import Session, SqlError
from vreplication.settings import LEASE_STALE_SECONDS, SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.sidecar import fetch_one, now

# MariaDB has no server_uuid. The global server_id, because on MariaDB a session may set its own.
_WHO = "@@hostname,@@port,@@datadir,@@GLOBAL.server_id"
_WHO_BITS = 20
_DUPLICATE = 1062
_SIGNED = -1
"""Among the numbers of a beat: the connections hold their signs. An older program looks for one of that number."""

DRIVER = "driver"
REPLICATE = "replicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Our right to write for a workflow in a role."""

    workflow: str
    role: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lease: its name, how old its last sign of life is, and whether it counts as alive."""

    name: str
    token: int
    age_seconds: float
    connections: tuple[int, ...]
    is_alive: bool


def me() -> str:
    """Name of this process, for people to find it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def acquire(session: Session, workflow: str, role: str) -> Lease:
    """Take the lease, over from a dead holder if need be. Raises LeaseHeld when the holder is alive."""
    holder = holder_of(session, workflow, role)
    if holder and holder.is_alive:
        raise LeaseHeld(
            f"Workflow {workflow} is being worked on by {holder.name} "
            f"(last sign of life {holder.age_seconds:.1f} s ago).",
            cure="Wait for it, stop that process, or use `vreplication status` to watch it.",
        )
    # Before the token is ours: a statement outside of a transaction (RENAME, DROP) asks for no fence.
    if holder:
        # F9c: before the token is taken. The fence stops transactions, but a LOCK, RENAME or DROP that was sent asks no
        # fence (connections_ended in tests/models: the new table was being repaired when RENAME moved it).
        end_connections(session, holder.connections)
    token = _bump(session, workflow, role, holder.token if holder else 0)
    lease = Lease(workflow=workflow, role=role, token=token)
    beat(session, lease, (session.id,))
    return lease


def _bump(session: Session, workflow: str, role: str, seen: int) -> int:
    t = sidecar.lease
    with session.transaction():
        where = (t.c.workflow == workflow, t.c.role == role)
        row = fetch_one(session, select(t.c.token).where(*where).with_for_update())
        if (int(row["token"]) if row else 0) != seen:
            raise LeaseHeld(f"Workflow {workflow} was taken by another process at this moment.", cure="Try again.")
        # Nobody beats while we hold the row: who was only asleep has come back with new connections by now, or never.
        if (holder := holder_of(session, workflow, role)) and holder.is_alive:
            raise LeaseHeld(f"Workflow {workflow}'s {holder.name} has come back at this moment.", cure="Try again.")
        # At least one more, for the clock may have been set back since.
        token = max(seen + 1, _clock(session))
        fields = {"token": token, "holder": me(), "taken_at": now()}
        if row is None:
            _add(session, workflow, role, fields)
        else:
            rows.change(session, t, {"workflow": workflow, "role": role}, **fields)
    return token


def _add(session: Session, workflow: str, role: str, fields: dict[str, Any]) -> None:
    try:
        rows.add(session, sidecar.lease, workflow=workflow, role=role, **fields)
    except SqlError as error:
        # A row that is not there cannot be locked: of two that begin together both get here.
        if error.code != _DUPLICATE:
            raise
        raise LeaseHeld(
            f"Workflow {workflow} was taken by another process at this moment.", cure="Try again."
        ) from None


def holder_of(session: Session, workflow: str, role: str) -> Holder | None:
    """Who holds the lease, or None when nobody ever did."""
    sql = (
        "SELECT l.holder, l.token, TIMESTAMPDIFF(MICROSECOND, h.at, NOW(6)) / 1e6, h.connections, h.server_started, "
        "h.token "
        f"FROM {SIDECAR}.lease l LEFT JOIN {SIDECAR}.heartbeat h USING (workflow, role) WHERE workflow=%s AND role=%s"
    )
    row = session.row(sql, (workflow, role))
    return _holder(session, row) if row else None


def _holder(session: Session, row: tuple[Any, ...]) -> Holder:
    name, token, age, connections, started, beat_token = row
    if age is None or beat_token != token:
        # No beat under this token: given back, or taken a moment ago. Nothing has been done under it then, for
        # `acquire` beats before it returns.
        return Holder(name=name, token=int(token), age_seconds=0.0, connections=(), is_alive=False)
    # Connection ids begin again at 1 when the server restarts, and another server has its own: then they say nothing.
    ids = ours(session, json.loads(connections)) if is_same_run(int(started), server_run(session)) else ()
    # Without a connection it cannot write, whatever its last beat says: who was killed need not be waited for.
    is_alive = float(age) < LEASE_STALE_SECONDS and bool(still_there(session, ids))
    return Holder(name=name, token=int(token), age_seconds=float(age), connections=ids, is_alive=is_alive)


def noted(session: Session, ids: Iterable[int]) -> list[int]:
    """Connections of ours, as they are written down for whoever comes next; `ours` finds them."""
    return sorted({*ids, *_mark(session)})


def _mark(session: Session) -> tuple[int, ...]:
    return (_SIGNED,) if session.is_signed else ()


def ours(session: Session, ids: Collection[int]) -> tuple[int, ...]:
    """Of what was noted in this run of the server, as far as can be told: a program of before has given no signs."""
    # Two starts within two seconds count as one run, and an application has the numbers by then.
    return signed(session, set(ids) - {_SIGNED}) if _SIGNED in ids else tuple(ids)


def release(session: Session, lease: Lease) -> None:
    """Give the lease back: our heartbeat goes, so the next one need not wait."""
    # By the token, so that a successor's heartbeat stays.
    rows.remove(session, sidecar.heartbeat, workflow=lease.workflow, role=lease.role, token=lease.token)


def give_back(session: Session, workflow: str, role: str) -> None:
    """In the place of a holder that is gone."""
    holder = holder_of(session, workflow, role)
    if holder and not holder.is_alive:
        release(session, Lease(workflow=workflow, role=role, token=holder.token))


def beat(session: Session, lease: Lease, connections: tuple[int, ...]) -> None:
    """Write a sign of life with the ids of our open connections. Raises Superseded when the lease is not ours."""
    with session.transaction():
        fence(session, lease)
        fields = {
            "token": lease.token,
            "at": now(),
            "connections": json.dumps(noted(session, connections)),
            "server_started": server_run(session),
        }
        rows.put(session, sidecar.heartbeat, {"workflow": lease.workflow, "role": lease.role}, **fields)


def fence(session: Session, lease: Lease) -> None:
    """First statement of every transaction of ours. Raises Superseded when the token is not ours any more."""
    # In share mode, so that transactions of one holder run side by side and only a takeover waits for them (R16). A
    # plain read could see the token of before a takeover that is committing (applier_lease_locks).
    sql = f"SELECT 1 FROM {SIDECAR}.lease WHERE workflow=%s AND role=%s AND token=%s LOCK IN SHARE MODE"
    if session.row(sql, (lease.workflow, lease.role, lease.token)) is None:
        raise Superseded(
            f"Workflow {lease.workflow} has been taken over by another process.",
            cure="This one has stopped writing.",
        )


def is_held(session: Session, lease: Lease) -> bool:
    """False when it has been taken over. Between two transactions only: inside one, `fence` says so for good."""
    try:
        fence(session, lease)
    except Superseded:
        return False
    return True


def current(session: Session, workflow: str, role: str) -> Lease | None:
    """The lease as somebody has it, alive or not: who writes by it is refused once it has been taken over."""
    found = rows.find(session, sidecar.lease, workflow=workflow, role=role)
    return Lease(workflow=workflow, role=role, token=int(found["token"])) if found else None


def depose(session: Session, workflow: str, role: str) -> int:
    """Take the lease from whoever holds it and hold it for nobody; returns the new token.

    When it returns, the holder's transactions have ended, and it can begin none. Somebody else may acquire it.
    """
    t = sidecar.lease
    with session.transaction():
        where = (t.c.workflow == workflow, t.c.role == role)
        row = fetch_one(session, select(t.c.token).where(*where).with_for_update())
        token = max(int(row["token"]) + 1 if row else 1, _clock(session))
        # Without a beat under the new token: so the lease counts as free, and a catch-up that is started again may take
        # it.
        rows.put(session, t, {"workflow": workflow, "role": role}, token=token, holder=me(), taken_at=now())
    return token


def fence_deposed(session: Session, lease: Lease) -> None:
    """As `fence`, of a lease that `depose` has taken. Raises Transient: somebody has acquired it since."""
    try:
        fence(session, lease)
    except Superseded:
        # Not the workflow's affair: catch-up has died and been started again.
        raise Transient("Catch-up has begun again meanwhile.") from None


def _clock(session: Session) -> int:
    return int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))


def is_alive(session: Session, workflow: str, role: str) -> bool:
    holder = holder_of(session, workflow, role)
    return holder is not None and holder.is_alive


def has_beat(session: Session, workflow: str, role: str) -> bool:
    """False when the last holder has given the lease back."""
    return rows.find(session, sidecar.heartbeat, workflow=workflow, role=role) is not None


def heartbeats(session: Session) -> list[tuple[str, str, float]]:
    """Workflow (or a stream of one), role, seconds since its last sign of life: of all who have not gone in order."""
    age = "TIMESTAMPDIFF(MICROSECOND, at, NOW(6)) / 1e6"
    sql = f"SELECT workflow, role, {age} FROM {SIDECAR}.heartbeat ORDER BY workflow, role"
    return [(str(workflow), str(role), float(seconds)) for workflow, role, seconds in session.rows(sql)]


def server_run(session: Session) -> int:
    """Which run of which server this is: when it was started, seconds by its own clock, and a digest of its name.

    The sidecar is replicated, so after a failover the row of a run on another server is found here.
    """
    who = int(session.value(f"SELECT CRC32(CONCAT_WS('|',{_WHO}))"))
    return started_at(session) << _WHO_BITS | who % (1 << _WHO_BITS)


def is_same_run(one: int, other: int) -> bool:
    """The moment of its start is read in two statements, and in whole seconds."""
    if (one ^ other) % (1 << _WHO_BITS):
        return False
    return abs((one >> _WHO_BITS) - (other >> _WHO_BITS)) <= 2


def connections(session: Session, workflow: str) -> frozenset[int]:
    """Ids of the open connections of whoever works on it, in any role, as their last beats tell them."""
    # By the token, too: a beat of an earlier one tells connections of a former holder, which a takeover has ended.
    found = session.rows(
        f"SELECT h.connections, h.server_started FROM {SIDECAR}.heartbeat h JOIN {SIDECAR}.lease l "
        "USING (workflow, role, token) WHERE workflow=%s",
        (workflow,),
    )
    here = server_run(session) if found else 0
    return frozenset(id for ids, run in found if is_same_run(int(run), here) for id in json.loads(ids)) - {_SIGNED}


def former_connections(session: Session, lease: Lease) -> tuple[int, ...]:
    """Ids that our own last beat told; () when the server has been started again since."""
    holder = holder_of(session, lease.workflow, lease.role)
    return holder.connections if holder and holder.token == lease.token else ()


def end_lost(session: Session, ids: tuple[int, ...], started: int | None) -> int:
    """End connections that were ours on the server that was started then; returns when this one was.

    A lost connection is lost on our side: on the other one it may still hold locks, or be at work.
    """
    return end_noted(session, (*ids, *_mark(session)), started)


def end_noted(session: Session, ids: tuple[int, ...], started: int | None) -> int:
    """As `end_lost`, of those that `noted` has written down, in whichever process."""
    now = server_run(session)
    if started is not None and is_same_run(started, now):
        end_connections(session, ours(session, ids), user=session.url.user)
    return now


def end_connections(session: Session, ids: tuple[int, ...], patience_seconds: float = 20.0, *, user: str = "") -> None:
    """KILL what is left of them and see it gone: nothing of theirs comes late. Raises Transient when they stay.

    user: as whom they are logged in, where that is known.
    """
    deadline = time.monotonic() + patience_seconds
    for connection_id in still_there(session, ids, user=user):
        session.kill(connection_id)
    while left := still_there(session, ids, user=user):
        if time.monotonic() > deadline:
            raise Transient(
                f"Connections {left}, which were ours, do not end: they may be rolling back.",
                cure="Try again when they are gone.",
            )
        time.sleep(0.05)


def taken_at(session: Session, workflow: str, role: str) -> datetime | None:
    """When somebody took the lease the last time (the server's clock, UTC); None: nobody has."""
    found = rows.find(session, sidecar.lease, workflow=workflow, role=role)
    return found["taken_at"] if found else None
