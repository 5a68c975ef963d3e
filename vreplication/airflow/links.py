"""The link from a task to its migration's page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from vreplication.airflow.prefix import page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class MigrationLink(BaseOperatorLink):
    """The page finds the workflow by the run."""

    name = "Migration"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        return f"{page()}/runs/{quote(ti_key.dag_id, safe='')}/{quote(ti_key.run_id, safe='')}"
