"""What is left over and may go: old originals, old journal rows and charts, orphaned shadow tables and leases.

What must stay true: `find` only reads and `remove` takes away one thing that `find` has named, having looked again; a
table goes only under its own lock and only when it is the very one that was named (InnoDB's identity; which one that is
its name and definition say behind a failover); nothing of a workflow that goes on or may go on (a failed one, too) is
touched; the original of a workflow that is unknown is never touched, for it holds rows that stand nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vreplication import names
from vreplication.cutover.identity import table_identities
from vreplication.cutover.sentry import drop_table
from vreplication.errors import VReplicationError
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.schema.introspect import read_create_sql
from vreplication.schema.shadow import definition_digest
from vreplication.state import journal, keytables, layout, lease, leftovers, workflows
from vreplication.state.leftovers import Retired
from vreplication.workflows import operate
from vreplication.workflows.online_ddl import failover, reverting

log = logging.getLogger(__name__)

RETIRED_DAYS, JOURNAL_DAYS = 7, 90
RETIRED, JOURNAL, HISTORY, SHADOW, LEASE = "retired table", "journal", "history", "shadow table", "lease"
WINDOW = "revert window"
_ORPHAN_MINUTES = 60
"""A lease without a workflow is left alone this long after it was taken."""
_AGEING = (JOURNAL, HISTORY)
"""Tables of the sidecar, named like their kind, of which old rows go."""


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
    if not layout.exists(session):
        return []
    layout.complete(session)
    return [
        *_windows(session),
        *_retired(session, retired_days, is_mariadb(session)),
        *_shadows(session, is_mariadb(session)),
        *_leases(session),
        *_old_rows(session, JOURNAL, "journal rows", journal_days),
        *_old_rows(session, HISTORY, "points of the charts", journal_days),
    ]


def _retired(session: Session, days: int, is_mariadb: bool) -> list[Item]:
    gone = leftovers.retired(session, days)
    # Whether a name is still the table that the workflow began with only InnoDB's identity says: somebody may have made
    # another one of that name.
    found = _identities(session, ((one.schema, one.table) for one in gone), is_mariadb)
    claims, here = leftovers.claimed(session), identity_of(session)
    return [
        Item(
            kind=RETIRED,
            what=f"{one.schema}.{one.table}",
            why=f"the original of workflow {one.workflow}, complete since {one.ended_at:%Y-%m-%d %H:%M} UTC",
            workflow=one.workflow,
            schema=one.schema,
            table=one.table,
            identity=identity,
        )
        for one in gone
        if (identity := found.get((one.schema, one.table)))
        and _is_original(session, one, identity, here)
        # While it can be reverted to, it is another workflow's.
        and (one.schema.casefold(), one.table.casefold()) not in claims
    ]


def _is_original(session: Session, one: Retired, identity: str, here: str) -> bool:
    """Behind a failover it has another number: its name, with the workflow's id in it, and its definition tell."""
    if one.server in (None, here):
        return identity == one.identity
    return definition_digest(read_create_sql(session, one.schema, one.table), one.table) == one.definition


def _windows(session: Session) -> list[Item]:
    """Of ways back whose time is over, and that nobody drives, who would end it."""
    return [
        Item(
            kind=WINDOW,
            what=f"{row.source_schema}.{row.shadow_table}",
            why=f"the time to revert workflow {row.spec['reverts']} is over",
            workflow=row.id,
        )
        for row in workflows.load_all(session)
        if reverting.is_to_be_closed(session, row) and not _is_worked_on(session, row.id)
    ]


