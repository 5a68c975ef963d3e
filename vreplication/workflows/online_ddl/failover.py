"""Going on on another server: the source failed, and a replica of it was promoted.

The sidecar and the shadow table are replicated like any other, each checkpoint in the transaction of the rows that it
describes; so a promoted replica holds a state that the workflow was once in. Where the log has GTIDs the replica can
send it from that checkpoint on, from files of its own.

What must stay true: nothing is decided by a table's identity before the identities of this server have been noted;
a server that has not got every transaction that we have read, or of which that cannot be told, is refused; what was
verified on the other server counts for nothing here, and that is noted together with this server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from vreplication.binlog import position
from vreplication.binlog.events import Position
from vreplication.binlog.position import Standing
from vreplication.cutover.decide import is_of
from vreplication.cutover.identity import table_identities
from vreplication.cutover.sentry import is_sentry
from vreplication.engine import log_kept, spool
from vreplication.errors import Refused, SourceChanged
from vreplication.mysql.server import Server, identity, identity_of, inspect
from vreplication.mysql.session import Session
from vreplication.planning import server_checks
from vreplication.planning.facts import Facts, Verdict
from vreplication.planning.spec import spec_of
from vreplication.schema.alter import AlterClauses
from vreplication.schema.introspect import introspect
from vreplication.state import compared, journal, lease, verdicts, workflows
from vreplication.state.workflows import CREATING, WorkflowRow
from vreplication.workflows.online_ddl import prepare

log = logging.getLogger(__name__)


def follow(session: Session, row: WorkflowRow) -> WorkflowRow:
    """The row as it holds on this server. Raises SourceChanged or Refused when the workflow cannot go on here."""
    if is_here(session, row):
        return row
    # Before anything is noted here: refused, the workflow can still go on where it was.
    check_log(session, row)
    _check_settings(session, row)
    return adopt(session, row)


def is_here(session: Session, row: WorkflowRow) -> bool:
    """True on the server for which the row was written."""
    return is_of(session, row)


def check_log(session: Session, row: WorkflowRow) -> None:
    """Raises SourceChanged when this server cannot send the log from where the workflow would read on."""
    if row.is_cut or (place := log_kept.begin(session, row)) is None:
        return
    _check_place(session, row, place)
    for branch in log_kept.unread(session, row):
        try:
            _check_place(session, row, branch.start)
        except SourceChanged:
            # Its rows are read again from its PREPARE, unless they are on this machine's disk.
            if not spool.holds(row, branch):
                raise


def _check_place(session: Session, row: WorkflowRow, place: Position) -> None:
    if place.gtids is None and not is_here(session, row):
        raise SourceChanged(
            f"Workflow {row.id} reads the log of server {row.server_identity} by file and position ({place}), and this "
            f"is another server ({identity_of(session)}), whose files are others.",
            cure=f"Go on on that server, or run `vreplication cancel {row.id}` here and start again; "
            "with GTIDs (on MySQL gtid_mode=ON) a workflow goes on after a failover.",
        )
    _check_standing(session, row, place)


def _check_standing(session: Session, row: WorkflowRow, place: Position) -> None:
    found = position.standing(session, place)
    if found is Standing.UNKNOWN:
        raise SourceChanged(
            f"This server has not got all transactions that workflow {row.id} has read ({place.gtids}): "
            "it is no replica of the one that it began on, or some were lost.",
            cure=f"Use the server that has them, or run `vreplication cancel {row.id}` here and start again.",
        )
    if found is Standing.PURGED:
        raise SourceChanged(
            f"The server has no binary log at {place} any more, from which workflow {row.id} would go on: it has been "
            "purged, or its end was lost in a crash. The changes since then cannot be applied.",
            cure=f"Run `vreplication cancel {row.id}` and start again; keep binary logs longer next time.",
        )


def _check_settings(session: Session, row: WorkflowRow) -> None:
    """The plan has looked at the other server; what it asks of a server must hold here as well."""
    spec = spec_of(row.spec)
    facts = Facts(
        session=session,
        server=inspect(session),
        spec=spec,
        source=introspect(session, row.source_schema, row.source_table),
        clauses=AlterClauses(text=spec.alter),
        target=None,
        mapping=None,
        copy_path=row.copy_path,
    )
    refused = [check for check in server_checks.run(facts) if check.verdict is Verdict.REFUSE]
    if refused:
        raise Refused(" ".join(f"{check.sentence} {check.cure}".strip() for check in refused))


def adopt(session: Session, row: WorkflowRow) -> WorkflowRow:
    """Note this server and which of its tables are the workflow's. Repeatable; nothing where that is noted already."""
    server = inspect(session)
    if row.server_identity in (None, identity(server)):
        return row
    # In place the definition tells, which is replicated as the ALTER is.
    found = _Tables(source=None, shadow=row.shadow_identity) if row.is_in_place else _Tables.find(session, row, server)
    words = f"from server {row.server_identity} to {identity(server)}"
    fields = {
        "server_identity": identity(server),
        "source_identity": found.source,
        "shadow_identity": found.shadow,
    }
    # In one: whoever finds this server noted looks no further, so what follows from it must have been done by then.
    with session.transaction():
        workflows.change_fields(session, row.id, **fields)
        if not found.is_switched:
            verdicts.forget(session, row.id)
            compared.forget(session, row.id)
        journal.write(session, row.id, journal.MOVED, words, actor=lease.me())
    log.warning("workflow %s moved %s", row.id, words)
    return workflows.load(session, row.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """Identities of the two tables here, and whether they carry each other's names already."""

    source: str | None
    shadow: str | None
    is_switched: bool = False

    @classmethod
    def find(cls, session: Session, row: WorkflowRow, server: Server) -> _Tables:
        """The names tell: RENAME was replicated as one step, or not at all."""
        names = (row.source_table, row.shadow_table, row.retired_table)
        found = table_identities(session, row.source_schema, names, server.is_mariadb)
        source, shadow, retired = (found[name] for name in names)
        if not prepare.is_done(row):
            # It is undone and begun again; so the table of that name counts as ours.
            return cls(source=source, shadow=CREATING if row.shadow_identity else None)
        if shadow is not None and not row.is_cut:
            return cls(source=source, shadow=shadow)
        # In the middle of an attempt the sentry has that name, and is no original that was switched away.
        if not row.is_cut and (retired is None or is_sentry(session, row.source_schema, row.retired_table, row.id)):
            raise SourceChanged(
                f"The shadow table {row.source_schema}.{row.shadow_table} of workflow {row.id} is not on this server.",
                cure=f"Replicate it too, or run `vreplication cancel {row.id}` here and start again.",
            )
        return cls(source=retired, shadow=source, is_switched=True)
