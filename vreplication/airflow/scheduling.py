"""The queue of migrations for Airflow: files under migrations/ go in, what is due comes out as runs of online_ddl.

What must stay true: files are read when a task runs, never when a DAG is parsed; a file with a mistake puts nothing in
and is named; a source or a file that fails keeps no other one waiting, and is said; a claimed entry is handed to
TriggerDagRunOperator under its workflow's id, so that a second attempt finds the run and starts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from vreplication.airflow import connections
from vreplication.airflow.migration_files import SOURCES, Files, Wanted, read_files
from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.state import queue
from vreplication.state.queue import Entry
from vreplication.workflows import queueing
from vreplication.workflows.due import ABSENT, RUN_FAILED, RUNNING

log = logging.getLogger(__name__)

DAG_ID = "online_ddl"
"""The DAG whose runs are started."""
_READ_SECONDS = 60.0
_LIVE_RUNS, _FAILED_RUNS = ["queued", "running"], ["failed"]


def put_in(session: Session, wanted: Iterable[Wanted], default_schema: str, by: str) -> dict[str, str]:
    """Those not submitted before, each once. Returns what is wrong with the others: workflow → sentence."""
    problems: dict[str, str] = {}
    known = queue.workflows_known(session)
    for one in wanted:
        entry = one.entry(default_schema)
        before = queue.find(session, entry.workflow)
        if before is not None and before.state == queue.QUEUED and _asked(before) != _asked(entry):
            problems[entry.workflow] = _changed(entry, one.file)
        elif before is None and entry.workflow not in known:
            problems |= _submit(session, entry, one, by)
    return problems


def _submit(session: Session, entry: Entry, one: Wanted, by: str) -> dict[str, str]:
    try:
        queueing.submit(session, entry, f"{by} ({one.file})")
    except Refused as error:
        return {entry.workflow: f"{one.file}: {error}"}
    log.info("%s: workflow %s is in the queue of %s", one.file, entry.workflow, one.conn_id)
    return {}


def _changed(entry: Entry, file: str) -> str:
    """A file that was changed after it was read: what waits is not what has been reviewed, so it is not started."""
    cure = f"Remove it (`vreplication queue --remove {entry.workflow}`) and give it a new id."
    return f"{file}: workflow {entry.workflow} is in the queue with other values than the file has. {cure}"


def _asked(entry: Entry) -> tuple[object, ...]:
    return entry.schema, entry.table, entry.spec, entry.not_before, entry.after, entry.priority


def conf_of(entry: Entry, conn_id: str) -> dict[str, Any]:
    """The run's conf."""
    return {"source_conn_id": conn_id, **entry.spec, "workflow": entry.workflow}


def look_after(
    sources: Iterable[str], files: Files, *, concurrency: int, by: str, look_up: Callable[[str], str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Claim what is due on every source: arguments of TriggerDagRunOperator, and what went wrong."""
    due: list[dict[str, Any]] = []
    problems = list(files.problems)
    named = sorted(sources)
    for conn_id, url, problem in map(find_source, named):
        if url is None:
            problems += [problem] if problem else []
            continue
        try:
            found, wrong = _look_after_one(conn_id, url, frozenset(named), files, concurrency, by, look_up)
        except VReplicationError as error:
            found, wrong = [], [f"Connection {conn_id!r}: {error}"]
        due += [{"trigger_run_id": e.workflow, "conf": conf_of(e, conn_id)} for e in found]
        problems += wrong
    return due, problems


def find_source(conn_id: str) -> tuple[str, SourceUrl | None, str]:
    """A connection's URL or the problem with it. The default connection need not exist."""
    try:
        return conn_id, connections.source_url(conn_id), ""
    except Refused as error:
        return conn_id, None, "" if conn_id == DEFAULT_CONNECTION else str(error)


def _look_after_one(
    conn_id: str,
    url: SourceUrl,
    named: frozenset[str],
    files: Files,
    concurrency: int,
    by: str,
    look_up: Callable[[str], str],
) -> tuple[list[Entry], list[str]]:
    with connect(url, read_timeout=_READ_SECONDS) as session:
        mine = [w for w in files.wanted if w.conn_id == conn_id]
        problems = put_in(session, mine, url.database, by)

        def may_start(entry: Entry) -> bool:
            """Another connection's only when nobody looks after that one."""
            is_ours = entry.conn_id in (None, conn_id) or entry.conn_id not in named
            return is_ours and entry.workflow not in problems

        found = queueing.claim(session, concurrency, by, look_up=look_up, may_start=may_start)
        return found, list(problems.values())


def run_state(task_instance: Any, workflow: str) -> str:
    """What Airflow's records say of the run of a workflow."""

    def count(states: list[str] | None) -> int:
        return int(task_instance.get_dr_count(dag_id=DAG_ID, run_ids=[workflow], states=states))

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
            look_up=lambda workflow: run_state(context["ti"], workflow),
        )
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
