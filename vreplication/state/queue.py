"""The queue's rows: migrations that wait, and what became of them.

What must stay true: a row is never deleted, so an id is taken once for good; it leaves QUEUED only under `lock`, which
one transaction at a time can have, so that two schedulers never start the same entry and never start one too many; a
workflow that was started by one who has lost the entry to another one meanwhile is not begun (`check_claim`).
Times are the server's, UTC. A sidecar that was made before there was a queue reads as an empty one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.session import DUPLICATE, NO_SUCH_TABLE, Session, SqlError
from vreplication.phases import Phase
from vreplication.settings import LEASE_STALE_SECONDS, SIDECAR
from vreplication.state import layout, lease, rows, sidecar
from vreplication.state.sidecar import fetch, now

QUEUED, STARTED, FAILED, REMOVED = "queued", "started", "failed", "removed"
KIND, ONLINE_DDL = "kind", "online_ddl"
"""Key of an entry's spec, and what it means where it is not there."""
_CLAIMANT_ENDS = ": "
"""Behind the claimant, in `started_by`."""
_FEED = "changefeed"
"""The kind of workflow without an end."""
_NOTHING_TO_DO = "Submit it again under another id where it is wanted."
_IT_GOES_ON = "Its run is there; nothing is to be done here."
_t = sidecar.queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A workflow as submitted. Greater priority goes first; place: what counts instead, where a person has moved it.

    spec: what was asked for, as plain data: `kind` where it is no online DDL, and the connections of other servers.
    conn_id None: whoever looks after this server may start it.
    """

    workflow: str
    schema: str
    table: str
    spec: dict[str, Any]
    conn_id: str | None = None
    not_before: datetime | None = None
    after: str | None = None
    priority: int = 0
    number: int = 0
    state: str = QUEUED
    reason: str | None = None
    submitted_by: str = ""
    submitted_at: datetime | None = None
    started_by: str | None = None
    started_at: datetime | None = None
    place: int | None = None

    @property
    def rank(self) -> int:
        """The greatest goes first; of equal ones that which was submitted first."""
        return self.priority if self.place is None else self.place

    @property
    def claimant(self) -> str:
        """Which of several schedulers has started it; '' where it has not told."""
        name, ends, _ = (self.started_by or "").partition(_CLAIMANT_ENDS)
        return name if ends else ""

    @property
    def kind(self) -> str:
        return str(self.spec.get(KIND, ONLINE_DDL))

    @property
    def asked(self) -> tuple[object, ...]:
        """What it is about, to be told apart from something else under the same id."""
        what = self.spec.get("alter") if self.kind == ONLINE_DDL else tuple(self.spec.get("tables") or ())
        return about(self.kind, self.schema, self.table, what)

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """Schema and name of all that it has; `*` of one that asks for all tables of its source."""
        asked = [str(name) for name in (self.table, *(self.spec.get("tables") or ()))]
        # Of schema.name the name as well: one too many is harmless.
        return frozenset((self.schema, name) for each in asked for name in (each, each.rpartition(".")[2]))


def about(kind: str, schema: str, table: str, what: object) -> tuple[object, ...]:
    """What a workflow is about. what: its ALTER, whose lines and spaces are a file's or a shell's, or its tables.

    Servers differ in whether case counts in a table's name, and tell it in their own.
    """
    names = tuple(map(str.casefold, what)) if isinstance(what, tuple) else " ".join(str(what or "").split())
    return kind, schema.casefold(), table.casefold(), names


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the queue needs to know of a workflow. `seen_at`: when its row was last written.

    tables: schema and name of all that it has, also where they move to; of a feed, which holds none, nothing.
    """

    workflow: str
    tables: frozenset[tuple[str, str]]
    phase: Phase
    reason: str | None
    seen_at: datetime


def is_there(session: Session) -> bool:
    sql = "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name='queue'"
    return session.row(sql, (SIDECAR,)) is not None


def lock(session: Session) -> None:
    """Be the only one who starts, fails or removes entries, until the transaction ends."""
    # A row that is always there, because a row that is missing (of an empty queue) cannot be locked.
    session.row(f"SELECT version FROM {SIDECAR}.schema_version WHERE id=1 FOR UPDATE")


def put(session: Session, entry: Entry, by: str) -> None:
    """Append. Raises Refused when the id is in the queue already."""
    values = {
        "workflow": entry.workflow,
        "source_conn_id": entry.conn_id,
        "source_schema": entry.schema,
        "source_table": entry.table,
        "spec": json.dumps(entry.spec),
        "not_before": entry.not_before,
        "after_workflow": entry.after,
        "priority": entry.priority,
        "state": QUEUED,
        "submitted_by": by[:255],
        "submitted_at": now(),
    }
    try:
        rows.add(session, _t, **values)
    except SqlError as error:
        if error.code != DUPLICATE:
            raise
        raise Refused(f"Workflow {entry.workflow} has been submitted before.", cure="Choose another id.") from None


def find(session: Session, workflow: str) -> Entry | None:
    if not is_there(session):
        return None
    found = rows.find(session, _t, workflow=workflow)
    return _entry(found, _places(session)) if found else None


def entries(session: Session) -> list[Entry]:
    """All, in the order of their submission."""
    if not is_there(session):
        return []
    places = _places(session)
    return [_entry(r, places) for r in fetch(session, select(_t).order_by(_t.c.number))]


