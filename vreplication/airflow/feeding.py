"""Beside a change feed's own DAG: consumers of its topic, and its scaling, as tasks.

What must stay true: each consumer is a mapped task of its own, that is killed and goes on by itself: where it stands is
in its target; ended by a person (task or run marked) it stops cleanly; a password is in no rendered field, XCom or log.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from vreplication.airflow import connections
from vreplication.airflow.ending import RETRY_POLICY, in_airflow
from vreplication.airflow.params import sink_connection
from vreplication.airflow.request import SINK_CONNECTION, default_connection
from vreplication.airflow.triggers import ScaledTrigger

if TYPE_CHECKING:
    from vreplication.feed.address import Address

log = logging.getLogger(__name__)

_MODES = ["transaction", "row"]
_MOST_CONSUMERS = 64
_HOW = "How it is applied"


def consume_params() -> dict[str, Param]:
    """Relied on from outside."""
    return {
        "topic": Param(
            type="string", minLength=1, title="Topic",
            description="kafka://host:9092[,host:9092]/topic[?option=value], or the topic's name, where a connection of"
            " the brokers is given.",
        ),
        SINK_CONNECTION: sink_connection(),
        "target_conn_id": Param(
            default_connection("target"), type="string", minLength=1, title="Connection of the target",
            description="Airflow connection of the server that the topic is applied to; its user has sql/grants/.",
        ),
        "mode": Param(
            "transaction", type="string", enum=_MODES, title="Readers see", section=_HOW,
            description="What a reader of the target may see: whole transactions of the source, or rows as they come.",
        ),
        "consumer_group": Param(
            "vreplication", type="string", minLength=1, title="Consumer group", section=_HOW,
            description="Consumers of one group share the topic, in this run and elsewhere.",
        ),
        "claims": Param(
            None, type=["null", "string"], title="Files of large values", section=_HOW,
            description="Where the feed's claim-check:DIRECTORY is on the workers, where it has another name there.",
        ),
        "source_conn_id": Param(
            None, type=["null", "string"], title="Connection of the source", section=_HOW,
            description="Airflow connection of the feed's source: asked for rows of a feed with key-only. Mode row.",
        ),
        "consumers": Param(
            1, type="integer", minimum=1, maximum=_MOST_CONSUMERS, title="Consumers", section=_HOW,
            description="Tasks that consume, each with a place in the pool vreplication_feed. In mode transaction one"
            " works, and the others stand by.",
        ),
    }  # fmt: skip


def scale_params() -> dict[str, Param]:
    """Relied on from outside."""
    return {
        "workflow": Param(type="string", minLength=1, title="Id of the feed", description="As the page names it."),
        "source_conn_id": Param(
            default_connection("source"), type="string", minLength=1, title="Connection of the source",
            description="Airflow connection of the feed's source.",
        ),
        "partitions": Param(
            type="integer", minimum=1, maximum=10_000, title="Partitions", description="So many from then on."
        ),
    }  # fmt: skip


def _address(params: Any) -> Address:
    from vreplication.feed.address import parse

    return parse(*connections.sink(str(params["topic"]), params.get(SINK_CONNECTION)))


class PlanConsumersOperator(BaseOperator):
    """Refuses what cannot be consumed; its result numbers the consumers."""

    ui_color = "#e8eef7"

    def execute(self, context: Any) -> list[int]:
        params = context["params"]
        # Once, before the consumers are mapped: else each of them would be refused by itself.
        in_airflow(lambda: self._check(params))
        return list(range(1, int(params["consumers"]) + 1))

    def _check(self, params: Any) -> None:
        from vreplication.feed.consume.run import check
        from vreplication.mysql.session import connect

        check(params["mode"], params["consumer_group"], has_sources=bool(params.get("source_conn_id")))
        address = _address(params)
        with connect(connections.source_url(params["target_conn_id"])) as session:
            log.info("%s is applied to %s, %s by %s", address, session.url, params["mode"], params["mode"])


class ConsumeOperator(BaseOperator):
    """One consumer, until somebody ends it. number: of how many there are."""

    ui_color = "#e8eef7"

    def __init__(self, *, number: int, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.number = number
        self._stop = threading.Event()

    def execute(self, context: Any) -> None:
        in_airflow(lambda: self._consume(context["params"]))
        # It has been told to stop, by somebody who ends the task, or the worker: then it goes on elsewhere.
        raise AirflowException("Interrupted.")

    def _consume(self, params: Any) -> None:
        from vreplication.feed.consume import consume

        target = connections.source_url(params["target_conn_id"])
        source, claims = params.get("source_conn_id"), params.get("claims")
        consume(
            _address(params),
            target,
            params["mode"],
            group=str(params["consumer_group"]),
            stop=self._stop,
            notify=log.info,
            claims=Path(claims) if claims else None,
            sources=(connections.source_url(source),) if source else (),
        )

    def on_kill(self) -> None:
        self._stop.set()


class ScaleOperator(BaseOperator):
    """Asks for another count of partitions, and waits without a worker slot until the feed has it."""

    ui_color = "#e8eef7"

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)

    def execute(self, context: Any) -> None:
        params = context["params"]
        workflow, conn_id = str(params["workflow"]), str(params["source_conn_id"])
        in_airflow(lambda: self._ask(workflow, conn_id, params["partitions"]))
        trigger = ScaledTrigger(conn_id, workflow, params["partitions"])
        self.defer(trigger=trigger, method_name="proceed")

    def _ask(self, workflow: str, conn_id: str, partitions: int) -> None:
        from vreplication import names
        from vreplication.workflows.changefeed import run as feeding

        url = connections.source_url(conn_id)
        log.info("%s", feeding.scale(url, names.check_workflow(workflow), partitions, "Airflow"))

    def proceed(self, context: Any, event: dict[str, Any]) -> int:
        """Called when the trigger has fired. Raises what ended the wait."""
        if event["state"] != "done":
            # What the trigger fires with is the feed's own word: to ask again would come to the same.
            raise AirflowFailException(event["reason"])
        return int(context["params"]["partitions"])
