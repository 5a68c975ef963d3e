"""What a DAG run asks for: the form's fields, and the spec and the stages' argument that they make.

What must stay true: the form and the command line share one pydantic model a kind, so a wrong value is refused with the
same sentence; all tasks of a run come to the same workflow id; no field of a form makes a worker run a command, unless
the deployment allows it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vreplication.airflow import connections
from vreplication.airflow.connections import source_url
from vreplication.errors import Refused
from vreplication.planning.fields import make_request
from vreplication.planning.window import window_of
from vreplication.workflows.registry import KINDS, WorkflowKind, connection_param
from vreplication.workflows.stages import BaseStage

log = logging.getLogger("vreplication.airflow")

DEFAULT_CONNECTION = "vreplication_source"
SINK_CONNECTION = "sink_conn_id"
CLAIMANT = "claimant"
"""In the conf of a run that was started from the queue: which Airflow has claimed the entry."""
COMMANDS = "VREPLICATION_HOOK_COMMANDS"
"""Environment variable of the workers: 1 where a run may name a command to be run there."""
_ASKED_OTHERWISE = ("workflow", "cutover", "cutover_window", "spark_master")


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a DAG's author asks for, by the names of the form's params. group: id of the group of its tasks."""

    asked: Mapping[str, Any]
    group: str = ""


def own(asked: Mapping[str, Any] | None, group: str) -> Own | None:
    return None if asked is None else Own(asked=asked, group=group)


def default_connection(end: str) -> str:
    return f"vreplication_{end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """conn_ids: by the servers' roles. cutover: auto, manual or window. window: as it was written.

    password: the broker's. by: who triggered the run. claimant: of the entry of the queue that it was started for.
    """

    kind: WorkflowKind
    conn_ids: Mapping[str, str]
    spec: Any
    cutover: str
    window: str | None
    password: str = field(default="", repr=False)
    by: str = ""
    claimant: str = ""

    @property
    def conn_id(self) -> str:
        """Of the server where the workflow's state is."""
        return self.conn_ids[self.kind.home]

    def stage(self, stop: threading.Event) -> BaseStage[Any]:
        ends = {end: source_url(conn_id) for end, conn_id in self.conn_ids.items()}
        more = (self.password,) if self.kind.has_sink else ()
        stage: BaseStage[Any] = self.kind.tasks.called(ends, self.spec, stop, log.info, *more)
        return replace(stage, by=self.by, claimant=self.claimant)


def read(context: Mapping[str, Any], kind: str = "online_ddl", own: Own | None = None) -> Request:
    """From a task's context. Raises Refused. own: what the task was given instead of the run's form."""
    params, known = dict(context["params"] if own is None else own.asked), KINDS[kind]
    cutover = str(params.get("cutover") or "auto")
    window = str(params["cutover_window"]) if window_of(cutover, params.get("cutover_window")) else None
    # None for what the form does not have, for `make_request` takes it for "not asked": a default of the spec holds.
    given = {name: params.get(name) for name in known.spec.model_fields if name not in _ASKED_OTHERWISE}
    given |= {"cutover_window": window, "spark_master": _spark_master(params)}
    given |= {"workflow": params.get("workflow") or _made_workflow(context, own)}
    # A window is a release that comes by itself (triggers.py); to the workflow it is one by somebody.
    given |= {"cutover": "auto" if cutover == "auto" else "manual"}
    password = ""
    if known.has_sink:
        given["sink"], password = connections.sink(str(params.get("sink") or ""), params.get(SINK_CONNECTION))
    spec = make_request(known.spec, {name: given[name] for name in known.spec.model_fields})
    _check_hook(given.get("on_switch"))
    conn_ids = {end: str(params.get(connection_param(end)) or default_connection(end)) for end in known.ends}
    others = {end: params.get(connection_param(end)) for end in known.optional}
    # No default for these: a connection that happens to be called so is not asked for by leaving it out.
    conn_ids |= {end: str(conn_id) for end, conn_id in others.items() if conn_id}
    return Request(
        kind=known,
        conn_ids=conn_ids,
        spec=spec,
        cutover=cutover,
        window=window,
        password=password,
        by=_triggered_by(context),
        claimant=str(params.get(CLAIMANT) or ""),
    )


def _triggered_by(context: Mapping[str, Any]) -> str:
    """Nobody, where another run, or a schedule, did."""
    user = getattr(context.get("dag_run"), "triggering_user_name", None)
    return f"{user} (Airflow)" if user else "Airflow"


def _made_workflow(context: Mapping[str, Any], own: Own | None) -> str:
    """Several groups of one run are several workflows."""
    dag_id, run_id = str(context["dag"].dag_id), str(context["run_id"])
    return workflow_of(dag_id, run_id) if own is None else _digest(dag_id, own.group, run_id)


def _check_hook(on_switch: object) -> None:
    """Who may trigger a DAG may not therefore run commands on a worker."""
    if on_switch and "://" not in str(on_switch) and os.environ.get(COMMANDS) != "1":
        raise Refused(
            "on_switch: a command would run on Airflow's worker, which this deployment does not allow.",
            cure=f"Give an https:// URL, or set {COMMANDS}=1 for the workers.",
        )


def _spark_master(params: Mapping[str, Any]) -> str | None:
    """As it is written, or of a connection; None means the default."""
    given, conn_id = params.get("spark_master"), params.get("spark_conn_id")
    if given and conn_id:
        raise Refused("spark_conn_id: spark_master says another place for Spark.", cure="Give one of the two.")
    return connections.spark_master(str(conn_id)) if conn_id else given


def workflow_of(dag_id: str, run_id: str) -> str:
    """A run's own id where it is one of ours, else a digest of it: the same for every task and every try."""
    # The shape of an id (names.py). Airflow's own run ids (manual__2026-01-01T00:00:00+00:00) have a colon and a plus.
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}", run_id):
        return run_id
    return _digest(dag_id, run_id)


def _digest(*words: str) -> str:
    return f"airflow-{hashlib.sha256('/'.join(words).encode()).hexdigest()[:16]}"
