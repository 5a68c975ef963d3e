"""The workflow row: what was asked, where it stands, what the operator wants of it.

What must stay true: a phase changes only along `phases.MOVES`, under the row's lock; pausing and cancelling are flags
that whoever works on the workflow reads, not phases.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from vreplication import about, names
from vreplication.errors import LeaseHeld, Refused, Terminal
from vreplication.masking import mask
from vreplication.mysql.session import Session
from vreplication.phases import ENDED, OVER, Phase, check_move
from vreplication.settings import SIDECAR
from vreplication.state import layout, queue, rows, sidecar
from vreplication.state.lease import Lease, fence
from vreplication.state.sidecar import fetch, fetch_one, now

_t, _tables = sidecar.workflow, sidecar.workflow_table
_FIRST = 0
"""Number of the table that an online DDL changes."""
_FORCED = 2
"""In cancel_requested."""
_OF_TABLE = frozenset(_tables.c.keys()) - {"workflow", "number"}


_JOIN = f"JOIN {SIDECAR}.workflow_table t ON t.workflow=w.id AND t.number={_FIRST}"
_SELECT = f"SELECT w.*, t.* FROM {SIDECAR}.workflow w {_JOIN}"


CREATING = "being created"
"""In the place of the shadow's identity: the name was free, and the table that has it now is ours."""
IN_PLACE = ("instant", "inplace")
"""In the place of a copy path: nothing is copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRow:
    """A workflow as the sidecar knows it. `spec` is the user's request as plain data (no password, no URL)."""

    id: str
    kind: str
    protocol: int
    source_schema: str
    source_table: str
    spec: dict[str, Any]
    phase: Phase
    is_paused: bool
    is_cancel_requested: bool
    reason: str | None
    shadow_table: str
    retired_table: str
    copy_path: str
    source_identity: str | None
    shadow_identity: str | None
    source_definition: str | None
    server_identity: str | None
    start_position: str | None
    is_cut: bool
    rows_total: int | None
    created_at: datetime | None = None
    """By the server's clock, UTC."""
    is_cancel_forced: bool = False
    """Of a feed: it ends even where its broker cannot be told."""

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def stopped_by(self) -> str | None:
        """What an operator has asked for that holds a switch back: `cancelled` or `paused`."""
        if self.is_cancel_requested and not self.is_cut:
            return "cancelled"
        return "paused" if self.is_paused else None

    @property
    def keeps_one(self) -> bool:
        """Of several rows of one value under a new unique key (workflows/online_ddl/dedup.py)."""
        return str(self.spec.get("on_duplicate", "fail")) != "fail"

    @property
    def full_copy(self) -> str:
        return names.full_copy(self.source_table, self.id)

    @property
    def side_table(self) -> str:
        return names.side_table(self.source_table, self.id)

    @property
    def stand_in(self) -> str:
        return names.stand_in(self.source_table, self.id)

    @property
    def stood_in(self) -> str:
        return names.stood_in(self.source_table, self.id)

    @property
    def is_in_place(self) -> bool:
        """The server alters the table itself; `shadow_identity` is then the definition's digest afterwards."""
        return self.copy_path in IN_PLACE


def strategy_of(copy_path: str) -> str:
    return copy_path if copy_path in IN_PLACE else "online"


def _row(found: dict[str, Any]) -> WorkflowRow:
    return WorkflowRow(
        id=found["id"],
        kind=found["kind"],
        protocol=int(found["protocol"]),
        source_schema=found["source_schema"],
        source_table=found["source_table"],
        spec=json.loads(found["spec"]),
        phase=Phase(found["phase"]),
        is_paused=bool(found["paused"]),
        is_cancel_requested=bool(found["cancel_requested"]),
        reason=found["reason"],
        shadow_table=found["shadow_table"],
        retired_table=found["retired_table"],
        copy_path=found["copy_path"],
        source_identity=found["source_identity"],
        shadow_identity=found["shadow_identity"],
        source_definition=found["source_definition"],
        server_identity=found["server_identity"],
        start_position=found["start_position"],
        is_cut=bool(found["is_cut"]),
        rows_total=found["rows_total"],
        created_at=found["created_at"],
        is_cancel_forced=found["cancel_requested"] == _FORCED,
    )


