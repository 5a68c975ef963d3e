"""Airflow's own place for a deployment's policies, as the tests' Airflow has it: Spark may be left out,
and figures may go to OpenTelemetry.

What must stay true: a policy is asked of each task where its DAG is read, in the process that is going to run it, too;
only the scheduler, whose forks run the tasks, has imported beforehand what takes each of them most of a second.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["task_policy"]


def task_policy(task: Any) -> None:
    from tests.support import local_spark, otel

    local_spark.install_where_asked()
    otel.begin_where_asked()


if "scheduler" in sys.argv:
    for name in ("backfill", "housekeeping", "operators", "scheduling"):
        importlib.import_module(f"vreplication.airflow.{name}")
    importlib.import_module("airflow.dag_processing.dagbag")
