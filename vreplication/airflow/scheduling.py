"""The queue of migrations for Airflow: files under migrations/ go in, what is due comes out as runs of online_ddl.

What must stay true: files are read when a task runs, never when a DAG is parsed; a file with a mistake puts nothing in
and is named; a source or a file that fails keeps no other one waiting, and is said; a claimed entry is handed to
TriggerDagRunOperator under its workflow's id, so that a second attempt finds the run and starts nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from vreplication.airflow import connections
from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.airflow.window import Window
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.state import queue
from vreplication.state.queue import Entry
from vreplication.workflows import queueing

log = logging.getLogger(__name__)

DAG_ID = "online_ddl"
"""The DAG whose runs are started."""
OTHER_FILES = frozenset({"backfills.yaml"})
"""Files under migrations/ that are not ours to read."""
FOLDER = "VREPLICATION_MIGRATIONS"
"""Environment variable: another folder than migrations/ beside dags/."""
SOURCES = "source_conn_ids"
_KEYS = ("source_conn_id", *queueing.SPEC_FIELDS, *queueing.QUEUE_FIELDS, "cutover_window")
_READ_SECONDS = 60.0
_LIVE_RUNS, _FAILED_RUNS = ["queued", "running"], ["failed"]


class MigrationFileError(Refused):
    """A file under migrations/ that cannot be used; the message begins with its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One migration of a file. `given`: its other keys."""

    file: str
    conn_id: str
    given: Mapping[str, Any]

    def entry(self, default_schema: str) -> Entry:
        """Raises MigrationFileError."""
        window, given = self.given.get("cutover_window"), dict(self.given)
        try:
            if given.get("cutover") != "window":
                _no_window(window)
                return queueing.make_entry(default_schema, given, conn_id=self.conn_id)
            Window.parse(str(window or ""))
            made = queueing.make_entry(default_schema, {**given, "cutover": "manual"}, conn_id=self.conn_id)
        except Refused as error:
            raise MigrationFileError(f"{self.file}: {error}") from None
        made.spec.update(cutover="window", cutover_window=str(window))
        return made


def _no_window(window: object) -> None:
    if window is not None:
        raise Refused("cutover_window: it is read with `cutover: window` only.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What the files ask for; `sources`: connections whose queues are looked after; `problems`: sentences."""

    wanted: tuple[Wanted, ...] = ()
    sources: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


def read_files(default: str) -> Files:
    """Every *.yaml of the folder, in the order of names. A missing folder is an empty one."""
    folder = Path(os.environ.get(FOLDER) or default)
    wanted: list[Wanted] = []
    sources: set[str] = set()
    problems: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        if path.name in OTHER_FILES:
            continue
        try:
            found, named = _read_file(path)
        except Refused as error:
            problems.append(str(error))
            continue
        wanted += found
        sources |= named | {w.conn_id for w in found}
    return Files(wanted=tuple(wanted), sources=frozenset(sources), problems=tuple(problems))


def _read_file(path: Path) -> tuple[list[Wanted], set[str]]:
    """A list of migrations, one migration, or `source_conn_ids: [...]`. Raises MigrationFileError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MigrationFileError(f"{path.name}: it cannot be read: {' '.join(str(error).split())}") from None
    items = content if isinstance(content, list) else [] if content is None else [content]
    sources = [
        _sources(item[SOURCES], path.name) for item in items if isinstance(item, dict) and set(item) == {SOURCES}
    ]
    wanted = [_wanted(item, path.name) for item in items if not (isinstance(item, dict) and set(item) == {SOURCES})]
    return wanted, set().union(*sources)


def _sources(given: object, file: str) -> set[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise MigrationFileError(f"{file}: {SOURCES} is not a list of connection ids.")
    return set(given)


def _wanted(item: object, file: str) -> Wanted:
    if not isinstance(item, dict):
        raise MigrationFileError(f"{file}: {item!r} is not a migration.", cure="Write keys and values: table: orders …")
    if extra := sorted(str(key) for key in set(item) - set(_KEYS)):
        raise MigrationFileError(f"{file}: key {extra[0]!r} is not known.", cure=f"There are {', '.join(_KEYS)}.")
    for key in ("source_conn_id", "workflow"):
        if not isinstance(item.get(key), str) or not item[key]:
            raise MigrationFileError(f"{file}: a migration has no {key}.")
    found = Wanted(
        file=file, conn_id=item["source_conn_id"], given={k: v for k, v in item.items() if k != "source_conn_id"}
    )
    found.entry("schema")
    return found


def put_in(session: Session, wanted: Iterable[Wanted], default_schema: str, by: str) -> list[str]:
    """Those not submitted before, each once. Returns what is wrong with the others, as sentences."""
    problems = []
    known = queue.workflows_known(session)
    for one in wanted:
        entry = one.entry(default_schema)
        before = queue.find(session, entry.workflow)
        try:
            if before is not None:
                problems += _changed(before, entry, one.file)
            elif entry.workflow not in known:
                queueing.submit(session, entry, f"{by} ({one.file})")
                log.info("%s: workflow %s is in the queue of %s", one.file, entry.workflow, one.conn_id)
        except Refused as error:
            problems.append(f"{one.file}: {error}")
    return problems


def _changed(before: Entry, entry: Entry, file: str) -> list[str]:
    """A file that was changed after it was read: what waits is not what has been reviewed."""
    if before.state != queue.QUEUED or _asked(before) == _asked(entry):
        return []
    cure = f"Remove it (`vreplication queue --remove {entry.workflow}`) and give it a new id."
    return [f"{file}: workflow {entry.workflow} waits with other values than the file has. {cure}"]


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
            return entry.conn_id in (None, conn_id) or entry.conn_id not in named

        return queueing.claim(session, concurrency, by, look_up=look_up, may_start=may_start), problems


def run_state(task_instance: Any, workflow: str) -> str:
    """What Airflow's records say of the run of a workflow."""

    def count(states: list[str] | None) -> int:
        return int(task_instance.get_dr_count(dag_id=DAG_ID, run_ids=[workflow], states=states))

    if count(_LIVE_RUNS):
        return queueing.RUNNING
    if count(_FAILED_RUNS):
        return queueing.RUN_FAILED
    return "ended" if count(None) else queueing.ABSENT


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