def create(
    session: Session,
    row: WorkflowRow,
    claimant: str = "",
    *,
    is_anew: bool = False,
    also: Callable[[], None] = lambda: None,
) -> datetime:
    """Insert a workflow; returns its `created_at`. Raises mysql.session.SqlError (1062) when the id is taken.

    claimant: who had claimed it from the queue; raises Refused where another one has it by now. is_anew: in the place
    of the one of this id, whose preparation has been undone; what operators have asked of that one holds. also: writes
    what belongs to it, in the same transaction.
    """
    values: dict[str, Any] = {
        "id": row.id,
        "kind": row.kind,
        "protocol": row.protocol,
        "spec": json.dumps(row.spec),
        "phase": str(row.phase),
        "server_identity": row.server_identity,
        "start_position": row.start_position,
        "created_at": now(),
        "updated_at": now(),
    }
    of_table = {
        "source_schema": row.source_schema,
        "source_table": row.source_table,
        "shadow_table": row.shadow_table,
        "retired_table": row.retired_table,
        "copy_path": row.copy_path,
        "source_definition": row.source_definition,
        "source_identity": row.source_identity,
        "shadow_identity": row.shadow_identity,
        "rows_total": row.rows_total,
    }
    # All or none: `find` joins the two, so a row without its table's would not be found, and yet hold its id.
    with session.transaction():
        queue.check_claim(session, row.id, claimant)
        asked = _remove_undone(session, row.id) if is_anew else {}
        rows.add(session, _t, **values, **asked)
        rows.add(session, _tables, workflow=row.id, number=_FIRST, **of_table)
        also()
        created_at: datetime = session.value(f"SELECT created_at FROM {SIDECAR}.workflow WHERE id=%s", (row.id,))
        return created_at


def _remove_undone(session: Session, workflow: str) -> dict[str, Any]:
    """All rows but those by which operators ask something; returns the columns of the row that do."""
    asked = select(_t.c.paused, _t.c.cancel_requested).where(_t.c.id == workflow).with_for_update()
    found = fetch_one(session, asked) or {}
    for table in (*sidecar.OF_A_WORKFLOW, *sidecar.REMEMBERED):
        if table not in sidecar.ASKED:
            rows.remove(session, table, workflow=workflow)
    rows.remove(session, _tables, workflow=workflow)
    rows.remove(session, _t, id=workflow)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One of several tables of a workflow. Identities: as of `cutover.identity`; the shadow is on the target.

    rows_total None: its preparation has not come to its end.
    """

    number: int
    source_schema: str
    source_table: str
    shadow_table: str
    retired_table: str
    source_identity: str | None
    shadow_identity: str | None
    source_definition: str | None
    rows_total: int | None

    def id(self, stream: str) -> str:
        """Under which a stream keeps this table's ledger and key tables."""
        return f"{stream}.{self.number + 1}"


def check_is_ours(row: WorkflowRow, created_at: datetime | None) -> None:
    """Raises LeaseHeld where the row is not the one that we wrote at that time, before the lease was ours."""
    # Without the lease nothing holds another process, which takes a row that is not prepared for a dead one's.
    if row.created_at != created_at:
        raise LeaseHeld(f"Workflow {row.id} was begun anew by another process meanwhile.", cure="Try again.")


def add_table(session: Session, workflow: str, table: TableRow) -> None:
    """A table beside the first, which `create` has written."""
    fields = {name: getattr(table, name) for name in table.__slots__ if name != "number"}
    # Only a move has several tables, and between two servers there is no other path.
    rows.add(session, _tables, workflow=workflow, number=table.number, copy_path="rows", **fields)


def tables(session: Session, workflow: str) -> list[TableRow]:
    """All tables of a workflow, in order."""
    names = TableRow.__slots__
    found = fetch(session, select(_tables).where(_tables.c.workflow == workflow).order_by(_tables.c.number))
    return [TableRow(**{name: row[name] for name in names}) for row in found]


def set_table_fields(session: Session, workflow: str, number: int, **fields: Any) -> None:
    with session.transaction():
        rows.change(session, _tables, {"workflow": workflow, "number": number}, **fields)


def find(session: Session, workflow: str) -> WorkflowRow | None:
    found = layout.look(session, lambda: session.named_rows(f"{_SELECT} WHERE w.id=%s", (workflow,)))
    return _row(found[0]) if found else None


