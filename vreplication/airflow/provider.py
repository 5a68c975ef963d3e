"""What Airflow is told about this package: the connection type mysql and its hook.

What must stay true: importing this imports nothing of Airflow, for it is read in each of its processes.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

_OF_MYSQL = "apache-airflow-providers-mysql"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "vreplication",
        "name": "vreplication",
        "description": "Change and move live MySQL and MariaDB tables without losing a write",
        "connection-types": [
            {"connection-type": kind, "hook-class-name": "vreplication.airflow.hooks.SourceHook"} for kind in _kinds()
        ],
        "extra-links": ["vreplication.airflow.links.MigrationLink"],
    }


def _kinds() -> list[str]:
    """Of two hooks for a type Airflow takes one and warns in each process: that of MySQL's provider stays."""
    try:
        version(_OF_MYSQL)
    except PackageNotFoundError:
        return ["mysql"]
    return []
