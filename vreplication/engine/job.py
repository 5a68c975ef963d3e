"""A workflow as its parts need it: the row, the request, the server, and how columns map.

What must stay true: everything here is read from the sidecar and the server each time; the parts share nothing in
memory. A source table whose definition is not what it was at the start ends the workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from vreplication.changes.stream import FIRST
from vreplication.cutover import carried, foreign
from vreplication.errors import BadValue, Refused, SourceChanged, Transient, VReplicationError
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import Server, identity, inspect, is_mariadb
from vreplication.mysql.session import LockWait, Session, SqlError
from vreplication.mysql.url import SourceUrl
from vreplication.planning.request import Request
from vreplication.planning.spec import RevertSpec, Spec, spec_of
from vreplication.rowcopy.job import CopyJob
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import exists, introspect
from vreplication.schema.mapping import local_zone, map_back, map_for
from vreplication.schema.model import Table, TableMapping
from vreplication.schema.shadow import definition_digest
from vreplication.settings import MOST_CHUNK_MILLIS, Limits, Tuning
from vreplication.state import journal, tuning, workflows
from vreplication.state.workflows import WorkflowRow

_COUNTER_MILLIS = 100
"""Longest chunk that may lock an AUTO_INCREMENT table's counter: so long catch-up's inserts wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    row: WorkflowRow
    spec: Spec
    server: Server
    mapping: TableMapping
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def packet(self) -> int:
        """Longest statement that the server takes, bytes."""
        return int(self.server.setting("max_allowed_packet") or 16 << 20)

    @property
    def zone(self) -> str:
        """The server's own, by which TIMESTAMP is converted."""
        zone, system = self.server.setting("time_zone") or "SYSTEM", self.server.setting("system_time_zone") or "UTC"
        return local_zone(zone, system) or "UTC"

    @property
    def limits(self) -> Limits:
        return limits_of(self.spec, holds_counter=self.holds_counter).tuned(self.tuning)

    @property
    def holds_counter(self) -> bool:
        """INSERT … SELECT into an AUTO_INCREMENT table locks its counter to the statement's end."""
        # 0 and 1, MariaDB's default, hold it, for how many rows a SELECT brings is not known before; 2, MySQL's default
        # since 8.0, holds it for no statement.
        mode = int(self.server.setting("innodb_autoinc_lock_mode") or 2)
        is_selected = self.row.copy_path == "server" or self.mapping.is_written_in_zone
        return self.counts and is_selected and mode < 2

    @property
    def counts(self) -> bool:
        return any(column.is_auto_increment for column in self.mapping.target.columns)

    @property
    def parallelism(self) -> int:
        """Tasks at a time where nothing is inserted."""
        return self.tuning.copy_parallelism or self.spec.tasks

    @property
    def copy_job(self) -> CopyJob:
        return CopyJob(
            workflow=self.row.id,
            copy_path=self.row.copy_path,
            limits=self.limits,
            packet=self.packet,
            # On MariaDB each inserted row locks the root page of the counter's key, so two tasks side by side gain
            # nothing (turns.py).
            by_turns=self.holds_counter or (self.server.is_mariadb and self.counts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable:
    """A table that a stream keeps level. id: under which its ledger and key tables are kept."""

    number: int
    id: str
    mapping: TableMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """What catch-up of a stream works by.

    is_mariadb: of the source. packet: longest statement that the target takes, bytes. start: where the stream begins,
    as `Position.saved`. guarded: further tables (schema, name) on the source whose definition must not change.
    has_copy: rows are copied beside it, so that an XA branch which it knows nothing of must not commit. exemption: by
    which its sessions write where writes are denied (cutover/deny.py).
    """

    row: WorkflowRow
    tables: tuple[StreamTable, ...]
    is_mariadb: bool
    packet: int
    apply_parallelism: int
    start: str
    guarded: frozenset[tuple[str, str]] = frozenset()
    has_copy: bool = True
    exemption: str = ""
    is_target_mariadb: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One source, one target, and the tables that are kept level; `id` names its state at home, `workflow` its row.

    is_cut: asked at home, many times a second while tables are switched: its work is over, and what comes next in the
    log is none of its business.
    """

    id: str
    workflow: str
    route: Route
    load: Callable[[Ends], StreamJob]
    is_cut: Callable[[Session], bool]


def stream_of(url: SourceUrl, workflow: str) -> Stream:
    """The stream of an online DDL, which is on one server and has the workflow's own id."""

    def loaded(ends: Ends) -> StreamJob:
        job = load(ends.home, workflow)
        row = job.row
        # A crash at the cut-over may have left triggers or foreign keys on the copy, and what we apply would meet them.
        carried.check_none(ends.home, row)
        foreign.check_none(ends.home, row)
        return StreamJob(
            row=row,
            tables=(StreamTable(number=FIRST, id=workflow, mapping=job.mapping),),
            is_mariadb=job.server.is_mariadb,
            packet=job.packet,
            # Where rows keep some of what they have, all rows of a batch are read before the first is replaced.
            apply_parallelism=1 if job.mapping.spared else job.limits.apply_parallelism,
            start=row.start_position or "",
            # Truncated by somebody behind its copy, one of them would be switched with the rest of its rows alone.
            guarded=frozenset((row.source_schema, name) for name in (*_copies(row), job.mapping.target.name)),
            has_copy=not isinstance(job.spec, RevertSpec),
        )

    return Stream(
        id=workflow,
        workflow=workflow,
        route=Route.within(url),
        load=loaded,
        is_cut=lambda home: workflows.is_cut(home, workflow),
    )


def request_of(row: WorkflowRow, changed: Mapping[str, Any] = MappingProxyType({})) -> Request:
    """What was asked for, as far as all kinds of workflows have it. changed: what was set since."""
    known = {name: value for name, value in {**row.spec, **changed}.items() if name in Request.model_fields}
    return Request.model_validate(known)


def reason_of(row: WorkflowRow, error: VReplicationError) -> str:
    """Why a workflow ended, and what to do: of a way back there is nothing to begin again."""
    if "reverts" not in row.spec or not isinstance(error, BadValue | SourceChanged):
        return str(error)
    found = error.message.replace("the new definition", "the original's definition")
    found = found.replace("The copy differs from the source", "The original differs from the new table")
    workflow = row.spec["reverts"]
    return (
        f"Workflow {workflow} cannot be reverted any more; the table in use is untouched. {found} "
        f"`vreplication cleanup {workflow}` drops the original."
    )


def limits_of(spec: Request, *, holds_counter: bool) -> Limits:
    """Where a chunk locks the counter that catch-up needs, too: short chunks."""
    return Limits(
        copy_parallelism=spec.tasks,
        chunk_rows=spec.chunk_rows,
        chunk_millis=min(spec.chunk_millis, _COUNTER_MILLIS) if holds_counter else spec.chunk_millis,
        apply_parallelism=spec.apply_parallelism,
        most_chunk_millis=_COUNTER_MILLIS if holds_counter else MOST_CHUNK_MILLIS,
    )


def load(session: Session, workflow: str) -> Job:
    """Raises Refused (no such workflow), SourceChanged (another definition, another server) or Terminal."""
    row = workflows.load(session, workflow)
    server = inspect(session)
    # Before the definition is compared: on another server a table of that name may be any table, and a cancel would be
    # the wrong cure.
    if row.server_identity != identity(server):
        raise SourceChanged(
            f"Workflow {workflow} began on another server than this one.",
            cure="Use the URL that it began with; if this server has taken that one's place, run the same command "
            "again, which says whether the workflow can go on here.",
        )
    source = introspect(session, row.source_schema, row.source_table)
    if definition_of(source) != row.source_definition:
        raise SourceChanged(
            f"The definition of {row.source_schema}.{row.source_table} was changed "
            f"while workflow {workflow} was under way.",
            cure=f"Run `vreplication cancel {workflow}` and start again.",
        )
    spec = spec_of(row.spec)
    asked, mapping = tuning.read(session, workflow), _mapping(session, row, spec, source, server)
    return Job(row=row, spec=spec, server=server, mapping=mapping, tuning=asked)


def _copies(row: WorkflowRow) -> tuple[str, ...]:
    return (row.shadow_table, row.full_copy) if row.keeps_one else (row.shadow_table,)


def written_to(session: Session, row: WorkflowRow) -> str:
    """Name of the table that copy and catch-up write to. Raises LockWait while that is none of them, and
    SourceChanged when the one that has the rows is gone.
    """
    if row.keeps_one:
        return row.full_copy
    # By names alone it might be a table of somebody else's.
    if is_mariadb(session) and journal.latest(session, row.id, journal.STAND_IN) is not None:
        if exists(session, row.source_schema, row.stand_in):
            return row.stand_in
        # Asked for second: it has one of the two names until it is gone.
        if exists(session, row.source_schema, row.stood_in):
            # Until its driver has done it, who may have been killed: catch-up is not to give up meanwhile.
            raise LockWait(f"{row.stood_in} is handing its rows over to {row.shadow_table}.")
        if not is_handed_over(session, row):
            raise SourceChanged(
                f"Table {row.source_schema}.{row.stand_in}, which had the rows of {row.shadow_table}, is gone.",
                cure=f"The source table is untouched. Run `vreplication cancel {row.id}` and start again.",
            )
    return row.shadow_table


def is_handed_over(session: Session, row: WorkflowRow) -> bool:
    """The rows of a stand-in are the new table's, or there is none after all. Noted before the last of it goes."""
    return journal.is_told(session, row.id, journal.STOOD_IN, since=(journal.STAND_IN,))


def _mapping(session: Session, row: WorkflowRow, spec: Spec, source: Table, server: Server) -> TableMapping:
    """To the table that copy and catch-up write to."""
    name = written_to(session, row)
    try:
        target = introspect(session, row.source_schema, name)
    except (Refused, SqlError):
        # Between the two statements a stand-in may have got its other name.
        if written_to(session, row) != name:
            raise Transient(f"Rows do not go to {name} any more.") from None
        raise
    if isinstance(spec, RevertSpec):
        return map_back(server, source, target, parse_alter(spec.alter))
    may_be_null = spec.allow_nullable_key
    # All rows get one moment for a new column's CURRENT_TIMESTAMP, whoever writes them and however often.
    return map_for(server, source, target, parse_alter(spec.alter), moment=row.created_at, may_be_null=may_be_null)


def definition_of(table: Table) -> str:
    """A digest of the table's definition, AUTO_INCREMENT aside."""
    return definition_digest(table.create_sql, table.name)
