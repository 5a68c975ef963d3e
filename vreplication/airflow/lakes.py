"""A lake of a feed's topic as tasks: it is filled until somebody ends the run, and compacted.

What must stay true: where it goes on is in the lake's newest manifest, so a task that was killed is called again and
nothing more; ended by a person it stops cleanly; a password is in no rendered field, XCom or log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from vreplication.airflow import connections
from vreplication.airflow.ending import RETRY_POLICY, in_airflow
from vreplication.airflow.request import SINK_CONNECTION
from vreplication.airflow.storing import kept
from vreplication.planning.fields import make_request
from vreplication.workflows.registry import COMMANDS

if TYPE_CHECKING:
    from vreplication.feed.lake.manifest import Manifest, Store

log = logging.getLogger(__name__)

FILL = "fill"
"""The task that fills a lake, whose progress the page shows."""
PROGRESS = "progress"


def _asked(context: Any, name: str) -> Any:
    """The spec of a command, from a run's params. Raises Refused."""
    params, spec = dict(context["params"]), COMMANDS[name].spec
    given = {field: params.get(field) for field in spec.model_fields}
    if conn_id := params.get("spark_conn_id"):
        given["spark_master"] = connections.spark_master(str(conn_id))
    return make_request(spec, given)


def _store(directory: str) -> Store:
    from pathlib import Path

    from vreplication.feed.lake.manifest import Store

    return Store(Path(directory))


@contextlib.contextmanager
def _spark(master: str, stop: threading.Event, *, has_kafka: bool = False) -> Iterator[Callable[[], Any]]:
    from vreplication.spark.sql import opened

    connections.use_own_python()
    with opened(master, stop, has_kafka=has_kafka) as start:
        yield start


class Progress:
    """What is told of a lake that is being filled, as the page and Prometheus have it."""

    def __init__(self, topic: str, store: Store) -> None:
        self._topic, self._store = topic, store
        self._waits: str | None = None
        self._manifest: Manifest | None = None

    def waits(self, text: str) -> None:
        log.info("%s", text)
        self._waits = text

    def committed(self, told: Any) -> None:
        log.info("manifest %s: %s changes", told.number, told.rows)
        self._waits = None

    def tell(self, store: Any) -> None:
        """Into the task's state store."""
        manifest = self._manifest = self._store.newest() or self._manifest
        size = manifest.size if manifest else None
        store.set(PROGRESS, {
            "directory": str(self._store.directory),
            "topic": self._topic,
            "waiting_for": self._waits,
            "at": time.time(),
            "manifest": manifest.number if manifest else None,
            "watermark_micros": manifest.watermark if manifest else None,
            "generation": manifest.generation if manifest else None,
            "partitions": manifest.partitions if manifest else None,
            **({name: getattr(size, name) for name in size.__slots__} if size else {}),
        })  # fmt: skip


class FillOperator(BaseOperator):
    """Fills a lake until somebody ends it, or until it has caught up; its result is the last manifest's number."""

    ui_color = "#e8eef7"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"retry_policy": RETRY_POLICY, **kwargs})
        self._stop = threading.Event()

    def execute(self, context: Any) -> int:
        found: int = in_airflow(lambda: self._fill(context))
        # `fill` ends without an error when it is told to stop, which to Airflow would be a success.
        if self._stop.is_set():
            # By somebody who ends the task, or the worker: then it goes on elsewhere.
            raise AirflowException("Interrupted.")
        return found

    def _fill(self, context: Any) -> int:
        from vreplication.feed.address import parse
        from vreplication.feed.lake.manifest import Taken
        from vreplication.feed.lake.stream import Filling, fill

        spec = _asked(context, "lake")
        address = parse(*connections.sink(spec.topic, context["params"].get(SINK_CONNECTION)))
        store = _store(spec.directory)
        progress = Progress(address.topic, store)
        asked = Filling(
            address=address,
            store=store,
            seconds=spec.every,
            until_caught_up=spec.until_caught_up,
            claims=spec.claims_directory,
        )
        with _spark(spec.spark_master, self._stop, has_kafka=True) as start, kept(context, progress.tell):
            try:
                fill(asked, start, stop=self._stop, notify=progress.waits, committed=progress.committed)
            except Taken as error:
                # It may be this task's former try, of a worker that is cut off.
                raise AirflowException(str(error)) from None
        return store.open().number

    def on_kill(self) -> None:
        self._stop.set()


class CompactOperator(BaseOperator):
    """Makes few files of a lake's many; its result says how many there were and are."""

    ui_color = "#e8eef7"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"retry_policy": RETRY_POLICY, **kwargs})
        self._stop = threading.Event()

    def execute(self, context: Any) -> dict[str, Any]:
        return in_airflow(lambda: self._compact(context))

    def _compact(self, context: Any) -> dict[str, Any]:
        from vreplication.feed.lake.manifest import Taken
        from vreplication.feed.lake.spark_compacting import compact
        from vreplication.feed.lake.spark_reading import microseconds

        spec = _asked(context, "lake_compact")
        upto = microseconds(spec.fold_before) if spec.fold_before else None
        with _spark(spec.spark_master, self._stop) as start:
            try:
                done = compact(_store(spec.directory), start, fold_before=upto, keep_seconds=spec.keep_minutes * 60)
            except Taken as error:
                raise AirflowException(str(error)) from None
        return {name: getattr(done, name) for name in done.__slots__}

    def on_kill(self) -> None:
        self._stop.set()
