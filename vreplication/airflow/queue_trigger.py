"""Waiting for the queue without a worker slot: until something of it may be started.

What must stay true: as in `triggers`; a look decides nothing, it only says that a task is worth its place.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from vreplication.airflow import connections
from vreplication.airflow.claiming import standing_at
from vreplication.airflow.looking import look_at
from vreplication.airflow.triggers import fired
from vreplication.masking import mask

log = logging.getLogger(__name__)

DUE, ASKED, TIME = "due", "asked", "time"
"""Something may be started; another run of the DAG waits for this one to end; the time is over."""
_POLL_SECONDS = 5.0


class QueueTrigger(BaseTrigger):
    """Fires with state due, asked or time. known: what was due already, and was not started for some reason.

    seconds: no longer than this.
    """

    def __init__(
        self, conn_ids: Sequence[str], concurrency: int, known: Sequence[str], seconds: float, dag_id: str
    ) -> None:
        super().__init__()
        self.conn_ids, self.concurrency, self.known = list(conn_ids), concurrency, list(known)
        self.seconds, self.dag_id = seconds, dag_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("conn_ids", "concurrency", "known", "seconds", "dag_id")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        yield await fired(self._awaited())

    async def _awaited(self) -> dict[str, Any]:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            for conn_id in self.conn_ids:
                if set(await self._due(conn_id)) - set(self.known):
                    return {"state": DUE}
            # The DAG has one active run (max_active_runs), so one that a person triggers is queued until ours has
            # ended.
            if await _is_asked(self.dag_id):
                return {"state": ASKED}
            await asyncio.sleep(min(_POLL_SECONDS, max(0.0, until - time.monotonic())))
        return {"state": TIME}

    async def _due(self, conn_id: str) -> Collection[str]:
        """A source that cannot be asked now, or does not exist, is the task's to report."""
        try:
            url = await connections.asource_url(conn_id)
            return (await look_at(conn_id, functools.partial(standing_at, url, self.concurrency)))[0]
        except Exception as error:
            log.info("%s cannot be asked now: %s", conn_id, mask(str(error)))
            return []


async def _is_asked(dag_id: str) -> bool:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from asgiref.sync import sync_to_async

    # Airflow's own call blocks, and all triggers share the event loop.
    count = await sync_to_async(RuntimeTaskInstance.get_dr_count)(dag_id=dag_id, states=["queued"])
    return int(count) > 0
