"""Markers: rows that are written to come back through the binary log.

What must stay true: `write` has committed when it returns; when `wait_applied` returns, everything that was readable in
the log before the marker is flushed to the target. Kinds: "plain"; "suspects_open" and "suspects_close" around a
re-examination by key (the applier notes which suspects are touched in between); "since" (the applier hands over the
keys that it has written since the last one); "cutover" (the same, and it holds after it).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vreplication.errors import Transient
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.lease import Lease, fence
from vreplication.state.sidecar import now

PLAIN = "plain"
SUSPECTS_OPEN = "suspects_open"
SUSPECTS_CLOSE = "suspects_close"
SINCE = "since"
CUTOVER = "cutover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A marker that has been applied. `branches`: XA branches (as text) whose outcome was not in the log by then."""

    id: str
    branches: tuple[str, ...]
    is_holding: bool


class Markers(Protocol):
    """Markers of one stream: written on its source, looked for where its state is."""

    def write(self, kind: str = PLAIN, *, our_lease: Lease | None = None) -> str:
        """Committed on the source when it returns; returns the marker's id."""

    def find_applied(self, marker: str) -> Applied | None:
        """None: not applied yet."""

    def remove(self, marker: str) -> None:
        """Take it back; an applier that holds at it goes on."""


@dataclass(frozen=True, slots=True)
class OnServer:
    """Of a stream whose state is on its source."""

    session: Session
    workflow: str

    def write(self, kind: str = PLAIN, *, our_lease: Lease | None = None) -> str:
        return write(self.session, self.workflow, kind, our_lease=our_lease)

    def find_applied(self, marker: str) -> Applied | None:
        return find_applied(self.session, self.workflow, marker)

    def remove(self, marker: str) -> None:
        remove(self.session, self.workflow, marker)


def write(
    session: Session, workflow: str, kind: str = PLAIN, *, our_lease: Lease | None = None, marker: str = ""
) -> str:
    """Insert a marker in a transaction of its own; returns its id. Raises Superseded when the lease is lost.

    marker: its id, where it was drawn before (8 bytes in hexadecimal digits).

    One at which catch-up holds wants the lease: who takes over takes back what is there by then, and nobody what
    comes later.
    """
    marker = marker or secrets.token_hex(8)
    with session.transaction():
        if our_lease:
            fence(session, our_lease)
        rows.add(session, sidecar.marker, workflow=workflow, id=marker, kind=kind, created_at=now())
    return marker


def record_applied(
    session: Session, workflow: str, marker: str, branches: tuple[str, ...], *, is_holding: bool
) -> None:
    """By the applier, in the transaction of its checkpoint. Repeated after a restart: harmless."""
    key = {"workflow": workflow, "id": marker}
    fields = {"branches": json.dumps(branches), "is_holding": int(is_holding), "applied_at": now()}
    rows.put(session, sidecar.marker_applied, key, **fields)


def find_applied(session: Session, workflow: str, marker: str) -> Applied | None:
    row = rows.find(session, sidecar.marker_applied, workflow=workflow, id=marker)
    if row is None:
        return None
    return Applied(id=marker, branches=tuple(json.loads(row["branches"])), is_holding=bool(row["is_holding"]))


def remove(session: Session, workflow: str, marker: str) -> None:
    """Take a marker back; an applier that holds at it goes on."""
    for t in (sidecar.marker, sidecar.marker_applied):
        rows.remove(session, t, workflow=workflow, id=marker)


def remove_all(session: Session, workflow: str, kind: str) -> None:
    """Take back all of one kind."""
    for (marker,) in session.rows(f"SELECT id FROM {SIDECAR}.marker WHERE workflow=%s AND kind=%s", (workflow, kind)):
        remove(session, workflow, marker)


def is_present(session: Session, workflow: str, marker: str) -> bool:
    return rows.find(session, sidecar.marker, workflow=workflow, id=marker) is not None


def is_any(session: Session, workflow: str, kind: str) -> bool:
    """One of a kind is there."""
    return rows.find(session, sidecar.marker, workflow=workflow, kind=kind) is not None


def is_standing(session: Session, workflow: str, marker: str) -> bool:
    """The same of one that has been read in the log: it is there before the server shows it."""
    # F1: a plain read found none, in the instant of its commit, and the attempt at the cut-over was given up. This one
    # waits for whoever writes the row.
    sql = f"SELECT 1 FROM {SIDECAR}.marker WHERE workflow=%s AND id=%s LOCK IN SHARE MODE"
    return session.row(sql, (workflow, marker)) is not None


def wait_applied(
    session: Session,
    workflow: str,
    marker: str,
    *,
    timeout_seconds: float,
    check: Callable[[], None] = lambda: None,
    poll_seconds: float = 0.02,
) -> Applied:
    """`wait` for a marker of a stream whose state is on its source."""
    of = OnServer(session, workflow)
    return wait(of, marker, timeout_seconds=timeout_seconds, check=check, poll_seconds=poll_seconds)


def wait(
    of: Markers,
    marker: str,
    *,
    timeout_seconds: float,
    check: Callable[[], None] = lambda: None,
    poll_seconds: float = 0.02,
) -> Applied:
    """Wait until the marker has been applied. `check` is called between looks and may raise. Raises Transient."""
    deadline = time.monotonic() + timeout_seconds
    while (found := of.find_applied(marker)) is None:
        if time.monotonic() > deadline:
            raise Transient(f"Catch-up did not reach a marker within {timeout_seconds:g} s.")
        check()
        time.sleep(poll_seconds)
    return found


def remove_kind(session: Session, workflow: str, kind: str) -> None:
    """All of a kind, when they are not needed any more."""
    rows.remove(session, sidecar.marker, workflow=workflow, kind=kind)
