"""What a DAG run asks for: the form's fields, and the Spec and Stage that they make.

What must stay true: the form and the command line share one pydantic Spec, so a wrong value is refused with the same
sentence; all tasks of a run come to the same workflow id.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vreplication.airflow import connections
from vreplication.airflow.connections import source_url
from vreplication.errors import Refused
from vreplication.planning.spec import Spec, make_spec
from vreplication.planning.window import window_of
from vreplication.workflows.stages import Stage

log = logging.getLogger("vreplication.airflow")

DEFAULT_CONNECTION = "vreplication_source"
_OF_SPEC = (
    "table", "alter", "cutover_window", "chunk_rows", "chunk_millis", "copy_parallelism", "apply_parallelism",
    "latency_factor", "copy_path", "retired", "xa_wait_seconds", "ignore_old_snapshots", "verify_every_minutes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """cutover: auto, manual or window. window: as it was written."""

    conn_id: str
    spec: Spec
    cutover: str
    window: str | None

    def stage(self, stop: threading.Event) -> Stage:
        return Stage(url=source_url(self.conn_id), spec=self.spec, stop=stop, notify=log.info)


def read(context: Mapping[str, Any]) -> Request:
    """From a task's context. Raises Refused."""
    params, run = dict(context["params"]), context["run_id"]
    cutover = str(params.get("cutover") or "auto")
    window = str(params["cutover_window"]) if window_of(cutover, params.get("cutover_window")) else None
    given = {name: params.get(name) for name in _OF_SPEC}
    given |= {"cutover_window": window, "spark_master": _spark_master(params)}
    workflow = params.get("workflow") or workflow_of(context["dag"].dag_id, run)
    spec = make_spec(workflow=workflow, cutover="auto" if cutover == "auto" else "manual", **given)
    return Request(conn_id=str(params["source_conn_id"]), spec=spec, cutover=cutover, window=window)


def _spark_master(params: Mapping[str, Any]) -> str | None:
    """As it is written, or of a connection; None means the default."""
    given, conn_id = params.get("spark_master"), params.get("spark_conn_id")
    if given and conn_id:
        raise Refused("spark_conn_id: spark_master says another place for Spark.", cure="Give one of the two.")
    return connections.spark_master(str(conn_id)) if conn_id else given


def workflow_of(dag_id: str, run_id: str) -> str:
    """A run's own id where it is one of ours, else a digest of it: the same for every task and every try."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}", run_id):
        return run_id
    return f"airflow-{hashlib.sha256(f'{dag_id}/{run_id}'.encode()).hexdigest()[:16]}"
