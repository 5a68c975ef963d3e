"""A small table, a run that is held at pause points, and what the application does meanwhile.

What must stay true: the truth is the retired table, which holds what the source held at the cut-over; a row that was
wrong until verification copied it again counts as wrong; before a test lets
go it waits until catch-up has applied what the application wrote, so that the race has been lost or won for certain.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.databases import Database
from tests.support.flow import Run, begin, paused_at, wait_reached, wait_until
from vreplication import names
from vreplication.engine.result import Result
from vreplication.mysql.processes import processes
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.settings import SIDECAR
from vreplication.state import markers, progress, verdicts

ALTER = "ADD COLUMN added INT NOT NULL DEFAULT 7"
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), u INT) ENGINE=InnoDB CHARACTER SET utf8mb4"
METADATA_LOCK = "Waiting for table metadata lock"


@dataclass(slots=True, kw_only=True)
class Race:
    database: Database
    pauses: Path
    app: Session
    runs: list[Run] = field(default_factory=list)

    def make(self, definition: str = TABLE, rows: str = "") -> None:
        """A table `t`; 20 rows unless others are given."""
        self.app.execute_raw(definition)
        values = rows or ",".join(f"({i * 10},'v{i}',{i})" for i in range(1, 21))
        self.app.execute_raw(f"INSERT INTO t VALUES {values}")

    def begin(self, alter: str = ALTER, **more: Any) -> Run:
        run = begin(self.database, "t", alter, **{"copy_parallelism": 1, **more})
        self.runs.append(run)
        return run

    @contextmanager
    def held(self, point: str, alter: str = ALTER, **more: Any) -> Iterator[Run]:
        """A run that stands at the point inside the block."""
        with paused_at(self.pauses, point):
            run = self.begin(alter, **more)
            wait_reached(self.pauses, point, run)
            yield run

    def write(self, *statements: str) -> None:
        """One transaction of the application."""
        with self.app.transaction():
            for statement in statements:
                self.app.execute_raw(statement)

    def applied(self, run: Run) -> None:
        """Wait until catch-up has applied everything that was written before."""
        with connect(self.database.url) as session:
            marker = markers.write(session, run.workflow)
            markers.wait_applied(session, run.workflow, marker, timeout_seconds=180.0)

    def waiting_for(self, run: Run, *words: str) -> str:
        """Wait until the run says what it waits for, with these words in it."""
        found = [""]

        def says() -> bool:
            assert run.is_going, run.result()
            with connect(self.database.url) as session:
                found[0] = str(progress.read(session, run.workflow).get("waiting_for") or "")
            return all(word in found[0] for word in words)

        try:
            wait_until(says, "")
        except AssertionError as error:
            raise AssertionError(f"waits for {found[0]!r} and not for {words}; it said {run.said}") from error
        return found[0]

    def said(self, run: Run, words: str) -> None:
        """Wait until the run has told its user this."""
        wait_until(lambda: any(words in line for line in run.said), f"it does not say {words!r}: {run.said}")

    def end_branch(self, statement: str) -> None:
        """End a branch whose connection is gone; the server takes a moment to see that it is."""
        wait_until(lambda: self._ends(statement), f"{statement} is not taken")

    def _ends(self, statement: str) -> bool:
        try:
            self.database.admin.execute_raw(statement)
        except SqlError:
            return False
        return True

    def complete(self, run: Run) -> Result:
        """A good end: the new table holds what the old one held, and verification had nothing to repair."""
        result = run.result()
        assert result.event == "complete", result
        with connect(self.database.url) as session:
            verdict = verdicts.load(session, run.workflow)
        assert verdict is not None
        assert verdict.mismatches == 0, verdict
        assert result.retired_table
        old = f"{self.columns(result.retired_table)}"
        was = self.app.rows(f"SELECT {old} FROM {ident(result.retired_table)} ORDER BY 1")
        now = self.app.rows(f"SELECT {old} FROM t ORDER BY 1")
        assert now == was
        return result

    def columns(self, table: str) -> str:
        """HEX of every column, so that nothing is equal by collation only."""
        return ",".join(f"HEX({ident(row[0])})" for row in self.app.rows(f"SHOW COLUMNS FROM {ident(table)}"))

    def ids(self, table: str = "t") -> list[Any]:
        return [row[0] for row in self.app.rows(f"SELECT id FROM {ident(table)} ORDER BY id")]

    def ours(self) -> list[str]:
        """Tables of ours beside the application's."""
        return [name for (name,) in self.app.rows("SHOW TABLES") if names.is_ours(name)]

    def in_background(self, statement: str | bytes) -> Background:
        """A statement of another connection of the application; returns when it is under way."""
        return Background(connect(self.database.app_url), statement)

    @staticmethod
    def borrowed(session: Session, statement: str | bytes) -> Background:
        """As `in_background`, on a connection that the test has prepared."""
        return Background(session, statement)

    def is_blocked(self, background: Background) -> bool:
        found = processes(self.database.admin).get(background.session.id)
        return found is not None and found.state == METADATA_LOCK

    def landing(self) -> int:
        """Key of a row in a chunk that is open."""
        with connect(self.database.url) as session:
            (lower,) = session.rows(f"SELECT lower_bound, has_lower FROM {SIDECAR}.chunk WHERE state='open' LIMIT 1")
        sign = ">=" if lower[1] else ">"
        return int(self.app.value(f"SELECT MIN(id) FROM t WHERE id {sign} {json.loads(lower[0])[0]}"))

    def is_lock_waited_for(self) -> bool:
        sql = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"
        return int(self.database.admin.value(sql)) > 0

    def end(self) -> None:
        for run in self.runs:
            run.stop.set()
        for run in self.runs:
            run.result(60.0)


class Background:
    """A statement in a thread; `result` waits for it and raises what it raised."""

    def __init__(self, session: Session, statement: str | bytes) -> None:
        self.session = session
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(lambda: session.execute_raw(statement),), daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except BaseException as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> None:
        self._thread.join(30.0)
        assert not self._thread.is_alive()
        self.session.close()
        if self._error is not None:
            raise self._error
