"""The queue for Airflow: files under migrations/ go in, what is due comes out as runs of its kind's DAG.

What must stay true: files are read when a task runs, never when a DAG is parsed; a claimed entry is handed to
TriggerDagRunOperator under its workflow's id, so that a second attempt finds the run and starts nothing; nothing of an
entry is rendered as a template.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from vreplication.airflow.claiming import look_after
from vreplication.airflow.migration_files import SOURCES, Files, read_files
from vreplication.airflow.noting import SKIPPED, store_end
from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.scheduler.due import ABSENT, RUN_FAILED, RUNNING
from vreplication.state.queue import Entry

log = logging.getLogger(__name__)

ONE_AT_A_TIME: dict[str, Any] = {
    "start_date": datetime(2026, 1, 1, tzinfo=UTC),
    "catchup": False,
    "max_active_runs": 1,
    "tags": ["vreplication"],
}
"""Of DAGs that look after every source on a schedule: what a run missed is for the next one."""
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

    Skips when nothing is due. Problems are in the log, and fail the run when there is nothing to start beside them.
    """

    ui_color = "#e8eef7"

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder

    def execute(self, context: Any) -> list[dict[str, Any]]:
        files = read_files(self.folder)
        due, problems = look_after(
            sources_of(context, files),
            files,
            concurrency=int(context["params"]["concurrency"]),
            by=f"airflow {context['run_id']}",
            look_up=lambda entry: run_state(context["ti"], entry),
        )
        if not (due or problems):
            store_end(context, SKIPPED, "Nothing was due.")
        return _concluded(due, problems)


def _concluded(due: list[dict[str, Any]], problems: list[str]) -> list[dict[str, Any]]:
    for problem in problems:
        log.error("%s", problem)
    for one in due:
        log.info("due: %s", one["trigger_run_id"])
    if not due and problems:
        raise AirflowFailException("; ".join(problems))
    if not due:
        raise AirflowSkipException("Nothing is due.")
    return due
