"""Runs work in a thread while the main thread shows it and takes signals.

What must stay true: a signal sets the stop event at once and does nothing else, however often it comes; the work is
always waited for, so nothing of it outlives us. The work is not in the main thread because Spark, started there, puts a
SIGINT handler of its own over ours.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

from vreplication.cli import logs
from vreplication.cli.show import Display
from vreplication.cli.streams import children_to
from vreplication.cli.watcher import Aging, Watcher

log = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S", bound=Aging)
TICK_SECONDS = 0.25
# SIGHUP: the terminal was closed.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Work(Generic[T]):
    """The work's thread and what came of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._run, name="work")

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            # Of every kind, KeyboardInterrupt as well: in a thread it would be printed and lost.
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> T:
        self.thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]


def attend(work: Callable[[], T], *, stop: threading.Event, display: Display[S], watcher: Watcher[S]) -> T:
    """Return what `work` returns, or raise what it raises."""
    running = _Work(work)
    # The streams before the display, which draws on the copy that is ours.
    with stopping_on_signals(stop), children_to(logs.of_children()), watcher, display:
        # The handlers are in place before the work begins: a signal that comes first thing ends it in order, too.
        running.thread.start()
        try:
            _show(running.done, stop, display, watcher)
        except BaseException:
            # Nobody watches any more (a closed pipe): end cleanly rather than go on unseen.
            stop.set()
            running.thread.join()
            raise
    return running.outcome()


def _show(done: threading.Event, stop: threading.Event, display: Display[S], watcher: Watcher[S]) -> None:
    is_noted = False
    while True:
        display.tick(watcher.latest, is_stopping=stop.is_set())
        if stop.is_set() and not is_noted:
            is_noted = True
            # Not from the signal's handler: whoever it interrupts may be in the middle of a line.
            log.info("asked to stop: the work ends at the next place where it can")
        if done.wait(TICK_SECONDS):
            break
    # The last read may be from before the end: without another one the final state would stay unsaid.
    watcher.settle()
    display.tick(watcher.latest, is_stopping=stop.is_set())


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP set `stop`; one that was ignored before (nohup) stays ignored."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    # Python lets the main thread alone set a handler.
    before = {n: signal.getsignal(n) for n in _SIGNALS} if _is_main_thread() else {}
    for number, old in before.items():
        if old != signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
