"""The watermark: the one place that knows how far we are.

Two numbers. `received`: everything the source committed up to here has been read. `resolved`: everything up to here has
been applied. Both are times of the source server's clock, carried by the gate row that the replicating process rewrites
every 250 ms and reads back from the log (the stream's heartbeat): no clock of ours and no whole-second event header
takes part. A prepared XA branch holds neither; what is committed behind it goes on.

What must stay true: neither number goes backwards; `resolved` never passes `received`; `resolved` moves only when the
applier says that all before it is flushed. Gate, lag, ETA and checkpoint read it from here only. Thread-safe.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """lag_seconds: None before the first beat has been applied. backlog: changes read and not yet applied."""

    received_micros: int | None
    resolved_micros: int | None
    backlog: int
    lag_seconds: float | None


class Watermark:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: int | None = None
        self._resolved: int | None = None
        self._queued = 0
        self.applied = 0

    def received_changes(self, count: int) -> None:
        """`count` changes have been read and wait to be applied."""
        with self._lock:
            self._queued += count

    def applied_changes(self, count: int) -> None:
        with self._lock:
            self._queued -= count
            self.applied += count

    def forget_queued(self) -> None:
        """The reader starts again from the checkpoint: what was queued is read once more."""
        with self._lock:
            self._queued = 0

    def received_beat(self, micros: int) -> None:
        """A beat written at `micros` (source's clock) has been read."""
        with self._lock:
            self._received = max(micros, self._received or micros)

    def resolved_beat(self, micros: int) -> None:
        """Everything before the beat written at `micros` has been applied."""
        with self._lock:
            self._received = max(micros, self._received or micros)
            self._resolved = max(micros, self._resolved or micros)

    def reading(self, server_micros: int) -> Reading:
        """Where we are at `server_micros` (source's clock)."""
        with self._lock:
            resolved = self._resolved
            lag = None if resolved is None else max(0.0, (server_micros - resolved) / 1e6)
            return Reading(
                received_micros=self._received,
                resolved_micros=resolved,
                backlog=max(0, self._queued),
                lag_seconds=lag,
            )
