"""Waiting, from any DAG, for a workflow however it was started: by a run, the queue or the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.airflow.triggers import EndTrigger


class WorkflowSensor(BaseOperator):
    """Waits in the triggerer until the workflow is complete; fails when it has failed or was cancelled.

    timeout: how long at most; None is for ever.
    """

    template_fields: Sequence[str] = ("source_conn_id", "workflow")
    ui_color = "#e8eef7"

    def __init__(
        self,
        *,
        workflow: str,
        source_conn_id: str = DEFAULT_CONNECTION,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.workflow, self.source_conn_id, self.timeout = workflow, source_conn_id, timeout

    def execute(self, context: Any) -> None:
        trigger = EndTrigger(self.source_conn_id, self.workflow)
        self.defer(trigger=trigger, method_name="proceed", timeout=self.timeout)

    def proceed(self, context: Any, event: dict[str, Any]) -> str:
        """Called when the trigger has fired."""
        if event["state"] != "complete":
            raise AirflowFailException(event["reason"])
        return self.workflow
