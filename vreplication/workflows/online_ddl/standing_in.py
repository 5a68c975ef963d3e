"""Rows are copied to a stand-in where the new table's counter makes tasks wait for one another (schema/stand_in.py).

In order: made with the new table; copied and caught up like it; once every chunk is matched it gets another name, so
that catch-up, which knows it by the first one, can write nothing more and begins a round anew; the two exchange their
rows; the empty one goes; catch-up finds the new table.

What must stay true: as long as the second name is there, nobody writes to either table (`job.load` raises LockWait),
and exactly one of the two has rows; it is dropped under its lock and only if it has none; each step may be begun again
by another process, in any order with one that was stopped in the middle; where the server was restarted in between,
the log may lack what the server has done, and the workflow ends.
"""

from __future__ import annotations

from vreplication.cutover.identity import table_identity
from vreplication.cutover.sentry import drop_if, patience
from vreplication.engine.driver import Driver
from vreplication.engine.job import is_handed_over, written_to
from vreplication.errors import Terminal
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import NO_SUCH_TABLE, LockWait, Session, SqlError
from vreplication.pausepoints import reach
from vreplication.planning.plan import Plan, stands_in
from vreplication.schema import stand_in
from vreplication.schema.introspect import exists, introspect
from vreplication.schema.mapping import map_for
from vreplication.schema.model import Table, TableMapping
from vreplication.state import journal, lease, workflows
from vreplication.state.workflows import CREATING, WorkflowRow

_BEGUN = "stand-in exchanged"
_RETRY_SECONDS = 0.1
_LOOKS = 10
"""At two tables that both have rows, which a statement of another driver's explains once."""


def begin(session: Session, plan: Plan, row: WorkflowRow, new: Table, mapping: TableMapping) -> TableMapping:
    """Make the stand-in beside the empty new table where it is worth it; returns the mapping to where rows go."""
    if not stands_in(session, plan, new, mapping):
        return mapping
    if any(exists(session, row.source_schema, name) for name in _names(row)):
        # Somebody else's: we do without.
        return mapping
    # First: by it is known that tables of these names are ours.
    journal.write(session, row.id, journal.STAND_IN, row.stand_in, actor=lease.me())
    if not stand_in.create(session, new, row.stand_in):
        _note_over(session, row, "the server makes none")
        return mapping
    made = introspect(session, row.source_schema, row.stand_in)
    return map_for(
        plan.server, plan.source, made, plan.clauses,
        moment=row.created_at, may_be_null=plan.spec.allow_nullable_key,
    )  # fmt: skip


def _names(row: WorkflowRow) -> tuple[str, str]:
    return row.stand_in, row.stood_in


def is_made(session: Session, row: WorkflowRow) -> bool:
    return journal.latest(session, row.id, journal.STAND_IN) is not None


def left(session: Session, row: WorkflowRow) -> list[str]:
    """Names of tables that are still there."""
    return [name for name in _names(row) if exists(session, row.source_schema, name)] if is_made(session, row) else []


def check_none(session: Session, row: WorkflowRow) -> None:
    """Before the tables are switched: the new one is empty as long as there is a stand-in. Raises Terminal."""
    if found := left(session, row):
        raise Terminal(
            f"The rows of {row.shadow_table} are still in {found[0]}.",
            cure=f"Run `vreplication resume {row.id}`, which hands them over.",
        )


def drop(session: Session, row: WorkflowRow) -> None:
    """With the workflow that is taken back."""
    for name in left(session, row):
        # Ours for certain: without the journal's word `left` names none.
        drop_if(session, row.source_schema, name, lambda: True)
    if is_made(session, row) and not is_handed_over(session, row):
        _note_over(session, row, "taken back")


def _note_over(session: Session, row: WorkflowRow, words: str) -> None:
    journal.write(session, row.id, journal.STOOD_IN, words, actor=lease.me())


def go_on(driver: Driver) -> None:
    """What was cut short in the middle, before anything is loaded. Raises Terminal where the server was restarted."""
    row = workflows.load(driver.session, driver.workflow)
    if row.stood_in in left(driver.session, row):
        _refuse_restarted(driver.session, row)
        _hand_over(driver, row)