def _shadows(session: Session, is_mariadb: bool) -> list[Item]:
    """The tables are read before the workflows: whose shadow is seen here has its row by then."""
    seen = _shadow_tables(session)
    found = _identities(session, seen, is_mariadb)
    claims = leftovers.claimed(session)
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
    """Base tables with a shadow's or a stand-in's name, in the connection's schema and where there were workflows."""
    # A shadow that no workflow has is noted nowhere: the schemas in which there were workflows are looked through.
    schemas = {session.url.database, *leftovers.schemas(session)}
    sql = (
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema=%s AND table_type='BASE TABLE' ORDER BY table_name"
    )
    found = [(schema, str(table)) for schema in sorted(schemas) for (table,) in session.rows(sql, (schema,))]
    return [(schema, table) for schema, table in found if names.is_copy(table)]


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
    return [
        Item(kind=LEASE, what=f"lease of {workflow}", why="there is no such workflow", workflow=workflow)
        for workflow in leftovers.without_workflow(session, _ORPHAN_MINUTES)
        if not _is_worked_on(session, workflow)
    ]


def _is_worked_on(session: Session, workflow: str) -> bool:
    return any(lease.is_alive(session, workflow, role) for role in (lease.DRIVER, lease.REPLICATE))


def _old_rows(session: Session, kind: str, words: str, days: int) -> list[Item]:
    count = leftovers.count_old(session, kind, days)
    why = f"older than {days} days, of no workflow that goes on"
    return [Item(kind=kind, what=f"{count} {words}", why=why, days=days)] if count else []


def remove(session: Session, item: Item, by: str) -> bool:
    """Take one thing away. False: it has changed since it was named, and stays. Raises what the server says."""
    drops = {WINDOW: _close_window, RETIRED: _drop_retired, SHADOW: _drop_shadow, LEASE: _drop_lease}
    drop = drops.get(item.kind, _drop_rows)
    is_gone = drop(session, item)
    # An entry about old entries would be the newest row of what was to be emptied.
    if is_gone and item.kind not in _AGEING:
        journal.write(session, item.workflow or "", "dropped", f"{item.kind} {item.what}", actor=by)
    return is_gone


def _close_window(session: Session, item: Item) -> bool:
    row = workflows.find(session, item.workflow or "")
    if row is None or not reverting.is_to_be_closed(session, row):
        return False
    return operate.close_window(session, row.id).event == "cancelled"


def _drop_retired(session: Session, item: Item) -> bool:
    row = workflows.find(session, item.workflow or "")
    if (item.schema.casefold(), item.table.casefold()) in leftovers.claimed(session):
        return False
    if row is not None and (back := reverting.closed_way_back(session, row.id)):
        # By this server's own numbers: behind a failover those that were noted are another server's.
        return reverting.drop_original(session, failover.adopt(session, back))
    if row is None or row.phase is not Phase.COMPLETE:
        return False
    return drop_table(session, item.schema, item.table, item.identity, is_mariadb=is_mariadb(session))


def _drop_shadow(session: Session, item: Item) -> bool:
    # Asked anew: a workflow may have begun on that name since the list was made.
    if (item.schema.casefold(), item.table.casefold()) in leftovers.claimed(session):
        return False
    return drop_table(session, item.schema, item.table, item.identity, is_mariadb=is_mariadb(session))


def _drop_lease(session: Session, item: Item) -> bool:
    """With whatever else of such a workflow is in the sidecar."""
    workflow = item.workflow or ""
    if _is_worked_on(session, workflow):
        return False
    if not leftovers.forget(session, workflow):
        return False
    keytables.drop_all(session, workflow)
    return True


def _drop_rows(session: Session, item: Item) -> bool:
    leftovers.remove_old(session, item.kind, item.days)
    return True


def remove_all(session: Session, items: Iterable[Item], by: str) -> list[tuple[Item, str]]:
    """Remove each, naming it in the log first; returns those that stay, with the reason."""
    left = []
    for item in items:
        # Before it goes: where the process dies within the DROP the log still names what it was at.
        log.info("removing %s %s: %s", item.kind, item.what, item.why)
        try:
            if not remove(session, item, by):
                left.append((item, "it has changed since it was listed"))
        # One table that somebody reads for longer than the DROP waits keeps no other one from going.
        except VReplicationError as error:
            log.warning("%s %s stays: %s", item.kind, item.what, error)
            left.append((item, str(error)))
    return left
