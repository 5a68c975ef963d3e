"""Airflow's plugin: the page in the navigation and as a tab of a DAG run.

What must stay true: importing it costs next to nothing, for every process of Airflow does; the app is built when the
first request comes; connections are read from Airflow's own store, and a password goes into a SourceUrl and nowhere
else.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from vreplication.airflow import noting
from vreplication.airflow.beating import Heartbeats
from vreplication.airflow.paths import outside

if TYPE_CHECKING:
    from vreplication.ui import Run
    from vreplication.ui.asking import Source
    from vreplication.ui.lakes import Lake
    from vreplication.ui.pending import AskedRun
    from vreplication.ui.pulse import Silence

PREFIX = "/vreplication"
# What a run was asked for is JSON, which no index of Airflow's finds: so many of the newest are looked through.
_RUNS = 200
_REFUSED = 20
_RUN_SECONDS = 20.0
"""So long it is not asked anew which run works on a workflow."""
_PLAN = "PlanOperator"
_ENVIRONMENT = "AIRFLOW_CONN_"
_TYPES = ("mysql", "mariadb")


class LazyApp:
    """An ASGI app that is built by its first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._built()(scope, receive, send)

    def _built(self) -> Any:
        with self._lock:
            if self._app is None:
                from vreplication.ui.app import create_app

                self._app = create_app(AirflowHome())
            return self._app

    def __repr__(self) -> str:
        return "vreplication.ui.app"


class AirflowHome:
    """Sources and runs, as Airflow's metadata database and its environment tell them."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], tuple[float, Run | None]] = {}
        self._heartbeats = Heartbeats()

    def sources(self) -> list[Source]:
        from vreplication.airflow.connections import is_marked

        found = {c.conn_id: c for c in (*_stored(), *_from_environment()) if is_marked(c)}
        return [_source(found[name]) for name in sorted(found)]

    def source(self, conn_id: str) -> Source | None:
        from airflow.models.connection import Connection
        from airflow.sdk.exceptions import AirflowNotFoundException

        from vreplication.airflow.connections import is_marked

        try:
            # As a task finds it: environment and secrets backends come before the store.
            found = Connection.get_connection_from_secrets(conn_id)
        except AirflowNotFoundException:
            return None
        # A run may have been given a connection that is not marked; the lists have those that are.
        return _source(found) if is_marked(found) or found.conn_type in _TYPES else None

    def workflows_of_run(self, run: Run) -> list[tuple[str, str]] | None:
        from vreplication.ui import DAGS

        if run.dag_id in DAGS:
            conf = _conf(run)
            return None if conf is None else [_place(run, conf)]
        told = [place for place, _, _ in _groups(run)]
        return told or ([] if _has_groups(run) else None)

    def run_of_workflow(self, conn_id: str, workflow: str) -> Run | None:
        """The newest, as of a moment ago: the page asks every two seconds, and another run may take a workflow on."""
        place, now = (conn_id, workflow), time.monotonic()
        until, found = self._runs.get(place, (0.0, None))
        if now >= until:
            found = _newest_run(conn_id, workflow)
            fresh = {each: known for each, known in self._runs.items() if now < known[0]}
            # Another dictionary, for many threads ask: none is changed that somebody may be reading.
            self._runs = {**fresh, place: (now + _RUN_SECONDS, found)}
        return found

    def source_of_run(self, run: Run) -> Source | None:
        from vreplication.airflow.request import default_connection
        from vreplication.workflows.registry import connection_param

        if run.group:
            return next((self.source(str(ends["source"])) for _, ends, each in _groups(run) if each == run), None)
        conf = _conf(run) or {}
        return self.source(str(conf.get(connection_param("source")) or default_connection("source")))

    def sink_password(self, run: Run) -> str:
        from airflow.models.connection import Connection
        from airflow.sdk.exceptions import AirflowNotFoundException

        from vreplication.airflow.connections import to_sink
        from vreplication.airflow.request import SINK_CONNECTION

        # Of feeds alone, which no group of tasks of others has: what was asked for is in the run's conf.
        conn_id = (_conf(run) or {}).get(SINK_CONNECTION)
        try:
            return to_sink("kafka://", Connection.get_connection_from_secrets(str(conn_id)))[1] if conn_id else ""
        except AirflowNotFoundException:
            return ""

    def has_failed(self, run: Run) -> bool:
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            state = session.query(DagRun.state).filter_by(dag_id=run.dag_id, run_id=run.run_id).scalar()
        return str(state) == "failed"

    def asked_runs(self) -> list[AskedRun]:
        return [*_live_runs(), *_refused_runs()]

    def silent(self) -> list[Silence]:
        return self._heartbeats.silent()

    def lakes(self, run: Run | None = None) -> list[Lake]:
        from vreplication.ui.lakes import Lake

        found = _lakes(run)
        return [Lake(run=each, state=state, told=json.loads(value or "{}")) for each, state, value in found]


def _lakes(run: Run | None) -> list[tuple[Any, str, Any]]:
    """Run, its state and what its task has stored, as text; None: nothing yet. The newest first."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.utils.session import create_session

    from vreplication.airflow.lakes import FILL, PROGRESS
    from vreplication.ui import LAKES, Run

    of_run = (Stored.dag_run_id == DagRun.id) & (Stored.task_id == FILL) & (Stored.key == PROGRESS)
    with create_session() as session:
        found = session.query(DagRun.dag_id, DagRun.run_id, DagRun.state, Stored.value).outerjoin(Stored, of_run)
        found = (
            found.filter(DagRun.dag_id == LAKES)
            if run is None
            else found.filter_by(dag_id=run.dag_id, run_id=run.run_id)
        )
        rows = found.order_by(DagRun.id.desc()).limit(_RUNS).all()
    return [(Run(str(dag_id), str(run_id)), str(state), value) for dag_id, run_id, state, value in rows]


