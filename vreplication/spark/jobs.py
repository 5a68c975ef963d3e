"""Jobs of one purpose, submitted by threads, that are stopped together.

What must stay true: when `stop` returns, the jobs have been told to stop and their threads have ended, or STOP_SECONDS
are over, and the work's own fences take over; an error of ours comes out as that very error.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from subprocess import Popen
from typing import Any

from vreplication.clock import check_for
from vreplication.errors import VReplicationError
from vreplication.settings import SIGNAL_SECONDS
from vreplication.spark import builds

STOP_SECONDS = 15.0
_AGAIN_SECONDS = 0.2
_JVM_END_SECONDS = 30.0
_GONE = "Spark's JVM has gone"
_ENDING = ("SparkContext was shut down", "stopped SparkContext", "Answer from Java side is empty", _GONE)


@dataclass(slots=True, kw_only=True)
class Jobs:
    """purpose: one word, for people who look at Spark. context: the SparkContext."""

    context: Any
    purpose: str
    stopping: threading.Event = field(default_factory=threading.Event)
    group: str = ""

    def __post_init__(self) -> None:
        self.group = f"{self.purpose}-{secrets.token_hex(4)}"

    def start(self, body: Callable[..., None], *args: Any) -> threading.Thread:
        """A thread that submits jobs of the group: Spark knows them by the thread."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._run, args=(body, *args), daemon=True)
        thread.start()
        return thread

    def _run(self, body: Callable[..., None], *args: Any) -> None:
        # Interrupting the JVM's task thread would leave the Python worker to itself; killTimeout ends both.
        self.context.setJobGroup(self.group, f"vreplication {self.purpose}")
        body(*args)

    def collect(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """What `work` gives for each item, each in a task of its own. Raises Transient where it is of another build."""
        found = self.context.parallelize(builds.pack(items), len(items)).map(builds.packed(work)).collect()
        return builds.results(found)

    @property
    def jvm(self) -> Popen[bytes] | None:
        """Spark's process; None where another started it."""
        return getattr(getattr(self.context, "_gateway", None), "proc", None)

    def stop(self, threads: Iterable[threading.Thread]) -> None:
        """Cancel what runs and wait for it."""
        self.stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                # Again and again: a job may have been submitted just behind the last cancelling.
                with contextlib.suppress(Exception):
                    self.context.cancelJobGroup(self.group)
                thread.join(_AGAIN_SECONDS)


def heed_signal(error: BaseException, check: Callable[[], None], jvm: Popen[bytes] | None = None) -> None:
    """A failure of Spark's is an interrupt when the signal that ended its processes reaches us, too: `check` raises.

    jvm: Spark's process, where it is a child of ours: one that ends takes its time, and a signal may be as late.
    """
    if isinstance(error, VReplicationError):
        return
    # Not for ever: a JVM that says it ends, and hangs, must not hold the command.
    until = time.monotonic() + _JVM_END_SECONDS
    # Asked once: a JVM that takes connections and does not answer would hold us.
    ending = jvm if jvm is not None and jvm.poll() is None and _says_it_ends(error) else None
    while ending is not None and ending.poll() is None and time.monotonic() < until:
        check_for(check, _AGAIN_SECONDS)
    check_for(check, SIGNAL_SECONDS)


def _says_it_ends(error: BaseException) -> bool:
    """It is being stopped, or cannot answer any more."""
    said = text_of(error)
    return isinstance(error, ConnectionError | EOFError) or any(part in said for part in _ENDING)


def first_line(error: BaseException) -> str:
    """Of what Spark says, which is a page."""
    return next((line.strip() for line in text_of(error).splitlines() if line.strip()), type(error).__name__)


def text_of(error: BaseException) -> str:
    """What it says. The text of an error in the JVM is asked of the JVM, which may have gone."""
    try:
        return str(error)
    except Exception:
        return f"{_GONE}: {getattr(error, 'errmsg', type(error).__name__)}"
