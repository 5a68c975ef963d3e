"""Behind the cut-over: catch-up ends, and what was only for the run goes.

What must stay true: it may be cut short anywhere and begin again; the original is dropped only if it is the table that
the workflow began with.
"""

from __future__ import annotations

from vreplication.cutover import foreign
from vreplication.cutover.sentry import drop_table
from vreplication.engine import spool
from vreplication.engine.driver import Driver
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.schema.introspect import exists
from vreplication.settings import TABLE_SECONDS
from vreplication.state import journal, keytables, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import dedup, reverting, switching


def clean_up(driver: Driver) -> None:
    """After the cut-over: catch-up ends, what was only for the run goes; the retired table stays unless told."""
    # First: what it works with goes.
    driver.child.end()
    row = workflows.load(driver.session, driver.workflow)
    if row.phase is Phase.COMPLETE:
        # By us, before the server was lost; or by who has taken over, and then the end is not ours to tell.
        lease.fence(driver.session, driver.lease)
        return
    switching.finish_keys(driver, row)
    _verify_keys(driver, row)
    dedup.set_aside(driver, row)
    # Before its own checkpoint goes: the stream of the way back begins where this one ended.
    reverting.open_window(driver, row)
    keytables.drop_all(driver.session, row.id)
    # While a way back is open the original is what it goes back to.
    # Nor where none could be opened: it is all that is left of what was asked for.
    if row.spec.get("retired") == "drop" and not row.spec.get("revert_window"):
        _drop_original(driver, row)
    journal.write(driver.session, row.id, "complete", f"{row.source_schema}.{row.source_table}", actor=lease.me())
    workflows.forget_run(driver.session, row.id)
    spool.forget(row)
    reach("workflow.cleaned")
    # Last: who finds this phase does nothing of all that again.
    driver.move(Phase.COMPLETE)
    reach("workflow.complete")


def _verify_keys(driver: Driver, row: WorkflowRow) -> None:
    """Each foreign key that went over: has every row a parent? Told at the end, by the journal."""
    if not foreign.is_asked(row) or journal.latest(driver.session, row.id, journal.FOREIGN_KEYS, journal.ORPHANS):
        return
    driver.report(waiting_for="foreign keys are verified")
    with driver.session.patient(TABLE_SECONDS):
        keys, without = foreign.verify(driver.session, row)
    event = journal.ORPHANS if without else journal.FOREIGN_KEYS
    journal.once(driver.session, driver.lease, event, " ".join(without) or foreign.whole(keys))
    driver.report(waiting_for=None)
    reach("workflow.keys_verified")


def _drop_original(driver: Driver, row: WorkflowRow) -> None:
    """Not found: a clean-up that was cut short has dropped it, and said so or not."""
    what = f"retired table {row.retired_table}"
    if drop_retired(driver.session, row):
        journal.write(driver.session, row.id, "dropped", what, actor=lease.me())
    elif exists(driver.session, row.source_schema, row.retired_table):
        why = "it is not the one that the workflow began with"
        journal.write(driver.session, row.id, "kept", f"{what}: {why}", actor=lease.me())


def drop_retired(session: Session, row: WorkflowRow) -> bool:
    """Drop the pushed-aside original, if it is the table that the workflow began with."""
    return drop_table(
        session,
        row.source_schema,
        row.retired_table,
        row.source_identity or "",
        is_mariadb=is_mariadb(session),
    )
