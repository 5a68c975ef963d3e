"""The window to revert: after the cut-over the original is kept level, so that it can be switched back to.

The way back is a workflow of its own, `ID.revert`, which begins where another one has copied and verified: its source
is the new table, its "shadow" is the original, and its stream begins just behind the RENAME of the cut-over. Catch-up,
verification, gate, cut-over and clean-up are those of every online DDL; its gate is opened by `vreplication revert ID`.

What must stay true: its row is written in one transaction, with the place where its stream begins, before the workflow
that switched forgets its own checkpoint; from the moment on that the first row of the original is deleted nothing goes
on with it: it has ended (`cancelled`) before; a window that cannot be opened does not undo a cut-over that is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from vreplication import names
from vreplication.binlog import position
from vreplication.binlog.events import Position
from vreplication.binlog.renamed import behind_rename
from vreplication.cutover import carried
from vreplication.cutover.emptying import empty
from vreplication.cutover.sentry import drop_table
from vreplication.engine import log_kept, spool
from vreplication.engine.driver import Driver
from vreplication.engine.job import definition_of
from vreplication.errors import BadValue, Cancelled, Refused, SourceChanged, Transient
from vreplication.mysql.server import Server, inspect, is_mariadb
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.phases import OVER, Phase
from vreplication.planning.spec import RevertSpec, Spec, seconds_of, spec_of
from vreplication.rowcopy import splits
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.mapping import map_back
from vreplication.schema.model import Table
from vreplication.state import gate, journal, keytables, lease, ledger, sidecar, workflows
from vreplication.state.lease import Lease
from vreplication.state.ledger import KeyRange
from vreplication.state.workflows import WorkflowRow

log = logging.getLogger(__name__)

# Nothing was copied on this way, so there are no chunks by whose ranges a verification could be cut.
_SPAN_ROWS, _MOST_SPANS = 200_000, 1_000
"""Of a verification."""
TIME_IS_OVER = "The window to revert is over."


def way_back(session: Session, workflow: str) -> WorkflowRow | None:
    """The workflow that is the way back of this one; None: there is none, and never was."""
    try:
        found = workflows.find(session, names.way_back(workflow))
    except Refused:
        return None
    # Somebody may have called another workflow so.
    return found if found is not None and found.spec.get("reverts") == workflow else None


def going_on(session: Session, workflow: str) -> str:
    """Of a workflow that is complete, its way back, where there is one; any other itself."""
    if workflows.load(session, workflow).phase is not Phase.COMPLETE:
        return workflow
    back = way_back(session, workflow)
    return back.id if back is not None and back.phase is not Phase.COMPLETE else workflow


def is_way_back(row: WorkflowRow) -> bool:
    return "reverts" in row.spec


def open_window(driver: Driver, row: WorkflowRow) -> None:
    """Where one was asked for. Repeatable until the workflow is complete."""
    spec = spec_of(row.spec)
    if spec.revert_window is None or isinstance(spec, RevertSpec) or way_back(driver.session, row.id):
        return
    try:
        found = _open(driver, row, spec, spec.revert_window)
    except (SourceChanged, Refused) as error:
        words = f"no way back: {error.message}"
        journal.write(driver.session, row.id, "no revert", words, actor=lease.me())
        driver.notify(f"{words} The original is kept as {row.retired_table}.")
        return
    driver.notify(
        f"`vreplication revert {row.id}` switches back until {found:%Y-%m-%d %H:%M} UTC; until then "
        f"`vreplication resume {names.way_back(row.id)}` keeps the original level. {log_kept.limit(driver.session)}"
    )


def _open(driver: Driver, row: WorkflowRow, spec: Spec, length: str) -> datetime:
    session, server = driver.session, inspect(driver.session)
    if workflows.find(session, names.way_back(row.id)) is not None:
        raise Refused(f"Another workflow is called {names.way_back(row.id)}.")
    begin = log_kept.begin(session, row)
    if begin is None:
        raise SourceChanged("The place of the cut-over in the binary log is not known.")
    if not position.exists(session, begin):
        raise SourceChanged(f"The server has no binary log at {begin} any more.")
    # Every write to the new table stands behind that event in the log, and none to the old one.
    start = behind_rename(session, begin, _renamed(row), is_mariadb=server.is_mariadb, check=driver.check)
    reach("revert.place_found")
    # By the server's clock: whoever looks whether the time is over may be on another machine.
    now: datetime = session.value("SELECT NOW(6)")
    until = now + timedelta(seconds=seconds_of(length))
    new = introspect(session, row.source_schema, row.source_table)
    old = introspect(session, row.source_schema, row.retired_table)
    mapping = map_back(server, new, old, parse_alter(spec.alter))
    workflow = names.way_back(row.id)
    # It is kept level now, and its triggers must not fire for that; a revert makes them again, of the new table's.
    carried.drop_of_retired(session, row)
    reach("revert.triggers_dropped")
    # Before the row: where that is there the window counts as opened, and nothing is made any more.
    keytables.create_all(session, mapping, workflow)
    workflows.create(session, _row(row, spec, server, new, start, until))
    reach("revert.opened")
    # There is nothing to copy: the figures say so, and a verification is cut along them.
    # Cut short before this, the verification takes the table for one range.
    if whole := splits.key_range(session, mapping):
        wanted = min(_MOST_SPANS, max(spec.tasks, new.estimated_rows // _SPAN_ROWS))
        found = splits.cut(session, mapping, whole, wanted)
        ledger.add_splits(session, workflow, [replace(split, is_done=True) for split in found])
    journal.write(session, workflow, "window opened", f"until {until:%Y-%m-%d %H:%M:%S} UTC", actor=lease.me())
    return until


def _renamed(row: WorkflowRow) -> Sequence[tuple[str, str]]:
    return [(row.source_schema, name) for name in (row.source_table, row.retired_table, row.shadow_table)]


def _row(row: WorkflowRow, spec: Spec, server: Server, new: Table, start: Position, until: datetime) -> WorkflowRow:
    """Of the way back. `row`: of the workflow that has switched."""
    workflow = names.way_back(row.id)
    asked = {
        **spec.model_dump(mode="json"),
        "workflow": workflow,
        "cutover": "manual",
        "cutover_window": None,
        "revert_window": None,
        # What is written is compared as it comes; all of it again each hour would be a load for nothing.
        "verify_every_minutes": 0,
        "reverts": row.id,
        "until": until,
    }
    return WorkflowRow(
        id=workflow,
        kind=row.kind,
        protocol=sidecar.PROTOCOL,
        source_schema=row.source_schema,
        source_table=row.source_table,
        spec=RevertSpec.model_validate(asked).model_dump(mode="json"),
        phase=Phase.CATCHING_UP,
        is_paused=False,
        is_cancel_requested=False,
        reason=None,
        shadow_table=row.retired_table,
        retired_table=names.retired_table(row.source_table, workflow),
        copy_path="rows",
        source_identity=row.shadow_identity,
        shadow_identity=row.source_identity,
        source_definition=definition_of(new),
        server_identity=row.server_identity,
        start_position=start.saved,
        is_cut=False,
        rows_total=row.rows_total or 0,
    )


def check_open(driver: Driver, spec: Spec) -> None:
    """Raises Cancelled when the time is over, and nobody has asked to revert."""
    if not isinstance(spec, RevertSpec) or gate.released_by(driver.session, driver.workflow) is not None:
        return
    if is_over(driver.session, spec):
        raise Cancelled(TIME_IS_OVER)


def is_to_be_closed(session: Session, row: WorkflowRow) -> bool:
    """Its time is over, and it is not being reverted to."""
    if not is_way_back(row) or row.phase in OVER or row.is_cut:
        return False
    spec = spec_of(row.spec)
    return isinstance(spec, RevertSpec) and not is_asked_for(session, row) and is_over(session, spec)


def is_asked_for(session: Session, row: WorkflowRow) -> bool:
    """One that has failed is closed when its time is over, though somebody had asked to revert."""
    return row.phase is not Phase.FAILED and gate.released_by(session, row.id) is not None


def closed_way_back(session: Session, workflow: str) -> WorkflowRow | None:
    """The way back of a workflow that has ended without switching; its original may be there yet."""
    back = way_back(session, workflow)
    return back if back is not None and back.phase is Phase.CANCELLED else None


def is_over(session: Session, spec: RevertSpec) -> bool:
    return bool(session.value("SELECT NOW(6) > %s", (spec.until.replace(tzinfo=None),)))


def not_again(ranges: Sequence[KeyRange]) -> None:
    """In the place of copying again: that would take what rows keep in columns which the new definition lacks."""
    raise BadValue(
        f"{len(ranges)} rows of the original differ from what the application wrote into the new table.",
        cure="Somebody else writes to the original: it cannot be reverted any more. The table in use is untouched.",
    )


def close(session: Session, row: WorkflowRow, why: str, *, our_lease: Lease | None) -> None:
    """End the way back for good. Whoever applied changes to the original has ended. Then `drop_original`.

    Raises Transient where somebody has asked to revert since its time was found over.
    """
    if why == TIME_IS_OVER and is_asked_for(session, row):
        raise Transient(
            f"{row.id} was asked to revert as its time came to its end.",
            cure=f"`vreplication resume {row.id}` does so.",
        )
    workflows.move(session, row.id, Phase.CANCELLED, why, our_lease=our_lease)
    journal.write(session, row.id, "window closed", why, actor=lease.me())
    reach("revert.closed")


def drop_original(session: Session, row: WorkflowRow, is_stopping: Callable[[], bool] = lambda: False) -> bool:
    """Of a way back that was closed; repeatable. False: it is not there, or we were asked to stop before the end."""
    keytables.drop_all(session, row.id)
    workflows.forget_run(session, row.id)
    spool.forget(row)
    identity, is_maria = row.shadow_identity or "", is_mariadb(session)
    place = (row.source_schema, row.shadow_table)
    # A DROP of a large table holds up the server; of an empty one it does not.
    if not empty(session, *place, identity, is_mariadb=is_maria, is_stopping=is_stopping):
        return False
    reach("revert.emptied")
    if not drop_table(session, *place, identity, is_mariadb=is_maria):
        return False
    journal.write(session, row.id, "dropped", f"retired table {row.shadow_table}", actor=lease.me())
    return True