def _live_runs() -> list[AskedRun]:
    """In the order in which Airflow would start them."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    from vreplication.ui import DAGS

    with create_session() as session:
        found = session.query(DagRun, DagModel.is_paused, DagModel.max_active_runs)
        found = found.outerjoin(DagModel, DagModel.dag_id == DagRun.dag_id)
        found = found.filter(DagRun.dag_id.in_(DAGS), DagRun.state.in_(("queued", "running")))
        rows = found.order_by(DagRun.run_after, DagRun.id).limit(_RUNS).all()
        # Of all, also of those that have begun their workflow: each takes one of the DAG's places.
        busy = Counter(str(row.dag_id) for row, *_ in rows if row.state == "running")
        return [
            _asked(row, is_paused=bool(is_paused), limit=limit, busy=busy[str(row.dag_id)])
            for row, is_paused, limit in rows
        ]


def _refused_runs() -> list[AskedRun]:
    """Failed ones whose task has told the sentence; the newest first."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.utils.session import create_session

    from vreplication.ui import DAGS
    from vreplication.ui.reading import RECENT_DAYS

    since = datetime.now(UTC) - timedelta(days=RECENT_DAYS)
    with create_session() as session:
        found = session.query(DagRun, Stored.value, Stored.task_id).join(Stored, Stored.dag_run_id == DagRun.id)
        found = found.filter(DagRun.dag_id.in_(DAGS), DagRun.state == "failed", Stored.key == noting.REFUSED)
        rows = found.filter(DagRun.run_after > since).order_by(DagRun.id.desc()).limit(_REFUSED).all()
        return [_asked(row, refused=str(json.loads(value)), task=str(task)) for row, value, task in rows]


def _asked(row: Any, **more: Any) -> AskedRun:
    from vreplication.ui import Run
    from vreplication.ui.pending import AskedRun

    run, conf = Run(str(row.dag_id), str(row.run_id)), dict(row.conf or {})
    # Airflow gives each run such a time: of one that may begin at once it is about when it was made.
    is_later = row.created_at is not None and row.run_after - row.created_at > timedelta(seconds=1)
    return AskedRun(
        run=run,
        place=_place(run, conf),
        state=str(row.state),
        conf=conf,
        by=str(row.triggering_user_name or ""),
        at=row.created_at or row.run_after,
        not_before=row.run_after if is_later else None,
        **more,
    )


