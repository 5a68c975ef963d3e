"""The flow in stages, for tests: a small table, catch-up beside the others, and stages that may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import local_spark
from vreplication.mysql.session import connect
from vreplication.planning.spec import Spec
from vreplication.workflows.online_ddl import tasks
from vreplication.workflows.online_ddl.tasks import Stage
from vreplication.workflows.stages import Ended

WORKFLOW = "staged"
MISSED_SECONDS, BUSY_SECONDS = 10.0, 20.0
"""In which a stage misses catch-up: what is promised, and what a machine that is busy with other tests adds."""


def make(
    database: Database, monkeypatch: pytest.MonkeyPatch, notify: Callable[[str], None] = lambda text: None
) -> Stage:
    """Five rows, and a column to be added; without a JVM."""
    monkeypatch.setattr(tasks, "SparkStart", local_spark.LocalStart)
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20))")
        app.execute_raw("INSERT INTO t (v) VALUES ('a'),('b'),('c'),('d'),('e')")
    spec = Spec(table="t", alter="ADD COLUMN w INT NOT NULL DEFAULT 7", workflow=WORKFLOW)
    return Stage(url=database.url, spec=spec, stop=threading.Event(), notify=notify)


class CatchUp:
    """The stage beside the others, in a thread."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.error: Ended | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            tasks.catch_up(self.stage)
        except Ended as error:
            self.error = error

    def goes_on_for(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()

    def end(self) -> Ended | None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "catch-up does not end"
        return self.error


def wait_begun(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] = lambda: None) -> threading.Event:
    """Set when the next stage of catch-up has come to catch up, and `before` is done."""
    begun, known = threading.Event(), tasks.replicate

    def begin(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(tasks, "replicate", known)
        before()
        begun.set()
        known(*args, **more)

    monkeypatch.setattr(tasks, "replicate", begin)
    return begun


class Called:
    """A stage in a thread, for those that may never end."""

    def __init__(self, call: Callable[[Stage], None], stage: Stage) -> None:
        self._stage, self._error = stage, None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[Stage], None]) -> None:
        try:
            call(self._stage)
        except Ended as error:
            self._error: Ended | None = error

    @property
    def is_going(self) -> bool:
        return self._thread.is_alive()

    def end(self, seconds: float = 30.0) -> Ended | None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stage.stop.set()
            pytest.fail("the stage does not end")
        return self._error
