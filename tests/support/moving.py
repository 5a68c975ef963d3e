"""Runs a move of tables the way the command line does, in this process: copy and verification without a JVM, catch-up
in a thread. And an application that writes where it is told to.

What must stay true: every write that was accepted is remembered with the side that accepted it; a refused one is not.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support import local_spark
from tests.support.flow import wait_until
from tests.support.hurried import hurry
from tests.support.pairs import Pair
from vreplication.engine.replicate import replicate_stream
from vreplication.engine.result import Result
from vreplication.errors import VReplicationError
from vreplication.mysql.ends import Route
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.state import gate, journal, moves, source_marks
from vreplication.workflows.move_tables import run
from vreplication.workflows.move_tables.spec import MoveSpec, make_move_spec
from vreplication.workflows.move_tables.streams import stream_of

ALL = "VREPLICATION_MOVE_KILLS"
"""Set: a move is killed at every point, not only where it says most."""


class ThreadStream:
    """Catch-up in a thread, in the place of engine.child.StreamProcess."""

    def __init__(self, route: Route, workflow: str, number: int) -> None:
        self._route, self._workflow, self._number = route, workflow, number
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self.errors: list[str] = []

    def load(self) -> None: ...

    def follow(self, number: int) -> None:
        self._number = number

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            replicate_stream(stream_of(self._route, self._workflow, self._number), self._stop)
        except VReplicationError as error:
            self.errors.append(str(error))
            self._has_failed = True

    def keep_alive(self) -> None:
        if self._has_failed and self._thread is not None and not self._thread.is_alive():
            self._has_failed = False
            self.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(30)
            self._thread = None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "InheritableThread", threading.Thread)
    monkeypatch.setattr(run, "SparkStart", local_spark.LocalStart)
    hurry(monkeypatch.setattr)


def route_of(pair: Pair) -> Route:
    return Route(source=pair.source.url, target=pair.target.url, home=pair.target.url)


@dataclass(slots=True)
class Move:
    """A move under way in a thread; `result` waits for it."""

    pair: Pair
    spec: MoveSpec
    replica: SourceUrl | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _result: Result | None = None

    def start(self) -> Move:
        self.stop.clear()
        self._result = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        route = replace(route_of(self.pair), replica=self.replica)
        self._result = run.run(self.spec, route, stop=self.stop, notify=self.said.append, make_child=ThreadStream)

    def result(self, timeout_seconds: float = 120.0) -> Result:
        assert self._thread is not None
        self._thread.join(timeout_seconds)
        assert self._result is not None, f"the move does not end: {self.said}"
        return self._result

    @property
    def is_going(self) -> bool:
        return self._result is None

    @property
    def workflow(self) -> str:
        assert self.spec.workflow
        return self.spec.workflow

    def state(self) -> moves.Move | None:
        return moves.find(self.pair.target.admin, self.workflow)

    def wait_serving(self, side: moves.Side, number: int, timeout_seconds: float = 120.0) -> None:
        """Until the switch before `number` has been done and told."""

        def is_so() -> bool:
            assert self.is_going, self._result
            found = self.state()
            return found is not None and found.serving is side and found.number == number

        wait_until(is_so, f"{side} does not serve: {self.said}", timeout_seconds)

    def reach(self, side: moves.Side, number: int, app: Application) -> None:
        """As `wait_serving`, until the application has written there."""
        self.wait_serving(side, number)
        before = app.accepted[side is moves.Side.TARGET]
        wait_until(lambda: app.accepted[side is moves.Side.TARGET] > before + 20, "the application does not follow")

    def wait_for_release(self) -> None:
        """Until nothing but the release is missing."""

        def is_so() -> bool:
            assert self.is_going, self._result
            return any(words.startswith("waiting: Waiting for") for words in self.said)

        wait_until(is_so, f"it does not come to the gate: {self.said}")

    def catch_up(self) -> None:
        """Until what is in the source's log by now has been applied, before the first switch."""
        with route_of(self.pair).open() as ends:
            of = source_marks.markers_of(ends, self.workflow)
            marker = of.write()
            wait_until(lambda: of.find_applied(marker) is not None, f"catch-up is stuck: {self.said}")

    def check_right_at_once(self) -> None:
        """No verification has found a row to copy again: the last line of defense would hide the others' faults."""
        noted = journal.read(self.pair.target.admin, self.workflow)
        found = [entry["details"] for entry in noted if entry["event"] == "mismatch"]
        assert not found, found
        assert not any("differ" in words for words in self.said), self.said

    def ask(self, what: str) -> None:
        moves.ask(self.pair.target.admin, self.workflow, what, "a test")

    def release(self) -> None:
        gate.release(self.pair.target.admin, self.workflow, "a test")