def _conf(run: Run) -> dict[str, Any] | None:
    """What a run was asked for; None: there is no such run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id).one_or_none()
        return None if found is None else dict(found.conf or {})


def _newest_run(conn_id: str, workflow: str) -> Run | None:
    """By its id, which may be the workflow's own, or among the newest runs by what they were asked for."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    from vreplication.ui import DAGS, Run

    with create_session() as session:
        ours = session.query(DagRun.dag_id, DagRun.run_id, DagRun.conf).filter(DagRun.dag_id.in_(DAGS))
        runs = [*ours.filter_by(run_id=workflow), *ours.order_by(DagRun.id.desc()).limit(_RUNS)]
        found = [(Run(str(dag_id), str(run_id)), dict(conf or {})) for dag_id, run_id, conf in runs]
    # A run's id alone proves nothing: of two servers each may have a workflow of that id, and one run has it.
    known = next((run for run, conf in found if _place(run, conf) == (conn_id, workflow)), None)
    return known or next((run for place, _, run in _groups() if place == (conn_id, workflow)), None)


def _groups(run: Run | None = None) -> list[tuple[tuple[str, str], dict[str, str], Run]]:
    """Groups of tasks in DAGs of others, the newest first: connection and workflow, connections by role, run."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.utils.session import create_session

    from vreplication.ui import Run

    with create_session() as session:
        found = session.query(Stored.dag_id, Stored.run_id, Stored.value).filter(Stored.key == noting.WORKFLOW)
        found = found.filter_by(dag_id=run.dag_id, run_id=run.run_id) if run else found
        rows = found.order_by(Stored.dag_run_id.desc(), Stored.task_id).limit(_RUNS).all()
    told = [(str(dag_id), str(run_id), json.loads(value)) for dag_id, run_id, value in rows]
    return [((t["conn_id"], t["workflow"]), t["conn_ids"], Run(dag, name, t["group"])) for dag, name, t in told]


def _has_groups(run: Run) -> bool:
    """It may have planned none of them so far."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(TaskInstance.task_id).filter_by(dag_id=run.dag_id, run_id=run.run_id)
        return found.filter(TaskInstance.operator == _PLAN).first() is not None


def _place(run: Run, conf: dict[str, Any]) -> tuple[str, str]:
    """The connection where the state is, and the workflow, of a run."""
    from vreplication.airflow.request import default_connection, workflow_of
    from vreplication.workflows.registry import KINDS, connection_param

    home = KINDS[run.dag_id].home
    conn_id = str(conf.get(connection_param(home)) or default_connection(home))
    return conn_id, str(conf.get("workflow") or workflow_of(run.dag_id, run.run_id))


def _stored() -> list[Any]:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(Connection).all()
        # They are read when the session has been closed.
        session.expunge_all()
    return list(found)


def _from_environment() -> list[Any]:
    """AIRFLOW_CONN_X wins over the store, as it does for tasks."""
    from airflow.models.connection import Connection

    # A secrets backend can be asked by name alone: a connection of one is in no list, and found by its id (`source`).
    names = [name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if name.startswith(_ENVIRONMENT)]
    found = []
    for name in names:
        try:
            found.append(Connection.get_connection_from_secrets(name))
        except Exception:
            # A broken one, of anybody, must not take the page down.
            continue
    return found


def _source(connection: Any) -> Source:
    from vreplication.airflow.connections import to_url
    from vreplication.errors import Refused
    from vreplication.ui.asking import Source

    name = str(connection.conn_id)
    try:
        return Source(conn_id=name, url=to_url(connection))
    except Refused as error:
        return Source(conn_id=name, problem=str(error))
    except Exception as error:
        # Undecryptable, say. Its text is anybody's, so it is not shown.
        return Source(conn_id=name, problem=f"The connection cannot be read ({type(error).__name__}).")


class VReplicationPlugin(AirflowPlugin):
    """What Airflow is told."""

    name = "vreplication"
    listeners = [noting]  # noqa: RUF012
    fastapi_apps = [{"app": LazyApp(), "url_prefix": PREFIX, "name": "vreplication"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Migrations",
            "href": f"{outside()}{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "migrations",
        },
        {
            "name": "Migration",
            "href": f"{outside()}{PREFIX}/runs/{{DAG_ID}}/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "migration",
        },
    ]
