"""Reads a workflow's snapshot from the sidecar in a thread and a session of its own.

What must stay true: `latest` never waits and never raises; no row yet, no sidecar yet and a lost connection are all
"what we knew last" (at first the phase planning), and grow old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from vreplication.errors import VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress import snapshot as snapshots
from vreplication.progress.snapshot import Snapshot

PERIOD_SECONDS = 0.5
_READ_TIMEOUT_SECONDS = 5.0


class Aging(Protocol):
    """What was read at a moment."""

    def aged(self, seconds: float) -> Self:
        """What is left of it so long after."""


S = TypeVar("S", bound=Aging)


class Watcher(Generic[S]):
    """The newest snapshot of a workflow, or of several. first: as long as nothing has been read."""

    def __init__(
        self,
        url: SourceUrl,
        workflow: str,
        *,
        first: S,
        find: Callable[[Session, str], S | None],
        open_session: Callable[[SourceUrl], Session] | None = None,
    ) -> None:
        self._url = url
        self._workflow = workflow
        self._find = find
        self._open = open_session or _open
        self._latest: S = first
        self._read_at = time.monotonic()
        self._stopped, self._wake = threading.Event(), threading.Event()
        self._asked, self._answered, self._reads = 0, 0, threading.Condition()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A daemon thread that hangs in a read may outlive this; it only reads."""
        self._stopped.set()
        self._wake.set()
        self._thread.join(timeout=2.0)

    @property
    def latest(self) -> S:
        return self._latest.aged(time.monotonic() - self._read_at)

    def settle(self, timeout_seconds: float = 1.0) -> None:
        """Read once more now: the work has ended, and what it wrote last is to be shown.

        A read that was under way when this was called may not have seen it, and is no answer.
        """
        with self._reads:
            self._asked += 1
            asked = self._asked
            self._wake.set()
            self._reads.wait_for(lambda: self._answered >= asked, timeout_seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                # A session of its own: those of the work are busy, and a lost one is made again here without its
                # knowing.
                with self._open(self._url) as session:
                    self._follow(session)
            # Also where it cannot be reached at all: looking must not end the work, which has patience of its own.
            except VReplicationError:
                self._pause()

    def _follow(self, session: Session) -> None:
        while not self._stopped.is_set():
            asked = self._asked
            # `asked` is from before the read: who asks while it is under way may not find in it what was written
            # last.
            found = self._find(session, self._workflow)
            if found is not None:
                self._latest, self._read_at = found, time.monotonic()
            self._answer(asked)
            self._pause()

    def _answer(self, asked: int) -> None:
        with self._reads:
            self._answered = asked
            self._reads.notify_all()

    def _pause(self) -> None:
        self._wake.wait(PERIOD_SECONDS)
        self._wake.clear()


def _open(url: SourceUrl) -> Session:
    return connect(url, read_timeout=_READ_TIMEOUT_SECONDS)


def watch(url: SourceUrl, workflow: str, source_table: str | None = None) -> Watcher[Snapshot]:
    """Of one workflow, which may not exist yet."""
    first = Snapshot(workflow=workflow, phase=Phase.PLANNING, source_table=source_table)
    return Watcher(url, workflow, first=first, find=snapshots.find)
