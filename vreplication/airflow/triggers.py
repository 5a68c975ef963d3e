"""Waiting at the gate without a worker slot.

What must stay true: the event loop is never blocked (every look at the sidecar runs in a thread); a look that fails is
tried again; the sidecar's release row is the only thing that opens the gate; what is serialized holds no password.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from vreplication.airflow import connections
from vreplication.errors import VReplicationError
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.planning.window import Window
from vreplication.state import gate, lease, workflows
from vreplication.workflows.stages import CATCH_UP_SECONDS

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


class GateTrigger(BaseTrigger):
    """Fires with state released, window, lost (no catch-up), or ended."""

    def __init__(self, conn_id: str, workflow: str, window: str | None) -> None:
        super().__init__()
        self.conn_id, self.workflow, self.window = conn_id, workflow, window

    def serialize(self) -> tuple[str, dict[str, Any]]:
        fields = {"conn_id": self.conn_id, "workflow": self.workflow, "window": self.window}
        return "vreplication.airflow.triggers.GateTrigger", fields

    async def run(self) -> AsyncIterator[TriggerEvent]:
        url = await connections.asource_url(self.conn_id)
        loop = asyncio.get_running_loop()
        seen = loop.time()
        while True:
            event, is_caught_up = await self._look(url)
            if event:
                yield TriggerEvent(event)
                return
            seen = loop.time() if is_caught_up else seen
            if loop.time() - seen > CATCH_UP_SECONDS:
                yield TriggerEvent({"state": "lost", "reason": f"Catch-up of workflow {self.workflow} does not run."})
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _look(self, url: SourceUrl) -> tuple[dict[str, Any] | None, bool]:
        """What ends the wait, if anything does, and whether catch-up runs."""
        try:
            return await asyncio.to_thread(look, url, self.workflow, self.window)
        except VReplicationError as error:
            log.warning("the sidecar could not be read: %s", error)
            return None, True


def look(url: SourceUrl, workflow: str, window: str | None) -> tuple[dict[str, Any] | None, bool]:
    with connect(url, read_timeout=30.0) as session:
        row = workflows.find(session, workflow)
        by = gate.released_by(session, workflow)
        is_caught_up = lease.is_alive(session, workflow, lease.REPLICATE)
    if row is None or row.is_cancel_requested or row.phase in (Phase.FAILED, Phase.CANCELLED):
        reason = (row.reason if row else None) or f"Workflow {workflow} was cancelled."
        return {"state": "ended", "reason": reason}, is_caught_up
    if by is not None or row.is_cut:
        return {"state": "released", "by": by}, is_caught_up
    if window and not row.is_paused and Window.parse(window).is_open(datetime.now(UTC)):
        return {"state": "window"}, is_caught_up
    return None, is_caught_up
