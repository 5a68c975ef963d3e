"""A MySQL that has lost an XA branch in a crash: branches of several format ids were prepared.

Which of them its recovery rolls back differs from run to run, so here one is rolled back behind it, without a word in
the log: that is what a recovery that loses it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database, create_database
from tests.support.flow import begin, paused_at, pauses, quick, wait_reached
from tests.support.private_server import kill, private_server
from vreplication.changes import lost_branches
from vreplication.mysql.server import prepared_branches
from vreplication.mysql.session import Session, connect

__all__ = ["pauses", "quick"]

pytestmark = pytest.mark.usefixtures("quick")
KEPT, LOST = "X'6b00ff',X'01',0", "X'6c6f7374',X'',1"


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(lost_branches, "LOOK_SECONDS", 0.2)
    with private_server("mysql") as server:
        made = create_database(server)
        made.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        made.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
        yield made


def prepare(database: Database, branch: str, *statements: str) -> None:
    with connect(database.app_url) as app:
        for each in (f"XA START {branch}", *statements, f"XA END {branch}", f"XA PREPARE {branch}"):
            app.execute_raw(each)


def end(admin: Session, branch: str, how: str) -> None:
    """Unless the server has lost it by itself."""
    if branch in map(str, prepared_branches(admin, is_mariadb=False)):
        admin.execute_raw(f"XA {how} {branch}")


def test_a_branch_that_a_crash_has_rolled_back_is_given_up(database: Database, pauses: Path) -> None:
    with paused_at(pauses, "workflow.gate_open"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.gate_open", run)
        prepare(database, KEPT, "UPDATE t SET v=99 WHERE id=1")
        prepare(database, LOST, "UPDATE t SET v=99 WHERE id=2")
        kill(database.server)
        database.server.restart()
        database.reconnect()
        database.admin.execute_raw("SET sql_log_bin=0")
        end(database.admin, LOST, "ROLLBACK")
        database.admin.execute_raw("SET sql_log_bin=1")
        end(database.admin, KEPT, "COMMIT")
        truth = database.admin.rows("SELECT id, v FROM t")
    assert run.result().event == "complete", run.said
    assert database.admin.rows("SELECT id, v FROM t") == truth
    assert truth[1:] == [(2, 2), (3, 3)]
