"""Going on with a workflow that exists.

What must stay true: a checkpoint of another table or ALTER is refused; a cut-over that happened is found out from the
tables' identities, never from what the last run remembered; a preparation that was cut short is begun again from
nothing, but its row stays until the next one takes its place, so that no kill loses what operators have asked; a log
that has been purged, or that is another server's, is a clear refusal.
"""

from __future__ import annotations

import functools
import logging

from vreplication.cutover import carried
from vreplication.cutover.decide import SWITCHED, settle
from vreplication.engine.driver import Driver
from vreplication.engine.result import Result
from vreplication.errors import LeaseHeld, Refused
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.planning.spec import Spec, spec_of
from vreplication.state import groups, journal, layout, lease, markers, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import ending, failover, fallback, prepare, switching

log = logging.getLogger(__name__)

_FOR_GOOD = ("on_duplicate", "retired", "revert_window")
"""Fields of a Spec by which rows or the original stay or go."""
_OF_THE_GATE = (
    ("cutover", "cutover_window"),
    ("ignore_old_snapshots",),
    ("force_cutover_after", "force_cutover_max_age", "force_cutover_max_rows"),
)
"""Fields of a Spec that may be asked for otherwise, those that go together: what holds a workflow is seen at its gate.
"""


def goes_on(session: Session, row: WorkflowRow, spec: Spec, *, is_together: bool = False) -> bool:
    """Check that `row` may go on under `spec`. is_together: as of `check_same`.

    False: nothing but its row is left, and it is to be planned anew (`workflows.create`, is_anew).
    """
    check_same(session, row, spec, is_together=is_together)
    layout.complete(session)
    holder = lease.holder_of(session, row.id, lease.DRIVER)
    if holder and holder.is_alive:
        raise LeaseHeld(
            f"Workflow {row.id} is being worked on by {holder.name}.",
            cure=f"Watch it with `vreplication status {row.id} --watch`.",
        )
    row = failover.follow(session, row)
    if fallback.is_unprepared(session, row):
        return True
    # Nothing is copied yet, so to begin anew costs less than to find out how much was made.
    if row.phase in (Phase.PLANNING, Phase.PREPARING) or not prepare.is_done(row):
        # Its connections end first: one that is only stopped would go on preparing.
        lease.acquire(session, row.id, lease.DRIVER)
        prepare.undo(session, row)
        # A table that somebody makes under that name meanwhile is none of ours.
        workflows.set_fields(session, row.id, shadow_identity=None)
        return False
    if not row.is_cut:
        failover.check_log(session, row)
        take_options(session, row, spec)
    return True


def take_options(session: Session, row: WorkflowRow, spec: Spec) -> None:
    """What is asked for now of the gate holds from now on; what is not asked for stays as it was."""
    asked, began = spec.model_dump(mode="json"), spec_of(row.spec).model_dump(mode="json")
    given = [name for those in _OF_THE_GATE if any(map(functools.partial(_is_given, spec), those)) for name in those]
    if changed := {name: asked[name] for name in given if asked[name] != began[name]}:
        workflows.set_spec(session, row.id, {**row.spec, **changed})
        words = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in changed.items())
        journal.write(session, row.id, "options changed", words, actor=lease.me())


def _is_given(spec: Spec, name: str) -> bool:
    return bool(getattr(spec, name) != Spec.model_fields[name].default)


def check_same(session: Session, row: WorkflowRow, spec: Spec, *, is_together: bool = False) -> None:
    """Raises Refused when the workflow has ended or was begun for something else.

    is_together: those that are switched in one with it go on as well.
    """
    if row.phase in OVER:
        raise Refused(f"Workflow {row.id} has ended ({row.phase}).", cure="Give the new one another --workflow id.")
    if not _is_same(session, row, spec):
        raise Refused(
            f"Workflow {row.id} exists for another table or ALTER: {row.source_schema}.{row.source_table}, "
            f"{row.spec.get('alter')!r}.",
            cure="Repeat its own arguments to go on with it, or give the new one another --workflow id.",
        )
    if prepare.is_done(row):
        _check_for_good(row, spec)
    if not (is_together or row.is_cut):
        check_alone(session, row)


def _check_for_good(row: WorkflowRow, spec: Spec) -> None:
    """Raises Refused where rows or the original would be lost that are asked for now: what it began with holds on."""
    began = spec_of(row.spec)
    differing = [name for name in _FOR_GOOD if getattr(began, name) != getattr(spec, name)]
    if differing:
        had = ", ".join(f"{name.replace('_', '-')} {getattr(began, name) or 'none'}" for name in differing)
        raise Refused(
            f"Workflow {row.id} was begun with other options, which hold on: {had}.",
            cure=f"Repeat its own arguments or run `vreplication resume {row.id}` to go on with it.",
        )


def check_alone(session: Session, row: WorkflowRow) -> None:
    """Raises Refused for one of several tables that are switched together."""
    group = groups.of_member(session, row.id)
    if group is not None and group.is_atomic:
        raise Refused(
            f"Workflow {row.id} is of one of the tables of {group.id}, which are switched together.",
            cure=f"`vreplication resume {group.id}` goes on with all of them.",
        )


def _is_same(session: Session, row: WorkflowRow, spec: Spec) -> bool:
    asked = (*spec.table_parts(session.url.database), spec.alter)
    return (row.source_schema, row.source_table, row.spec.get("alter")) == asked


def tell_late(url: SourceUrl, spec: Spec) -> Result | None:
    """How this very workflow ended, if it is complete and whoever drove it died before it could say so."""
    with connect(url) as session:
        row = workflows.find(session, spec.workflow or "")
        if row is None or not _is_same(session, row, spec) or not ending.is_untold(session, row):
            return None
        return ending.completed_of(session, row.id)


def is_switched(driver: Driver) -> bool:
    """Find out whether the tables have been switched, and make ready to go on when they have not."""
    session = driver.session
    row = failover.follow(session, workflows.load(session, driver.workflow))
    if fallback.is_unprepared(session, row):
        fallback.go_on(driver, row)
        return False
    # With the lease the connections of who had it before have ended: no RENAME of theirs is under way.
    if row.is_cut or settle(session, row) == SWITCHED:
        if row.is_cut:
            driver.note_switched()
        else:
            switching.note_switched(driver)
        return True
    carried.remove(driver.url, row, driver.lease)
    switching.undo_keys(driver, row)
    # Last: from here on catch-up writes again, and it must not meet triggers or foreign keys there.
    markers.remove_all(session, row.id, markers.CUTOVER)
    return False
