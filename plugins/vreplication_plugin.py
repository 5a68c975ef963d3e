"""Where Airflow looks for plugins, for a checkout that is on the path without being installed.

What must stay true: an installed package brings the plugin by its entry point, and Airflow is not told of it twice.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="vreplication"):
    from vreplication.airflow.plugin import VReplicationPlugin  # noqa: F401
