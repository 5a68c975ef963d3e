"""The form of the DAG online_ddl: the Spec's fields with their types, limits and descriptions.

What must stay true: limits and descriptions are the Spec's own, so that form and command line cannot drift apart.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.planning.spec import Spec
from vreplication.settings import LEAST_CHUNK_MILLIS, MOST_CHUNK_MILLIS, MOST_PARALLELISM


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
            "auto", enum=["auto", "manual", "window"], type="string", section=when,
            description="auto: as soon as all is verified; manual: when somebody releases it; window: in the window.",
        ),
        "cutover_window": Param(
            None, type=["null", "string"], section=when, description="For window: Sat 02:00-04:00 Europe/Berlin.",
        ),
        "retired": Param(
            "keep", enum=["keep", "drop"], type="string", section=when, description=_said("retired"),
        ),
        "verify_every_minutes": Param(60, type="number", minimum=0, section=when,
                                      description=_said("verify_every_minutes")),
        "chunk_rows": _optional("chunk_rows", how, "integer", minimum=1),
        "chunk_millis": Param(500, type="integer", minimum=LEAST_CHUNK_MILLIS, maximum=MOST_CHUNK_MILLIS, section=how,
                              description=_said("chunk_millis")),
        "copy_parallelism": Param(2, type="integer", minimum=1, maximum=MOST_PARALLELISM, section=how,
                                  description=_said("copy_parallelism")),
        "apply_parallelism": Param(2, type="integer", minimum=1, maximum=16, section=how,
                                   description=_said("apply_parallelism")),
        "spark_master": _optional("spark_master", where, "string", examples=["spark://spark.example:7077", "yarn"]),
        "spark_conn_id": Param(
            None, type=["null", "string"], section=where,
            description="Airflow connection of the Spark master, instead of spark_master.",
        ),
        "copy_path": Param("auto", enum=["auto", "server", "rows"], type="string", section=rare,
                           description=_said("copy_path")),
        "xa_wait_seconds": Param(60, type="number", minimum=0, section=rare, description=_said("xa_wait_seconds")),
        "ignore_old_snapshots": Param(False, type="boolean", section=rare,
                                      description=_said("ignore_old_snapshots")),
    }  # fmt: skip


def _said(field: str) -> str:
    return Spec.model_fields[field].description or ""


def _text(field: str, section: str, **more: Any) -> Param:
    """A field that has to be filled: the form marks it, and an empty one does not start."""
    return Param(type="string", minLength=1, section=section, description=_said(field), **more)


def _optional(field: str, section: str, kind: str, **more: Any) -> Param:
    return Param(None, type=["null", kind], section=section, description=_said(field), **more)
