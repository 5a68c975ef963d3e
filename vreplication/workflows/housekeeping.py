"""What is left over and may go: old originals, old journal rows and charts, orphaned shadow tables and leases.

What must stay true: `find` only reads and `remove` takes away one thing that `find` has named, having looked again; a
table goes only under its own lock and only when it is the very one that was named (InnoDB's identity); nothing of a
workflow that goes on or may go on (a failed one, too) is touched; the original of a workflow that is unknown is never
touched, for it holds rows that nobody else has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vreplication import names
from vreplication.apply import unique
from vreplication.cutover.identity import table_identities
from vreplication.cutover.sentry import drop_table
from vreplication.errors import VReplicationError
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import journal, keytables, lease, rows, sidecar, workflows
from vreplication.state.history import SLOT_SECONDS
from vreplication.workflows import steps

log = logging.getLogger(__name__)

RETIRED_DAYS, JOURNAL_DAYS = 7, 90
RETIRED, JOURNAL, HISTORY, SHADOW, LEASE = "retired table", "journal", "history", "shadow table", "lease"
_ORPHAN_MINUTES = 60
"""A lease without a workflow is left alone this long after it was taken."""
_SHADOW_ENDING = names.shadow_table("")
_ROWS = 1_000
"""Rows a statement, so that no transaction grows large."""
_OVER = f"'{Phase.COMPLETE}','{Phase.CANCELLED}'"
_OF_NO_LIVING = f"workflow NOT IN (SELECT id FROM {SIDECAR}.workflow WHERE phase NOT IN ({_OVER}))"
_OLD = {
    JOURNAL: f"at < NOW(6) - INTERVAL %s DAY AND {_OF_NO_LIVING}",
    HISTORY: f"slot < UNIX_TIMESTAMP(NOW(6) - INTERVAL %s DAY) / {SLOT_SECONDS} AND {_OF_NO_LIVING}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that may go. `what`: for people; `why`: half a sentence; `days`: of the journal's rows."""

    kind: str
    what: str
    why: str
    workflow: str | None = None
    schema: str = ""
    table: str = ""
    identity: str = ""
    days: int = 0

    def as_json(self) -> dict[str, Any]:
        shown = ("kind", "what", "why", "workflow")
        return {name: value for name, value in asdict(self).items() if name in shown}


def find(session: Session, *, retired_days: int = RETIRED_DAYS, journal_days: int = JOURNAL_DAYS) -> list[Item]:
    """Everything that may go now. Reads only, once a sidecar of an earlier release has all its tables."""
    if not sidecar.exists(session):
        return []
    sidecar.complete(session)
    return [
        *_retired(session, retired_days, is_mariadb(session)),
        *_shadows(session, is_mariadb(session)),
        *_leases(session),
        *_old_rows(session, JOURNAL, "journal rows", journal_days),
        *_old_rows(session, HISTORY, "points of the charts", journal_days),
    ]


def _retired(session: Session, days: int, is_mariadb: bool) -> list[Item]:
    rows = session.rows(
        f"SELECT id, source_schema, retired_table, source_identity, ended_at FROM {SIDECAR}.workflow "
        f"WHERE phase='{Phase.COMPLETE}' AND ended_at < NOW(6) - INTERVAL %s DAY ORDER BY ended_at",
        (days,),
    )
    found = _identities(session, ((schema, table) for _, schema, table, _, _ in rows), is_mariadb)
    return [
        Item(
            kind=RETIRED,
            what=f"{schema}.{table}",
            why=f"the original of workflow {workflow}, complete since {ended_at:%Y-%m-%d %H:%M} UTC",
            workflow=workflow,
            schema=schema,
            table=table,
            identity=identity,
        )
        for workflow, schema, table, identity, ended_at in rows
        if identity and found.get((schema, table)) == identity
    ]


def _shadows(session: Session, is_mariadb: bool) -> list[Item]:
    """The tables are read before the workflows: whose shadow is seen here has its row by then."""
    seen = _shadow_tables(session)
    found = _identities(session, seen, is_mariadb)
    claims = _claims(session)
    return [
        Item(
            kind=SHADOW,
            what=f"{schema}.{table}",
            why="no workflow that goes on has it",
            schema=schema,
            table=table,
            identity=identity,
        )
        for (schema, table), identity in found.items()
        if identity and (schema.casefold(), table.casefold()) not in claims
    ]


def _shadow_tables(session: Session) -> list[tuple[str, str]]:
    """Base tables with a shadow's name, in the connection's schema and wherever there have been workflows."""
    known = session.rows(f"SELECT DISTINCT source_schema FROM {SIDECAR}.workflow")
    schemas = {session.url.database, *(str(schema) for (schema,) in known)}
    sql = (
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema=%s AND table_type='BASE TABLE' ORDER BY table_name"
    )
    found = [(schema, str(table)) for schema in sorted(schemas) for (table,) in session.rows(sql, (schema,))]
    return [(schema, table) for schema, table in found if names.is_ours(table) and table.endswith(_SHADOW_ENDING)]


