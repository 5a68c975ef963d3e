"""Preparation of tables that move: both sidecars, rows, lease, tables on the target, start position, key ranges.

What must stay true: the start marker is committed on the source before a key range is read there and before any chunk
opens; no chunk opens before every XA branch that was prepared on the source at the start has ended; a refusal leaves no
table of ours behind, on either server; a preparation that was cut short is undone and begun again.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from vreplication import names
from vreplication.binlog import position
from vreplication.binlog.wire import origin_of
from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import drop_if
from vreplication.engine.job import definition_of
from vreplication.errors import Refused
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import identity, is_mariadb, prepared_branches
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.rowcopy import splits
from vreplication.schema.carried import compare
from vreplication.schema.introspect import exists, introspect
from vreplication.schema.model import Table, TableMapping
from vreplication.settings import TABLE_SECONDS
from vreplication.state import journal, keytables, layout, lease, ledger, moves, sidecar, source_marks, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.workflows import CREATING, TableRow, WorkflowRow
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.plan import MovedTable, MovePlan, mapping_of
from vreplication.workflows.move_tables.streams import stream_id

KIND = "move_tables"
_SPLITS_PER_SLOT = 8
# A COUNT reads an index of the table to its end: of larger tables that would take longer than it is worth.
_COUNTED_ROWS = 200_000
"""Tables estimated smaller than this are counted, so that progress has an exact total."""


def create(
    source: Session,
    home: Session,
    plan: MovePlan,
    workflow: str,
    by: str = "",
    claimant: str = "",
    *,
    is_anew: bool = False,
) -> MovePlan:
    """Install the sidecar and write the workflow's rows. Returns the plan with their time.

    is_anew: in the place of those of a preparation that was undone.
    """
    names.check_workflow(f"{stream_id(workflow, 98)}.{len(plan.tables)}")
    layout.install(home)
    first, *others = [_table_row(number, moved, workflow) for number, moved in enumerate(plan.tables)]
    move = Move(
        workflow=workflow,
        target_schema=plan.tables[0].target_schema,
        source_at=place_of(source.url),
        target_at=place_of(home.url),
        source_server=identity(plan.source_server),
        serving=Side.SOURCE,
        decision=Decision.RUNNING,
        number=1,
        secret=secrets.token_hex(16),
        forward_start=None,
        back_start=None,
        asked=None,
        asked_by=None,
        stall_millis=None,
    )

    def beside() -> None:
        for table in others:
            workflows.add_table(home, workflow, table)
        moves.forget(home, workflow)
        moves.create(home, move)

    # All in one: a workflow of this kind without its move's row could neither go on nor be cancelled.
    row = _workflow_row(plan, workflow, first)
    begun_at = workflows.create(home, row, claimant, is_anew=is_anew, also=beside)
    if by:
        journal.write(home, workflow, "triggered", actor=by)
    return replace(plan, begun_at=begun_at)


def place_of(url: SourceUrl) -> str:
    """For people and for the hook."""
    return url.place


def _table_row(number: int, moved: MovedTable, workflow: str) -> TableRow:
    return TableRow(
        number=number,
        source_schema=moved.source.schema,
        source_table=moved.source.name,
        shadow_table=names.shadow_table(moved.source.name),
        retired_table=names.retired_table(moved.source.name, workflow),
        source_identity=None,
        shadow_identity=None,
        source_definition=definition_of(moved.source),
        rows_total=None,
    )


def _workflow_row(plan: MovePlan, workflow: str, first: TableRow) -> WorkflowRow:
    return WorkflowRow(
        id=workflow,
        kind=KIND,
        protocol=sidecar.PROTOCOL,
        source_schema=first.source_schema,
        source_table=first.source_table,
        spec=plan.spec.model_dump(mode="json"),
        phase=Phase.PREPARING,
        is_paused=False,
        is_cancel_requested=False,
        reason=None,
        shadow_table=first.shadow_table,
        retired_table=first.retired_table,
        copy_path="rows",
        source_identity=None,
        shadow_identity=None,
        source_definition=first.source_definition,
        server_identity=identity(plan.target_server),
        start_position=None,
        is_cut=False,
        rows_total=None,
    )


def prepare(driver: MoveDriver, plan: MovePlan) -> None:
    """Everything between the plan and the first chunk. Raises Refused, having removed what it made."""
    driver.describe(max((moved.source for moved in plan.tables), key=lambda table: table.data_bytes))
    try:
        with driver.ends() as ends:
            mappings = [_make_table(driver, ends, plan, row) for row in workflows.tables(ends.home, driver.workflow)]
            reach("prepare.tables_made")
            _mark_start(driver, ends, plan)
            for row, mapping in zip(workflows.tables(ends.home, driver.workflow), mappings, strict=True):
                driver.check()
                _cut_range(driver, ends, plan, row, mapping)
    except Refused as error:
        undo(driver.session, driver.workflow)
        # Before the rows are forgotten, which the journal outlives: who asks later finds why it was refused.
        journal.write(driver.session, driver.workflow, "refused", str(error), actor=lease.me())
        with driver.at_source() as source:
            source_marks.forget(source, driver.workflow)
        forget(driver.session, driver.workflow)
        raise
    listed = ", ".join(moved.source.name for moved in plan.tables)
    journal.write(driver.session, driver.workflow, "prepared", listed, actor=lease.me())
    reach("prepare.done")


def is_done(tables: list[TableRow]) -> bool:
    """False for a workflow whose preparation was cut short: totals are written last."""
    return all(table.rows_total is not None for table in tables)


def _make_table(driver: MoveDriver, ends: Ends, plan: MovePlan, row: TableRow) -> TableMapping:
    """The table on the target, under its hidden name, and the tables of its keys."""
    driver.check()
    moved, home = plan.tables[row.number], ends.home
    if exists(home, moved.target_schema, row.shadow_table):
        raise Refused(
            f"There is a table {moved.target_schema}.{row.shadow_table} on the target already.",
            cure="Drop it if it is not needed, or cancel the workflow that made it.",
        )
    # Only of a table that has been noted to be ours before may an `undo` take that it is.
    workflows.set_table_fields(home, driver.workflow, row.number, shadow_identity=CREATING)
    home.execute_raw(moved.carried.create_sql)
    made = introspect(home, moved.target_schema, row.shadow_table)
    # Once more: what no temporary table can try (`carried.untried`) is seen only here.
    compare(moved.source, made)
    found = table_identity(home, moved.target_schema, row.shadow_table, plan.target_server.is_mariadb)
    workflows.set_table_fields(home, driver.workflow, row.number, shadow_identity=found)
    of_source = table_identity(ends.source, row.source_schema, row.source_table, plan.source_server.is_mariadb)
    workflows.set_table_fields(home, driver.workflow, row.number, source_identity=of_source)
    mapping = mapping_of(moved.source, made, plan.source_server, plan.target_server)
    keytables.create_all(home, mapping, row.id(stream_id(driver.workflow, 1)))
    return mapping


def _mark_start(driver: MoveDriver, ends: Ends, plan: MovePlan) -> None:
    """The position first, then a marker: what is behind it in the log is visible to whoever reads after it."""
    markers = source_marks.markers_of(ends, stream_id(driver.workflow, 1))
    # R3, F1: "the place, then SELECT" alone misses what is in the log and not visible yet (296 of 1,038 samples on
    # MariaDB, 331 of 414 on MySQL); behind a marker that has committed none was missed.
    start = position.begin(ends.source, plan.source_server.is_mariadb, markers.write)
    markers.write()
    if start.gtids is not None:
        start = replace(start, origin=origin_of(driver.route.source, start, position.draw_server_id(ends.source)))
    workflows.set_fields(ends.home, driver.workflow, start_position=start.saved)
    _wait_for_branches(driver, ends.source, plan)


def _wait_for_branches(driver: MoveDriver, source: Session, plan: MovePlan) -> None:
    """Branches prepared before the marker are in neither stream: wait until each has ended."""
    is_mariadb_source = plan.source_server.is_mariadb
    # R18: behind the marker. Listed before it, a branch that is prepared in between would be neither waited for nor
    # read.
    waiting = set(prepared_branches(source, is_mariadb=is_mariadb_source))
    left = plan.spec.xa_wait_seconds
    while waiting:
        if left <= 0:
            raise Refused(
                f"XA branch {next(iter(waiting))} was prepared on the source before this workflow and has not ended.",
                cure="XA COMMIT or XA ROLLBACK it (`XA RECOVER` lists it), then start again.",
            )
        driver.notify(f"waiting for XA branch {next(iter(waiting))} to end")
        driver.wait(0.2)
        left -= 0.2
        waiting &= set(prepared_branches(source, is_mariadb=is_mariadb_source))


def _cut_range(driver: MoveDriver, ends: Ends, plan: MovePlan, row: TableRow, mapping: TableMapping) -> None:
    """Min and max of the key, read behind the marker; rows beyond belong to catch-up."""
    # R3: read before the marker, the range would lack a row that is in the log already and not visible yet.
    whole = splits.key_range(ends.source, mapping)
    wanted = max(1, plan.spec.tasks) * _SPLITS_PER_SLOT
    found = splits.cut(ends.source, mapping, whole, wanted) if whole else []
    ledger.add_splits(ends.home, row.id(stream_id(driver.workflow, 1)), found)
    rows = _rows(ends.source, plan.tables[row.number].source) if whole else 0
    # Last: a preparation that was cut short before this is undone and begun anew (`is_done`).
    workflows.set_table_fields(ends.home, driver.workflow, row.number, rows_total=rows)


def _rows(session: Session, table: Table) -> int:
    if table.estimated_rows < _COUNTED_ROWS:
        with session.patient(TABLE_SECONDS):
            return int(session.value(f"SELECT COUNT(*) FROM {qualified(table.schema, table.name)}"))
    return table.estimated_rows


def undo(home: Session, workflow: str) -> list[str]:
    """Drop every table that the workflow made on the target, unless the application uses it. Repeatable.

    Returns those that stay, for they were rebuilt since and are not known for ours.
    """
    move, left = moves.find(home, workflow), list[str]()
    for table in workflows.tables(home, workflow):
        if move is not None:
            left += _drop(home, move, table)
            _put_back(home, move, table)
        for number in range(1, (move.number if move else 1) + 1):
            keytables.drop_all(home, table.id(stream_id(workflow, number)))
    return left


def _drop(home: Session, move: Move, table: TableRow) -> list[str]:
    """Under its hidden name, or under its own where it was switched there and back. Returns its name where it stays."""
    name = table.shadow_table if move.number == 1 else table.source_table

    def is_ours() -> bool:
        found = table_identity(home, move.target_schema, name, is_mariadb(home))
        recorded = table.shadow_identity
        return recorded == found or (recorded == CREATING and move.number == 1)

    is_dropped = drop_if(home, move.target_schema, name, is_ours)
    # One that was there before ours was made has refused the preparation, which is told.
    is_left = not is_dropped and table.shadow_identity is not None and exists(home, move.target_schema, name)
    return [f"{move.target_schema}.{name}"] if is_left else []


def _put_back(home: Session, move: Move, table: TableRow) -> None:
    """A table that was there, empty, and made way for a switch that was given up, or undone by another."""
    old, new = table.retired_table, table.source_table
    if exists(home, move.target_schema, old) and not exists(home, move.target_schema, new):
        aside, name = (qualified(move.target_schema, each) for each in (old, new))
        home.execute_raw(f"RENAME TABLE {aside} TO {name}")


def forget(home: Session, workflow: str) -> None:
    """All rows at home of a workflow of which nothing is left."""
    forget_run(home, workflow)
    workflows.forget(home, workflow, also=lambda: moves.forget(home, workflow))


def forget_tables(home: Session, workflow: str) -> None:
    """What is kept of each table of a preparation that was undone; the workflow's rows stay, until others come."""
    for table in workflows.tables(home, workflow):
        workflows.forget_run(home, table.id(stream_id(workflow, 1)))
        # A table that somebody makes under that name meanwhile is none of ours.
        workflows.set_table_fields(home, workflow, table.number, shadow_identity=None)


def forget_marks(source: Session, workflow: str) -> None:
    """Of a preparation that was cut short: by them another one would be taken for another target's."""
    if source_marks.exists(source):
        source_marks.forget(source, workflow)


def forget_run(home: Session, workflow: str) -> None:
    """The rows that were only for the run: of all its streams and tables."""
    move = moves.find(home, workflow)
    for number in range(1, (move.number if move else 1) + 1):
        stream = stream_id(workflow, number)
        for table in workflows.tables(home, workflow):
            workflows.forget_run(home, table.id(stream))
        workflows.forget_run(home, stream)