def load(session: Session, workflow: str) -> WorkflowRow:
    """The workflow. Raises Refused when there is none of that id."""
    found = find(session, workflow)
    if found is None:
        raise unknown(session, workflow)
    return found


def unknown(session: Session, workflow: str) -> Refused:
    """There is none of that id. Raises Refused where that cannot be seen."""
    layout.check_readable(session)
    entry = queue.find(session, workflow)
    if entry and entry.state in (queue.QUEUED, queue.STARTED):
        cure = f"`vreplication queue` says what it waits for; `vreplication queue --remove {workflow}` takes it out."
        return Refused(f"Workflow {workflow} is in the queue and has not begun.", cure=cure)
    return Refused(
        f"There is no workflow {workflow!r} on this server.", cure="`vreplication status` lists those there are."
    )


def existing(session: Session, ids: Sequence[str]) -> list[str]:
    """Those of them that there are, in their order."""
    if not ids:
        return []
    marks = ",".join(["%s"] * len(ids))
    sql = f"SELECT id FROM {SIDECAR}.workflow WHERE id IN ({marks})"
    found = layout.look(session, lambda: session.rows(sql, tuple(ids))) or []
    there = {str(name) for (name,) in found}
    return [each for each in ids if each in there]


def is_cut(session: Session, workflow: str) -> bool:
    """Have the tables been switched? Asked many times a second while they are."""
    sql = f"SELECT is_cut FROM {SIDECAR}.workflow_table WHERE workflow=%s AND number={_FIRST}"
    return bool(session.value(sql, (workflow,)))


