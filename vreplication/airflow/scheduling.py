"""The queue for Airflow: files under migrations/ go in, what is due comes out as runs of its kind's DAG.

What must stay true: files are read when a task runs, never when a DAG is parsed; a claimed entry is handed to
TriggerDagRunOperator under its workflow's id, so that a second attempt finds the run and starts nothing; nothing of an
entry is rendered as a template.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Param, Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from vreplication.airflow.claiming import find_source, look_after, standing
from vreplication.airflow.migration_files import SOURCES, Files, read_files
from vreplication.airflow.noting import SKIPPED, store_end
from vreplication.airflow.queue_trigger import ASKED, QueueTrigger
from vreplication.airflow.request import DEFAULT_CONNECTION, default_connection
from vreplication.scheduler.due import ABSENT, RUN_FAILED, RUNNING
from vreplication.state.queue import Entry
from vreplication.workflows.registry import KINDS, connection_param

log = logging.getLogger(__name__)

ONE_AT_A_TIME: dict[str, Any] = {
    "start_date": datetime(2026, 1, 1, tzinfo=UTC),
    "catchup": False,
    "max_active_runs": 1,
    "tags": ["vreplication"],
}
"""Of DAGs that look after every source on a schedule: what a run missed is for the next one."""
WAIT_SECONDS = 86_400.0
"""A run ends after this, whatever it waits for, and the next one begins."""
_FILES_SECONDS = 120.0
"""After so long the files are read again, by a worker: they need not be where the triggerer is."""
_AGAIN_SECONDS = 60.0
"""What is started but has not begun, or is due and may not start, is looked at again after this."""
_PROBLEM_SECONDS = 600.0
INSTALLATION = "vreplication_installation"
"""Key of the variable that tells this Airflow apart from others; made by the first claim."""
_BY_ITSELF = "scheduled"
"""Type of the runs that no person and no other DAG has triggered."""
_LIVE_RUNS, _FAILED_RUNS = ["queued", "running"], ["failed"]


def run_state(task_instance: Any, entry: Entry) -> str:
    """What Airflow's records say of the run of a workflow, which its kind's DAG has."""

    def count(states: list[str] | None) -> int:
        return int(task_instance.get_dr_count(dag_id=entry.kind, run_ids=[entry.workflow], states=states))

    if count(_LIVE_RUNS):
        return RUNNING
    if count(_FAILED_RUNS):
        return RUN_FAILED
    return "ended" if count(None) else ABSENT


def conn_of_run(entry: Entry) -> str | None:
    """For which connection the run of this id was made; None: there is none, or Airflow does not say."""
    from airflow.sdk.execution_time.comms import GetDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    home = KINDS[entry.kind].home
    try:
        found: Any = SUPERVISOR_COMMS.send(GetDagRun(dag_id=entry.kind, run_id=entry.workflow))
        return str((found.conf or {}).get(connection_param(home)) or default_connection(home))
    except Exception as error:  # to look is no reason to start nothing
        log.info("the conf of run %s could not be read: %s", entry.workflow, type(error).__name__)
        return None


def installation() -> str:
    """Which Airflow this is: another one, that looks at the same queue, may have runs of the same ids."""
    if not (found := Variable.get(INSTALLATION, default="")):
        Variable.set(INSTALLATION, secrets.token_hex(8), description="Which Airflow claims entries of the queues.")
        # What is there now, where two tasks have made one at the same time.
        found = Variable.get(INSTALLATION)
    return str(found)


def source_params() -> dict[str, Param]:
    return {
        SOURCES: Param(
            [], type="array", items={"type": "string"}, title="Sources",
            description="Connections to look after, beside those that files under migrations/ name and "
            f"{DEFAULT_CONNECTION}.",
        ),
    }  # fmt: skip


def scheduling_params() -> dict[str, Param]:
    return {
        **source_params(),
        "concurrency": Param(
            1, type="integer", minimum=1, maximum=64, title="Concurrency",
            description="Workflows that may work on one source at a time, however they were started.",
        ),
    }  # fmt: skip


def sources_of(context: Mapping[str, Any], files: Files) -> frozenset[str]:
    return frozenset(context["params"].get(SOURCES) or ()) | files.sources | {DEFAULT_CONNECTION}


class StartOperator(TriggerDagRunOperator):
    """Starts one run. Nothing of an entry is a template: `{{ … }}` in an ALTER is the ALTER's own, and may not read
    Airflow's variables and connections.
    """

    template_fields: Sequence[str] = ()


class ClaimDueOperator(BaseOperator):
    """Puts the files in and claims what is due; its result is what TriggerDagRunOperator is expanded over.

    While nothing is due it waits without a slot, up to a day; a run that a person has triggered does not. Then it
    skips. Problems are in the log, and fail the run when they have been there for a while and nothing is due.
    """

    ui_color = "#e8eef7"

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder

    def execute(self, context: Any) -> list[dict[str, Any]]:
        return self.go_on(context)

    def go_on(self, context: Any, event: Mapping[str, Any] | None = None, since: str = "") -> list[dict[str, Any]]:
        """Called again when the trigger has fired. since: there have been problems, ever since."""
        files = read_files(self.folder)
        due, problems = self._claim(context, files)
        for problem in problems:
            log.error("%s", problem)
        # What could be claimed is started first, whatever is wrong elsewhere: it has been noted as started.
        if due:
            return due
        now = datetime.now(UTC)
        # As text, for it waits with the trigger in Airflow's database.
        since = (since or now.isoformat()) if problems else ""
        if (seconds := self._left(context, event, since, now)) > 0:
            self._wait(context, files, since, min(seconds, _FILES_SECONDS if not problems else _AGAIN_SECONDS))
        if problems:
            # Not tried again: the DAG is continuous, and its next run begins at once.
            raise AirflowFailException("; ".join(problems))
        store_end(context, SKIPPED, "Nothing was due.")
        raise AirflowSkipException("Nothing is due.")

    def _claim(self, context: Any, files: Files) -> tuple[list[dict[str, Any]], list[str]]:
        found, problems = look_after(
            sources_of(context, files),
            files,
            concurrency=int(context["params"]["concurrency"]),
            by=f"airflow {context['run_id']}",
            claimant=installation(),
            look_up=lambda entry: run_state(context["ti"], entry),
            conn_of_run=conn_of_run,
        )
        for one in found:
            log.info("due: %s", one["trigger_run_id"])
        return found, problems

    def _left(self, context: Any, event: Mapping[str, Any] | None, since: str, now: datetime) -> float:
        """Seconds that it may still wait."""
        run = context["dag_run"]
        # A task has an enumeration here whose text is not its value, and which equals that.
        if run.run_type != _BY_ITSELF or (event and event["state"] == ASKED):
            return 0.0
        until = (run.start_date or now) + timedelta(seconds=WAIT_SECONDS)
        if since:
            until = min(until, datetime.fromisoformat(since) + timedelta(seconds=_PROBLEM_SECONDS))
        return (until - now).total_seconds()

    def _wait(self, context: Any, files: Files, since: str, seconds: float) -> None:
        concurrency = int(context["params"]["concurrency"])
        named = [conn_id for conn_id, url, _ in map(find_source, sorted(sources_of(context, files))) if url]
        # What is due and was not claimed just now, because its file was changed or is another connection's, must not
        # fire the trigger again at once.
        known, in_doubt = standing(named, concurrency)
        trigger = QueueTrigger(
            conn_ids=named,
            concurrency=concurrency,
            known=known,
            seconds=min(seconds, _AGAIN_SECONDS) if known or in_doubt else seconds,
            dag_id=context["dag"].dag_id,
        )
        self.defer(trigger=trigger, method_name="go_on", kwargs={"since": since})
