"""What Airflow is told about this package: the connection type mysql and its hook.

What must stay true: importing this imports nothing of Airflow, for it is read in each of its processes.
"""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "vreplication",
        "name": "vreplication",
        "description": "Change and move live MySQL and MariaDB tables without losing a write",
        "connection-types": [
            {"connection-type": "mysql", "hook-class-name": "vreplication.airflow.hooks.SourceHook"},
        ],
        "extra-links": ["vreplication.airflow.links.MigrationLink"],
    }
