"""A sidecar of an earlier release is brought up to date, whatever stood in it and wherever that was cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, quick, wait_until
from vreplication.errors import LeaseHeld, VReplicationError
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout, workflows
from vreplication.workflows import operate
from vreplication.workflows.online_ddl import run as online_ddl

__all__ = ["quick"]
RECORDED = Path(__file__).parent / "recorded"
BACK_TO_1 = (
    f"CREATE TABLE {SIDECAR}.later LIKE {SIDECAR}.workflow",
    f"INSERT INTO {SIDECAR}.later SELECT * FROM {SIDECAR}.workflow",
    f"DROP TABLE {SIDECAR}.workflow",
    (RECORDED / "workflow_1.sql").read_text(),
    f"INSERT INTO {SIDECAR}.workflow SELECT w.id, w.kind, w.protocol, t.source_schema, t.source_table, w.spec,"
    " w.phase, w.paused, w.cancel_requested, w.reason, t.shadow_table, t.retired_table, t.copy_path,"
    " t.source_identity, t.shadow_identity, t.source_definition, w.server_identity, w.start_position, t.is_cut,"
    " t.rows_total, w.created_at, w.updated_at, w.ended_at"
    f" FROM {SIDECAR}.later w JOIN {SIDECAR}.workflow_table t ON t.workflow=w.id",
    f"DROP TABLE {SIDECAR}.later, {SIDECAR}.workflow_table",
    f"ALTER TABLE {SIDECAR}.worker CHANGE protocol mechanism INT NOT NULL",
    f"ALTER TABLE {SIDECAR}.workflow_group DROP COLUMN atomic",
    f"DROP TABLE IF EXISTS {SIDECAR}.feed_consumer, {SIDECAR}.feed_offset",
)
"""What takes today's layout back to version 1, with all that stands in it."""


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    database.drop_sidecar()
    with connect(database.url) as opened:
        layout.install(opened)
        yield opened
    database.drop_sidecar()


def go_back(session: Session, version: int = 1) -> None:
    for statement in BACK_TO_1:
        session.execute_raw(statement)
    for earlier in range(2, version + 1):
        for statement in layout.statements(earlier):
            session.execute_raw(statement)
    session.execute_raw(f"UPDATE {SIDECAR}.schema_version SET version={version} WHERE id=1")


def definitions(session: Session) -> dict[str, str]:
    tables = [str(name) for (name,) in session.rows(f"SHOW TABLES FROM {SIDECAR}")]
    found = {name: session.row(f"SHOW CREATE TABLE {SIDECAR}.{name}") for name in tables}
    return {name: str(row[1]) for name, row in found.items() if row}


def test_what_was_brought_up_to_date_is_as_what_is_new(session: Session) -> None:
    """Also where it was cut off behind any statement, noted or not."""
    new = definitions(session)
    for version in range(2, layout.VERSION + 1):
        steps = layout.statements(version)
        assert steps
        for done in range(len(steps) + 1):
            for noted in {done, max(done - 1, 0)}:
                go_back(session, version - 1)
                for statement in steps[:done]:
                    session.execute_raw(statement)
                if noted:
                    session.execute_raw(f"INSERT INTO {SIDECAR}.schema_version VALUES (2,{noted})")
                layout.complete(session)
                assert definitions(session) == new, (version, done, noted)
                assert session.rows(f"SELECT id, version FROM {SIDECAR}.schema_version") == [(1, layout.VERSION)]


def test_a_workflow_that_was_under_way_goes_on(session: Session, database: Database, quick: None) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
        app.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: phase(session, run.workflow) is Phase.WAITING, "it does not get to the gate")
        run.stop.set()
        assert run.result().event == "interrupted"
        before = workflows.load(session, run.workflow)
        app.execute_raw("UPDATE t SET a=20 WHERE id=2")
        go_back(session)
        app.execute_raw("DELETE FROM t WHERE id=3")
        assert workflows.load(session, run.workflow) == before
        operate.release(database.url, run.workflow, "ann")
        result = online_ddl.run(run.spec, database.url, stop=threading.Event(), notify=lambda _: None)
        assert result.event == "complete", result
        assert app.rows("SELECT id, a, z FROM t ORDER BY id") == [(1, 1, None), (2, 20, None)]
        assert "switched" in [entry["event"] for entry in journal.read(session, run.workflow)]


def phase(session: Session, workflow: str) -> Phase | None:
    row = workflows.find(session, workflow)
    return row.phase if row else None


def test_nothing_is_changed_under_an_earlier_release_at_work(session: Session, database: Database, quick: None) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
    wait_until(lambda: phase(session, run.workflow) is Phase.WAITING, "it does not get to the gate")
    new = definitions(session)
    session.execute_raw(f"UPDATE {SIDECAR}.schema_version SET version=1 WHERE id=1")
    with pytest.raises(LeaseHeld, match=f"earlier release .* at work on workflow {run.workflow}"):
        layout.complete(session)
    assert definitions(session) == new
    session.execute_raw(f"UPDATE {SIDECAR}.schema_version SET version={layout.VERSION} WHERE id=1")
    operate.release(database.url, run.workflow, "ann")
    assert run.result().event == "complete"


def test_two_that_come_at_the_same_time(session: Session, database: Database) -> None:
    new = definitions(session)
    go_back(session)
    errors: list[VReplicationError] = []

    def look() -> None:
        with connect(database.url) as opened:
            try:
                workflows.load_all(opened)
                layout.complete(opened)
            except VReplicationError as error:
                errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (errors, definitions(session)) == ([], new)


def test_a_deadlock_with_another_process_is_no_end(
    session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDL against a query of several tables: the server ends one of the two."""
    new = definitions(session)
    go_back(session)
    chosen = [(layout, "_run"), (layout, "_definition"), (Session, "named_rows")]
    for where, name in chosen:
        monkeypatch.setattr(where, name, once_a_deadlock(getattr(where, name)))
    assert workflows.load_all(session) == []
    layout.install(session)
    assert definitions(session) == new


def test_a_deadlock_within_a_transaction_is_the_callers(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence that came before it is gone with it."""
    monkeypatch.setattr(Session, "named_rows", once_a_deadlock(Session.named_rows))
    with pytest.raises(LockWait), session.transaction():
        workflows.load_all(session)
    assert workflows.load_all(session) == []


def once_a_deadlock(call: Callable[..., Any]) -> Callable[..., Any]:
    left = [LockWait("Deadlock found when trying to get lock; try restarting transaction (1213)")]

    def called(*args: Any) -> Any:
        if left:
            raise left.pop()
        return call(*args)

    return called
