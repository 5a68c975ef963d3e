"""A workflow that is ready for its row copy: source, shadow, sidecar rows, lease and an open gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.databases import Database
from vreplication import names
from vreplication.mysql.ends import Route
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.rowcopy.chunker import copy_split
from vreplication.rowcopy.job import CopyJob, SplitResult
from vreplication.rowcopy.splits import cut, key_range
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.mapping import map_tables
from vreplication.schema.model import TableMapping
from vreplication.settings import Limits
from vreplication.state import gate, keytables, layout, lease, ledger, workflows
from vreplication.state.ledger import KeyRange, Split
from vreplication.state.workflows import WorkflowRow

WORKFLOW = "wf-copy"
PATHS = ("server", "rows")


@dataclass(kw_only=True)
class CopyCase:
    """Everything a copy needs, and the other side's hands: the application's session and the replicating process's.

    table: id under which the ledger keeps the table.
    """

    database: Database
    session: Session
    app: Session
    mapping: TableMapping
    driver: lease.Lease
    replicate: lease.Lease
    table: str = WORKFLOW
    is_open: bool = True
    _beats: int = field(default=0)

    @property
    def shadow(self) -> str:
        return self.mapping.target.name

    @property
    def route(self) -> Route:
        return Route.within(self.database.url)

    @property
    def reader(self) -> Session:
        """Our user's session on the source."""
        return self.session

    def job(self, path: str = "server", **limits: Any) -> CopyJob:
        return CopyJob(
            workflow=WORKFLOW,
            table=self.table,
            copy_path=path,
            limits=Limits(**limits),
            by_turns=self.database.server.is_mariadb,
        )

    def beat(self) -> None:
        """What the replicating process does every 250 ms."""
        self._beats += 1
        gate.write(self.session, self.replicate, is_open=self.is_open, reason="", beat=self._beats)

    def cut(self, wanted: int = 1) -> list[Split]:
        whole = key_range(self.reader, self.mapping)
        assert whole is not None
        found = cut(self.reader, self.mapping, whole, wanted)
        ledger.add_splits(self.session, self.table, found)
        return found

    def copy(self, number: int = 0, path: str = "server", **limits: Any) -> SplitResult:
        with self.gate_kept_open():
            return copy_split(self.route, self.driver, self.mapping, self.job(path, **limits), number)

    def copy_all(self, path: str = "server", wanted: int = 1, **limits: Any) -> None:
        """Cut and copy; an error of a split is raised."""
        for split in self.cut(wanted):
            error = self.copy(split.number, path, **limits).error
            if error is not None:
                raise error

    def chunks(self, split: int = 0) -> list[ledger.Chunk]:
        return ledger.chunks(self.session, self.table, split=split)

    def rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        key = ",".join(ident(p.target.name) for p in self.mapping.key)
        return self.database.admin.rows(f"SELECT {columns} FROM {ident(table)} ORDER BY {key}")

    def assert_same(self, columns: str = "*") -> None:
        assert self.rows(self.shadow, columns) == self.rows(self.mapping.source.name, columns)

    @contextmanager
    def gate_kept_open(self) -> Iterator[None]:
        """Beats on a session of its own while the copy runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self._keep_beating, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _keep_beating(self, stop: threading.Event) -> None:
        with connect(self.database.url) as session:
            while True:
                self._beats += 1
                gate.write(session, self.replicate, is_open=self.is_open, reason="", beat=self._beats)
                if stop.wait(0.25):
                    return


def make_case(database: Database, create: str, alter: str = "ENGINE=InnoDB", fill: tuple[str, ...] = ()) -> CopyCase:
    """Source table `t` from `create` (with {t} for its name), filled, and its shadow."""
    admin = database.admin
    for statement in (create, *fill):
        admin.execute_raw(statement)
    shadow = names.shadow_table("t")
    admin.execute_raw(f"CREATE TABLE {ident(shadow)} LIKE t")
    admin.execute_raw(f"ALTER TABLE {ident(shadow)} {alter}")
    session = connect(database.url)
    layout.install(session)
    workflows.create(session, workflow_row(database.name, shadow))
    case = CopyCase(
        database=database,
        session=session,
        app=connect(database.app_url),
        mapping=map_tables(
            introspect(session, database.name, "t"),
            introspect(session, database.name, shadow),
            parse_alter(alter),
            is_mariadb=database.server.is_mariadb,
        ),
        driver=lease.acquire(session, WORKFLOW, lease.DRIVER),
        replicate=lease.acquire(session, WORKFLOW, lease.REPLICATE),
    )
    keytables.create_all(session, case.mapping, WORKFLOW)
    case.beat()
    return case


def workflow_row(schema: str, shadow: str) -> WorkflowRow:
    return WorkflowRow(
        id=WORKFLOW, kind="online_ddl", protocol=1, source_schema=schema, source_table="t", spec={},
        phase=Phase.COPYING, is_paused=False, is_cancel_requested=False, reason=None, shadow_table=shadow,
        retired_table="t__vr_old", copy_path="server", source_identity=None, shadow_identity=None,
        source_definition=None, server_identity=None, start_position=None, is_cut=False, rows_total=None,
    )  # fmt: skip


class Background:
    """Something that runs beside the test; its result or error is handed out at the end."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[], Any]) -> None:
        try:
            self._result = act()
        except BaseException as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout: float = 60.0) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "it does not end"
        if self._error is not None:
            raise self._error
        return self._result


class Held:
    """The hand on the pause points of this process and its children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, name: str) -> None:
        self._reached(name).unlink(missing_ok=True)
        (self.folder / name).touch()

    def wait(self, name: str, seconds: float = 30.0) -> None:
        wait_until(self._reached(name).exists, seconds)

    def let_go(self, name: str) -> None:
        (self.folder / name).unlink()

    def _reached(self, name: str) -> Path:
        return self.folder / f"{name}.reached"


def wait_until(is_true: Callable[[], bool], seconds: float = 30.0, poll_seconds: float = 0.01) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(poll_seconds)


def whole(case: CopyCase) -> KeyRange:
    found = key_range(case.session, case.mapping)
    assert found is not None
    return found