def begin(pair: Pair, *tables: str, replica: SourceUrl | None = None, **more: Any) -> Move:
    given = {"tables": tables, "workflow": f"m-{secrets.token_hex(4)}", **more}
    return Move(pair, make_move_spec(**given), replica).start()


@dataclass(slots=True)
class Application:
    """Writers of table `t` (id, n, v): each owns some ids, knows what it wrote last, and goes to the other server when
    this one refuses: what both took at one time would be missed by the one that serves in the end."""

    pair: Pair
    writers: int = 2
    ids: int = 40
    stop: threading.Event = field(default_factory=threading.Event)
    wrote: dict[int, tuple[int, str] | None] = field(default_factory=dict)
    """id → what it holds by what was accepted; None: deleted."""
    accepted: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    """By the source (False) and by the target."""
    words: set[str] = field(default_factory=set)
    """Of refusals."""
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> Application:
        for number in range(self.writers):
            thread = threading.Thread(target=self._write, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def _write(self, number: int) -> None:
        drawn, is_at_target = random.Random(number), False
        while not self.stop.is_set():
            url = (self.pair.target if is_at_target else self.pair.source).app_url
            try:
                with connect(url) as session:
                    while not self.stop.is_set():
                        self._one(session, drawn, number)
                        self.accepted[is_at_target] += 1
                        self.stop.wait(0.003)
            except VReplicationError as error:
                self.words.add(str(error))
                is_at_target = not is_at_target
                self.stop.wait(0.005)

    def _one(self, session: Session, drawn: random.Random, number: int) -> None:
        id = drawn.randrange(self.ids) * self.writers + number
        n, v = drawn.randrange(1 << 30), secrets.token_hex(drawn.randrange(1, 12))
        act = drawn.randrange(5)
        if act == 0:
            self._delete(session, id, number)
        elif act == 1:
            self._move_key(session, id, n, v)
        else:
            session.execute("REPLACE INTO t (id, n, v) VALUES (%s,%s,%s)", (id, n, v))
            self.wrote[id] = (n, v)

    def _delete(self, session: Session, id: int, number: int) -> None:
        """A DELETE that meets no row is accepted where writes are denied, too: so a write goes before it."""
        with session.transaction():
            session.execute("REPLACE INTO t (id, n, v) VALUES (%s, %s, 'a delete follows')", (-1 - number, id))
            session.execute("DELETE FROM t WHERE id=%s", (id,))
        self.wrote[id] = None

    def _move_key(self, session: Session, id: int, n: int, v: str) -> None:
        """Two statements in one transaction: the row goes to another key of the same writer."""
        other = id + self.ids * self.writers
        with session.transaction():
            session.execute("DELETE FROM t WHERE id=%s", (other,))
            session.execute("UPDATE t SET id=%s, n=%s, v=%s WHERE id=%s", (other, n, v, id))
            session.execute("REPLACE INTO t (id, n, v) VALUES (%s,%s,%s)", (other, n, v))
        self.wrote[id], self.wrote[other] = None, (n, v)

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(30)

    def check(self, session: Session) -> None:
        """The table holds what was accepted last, of each row."""
        found = {int(id): (int(n), str(v)) for id, n, v in session.rows("SELECT id, n, v FROM t")}
        wrong = {id: (row, found.get(id)) for id, row in self.wrote.items() if found.get(id) != row}
        assert not wrong, f"{len(wrong)} rows: {dict(list(wrong.items())[:5])}"


@contextlib.contextmanager
def application(pair: Pair, **more: Any) -> Iterator[Application]:
    made = Application(pair, **more).start()
    try:
        yield made
    finally:
        made.end()
