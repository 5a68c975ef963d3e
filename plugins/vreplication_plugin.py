"""Where Airflow looks for plugins: the class itself is in the installed package."""

from vreplication.airflow.plugin import VReplicationPlugin  # noqa: F401
