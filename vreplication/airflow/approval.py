"""A person's answer before the cut-over, by Airflow's human-in-the-loop approval: a branch of its own beside the gate.

What must stay true: the sidecar's release row is the only thing that opens the gate; the answer writes it, or cancels
the workflow, in the name of who gave it; nothing waits for the answer, so that who releases elsewhere is not held up,
and a request that is still open then is ended, or the run would never be.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowSkipException

from vreplication.airflow import question, request
from vreplication.airflow.connections import source_url
from vreplication.airflow.ending import RETRY_POLICY, in_airflow
from vreplication.airflow.links import MigrationLink
from vreplication.airflow.triggers import ENDED_STATES
from vreplication.errors import Ambiguous, Transient
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.progress import moved
from vreplication.state import definitions, verdicts, workflows
from vreplication.workflows import operate

log = logging.getLogger(__name__)

_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 20.0)
"""An answer is given once. A source that is away is tried again after these; after that the person is asked again."""
# Airflow spares a task that runs, so one that is only starting is waited for.
_STARTING_SECONDS = 120.0


class CutOverApproval(ApprovalOperator):
    """Asks where the run's cutover is manual, and is skipped elsewhere. Approve releases, Reject cancels.

    Nothing comes behind it, so a run that has done everything fails with it: it is tried as often as the gate.
    """

    ui_color = "#e8eef7"
    operator_extra_links = (MigrationLink(),)

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "asked")

    def __init__(
        self, *, kind: str = "online_ddl", asked: Mapping[str, Any] | None = None, group: str = "", **kwargs: Any
    ) -> None:
        # PATIENT_RETRIES of operators.py, which imports this module.
        known = {"retries": 20, "retry_delay": timedelta(seconds=5), "retry_policy": RETRY_POLICY}
        super().__init__(**{**known, "subject": "Switch the tables?", **kwargs})
        self.kind, self.asked, self.group = kind, asked, group

    def read(self, context: Any) -> request.Request:
        return request.read(context, self.kind, request.own(self.asked, self.group))

    def execute(self, context: Any) -> Any:
        found = in_airflow(lambda: self.read(context))
        # Also a window: it is the release, and a person need not be there at night.
        if found.cutover != "manual":
            raise AirflowSkipException(f"No approval is needed: cutover is {found.cutover}.")
        in_airflow(lambda: self._word(source_url(found.conn_id), found.spec.workflow or ""))
        return super().execute(context)

    def _word(self, url: SourceUrl, workflow: str) -> None:
        """Say what is asked. Skips when there is nothing to ask any more."""
        with connect(url) as session:
            row, verdict = workflows.load(session, workflow), verdicts.load(session, workflow)
            by, about = operate.stands(session, workflow), moved.find(session, workflow)
            found = definitions.load(session, workflow)
        if by is not None or row.is_cut or row.has_ended:
            raise AirflowSkipException(f"No approval is needed: {f'{by} has released it' if by else 'it has ended'}.")
        self.subject, self.body = question.subject(row, about), question.body(row, verdict, about, found)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, str]:
        """Called with the answer; carries it out."""
        chosen = super().execute_complete(context, event)["chosen_options"][0]
        by, found = _name(event.get("responded_by_user")), self.read(context)
        answer = _release if chosen == self.APPROVE else _reject
        in_airflow(lambda: _patiently(lambda: answer(found, by)))
        log.info("%s by %s", chosen, by)
        return {"answer": chosen, "by": by}


def _release(found: request.Request, by: str) -> None:
    operate.approve(source_url(found.conn_id), found.spec.workflow or "", by)


def _reject(found: request.Request, by: str) -> None:
    """What was made on either server is removed."""
    # Of an online DDL that is its home; of a move, whose home is the target, its old server.
    source = source_url(found.conn_ids["source"])
    operate.reject(source_url(found.conn_id), found.spec.workflow or "", by, source)


def _name(user: Any) -> str:
    """Who answered, for the journal; nobody did when a time ran out."""
    known = user if isinstance(user, Mapping) else {}
    return f"{known.get('name') or known.get('id') or 'nobody'} (Airflow)"


def _patiently(act: Callable[[], Any]) -> Any:
    for pause in _PAUSES:
        try:
            return act()
        except (Transient, Ambiguous) as error:
            log.warning("the answer is carried out again in %.0f s: %s", pause, error)
            time.sleep(pause)
    return act()


def end_approval(context: Any, task_id: str) -> None:
    """End the run's request to a person when it is still open, through the task's own API."""
    state = _settled(context, task_id)
    if state is None or state in ENDED_STATES:
        return
    from airflow.sdk.execution_time.comms import SkipDownstreamTasks
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    # All that a task may do to another in 3.3 that ends it. Airflow spares those that run or have ended.
    SUPERVISOR_COMMS.send(SkipDownstreamTasks(tasks=[task_id]))
    log.info("%s, which was still %s, is skipped: nothing is left to be decided", task_id, state)


def _settled(context: Any, task_id: str) -> str | None:
    """The task's state once it is not just starting or carrying an answer out. None: there is no such task."""
    deadline = time.monotonic() + _STARTING_SECONDS
    while True:
        states = task_states(context, [task_id])
        state = states[task_id] or "not started" if task_id in states else None
        if state != "running" or time.monotonic() > deadline:
            return state
        time.sleep(0.5)


def task_states(context: Any, tasks: Sequence[str]) -> dict[str, str | None]:
    """States of tasks of this run, as Airflow has them."""
    run_id = context["run_id"]
    found = context["ti"].get_task_states(dag_id=context["dag"].dag_id, task_ids=list(tasks), run_ids=[run_id])
    return dict(found.get(run_id, {})) if tasks else {}
