"""`--strategy auto` where the table refuses what its empty copy took: the same workflow goes on online.

What must stay true: never what was asked for by name; the online plan has passed before anything is noted; it is noted
in one transaction, and from then on nobody alters in place: whoever goes on prepares; a release that was given for an
ALTER of a moment does not count for a cut-over that may come hours later; why is in the journal to the end.
"""

from __future__ import annotations

from vreplication.cutover.in_place import Tried
from vreplication.engine.driver import Driver
from vreplication.engine.job import definition_of
from vreplication.errors import SourceChanged, Terminal
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec, spec_of
from vreplication.planning.strategy import ONLINE
from vreplication.state import gate, journal, lease, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import prepare


def begin(driver: Driver, row: WorkflowRow, tried: Tried) -> None:
    """Plan it online, and note that. Raises Terminal, all being as before, where that may not or cannot be."""
    name, spec = f"{row.source_schema}.{row.source_table}", spec_of(row.spec)
    refusal = f"The server does not alter {name} in place, as it did an empty copy: {tried.refusal}"
    if spec.strategy != "auto":
        cure = f"The table is as it was. Run `vreplication cancel {row.id}`, then take --strategy online."
        raise Terminal(refusal, cure=cure)
    # Before anything is noted: where that is refused as well the workflow stays what it was.
    plan = _plan(driver.session, row, spec)
    if plan.refusals:
        words = " ".join(f"{r.sentence} {r.cure}".strip() for r in plan.refusals)
        raise Terminal(f"{refusal}. It cannot be done online either: {words}")
    words = f"{ONLINE}: {refusal}"
    with driver.session.transaction():
        lease.fence(driver.session, driver.lease)
        workflows.begin_anew(driver.session, row.id, plan.copy_path)
        gate.forget_release(driver.session, row.id)
        journal.write(driver.session, row.id, journal.FALLBACK, words, actor=lease.me())
    driver.notify(words)
    reach("fallback.noted")
    _prepare(driver, plan)


def go_on(driver: Driver, row: WorkflowRow) -> None:
    """Prepare it, which was cut short."""
    prepare.undo(driver.session, row)
    with driver.session.transaction():
        lease.fence(driver.session, driver.lease)
        workflows.begin_anew(driver.session, row.id, row.copy_path)
    _prepare(driver, _plan(driver.session, row, spec_of(row.spec)))


def has_begun(session: Session, workflow: str) -> bool:
    return journal.latest(session, workflow, journal.FALLBACK) is not None


def is_unprepared(session: Session, row: WorkflowRow) -> bool:
    return not (row.is_in_place or row.is_cut or prepare.is_done(row)) and has_begun(session, row.id)


def _prepare(driver: Driver, plan: Plan) -> None:
    found = workflows.load(driver.session, driver.workflow)
    if definition_of(plan.source) != found.source_definition:
        raise SourceChanged(f"Somebody else has altered {found.source_schema}.{found.source_table} meanwhile.")
    prepare.prepare(driver, plan)


def _plan(session: Session, row: WorkflowRow, spec: Spec) -> Plan:
    return make_plan(session, spec.model_copy(update={"strategy": ONLINE, "workflow": row.id}))