def finish(driver: Driver) -> None:
    """Every chunk is matched: the rows become the new table's. Nothing where that is done, or there is no stand-in."""
    row = workflows.load(driver.session, driver.workflow)
    if written_to(driver.session, row) != row.stand_in:
        return
    # EXCHANGE PARTITION gives the new table another id; until that is known its name alone tells that it is ours.
    workflows.set_fields(driver.session, row.id, shadow_identity=CREATING)
    _note_begun(driver, row)
    reach("stand_in.before_rename")
    _rename(driver, row)
    reach("stand_in.renamed")
    _hand_over(driver, row)


def _rename(driver: Driver, row: WorkflowRow) -> None:
    """Behind the last transaction that writes to it. One that has gone already was renamed by us, before."""
    old, new = (qualified(row.source_schema, name) for name in _names(row))
    while True:
        try:
            with patience(driver.session):
                driver.session.execute_raw(f"RENAME TABLE {old} TO {new}")
            return driver.report(waiting_for=None)
        except LockWait as error:
            driver.report(waiting_for=f"{row.stand_in} is in use: {error.message}")
            driver.wait(_RETRY_SECONDS)
        except SqlError as error:
            if error.code != NO_SUCH_TABLE:
                raise
            return None


def _hand_over(driver: Driver, row: WorkflowRow) -> None:
    """Until the stand-in is empty under its lock: a driver before us may have exchanged them once more meanwhile.

    Raises Terminal where that cannot be, or the new table is gone.
    """
    looks = 0
    while exists(driver.session, row.source_schema, row.stood_in):
        if looks == _LOOKS:
            raise Terminal(
                f"Both {row.shadow_table} and {row.stood_in} have rows, so somebody else has written to one of them.",
                cure=f"The source table is untouched. Run `vreplication cancel {row.id}` and start again.",
            )
        if looks:
            driver.wait(_RETRY_SECONDS)
        try:
            _step(driver, row)
            looks += 1
        except LockWait:
            driver.wait(_RETRY_SECONDS)
        except SqlError as error:
            # Another process of ours was quicker.
            if error.code != NO_SUCH_TABLE or exists(driver.session, row.source_schema, row.stood_in):
                raise
    reach("stand_in.gone")


def _step(driver: Driver, row: WorkflowRow) -> None:
    session, place = driver.session, (row.source_schema, row.stood_in)
    if _is_empty(session, row.source_schema, row.shadow_table):
        with patience(session):
            stand_in.exchange(session, *place, row.shadow_table)
        reach("stand_in.exchanged")
    found = table_identity(session, row.source_schema, row.shadow_table, is_mariadb=True)
    # Before the second name goes: without it nobody comes back to this.
    workflows.set_fields(session, row.id, shadow_identity=found)
    if not is_handed_over(session, row):
        _note_over(session, row, f"{row.shadow_table} has its rows")
    drop_if(session, *place, lambda: _is_empty(session, *place))


def _is_empty(session: Session, schema: str, name: str) -> bool:
    return session.row(f"SELECT 1 FROM {qualified(schema, name)} LIMIT 1") is None


def _note_begun(driver: Driver, row: WorkflowRow) -> None:
    """With each attempt: of one that came to nothing the server may have been restarted since, which does no harm."""
    words = f"{row.stand_in}, {row.shadow_table}, in the server's run {lease.server_run(driver.session)}"
    with driver.session.transaction():
        lease.fence(driver.session, driver.lease)
        journal.write(driver.session, row.id, _BEGUN, words, actor=lease.me())


def _refuse_restarted(session: Session, row: WorkflowRow) -> None:
    """EXCHANGE PARTITION is no atomic DDL on MariaDB: a crash may leave it done, and out of the binary log."""
    begun = journal.latest(session, row.id, _BEGUN)
    run = str(begun["details"]).rpartition(" ")[2] if begun else ""
    # Another server's is another one as well.
    if not (run.isdigit() and lease.is_same_run(int(run), lease.server_run(session))):
        raise Terminal(
            f"The server was restarted while {row.shadow_table} got its rows, so replicas may not have them.",
            cure=f"The source table is untouched. Run `vreplication cancel {row.id}` and start again.",
        )
