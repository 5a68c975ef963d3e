"""An installation is renewed while a workflow is under way: by which version of the watermark's rules it goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, wait_until
from tests.support.rows import workflow_row
from vreplication.changes import protocol
from vreplication.changes.watermark import Watermark
from vreplication.errors import Superseded
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout, lease, rows, sidecar, workers, workflows
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows import operate

OLD, NEW = 1, 2


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A driver of an older release, which knows version 1 and tells nothing; the versions that catch-up went by."""
    create, tell = workflows.create, workers.tell
    found: list[int] = []

    def create_old(session: Session, row: WorkflowRow, *more: Any, **others: Any) -> datetime:
        return create(session, replace(row, protocol=OLD), *more, **others)

    def tell_new(session: Session, right: Lease) -> None:
        if right.role != lease.DRIVER:
            tell(session, right)

    def noted(version: int) -> type[Watermark]:
        base: Any = protocol.RULES[version]

        class Noted(base):  # type: ignore[misc]
            def server_time(self, micros: int) -> None:
                """The first thing that a round does."""
                found.extend([version] if found[-1:] != [version] else [])
                super().server_time(micros)

        return Noted

    monkeypatch.setattr(workflows, "create", create_old)
    monkeypatch.setattr(workers, "tell", tell_new)
    monkeypatch.setattr(protocol, "RULES", {version: noted(version) for version in (OLD, NEW)})
    return found


@pytest.mark.either
@pytest.mark.usefixtures("quick")
def test_it_goes_on_under_the_old_ones_until_all_its_workers_are_new(database: Database, made: list[int]) -> None:
    with connect(database.url) as session, connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
        app.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: _phase(session, run.workflow) is Phase.WAITING, "it does not get to the gate")
        _wait_beats(session, run.workflow)
        assert (_version(session, run.workflow), made) == (OLD, [OLD])
        app.execute_raw("UPDATE t SET a=20 WHERE id=2")
        _tell(session, run.workflow)
        wait_until(lambda: _version(session, run.workflow) == NEW, "it does not go on under the new ones")
        app.execute_raw("DELETE FROM t WHERE id=3")
        wait_until(lambda: made == [OLD, NEW], "catch-up does not start again")
        app.execute_raw("INSERT INTO t VALUES (4,4)")
        operate.release(database.url, run.workflow, "ann")
        assert run.result().event == "complete"
        assert app.rows("SELECT id, a FROM t ORDER BY id") == [(1, 1), (2, 20), (4, 4)]
        told = [e["details"] for e in journal.read(session, run.workflow) if e["event"] == "rules renewed"]
        assert told == ["version 1 to 2"]


def _phase(session: Session, workflow: str) -> Phase | None:
    row = workflows.find(session, workflow)
    return row.phase if row else None


def _version(session: Session, workflow: str) -> int:
    return workflows.load(session, workflow).protocol


def _wait_beats(session: Session, workflow: str) -> None:
    """Each writes the row, and looks around after it."""
    seen: set[object] = set()
    sql = f"SELECT replicate_at FROM {SIDECAR}.progress WHERE workflow=%s"
    wait_until(lambda: len(seen.add(session.value(sql, (workflow,))) or seen) > 3, "catch-up does not beat")  # type: ignore[func-returns-value]


def _tell(session: Session, workflow: str) -> None:
    """What the driver's next release does when it has taken the lease."""
    holder = lease.holder_of(session, workflow, lease.DRIVER)
    assert holder is not None
    key = {"workflow": workflow, "role": lease.DRIVER}
    rows.put(session, sidecar.worker, key, token=holder.token, protocol=NEW)


def test_only_the_living_are_asked_and_only_the_holder_renews(database: Database) -> None:
    with connect(database.url) as session, connect(database.url) as other:
        layout.install(session)
        workflows.create(session, workflow_row("w", protocol=OLD, phase=Phase.COPYING))
        workers.tell(session, mine := lease.acquire(session, "w", lease.REPLICATE))
        old = lease.acquire(other, "w", lease.DRIVER)
        row = workflows.load(session, "w")
        assert workers.renew(session, mine, row) == OLD
        workers.tell(other, replace(old, token=old.token - 1))
        assert workers.renew(session, mine, row) == OLD
        lease.release(other, old)
        with pytest.raises(Superseded):
            workers.renew(session, replace(mine, token=1), row)
        assert _version(session, "w") == OLD
        assert workers.renew(session, mine, row) == NEW == _version(session, "w")
