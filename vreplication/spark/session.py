"""Spark's start, begun while planning: it takes seconds and needs nothing of the plan.

What must stay true: a server on this machine goes before the start, which takes all the cores that it gets.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from vreplication.clock import check_for
from vreplication.errors import Terminal
from vreplication.settings import SIGNAL_SECONDS
from vreplication.spark.start import end_context, spark_context, warm_up

_POLL_SECONDS = 0.2
_END_SECONDS = 15.0
_NICE = 10
_GROUP = Path("/proc/self/autogroup")


class SparkAway(Terminal):
    """It did not start."""


class Spark(Protocol):
    """Where a step gets its SparkContext from."""

    def context(self, check: Callable[[], None] = lambda: None) -> Any:
        """The SparkContext. `check` is called while it starts and may raise. Raises what its start raised."""

    def is_starting(self) -> bool:
        """False once `context` need not wait."""

    def release(self) -> None:
        """It is not needed for a while: end it in the background. Who asks for it again has it started again."""

    def stop(self) -> None:
        """End it, if it was started."""


class SparkStart:
    """Starts it in the background, at once or when it is asked for; `context` waits for it."""

    def __init__(self, master: str, parallelism: int, *, at_once: bool = True) -> None:
        self._master, self._parallelism = master, parallelism
        self._context: Any = None
        self._error: SparkAway | None = None
        self._is_stopped = False
        self._ending: threading.Thread | None = None
        self._starting: threading.Thread | None = None
        if at_once:
            self._start()

    def _start(self) -> threading.Thread:
        if self._starting is None:
            self._starting = threading.Thread(target=self._run, name="spark-start", daemon=True)
            self._starting.start()
        return self._starting

    def _run(self) -> None:
        # `getOrCreate` would hand out the one that is still ending.
        if self._ending:
            self._ending.join(_END_SECONDS)
        if self._is_stopped:
            return
        try:
            with _standing_back():
                context = spark_context(self._master, self._parallelism, "vreplication")
                # Before the warm-up: `stop` ends what it knows of.
                self._context = context
                warm_up(context, self._parallelism)
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            self._error = SparkAway(
                f"Spark did not start: {type(error).__name__}: {words[0]}",
                cure="Look at --spark-master and at the Java installation, then run the same command again.",
            )

    def context(self, check: Callable[[], None] = lambda: None) -> Any:
        """The SparkContext. `check` is called while it starts and may raise. Raises what its start raised."""
        starting = self._start()
        while starting.is_alive():
            starting.join(_POLL_SECONDS)
            check()
        if self._error is not None:
            # An interrupt, when the signal that ended the JVM reaches us, too.
            check_for(check, SIGNAL_SECONDS)
            # Who asks once more has it tried once more.
            error, self._error, self._starting = self._error, None, None
            raise error
        return self._context

    def is_starting(self) -> bool:
        return self._start().is_alive()

    def release(self) -> None:
        """End it in the background, which takes a second; one that is still starting goes on."""
        if self._context is None or self.is_starting():
            return
        self._ending = threading.Thread(target=end_context, args=(self._context,), name="spark-end", daemon=True)
        self._ending.start()
        self._context = self._starting = None

    def stop(self) -> None:
        """One that is still starting is left to end with this process: an interrupt does not wait for it."""
        # A start that has not come to Spark yet sees it and does not begin.
        self._is_stopped = True
        if self._starting:
            self._starting.join(_POLL_SECONDS)
        if self._context is not None:
            end_context(self._context)
            self._context = None
        if self._ending:
            self._ending.join(_END_SECONDS)


class Lent:
    """Spark for one of several who use it at the same time: whoever lends it ends it. Thread-safe.

    asking: one for all who have it.
    """

    def __init__(self, spark: Spark, asking: threading.Lock) -> None:
        self._spark, self._asking = spark, asking

    def context(self, check: Callable[[], None] = lambda: None) -> Any:
        """As of SparkStart; one asks at a time, for a start that failed is told to one and tried again for the next."""
        while not self._asking.acquire(timeout=_POLL_SECONDS):
            check()
        try:
            return self._spark.context(check)
        finally:
            self._asking.release()

    def is_starting(self) -> bool:
        return self._spark.is_starting()

    def release(self) -> None:
        """Others may need it."""

    def stop(self) -> None:
        """As `release`."""


@contextlib.contextmanager
def _standing_back() -> Iterator[None]:
    """With a low priority for this thread and what it starts, which keeps it; and meanwhile for our session, if any.

    Linux shares out time by sessions first (sched_autogroup); priorities count within each.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    _set_group(_NICE)
    try:
        yield
    finally:
        _set_group(0)


def _set_group(nice: int) -> None:
    """Unless the session is another's, a shell's for instance."""
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _GROUP.write_text(str(nice))