def _places(session: Session) -> dict[str, int]:
    try:
        return {str(r["workflow"]): int(r["place"]) for r in fetch(session, select(sidecar.queue_place))}
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        # A sidecar of an earlier release, where nothing was moved.
        return {}


def _entry(found: dict[str, Any], places: dict[str, int]) -> Entry:
    return Entry(
        workflow=found["workflow"],
        schema=found["source_schema"],
        table=found["source_table"],
        spec=json.loads(found["spec"]),
        conn_id=found["source_conn_id"],
        not_before=found["not_before"],
        after=found["after_workflow"],
        priority=int(found["priority"]),
        number=int(found["number"]),
        state=found["state"],
        reason=found["reason"],
        submitted_by=found["submitted_by"],
        submitted_at=found["submitted_at"],
        started_by=found["started_by"],
        started_at=found["started_at"],
        place=places.get(found["workflow"]),
    )


def claimed(by: str, claimant: str) -> str:
    """As it is in `started_by`."""
    return f"{claimant}{_CLAIMANT_ENDS}{by}"[:255] if claimant else by[:255]


def start(session: Session, workflow: str, by: str, claimant: str = "") -> None:
    _set(session, workflow, state=STARTED, started_by=claimed(by, claimant), started_at=now())


def check_claim(session: Session, workflow: str, claimant: str) -> None:
    """Raises Refused where the entry is not the claimant's any more; '' has no claim to lose.

    To be called in the transaction that begins the workflow, which then holds the lock: a check alone may be late.
    """
    if not claimant:
        return
    # First of all: what was read before it could be of before another one's claim.
    lock(session)
    entry = find(session, workflow)
    if entry and entry.state == REMOVED:
        raise Refused(f"Workflow {workflow} was removed from the queue, and is not begun.", cure=_NOTHING_TO_DO)
    if entry and entry.state == STARTED and is_anothers(entry, claimant):
        raise Refused(f"Another Airflow has taken workflow {workflow} from the queue meanwhile.", cure=_IT_GOES_ON)


def is_anothers(entry: Entry, claimant: str) -> bool:
    return bool(claimant and entry.claimant and entry.claimant != claimant)


def put_back(session: Session, workflow: str) -> None:
    """Its start came to nothing; it waits again."""
    _set(session, workflow, state=QUEUED, started_by=None, started_at=None)


def fail(session: Session, workflow: str, reason: str) -> None:
    _set(session, workflow, state=FAILED, reason=reason)


def remove(session: Session, workflow: str, by: str) -> None:
    _set(session, workflow, state=REMOVED, reason=f"removed by {by}")


def put_at(session: Session, workflow: str, place: int) -> None:
    """Moved by a person."""
    rows.put(session, sidecar.queue_place, {"workflow": workflow}, place=place)


def _set(session: Session, workflow: str, **fields: Any) -> None:
    rows.change(session, _t, {"workflow": workflow}, **fields)


def server_now(session: Session) -> datetime:
    found: datetime = session.value("SELECT NOW(6)")
    return found


def workflows_known(session: Session) -> dict[str, Known]:
    """Every workflow of this server by its id, without its request."""
    w, of = sidecar.workflow, sidecar.workflow_table
    columns = (w.c.id, w.c.kind, of.c.source_schema, of.c.source_table, w.c.phase, w.c.reason, w.c.updated_at)
    query = select(*columns).join_from(w, of, of.c.workflow == w.c.id)
    found = layout.look(session, lambda: fetch(session, query)) or ()
    moved = _target_schemas(session) if found else {}
    tables: dict[str, set[tuple[str, str]]] = {}
    for r in found:
        # A feed's table may be `*`, and it has no end: it would hold a queued move of all tables for ever.
        schemas = () if r["kind"] == _FEED else {r["source_schema"], moved.get(r["id"], r["source_schema"])}
        tables.setdefault(r["id"], set()).update((schema, r["source_table"]) for schema in schemas)
    return {r["id"]: _known(r, frozenset(tables[r["id"]])) for r in found}


def _target_schemas(session: Session) -> dict[str, str]:
    """Of tables that move here."""
    try:
        query = select(sidecar.move.c.workflow, sidecar.move.c.target_schema)
        return {str(r["workflow"]): str(r["target_schema"]) for r in fetch(session, query)}
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        # A sidecar of an earlier release, in which nothing moves.
        return {}


def _known(found: dict[str, Any], tables: frozenset[tuple[str, str]]) -> Known:
    return Known(
        workflow=found["id"],
        tables=tables,
        phase=Phase(found["phase"]),
        reason=found["reason"],
        seen_at=found["updated_at"],
    )


def held_leases(session: Session) -> frozenset[str]:
    """Workflows that a living driver or catch-up works on. Only who gave signs of life lately is looked at closely.

    A move counts once: the catch-up of a later stream has a lease under that one's id.

    Change feeds are not among them: they have no end that could be waited for, and hold nothing of a table's.
    """
    if not layout.exists(session):
        return frozenset()
    sql = (
        f"SELECT h.workflow, h.role, w.id FROM {SIDECAR}.heartbeat h LEFT JOIN {SIDECAR}.workflow w ON w.id=h.workflow"
        " WHERE h.at > NOW(6) - INTERVAL %s SECOND AND COALESCE(w.kind,'')<>%s"
    )
    found = session.rows(sql, (LEASE_STALE_SECONDS, _FEED))
    living = [(str(held), known) for held, role, known in found if lease.is_alive(session, held, role)]
    return frozenset(held if known else names.split_stream(held)[0] for held, known in living)
