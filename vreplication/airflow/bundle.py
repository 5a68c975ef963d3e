"""The DAG files of the installed package, as a bundle that Airflow's configuration names: nothing is copied by hand.

What must stay true: an upgrade of the package is an upgrade of its DAGs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from vreplication.airflow.folder import PACKAGED

_PACKAGE = Path(__file__).resolve().parents[1]


class PackagedDags(LocalDagBundle):
    """`dags/` of the repository, or its copy inside the installed package."""

    def __init__(self, **kwargs: Any) -> None:
        inside = _PACKAGE / PACKAGED
        super().__init__(**{"path": str(inside if inside.is_dir() else _PACKAGE.parent / "dags"), **kwargs})
