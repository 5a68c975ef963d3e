"""An online DDL that the server does in place: no copy, no catch-up; prepare, gate, ALTER, end.

What must stay true: as of cutover/in_place.py; a release, a window and a pause hold it as they hold a cut-over; what
was chosen and why is in the journal before anything is done.
"""

from __future__ import annotations

import functools

from vreplication.cutover.in_place import InPlace, Tried
from vreplication.cutover.reasons import Gate
from vreplication.engine.driver import Driver
from vreplication.engine.saying import Saying
from vreplication.mysql.session import connect
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.planning.plan import Plan
from vreplication.planning.strategy import algorithms, statement
from vreplication.schema.alter import parse_alter
from vreplication.state import definitions, journal, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import fallback, retrying, switching
from vreplication.workflows.online_ddl.gate import AtGate, at_gate
from vreplication.workflows.online_ddl.retrying import Failed
from vreplication.workflows.online_ddl.together import Together

_POLL_SECONDS = 0.1


def is_in_place(driver: Driver) -> bool:
    return workflows.load(driver.session, driver.workflow).is_in_place


def prepare(driver: Driver, plan: Plan) -> None:
    """Note what the definition will be; with the total, which is written last, it is prepared."""
    driver.check()
    definitions.save(driver.session, driver.workflow, plan.definitions)
    journal.write(driver.session, driver.workflow, "prepared", plan.strategy.algorithm, actor=lease.me())
    # There is no shadow table: the digest of the definition afterwards takes its identity's place.
    workflows.set_fields(driver.session, driver.workflow, shadow_identity=plan.strategy.after, rows_total=0)
    reach("prepare.done")


def switch(driver: Driver, *, is_manual: bool, window: str | None) -> bool:
    """Hold at the gate, and try until the table is altered. False: the server cannot, and it goes on online."""
    at, number = at_gate(driver, Together.alone(driver.workflow), is_manual=is_manual, window=window), 0
    while True:
        _hold(driver, at)
        number += 1
        tried = _try(driver, at, number)
        if tried.refusal:
            fallback.begin(driver, at.row, tried)
            return False
        if tried.is_done:
            return True
        failed = Failed(number=number, why=tried.reason, blocked_by=tried.blockers)
        retrying.pause(driver, at.server, at.row, failed)


def _hold(driver: Driver, at: AtGate) -> None:
    driver.move(Phase.WAITING)
    gate, saying = Gate(at.reasons), Saying(driver.notify)
    while not gate.is_open():
        reasons = "; ".join(r.sentence for r in gate.reasons)
        driver.hold(gate.reasons)
        if reasons:
            saying.say(f"waiting: {reasons}")
        driver.wait(_POLL_SECONDS)
    driver.hold()
    reach("workflow.gate_open")


def _try(driver: Driver, at: AtGate, number: int) -> Tried:
    driver.move(Phase.CUTTING_OVER)
    driver.report(cutover_attempts=number)
    driver.remember()
    sql = _sql(driver, at.row)
    attempt = InPlace(
        url=driver.url,
        server=at.server,
        row=at.row,
        sql=sql,
        check=driver.check,
        announce=driver.announce,
        stopped_by=lambda session: workflows.load(session, at.row.id).stopped_by,
    )
    tried = attempt.attempt(functools.partial(_fence, driver))
    if not tried.is_done:
        driver.notify(f"not altered: {tried.reason or tried.refusal}")
        driver.report(waiting_for=tried.reason or None)
        return tried
    reach("in_place.altered")
    # First: who goes on behind the note does not come here again.
    driver.report(write_stall_millis=tried.millis if attempt.is_instant else None, cutover_millis=tried.millis)
    switching.note_switched(driver, f"{sql} ({tried.millis:,.0f} ms)")
    return tried


def _fence(driver: Driver) -> None:
    with connect(driver.url) as session, session.transaction():
        lease.fence(session, driver.lease)


def _sql(driver: Driver, row: WorkflowRow) -> str:
    """With the algorithm that was proved, which the journal has."""
    noted = journal.latest(driver.session, row.id, "prepared") or {}
    algorithm = str(noted.get("details") or algorithms(row.copy_path, is_mariadb=False)[0])
    return statement(row.source_schema, row.source_table, algorithm, parse_alter(row.spec["alter"]).text)
