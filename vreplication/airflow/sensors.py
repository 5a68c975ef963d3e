"""Waiting, from any DAG, for a workflow however it was started: by a run, the queue or the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from vreplication.airflow.connections import source_url
from vreplication.airflow.ending import in_airflow
from vreplication.airflow.request import DEFAULT_CONNECTION
from vreplication.airflow.triggers import EndTrigger, look_for_end
from vreplication.errors import Transient


class WorkflowSensor(BaseSensorOperator):
    """Waits until the workflow is complete; fails when it has failed or was cancelled (soft_fail: is skipped then).

    It has every parameter of a sensor (timeout, poke_interval, soft_fail, …). deferrable: in the triggerer, which is
    the default; else in a worker, by `mode`.
    """

    template_fields: Sequence[str] = ("source_conn_id", "workflow")
    ui_color = "#e8eef7"

    def __init__(
        self,
        *,
        workflow: str,
        source_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        # Airflow's own default is a minute; a look is one statement.
        super().__init__(**{"poke_interval": 1, **kwargs})
        self.workflow, self.source_conn_id, self.deferrable = workflow, source_conn_id, deferrable

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        # One that has ended is not waited for: a trigger takes its time to fire (triggers.py).
        if (event := in_airflow(self._seen)) is not None:
            return self.proceed(context, event)
        trigger = EndTrigger(self.source_conn_id, self.workflow, self.poke_interval)
        self.defer(trigger=trigger, method_name="proceed", timeout=timedelta(seconds=self.timeout))

    def _seen(self) -> dict[str, Any] | None:
        url = source_url(self.source_conn_id)
        # A server that is away is the trigger's to wait for.
        with contextlib.suppress(Transient):
            return look_for_end(url, self.workflow)
        return None

    def poke(self, context: Any) -> PokeReturnValue:
        event = in_airflow(lambda: look_for_end(source_url(self.source_conn_id), self.workflow))
        return PokeReturnValue(is_done=event is not None, xcom_value=event and self.proceed(context, event))

    def proceed(self, context: Any, event: dict[str, Any]) -> str:
        """Called when the trigger has fired."""
        if event["state"] != "complete":
            raise (AirflowSkipException if self.soft_fail else AirflowFailException)(event["reason"])
        return self.workflow
