"""A workflow that is ready for cut-over: table, shadow, sidecar rows; and the hand on its pause points."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from vreplication import names
from vreplication.cutover.attempt import CutOver
from vreplication.cutover.identity import table_identity
from vreplication.cutover.outcome import Outcome
from vreplication.cutover.parts import Part
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import Session, connect
from vreplication.pausepoints import VARIABLE
from vreplication.phases import Phase
from vreplication.state import layout, lease, workflows
from vreplication.state.workflows import WorkflowRow

WORKFLOW = "wf-1"


@dataclass(kw_only=True)
class Ready:
    """A prepared workflow and a session of ours."""

    database: Database
    session: Session
    server: Server
    row: WorkflowRow
    lease: lease.Lease
    announced: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        """Connections of the attempt that runs: locker, renamer, observer, spare."""
        return self.announced[-1]

    @property
    def part(self) -> Part:
        return Part(row=self.row, lease=self.lease)

    def cut_over(self, **options: Any) -> CutOver:
        return CutOver(self.database.url, self.server, (self.part,), announce=self.announced.append, **options)

    def tables(self) -> set[str]:
        return {str(r[0]) for r in self.session.rows("SHOW TABLES")}

    def is_untouched(self) -> bool:
        """The table is the source, and no sentry is left."""
        found = table_identity(self.session, self.database.name, self.row.source_table, self.server.is_mariadb)
        return found == self.row.source_identity and self.row.retired_table not in self.tables()

    def is_switched(self) -> bool:
        schema, mariadb = self.database.name, self.server.is_mariadb
        new = table_identity(self.session, schema, self.row.source_table, mariadb)
        old = table_identity(self.session, schema, self.row.retired_table, mariadb)
        return (new, old) == (self.row.shadow_identity, self.row.source_identity)


def prepare(database: Database, table: str = "t", workflow: str = WORKFLOW) -> Ready:
    """A table of three rows and its shadow with one more column, all of it copied."""
    session = connect(database.url)
    layout.install(session)
    shadow, retired = names.shadow_table(table), names.retired_table(table, workflow)
    for statement in (
        f"CREATE TABLE {ident(table)} (id INT AUTO_INCREMENT PRIMARY KEY, v INT) ENGINE=InnoDB",
        f"CREATE TABLE {ident(shadow)} LIKE {ident(table)}",
        f"ALTER TABLE {ident(shadow)} ADD COLUMN added INT NOT NULL DEFAULT 7",
        f"INSERT INTO {ident(table)} (id, v) VALUES (1, 10), (2, 20), (3, 30)",
        f"INSERT INTO {ident(shadow)} (id, v) SELECT id, v FROM {ident(table)}",
    ):
        session.execute_raw(statement)
    server = inspect(session)
    row = _row(database, workflow, table, shadow, retired)
    workflows.create(session, row)
    for name, column in ((table, "source_identity"), (shadow, "shadow_identity")):
        identity = table_identity(session, database.name, name, server.is_mariadb)
        workflows.set_fields(session, workflow, **{column: identity})
    held = lease.acquire(session, workflow, lease.DRIVER)
    loaded = workflows.load(session, workflow)
    return Ready(database=database, session=session, server=server, row=loaded, lease=held)


def _row(database: Database, workflow: str, table: str, shadow: str, retired: str) -> WorkflowRow:
    return WorkflowRow(
        id=workflow,
        kind="online-ddl",
        protocol=1,
        source_schema=database.name,
        source_table=table,
        spec={},
        phase=Phase.PLANNING,
        is_paused=False,
        is_cancel_requested=False,
        reason=None,
        shadow_table=shadow,
        retired_table=retired,
        copy_path="server",
        source_identity=None,
        shadow_identity=None,
        source_definition=None,
        server_identity=None,
        start_position=None,
        is_cut=False,
        rows_total=None,
    )


def nothing(*_: object) -> None:
    """A barrier or a check that has nothing to do."""


class Points:
    """Pause points of this process, held and let go by a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, name: str) -> None:
        (self.folder / name).touch()

    def wait(self, name: str, seconds: float = 20) -> None:
        until(lambda: (self.folder / f"{name}.reached").exists(), seconds, f"{name} was not reached")

    def let_go(self, name: str) -> None:
        (self.folder / name).unlink()


def until(
    is_true: Callable[[], bool], seconds: float = 20, what: str = "did not come true", *, every: float = 0.01
) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(every)


class Background:
    """A call in a thread, whose result or exception is wanted."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._result = call()
        except BaseException as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self, seconds: float = 30) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "still running"
        if self._error is not None:
            raise self._error
        return self._result


@pytest.fixture
def ready(database: Database) -> Iterator[Ready]:
    made = prepare(database)
    yield made
    made.session.close()


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Points(tmp_path)


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        yield session


def attempt(ready: Ready, **options: Any) -> Outcome:
    barrier, checked = options.pop("barrier", nothing), options.pop("check_locked", nothing)
    return ready.cut_over(**options).attempt(barrier=barrier, check_locked=lambda _, locker: checked(locker))


def waiting_for_lock(session: Session, connection_id: int) -> bool:
    state = session.value("SELECT state FROM information_schema.processlist WHERE id=%s", (connection_id,))
    return state == "Waiting for table metadata lock"


def start(ready: Ready, points: Points, point: str) -> Background:
    """An attempt that stands at this pause point."""
    points.hold(f"cutover.{point}")
    running = Background(lambda: attempt(ready))
    points.wait(f"cutover.{point}")
    return running


def is_there(ready: Ready, connection_id: int) -> bool:
    sql = "SELECT 1 FROM information_schema.processlist WHERE id=%s"
    return ready.database.admin.row(sql, (connection_id,)) is not None


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