def load_all(session: Session) -> list[WorkflowRow]:
    """Every workflow, newest first."""
    found = layout.look(session, lambda: session.named_rows(f"{_SELECT} ORDER BY w.created_at DESC"))
    return [_row(r) for r in found or ()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked of a workflow, and by whom its gate was released."""

    kind: str
    spec: dict[str, Any]
    is_cut: bool
    released_by: str | None


def requests(session: Session, workflow: str | None = None) -> dict[str, Request]:
    """Of each workflow, or of one, by its id."""
    one, args = (" WHERE w.id=%s", (workflow,)) if workflow else ("", None)
    found = session.rows(
        f"SELECT w.id, w.kind, w.spec, t.is_cut, r.released_by FROM {SIDECAR}.workflow w {_JOIN} "
        f"LEFT JOIN {SIDECAR}.gate_release r ON r.workflow = w.id{one}",
        args,
    )
    return {
        str(name): Request(kind=str(kind), spec=json.loads(spec), is_cut=bool(cut), released_by=by)
        for name, kind, spec, cut, by in found
    }


def live_on_table(session: Session, schema: str, table: str) -> dict[str, str]:
    """Phases of the workflows on this table that have neither completed nor been cancelled, by id.

    Tables that move here may have another schema than on their source.
    """
    move = sidecar.move
    living = (
        select(_t.c.id, _t.c.phase, _tables.c.source_table.label("name"))
        .join_from(_t, _tables, _tables.c.workflow == _t.c.id)
        .where(_tables.c.source_table == table, _t.c.phase.not_in(sorted(OVER)))
    )
    moved = living.join(move, move.c.workflow == _t.c.id)
    queries = [
        query.add_columns(column.label("of")).where(column == schema)
        for query, column in ((living, _tables.c.source_schema), (moved, move.c.target_schema))
    ]
    # One by one: in the sidecar of an earlier release nothing moves, and the first has an answer all the same.
    looked = [layout.look(session, functools.partial(fetch, session, query)) or () for query in queries]
    # To the sidecar's columns orders and órders are one name. Orders and orders are one to us where they are two to the
    # server as well: our reading of the log knows no case, so DDL of the one ends a workflow of the other.
    wanted = schema.lower(), table.lower()
    return {r["id"]: r["phase"] for found in looked for r in found if (r["of"].lower(), r["name"].lower()) == wanted}


def set_fields(session: Session, workflow: str, **fields: Any) -> None:
    """Set columns of the row or of its table's (identities, positions, totals). To be called inside no transaction."""
    with session.transaction():
        change_fields(session, workflow, **fields)


def change_fields(session: Session, workflow: str, **fields: Any) -> None:
    """As `set_fields`, together with what else is to be true. To be called inside a transaction."""
    of_table = {name: value for name, value in fields.items() if name in _OF_TABLE}
    others = {name: value for name, value in fields.items() if name not in _OF_TABLE}
    rows.change(session, _t, {"id": workflow}, **others, updated_at=now())
    if of_table:
        rows.change(session, _tables, {"workflow": workflow, "number": _FIRST}, **of_table)


def move(
    session: Session, workflow: str, phase: Phase, reason: str | None = None, *, our_lease: Lease | None = None
) -> None:
    """Go to another phase. Raises Terminal when that move is not allowed. To be called inside no transaction.

    `our_lease`: of a process that works on the workflow; raises Superseded when it has been taken over.
    """
    with session.transaction():
        if our_lease:
            fence(session, our_lease)
        found = fetch_one(session, select(_t.c.phase, _t.c.reason).where(_t.c.id == workflow).with_for_update())
        if found is None:
            raise Refused(f"There is no workflow {workflow!r} on this server.")
        # Ended already, by another one or by the commit whose answer was lost.
        if found["phase"] == str(phase) and phase in ENDED:
            return
        # Catch-up has failed it, and the driver has not heard yet: it must not walk over that. To go on is `reopen`, an
        # act of its own.
        if found["phase"] == str(Phase.FAILED) and phase is not Phase.CANCELLED:
            raise Terminal(found["reason"] or "The workflow has failed.")
        check_move(Phase(found["phase"]), phase)
        about.stands(workflow, str(phase))
        fields: dict[str, Any] = {
            "phase": str(phase),
            "reason": mask(reason) if reason else reason,
            "updated_at": now(),
        }
        if phase in ENDED:
            fields["ended_at"] = now()
        rows.change(session, _t, {"id": workflow}, **fields)


def reopen(session: Session, workflow: str, phase: Phase = Phase.COPYING) -> None:
    """Go on with a failed workflow: back to copying, which finds out by itself what is left to do."""
    # Every start calls this: of a workflow in any other phase it finds no row.
    failed = {"id": workflow, "phase": str(Phase.FAILED)}
    values = {"phase": str(phase), "reason": None, "ended_at": None, "updated_at": now()}
    rows.change(session, _t, failed, **values)


def begin_anew(session: Session, workflow: str, copy_path: str) -> None:
    """Back to its preparation, on this copy path, with nothing copied. To be called inside a transaction."""
    # Splits of a preparation that was cut short would be in the way of the new ones, which have the same numbers.
    for table in (sidecar.split, sidecar.chunk, sidecar.marker, sidecar.marker_applied):
        rows.remove(session, table, workflow=workflow)
    one = {"workflow": workflow, "number": _FIRST}
    rows.change(session, _tables, one, copy_path=copy_path, shadow_identity=None, rows_total=None)
    rows.change(session, _t, {"id": workflow}, phase=str(Phase.PREPARING), start_position=None, updated_at=now())


def set_paused(session: Session, workflow: str, paused: bool) -> None:
    set_fields(session, workflow, paused=int(paused))


def set_spec(session: Session, workflow: str, spec: dict[str, Any]) -> None:
    set_fields(session, workflow, spec=json.dumps(spec))


def request_cancel(session: Session, workflow: str, *, is_forced: bool = False) -> None:
    set_fields(session, workflow, cancel_requested=_FORCED if is_forced else 1)


def forget_run(session: Session, workflow: str) -> None:
    """Remove the rows that were only for the run. The lease's go with its release."""
    for table in sidecar.OF_A_WORKFLOW:
        if table not in (sidecar.lease, sidecar.heartbeat):
            rows.remove(session, table, workflow=workflow)


def forget(session: Session, workflow: str, also: Callable[[], None] = lambda: None) -> None:
    """Remove a workflow of which nothing is left (its preparation was refused); its journal tells of it.

    also: removes what belongs to it, in the same transaction as its row.
    """
    for table in (*sidecar.OF_A_WORKFLOW, *sidecar.REMEMBERED):
        rows.remove(session, table, workflow=workflow)
    # All or none, as in `create`.
    with session.transaction():
        also()
        rows.remove(session, _tables, workflow=workflow)
        rows.remove(session, _t, id=workflow)
    # What a beat has written meanwhile.
    for table in (sidecar.throttle, sidecar.forecast, sidecar.heartbeat):
        rows.remove(session, table, workflow=workflow)
