"""The form of the DAG online_ddl: the Spec's fields with their types, limits and descriptions.

What must stay true: defaults, limits, choices and descriptions are the Spec's own, so that form and command line cannot
drift apart.
"""

from __future__ import annotations

import functools
from typing import Any

from airflow.sdk import Param

from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.planning.spec import Spec
from vreplication.planning.window import CUTOVERS


def online_ddl_params() -> dict[str, Param]:
    """Ids and types are relied on from outside."""
    what, when, how = "What to change", "When to switch", "How hard to work"
    where, rare = "Where Spark runs", "Rarely needed"
    return {
        "source_conn_id": Param(
            DEFAULT_CONNECTION, type="string", title="Source", section=what, minLength=1,
            description="Airflow connection of the server; its schema is the default database.",
        ),
        "table": _text("table", what, examples=["orders"]),
        "alter": _text("alter", what, format="multiline"),
        "workflow": _optional("workflow", what, "string"),
        "cutover": Param(
            Spec.model_fields["cutover"].default, enum=list(CUTOVERS), type="string", section=when,
            description="auto: as soon as all is verified; manual: when it is released; window: in the window.",
        ),
        "cutover_window": Param(
            None, type=["null", "string"], section=when, description="For window: Sat 02:00-04:00 Europe/Berlin.",
        ),
        "retired": _of_spec("retired", when, "string"),
        "verify_every_minutes": _of_spec("verify_every_minutes", when, "number"),
        "chunk_rows": _of_spec("chunk_rows", how, ["null", "integer"]),
        "chunk_millis": _of_spec("chunk_millis", how, "integer"),
        "copy_parallelism": _of_spec("copy_parallelism", how, ["null", "integer"]),
        "latency_factor": _of_spec("latency_factor", how, "number"),
        "apply_parallelism": _of_spec("apply_parallelism", how, "integer"),
        "spark_master": _optional("spark_master", where, "string", examples=["spark://spark.example:7077", "yarn"]),
        "spark_conn_id": Param(
            None, type=["null", "string"], section=where,
            description="Airflow connection of the Spark master, instead of spark_master.",
        ),
        "copy_path": _of_spec("copy_path", rare, "string"),
        "xa_wait_seconds": _of_spec("xa_wait_seconds", rare, "number"),
        "ignore_old_snapshots": _of_spec("ignore_old_snapshots", rare, "boolean"),
    }  # fmt: skip


def _said(field: str) -> str:
    return Spec.model_fields[field].description or ""


def _of_spec(field: str, section: str, kind: str | list[str]) -> Param:
    """A field with the Spec's default, choices and limits."""
    default = Spec.model_fields[field].default
    return Param(default, type=kind, section=section, description=_said(field), **_limits(field))


def _limits(field: str) -> dict[str, Any]:
    """In the words of JSON schema; a field that may be left out has them beside the null."""
    schema = _schema()[field]
    parts = [schema, *schema.get("anyOf", [])]
    return {name: part[name] for part in parts for name in ("minimum", "maximum", "enum") if name in part}


@functools.cache
def _schema() -> dict[str, Any]:
    return dict(Spec.model_json_schema()["properties"])


def _text(field: str, section: str, **more: Any) -> Param:
    """A field that has to be filled: the form marks it, and an empty one does not start."""
    return Param(type="string", minLength=1, section=section, description=_said(field), **more)


def _optional(field: str, section: str, kind: str, **more: Any) -> Param:
    return Param(None, type=["null", kind], section=section, description=_said(field), **more)
