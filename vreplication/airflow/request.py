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

from vreplication.airflow.connections import source_url
from vreplication.airflow.window import Window
from vreplication.errors import Refused
from vreplication.planning.spec import Spec, make_spec
from vreplication.workflows.stages import Stage

log = logging.getLogger("vreplication.airflow")

DEFAULT_CONNECTION = "vreplication_source"
_OF_SPEC = ("table", "alter", "chunk_rows", "chunk_millis", "copy_parallelism", "retired", "copy_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """cutover: auto, manual or window."""

    conn_id: str
    spec: Spec
    cutover: str
    window: Window | None

    def stage(self, stop: threading.Event) -> Stage:
        return Stage(url=source_url(self.conn_id), spec=self.spec, stop=stop, notify=log.info)


def read(context: Mapping[str, Any]) -> Request:
    """From a task's context. Raises Refused."""
    params, run = dict(context["params"]), context["run_id"]
    cutover = str(params.get("cutover") or "auto")
    window = _window(cutover, params.get("cutover_window"))
    given = {name: params.get(name) for name in _OF_SPEC}
    workflow = params.get("workflow") or workflow_of(context["dag"].dag_id, run)
    spec = make_spec(workflow=workflow, cutover="auto" if cutover == "auto" else "manual", **given)
    return Request(conn_id=str(params["source_conn_id"]), spec=spec, cutover=cutover, window=window)


def _window(cutover: str, text: object) -> Window | None:
    if cutover not in ("auto", "manual", "window"):
        raise Refused(f"cutover: {cutover!r} is none of auto, manual and window.")
    if cutover != "window":
        return None
    if not text:
        raise Refused("cutover_window: it is empty.", cure="Write it as Sat 02:00-04:00 Europe/Berlin.")
    return Window.parse(str(text))


def workflow_of(dag_id: str, run_id: str) -> str:
    """A run's own id where it is one of ours, else a digest of it: the same for every task and every try."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}", run_id):
        return run_id
    return f"airflow-{hashlib.sha256(f'{dag_id}/{run_id}'.encode()).hexdigest()[:16]}"
