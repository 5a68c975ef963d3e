"""Threads for looks at sources, so few for each connection that a silent server keeps its own triggers waiting only.

What must stay true: the event loop is never blocked; a look that nobody waits for any more keeps no process alive.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
THREADS = 2
"""At a time for one connection: a look takes milliseconds, unless the server says nothing."""

_Work = tuple["Future[Any]", Callable[[], Any]]


class _Lookers:
    """The threads of one connection, begun when they are needed; daemons, unlike those of an Executor."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._threads = 0

    def submit(self, question: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            # Those that are idle by now may be spoken for by what waits already.
            if self._idle <= self._work.qsize() and self._threads < THREADS:
                self._threads += 1
                threading.Thread(target=self._run, name="looking", daemon=True).start()
        self._work.put((future, question))
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            future, question = self._work.get()
            with self._lock:
                self._idle -= 1
            # A look that nobody waits for any more is not made.
            if future.set_running_or_notify_cancel():
                _answer(future, question)


def _answer(future: Future[Any], question: Callable[[], Any]) -> None:
    try:
        future.set_result(question())
    except BaseException as error:
        # Whatever it is: without an answer the trigger that waits for it would wait for ever.
        future.set_exception(error)


_of_connection: dict[str, _Lookers] = {}
_lock = threading.Lock()


async def look_at(conn_id: str, question: Callable[[], T]) -> T:
    """The answer, from one of the connection's threads."""
    with _lock:
        # Of the process, not of the event loop: all triggers of one triggerer share what a silent server holds.
        lookers = _of_connection.setdefault(conn_id, _Lookers())
    return await asyncio.wrap_future(lookers.submit(question))
