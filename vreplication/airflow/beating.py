"""Which of Airflow's components have no heartbeat, as its own job table tells.

What must stay true: it is asked of Airflow's database, not of the component; what counts as silent is Airflow's own
threshold; every browser that polls is served by one answer.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vreplication.ui.pulse import Silence

_JOBS = {"scheduler": "SchedulerJob", "triggerer": "TriggererJob"}
_FRESH_SECONDS = 2.0


class Heartbeats:
    """Used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: float | None = None
        self._silent: list[Silence] = []

    def silent(self) -> list[Silence]:
        with self._lock:
            # Under the lock: of many that ask at once one asks the database, and the others get its answer.
            if self._at is None or time.monotonic() - self._at > _FRESH_SECONDS:
                self._silent, self._at = _silent(), time.monotonic()
            return self._silent


def _silent() -> list[Silence]:
    from airflow.jobs.job import most_recent_job
    from airflow.utils.session import create_session

    from vreplication.ui.pulse import Silence

    with create_session() as session:
        found = {name: most_recent_job(kind, session=session) for name, kind in _JOBS.items()}
        return [
            Silence(name=name, since=job.latest_heartbeat if job else None)
            for name, job in found.items()
            if job is None or not job.is_alive()
        ]