def _claims(session: Session) -> frozenset[tuple[str, str]]:
    """Shadow tables of workflows that go on or may go on."""
    rows = session.rows(f"SELECT source_schema, shadow_table FROM {SIDECAR}.workflow WHERE phase NOT IN ({_OVER})")
    return frozenset((str(schema).casefold(), str(table).casefold()) for schema, table in rows)


def _identities(
    session: Session, tables: Iterable[tuple[str, str]], is_mariadb: bool
) -> dict[tuple[str, str], str | None]:
    """Reading one scans InnoDB's dictionary, so a schema's are read at once."""
    by_schema: dict[str, list[str]] = {}
    for schema, table in tables:
        by_schema.setdefault(schema, []).append(table)
    return {
        (schema, table): identity
        for schema, group in by_schema.items()
        for table, identity in table_identities(session, schema, group, is_mariadb).items()
    }


def _leases(session: Session) -> list[Item]:
    rows = session.rows(
        f"SELECT workflow, MAX(taken_at) FROM {SIDECAR}.lease "
        f"WHERE workflow NOT IN (SELECT id FROM {SIDECAR}.workflow) "
        "GROUP BY workflow HAVING MAX(taken_at) < NOW(6) - INTERVAL %s MINUTE ORDER BY workflow",
        (_ORPHAN_MINUTES,),
    )
    return [
        Item(kind=LEASE, what=f"lease of {workflow}", why="there is no such workflow", workflow=workflow)
        for workflow, _ in rows
        if not _is_worked_on(session, workflow)
    ]


def _is_worked_on(session: Session, workflow: str) -> bool:
    return any(lease.is_alive(session, workflow, role) for role in (lease.DRIVER, lease.REPLICATE))


def _old_rows(session: Session, kind: str, words: str, days: int) -> list[Item]:
    """Of a table of the sidecar that is named like its kind."""
    count = int(session.value(f"SELECT COUNT(*) FROM {SIDECAR}.{kind} WHERE {_OLD[kind]}", (days,)))
    why = f"older than {days} days, of no workflow that goes on"
    return [Item(kind=kind, what=f"{count} {words}", why=why, days=days)] if count else []


def remove(session: Session, item: Item, by: str) -> bool:
    """Take one thing away. False: it has changed since it was named, and stays. Raises what the server says."""
    drop = {RETIRED: _drop_retired, SHADOW: _drop_shadow, LEASE: _drop_lease}.get(item.kind, _drop_rows)
    is_gone = drop(session, item)
    if is_gone and item.kind not in _OLD:
        journal.write(session, item.workflow or "", "dropped", f"{item.kind} {item.what}", actor=by)
    return is_gone


def _drop_retired(session: Session, item: Item) -> bool:
    row = workflows.find(session, item.workflow or "")
    return row is not None and row.phase is Phase.COMPLETE and steps.drop_retired(session, row)


def _drop_shadow(session: Session, item: Item) -> bool:
    if (item.schema.casefold(), item.table.casefold()) in _claims(session):
        return False
    return drop_table(session, item.schema, item.table, item.identity, is_mariadb=is_mariadb(session))


def _drop_lease(session: Session, item: Item) -> bool:
    """With whatever else of such a workflow is in the sidecar."""
    workflow = item.workflow or ""
    if _is_worked_on(session, workflow):
        return False
    with session.transaction():
        session.rows(f"SELECT role FROM {SIDECAR}.lease WHERE workflow=%s FOR UPDATE", (workflow,))
        if workflows.find(session, workflow) is not None:
            return False
        for table in (*sidecar.OF_A_WORKFLOW, *sidecar.REMEMBERED):
            rows.remove(session, table, workflow=workflow)
    keytables.drop_all(session, workflow)
    unique.drop_probes(session, workflow)
    return True


def _drop_rows(session: Session, item: Item) -> bool:
    kind = item.kind
    while session.execute(f"DELETE FROM {SIDECAR}.{kind} WHERE {_OLD[kind]} LIMIT {_ROWS}", (item.days,)):
        log.debug("rows of the %s removed", kind)
    return True


def remove_all(session: Session, items: Iterable[Item], by: str) -> list[tuple[Item, str]]:
    """Remove each, naming it in the log first; returns those that stay, with the reason."""
    left = []
    for item in items:
        log.info("removing %s %s: %s", item.kind, item.what, item.why)
        try:
            if not remove(session, item, by):
                left.append((item, "it has changed since it was listed"))
        except VReplicationError as error:
            log.warning("%s %s stays: %s", item.kind, item.what, error)
            left.append((item, str(error)))
    return left
