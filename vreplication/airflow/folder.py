"""The folder migrations/: where files of migrations and of backfill jobs are read from.

What must stay true: importing this imports nothing; the folder is looked up when a task runs, not when a DAG is parsed.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "VREPLICATION_MIGRATIONS"
"""Environment variable: another folder than the one beside that of the DAGs."""
PACKAGED = "_dags"
"""Where DAG files are inside the installed package; nobody keeps migrations there."""


def beside(dag_file: str) -> str:
    """The folder migrations/ beside the folder in which a DAG file is, or in Airflow's own for one of the package."""
    folder = Path(dag_file).resolve().parent
    if folder.name == PACKAGED:
        return str(Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser() / "migrations")
    return str(folder.parent / "migrations")


def chosen(default: str) -> Path:
    return Path(os.environ.get(FOLDER) or default)
