"""Asks many sources at once, within a budget of time.

What must stay true: a source that does not answer costs BUDGET_SECONDS in all, however many there are; a question that
is still under way is not asked again beside itself, and an answer younger than FRESH_SECONDS serves every browser.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from typing import Any

from vreplication.errors import VReplicationError
from vreplication.mysql.session import Connection, Session, connect
from vreplication.mysql.url import SourceUrl

BUDGET_SECONDS = 1.7
"""For all sources together; the page promises two seconds, login and drawing included."""
FRESH_SECONDS = 0.8
# Below the budget: the thread of a source that is silent ends before, or soon behind, the answer that gave it up.
_CONNECT_SECONDS = 1.5
_READ_SECONDS = 1.5
_SILENT = f"It did not answer within {BUDGET_SECONDS} s."

Question = Callable[[Session], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A connection that is one of ours; without `url`, `problem` says why it cannot be used."""

    conn_id: str
    url: SourceUrl | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a source said, or the problem with it; `is_late`: it has not answered so far, and may yet."""

    source: Source
    value: Any = None
    problem: str | None = None
    is_late: bool = False


class QuickConnection(Connection):
    """Gives up on a server that does not take the connection."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "connect_timeout": _CONNECT_SECONDS})


def quick(url: SourceUrl) -> Session:
    """A session that waits for nobody. The sidecar's tables are named in full, so the default schema may be gone."""
    # For each read and not for the whole: a question of many statements may outlast the budget, and serves who asks
    # next.
    return connect(url, use_database=False, read_timeout=_READ_SECONDS, connection_class=QuickConnection)


@dataclass(slots=True)
class _Asked:
    at: float
    future: Future[Any] = field(default_factory=Future)

    def serves(self, now: float) -> bool:
        return not self.future.done() or now - self.at < FRESH_SECONDS


class Asker:
    """One for the app; used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[Hashable, _Asked] = {}

    def ask(
        self, sources: Sequence[Source], about: Hashable, question: Question, seconds: float | None = None
    ) -> list[Answer]:
        """Every source's answer, in the sources' order, after so many seconds at the most; None: within the budget.

        `about` names the question: who asks again about the same waits for the same answers, and asks no source twice.
        """
        deadline = time.monotonic() + (BUDGET_SECONDS if seconds is None else seconds)
        started = [(source, self._start(source, about, question)) for source in sources]
        return [_answer(source, future, deadline) for source, future in started]

    def forget(self) -> None:
        """Something was changed: what was read before says nothing any more."""
        with self._lock:
            # What is under way goes on for those who wait for it; who asks from now on begins anew.
            self._asked.clear()

    def _start(self, source: Source, about: Hashable, question: Question) -> Future[Any]:
        now, place = time.monotonic(), (source.conn_id, source.url, about)
        with self._lock:
            known = self._asked.get(place)
            if known and known.serves(now):
                return known.future
            # Here, for nothing else does it: questions name workflows, so there are ever new ones.
            self._asked = {key: asked for key, asked in self._asked.items() if asked.serves(now)}
            asked = self._asked[place] = _Asked(now)
        # A thread for each question: of a pool, sources that are silent would soon hold every thread.
        threading.Thread(target=_run, args=(source, question, asked.future), daemon=True).start()
        return asked.future


def _run(source: Source, question: Question, future: Future[Any]) -> None:
    try:
        assert source.url is not None, source.problem
        with quick(source.url) as session:
            future.set_result(question(session))
    except BaseException as error:
        # Whatever it is: a question without an end would count as under way for good.
        future.set_exception(error)


def _answer(source: Source, future: Future[Any], deadline: float) -> Answer:
    # First: `_run` has failed on it in a thread, and its text is not for people.
    if source.url is None:
        return Answer(source=source, problem=source.problem or "The connection cannot be used.")
    try:
        return Answer(source=source, value=future.result(max(0.0, deadline - time.monotonic())))
    except Late:
        return Answer(source=source, problem=_SILENT, is_late=True)
    except VReplicationError as error:
        return Answer(source=source, problem=str(error))
    except Exception as error:
        # Its text is anybody's, so it is not shown.
        return Answer(source=source, problem=f"It could not be read ({type(error).__name__}).")
