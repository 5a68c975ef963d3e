"""The link from a task to its migration's page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from vreplication.airflow.paths import outside

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class MigrationLink(BaseOperatorLink):
    """The run's own tab: the page finds the workflow by the run, and Airflow stays around it."""

    name = "Migration"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # The last word is the plugin's url_route for runs.
        return f"{outside()}/dags/{quote(ti_key.dag_id, safe='')}/runs/{quote(ti_key.run_id, safe='')}/plugin/migration"
