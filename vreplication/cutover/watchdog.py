"""The bound on how long writers wait: at the deadline our own connections are ended, whatever they are doing.

What must stay true: the connection that kills is a spare one, which nothing else uses, so it is never busy; a server
whose client has stopped altogether ends the sessions by itself, for their wait_timeout is short.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from vreplication.clock import SYSTEM, Clock
from vreplication.mysql.session import Session


class Watchdog:
    """Ends `victims` in their order once `deadline_seconds` have passed since `started`."""

    def __init__(self, spare: Session, deadline_seconds: float, clock: Clock = SYSTEM) -> None:
        self._spare = spare
        self._clock = clock
        self._seconds = deadline_seconds
        self._began = clock.monotonic()
        self._ended = threading.Event()
        self._deciding = threading.Lock()
        self.victims: tuple[Session, ...] = ()
        self.has_fired = False

    @property
    def remaining_seconds(self) -> float:
        """Until the deadline; never negative."""
        return max(0.0, self._seconds - self.elapsed_seconds)

    @property
    def elapsed_seconds(self) -> float:
        return self._clock.monotonic() - self._began

    @contextlib.contextmanager
    def started(self, *victims: Session) -> Iterator[None]:
        """Watch until the block is left. The count begins here."""
        self.victims, self._began = victims, self._clock.monotonic()
        thread = threading.Thread(target=self._watch, name="cutover-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def disarm(self) -> bool:
        """From here on nobody is ended: what comes next must not be cut off. False: it was too late for that."""
        with self._deciding:
            self._ended.set()
            return not self.has_fired

    def _watch(self) -> None:
        if self._ended.wait(self._seconds):
            return
        # One of the two wins: keys are moved only after nobody can be ended any more, or nobody moves them.
        with self._deciding:
            if self._ended.is_set():
                return
            self.has_fired = True
        # KILL of the connection, not of its statement: the locks go with the connection alone.
        for victim in self.victims:
            with contextlib.suppress(Exception):
                self._spare.kill(victim.id)
