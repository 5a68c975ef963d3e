"""What the sidecar knows of things that are left over: ended workflows, old rows, leases without a workflow.

What must stay true: nothing of a workflow that goes on or may go on (a failed one, too) is named or removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from vreplication import names
from vreplication.mysql.session import Session
from vreplication.phases import OVER, Phase
from vreplication.settings import SIDECAR
from vreplication.state import layout, queue, rows, sidecar, workflows
from vreplication.state.history import SLOT_SECONDS

_ROWS = 1_000
"""Rows a statement, so that no transaction grows large."""
_OVER = ",".join(f"'{phase}'" for phase in sorted(OVER))
_TABLES = f"{SIDECAR}.workflow w JOIN {SIDECAR}.workflow_table t ON t.workflow=w.id"
_OF_NO_LIVING = f"workflow NOT IN (SELECT id FROM {SIDECAR}.workflow WHERE phase NOT IN ({_OVER}))"
_OLD = {
    "journal": f"at < NOW(6) - INTERVAL %s DAY AND {_OF_NO_LIVING}",
    "history": f"slot < UNIX_TIMESTAMP(NOW(6) - INTERVAL %s DAY) / {SLOT_SECONDS} AND {_OF_NO_LIVING}",
    "feed_rates": f"slot < UNIX_TIMESTAMP(NOW(6) - INTERVAL %s DAY) / {SLOT_SECONDS} AND {_OF_NO_LIVING}",
}
"""Tables that grow old by rows, and which of them are older than so many days."""
_WITH = {"history": ("feed_rates",)}
"""What goes with another one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """The original of a workflow that is complete. server: whose numbers `identity` is of; definition: its digest."""

    workflow: str
    schema: str
    table: str
    identity: str | None
    definition: str | None
    server: str | None
    ended_at: datetime


def retired(session: Session, days: int) -> list[Retired]:
    """Of workflows that ended more than so many days ago."""
    found = session.rows(
        "SELECT w.id, t.source_schema, t.retired_table, t.source_identity, t.source_definition, w.server_identity, "
        f"w.ended_at FROM {_TABLES} "
        # Of tables that move the originals are on another server.
        f"WHERE w.kind='{queue.ONLINE_DDL}' AND phase='{Phase.COMPLETE}' AND ended_at < NOW(6) - INTERVAL %s DAY "
        "ORDER BY ended_at",
        (days,),
    )
    return [Retired(**dict(zip(Retired.__slots__, row, strict=True))) for row in found]


def schemas(session: Session) -> frozenset[str]:
    """Where there have been workflows."""
    found = session.rows(f"SELECT DISTINCT source_schema FROM {SIDECAR}.workflow_table")
    return frozenset(str(schema) for (schema,) in found)


def claimed(session: Session) -> frozenset[tuple[str, str]]:
    """Shadow tables and stand-ins of workflows that go on or may go on: schema and name, casefolded."""
    living = f"WHERE w.phase NOT IN ({_OVER})"
    found = session.rows(f"SELECT t.source_schema, t.shadow_table, t.source_table, w.id FROM {_TABLES} {living}")
    stand_ins = [
        (schema, name(table, workflow))
        for schema, _, table, workflow in found
        for name in (names.stand_in, names.stood_in)
    ]
    # Tables that move here may have another schema than on their source.
    sql = f"SELECT m.target_schema, t.shadow_table FROM {_TABLES} JOIN {SIDECAR}.move m ON m.workflow=w.id {living}"
    moved = layout.look(session, lambda: session.rows(sql)) or []
    claims = [*((schema, shadow) for schema, shadow, *_ in found), *stand_ins, *moved]
    # With lower_case_table_names=1 the server lists tables in lower case, whatever name they were given.
    return frozenset((str(schema).casefold(), str(table).casefold()) for schema, table in claims)


def without_workflow(session: Session, minutes: int) -> list[str]:
    """Ids that have a lease, taken more than so many minutes ago, and no workflow, nor are a stream of one."""
    found = session.rows(
        f"SELECT workflow, MAX(taken_at) FROM {SIDECAR}.lease "
        f"WHERE workflow NOT IN (SELECT id FROM {SIDECAR}.workflow) "
        "GROUP BY workflow HAVING MAX(taken_at) < NOW(6) - INTERVAL %s MINUTE ORDER BY workflow",
        (minutes,),
    )
    return [str(workflow) for workflow, _ in found if not _is_of_a_living(session, str(workflow))]


def _is_of_a_living(session: Session, stream: str) -> bool:
    """Later streams of tables that move have leases of their own and no row: there is the place of the way back."""
    workflow, _ = names.split_stream(stream)
    row = workflows.find(session, workflow) if workflow != stream else None
    return row is not None and row.phase not in OVER


def forget(session: Session, workflow: str) -> bool:
    """Remove all rows of an id without a workflow. False: there is a workflow after all, or it is a stream of one."""
    with session.transaction():
        # A preparation takes the lease before it writes the row: one that begins now waits here, or we find its row
        # below.
        session.rows(f"SELECT role FROM {SIDECAR}.lease WHERE workflow=%s FOR UPDATE", (workflow,))
        if workflows.find(session, workflow) is not None or _is_of_a_living(session, workflow):
            return False
        for table in (*sidecar.OF_A_WORKFLOW, *sidecar.REMEMBERED):
            rows.remove(session, table, workflow=workflow)
    return True


def count_old(session: Session, table: str, days: int) -> int:
    """table: "journal" or "history"."""
    return int(session.value(f"SELECT COUNT(*) FROM {SIDECAR}.{table} WHERE {_OLD[table]}", (days,)))


def remove_old(session: Session, table: str, days: int) -> None:
    for each in (table, *_WITH.get(table, ())):
        sql = f"DELETE FROM {SIDECAR}.{each} WHERE {_OLD[each]} LIMIT {_ROWS}"
        while layout.look(session, lambda sql=sql: session.execute(sql, (days,))):  # type: ignore[misc]
            pass
