"""A MariaDB that crashes between what its log says of an XA branch and what InnoDB has of it.

MariaDB logs XA PREPARE and XA COMMIT before InnoDB does them, and its recovery does not compare the two. With
innodb_flush_log_at_trx_commit=0 InnoDB's part is in no file yet, so that a kill -9 then is such a crash each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database, create_database
from tests.support import in_memory
from tests.support.flow import Run, begin, paused_at, pauses, quick, wait_reached, wait_until
from tests.support.private_server import kill, private_server
from vreplication.changes import lost_branches
from vreplication.mysql.session import Session, connect

__all__ = ["pauses", "quick"]

pytestmark = pytest.mark.usefixtures("quick")
BRANCH = "'gt','bq'"


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """On a disk: in memory MariaDB's log is the file itself."""
    monkeypatch.setattr(in_memory, "_is_plenty", lambda: False)
    monkeypatch.setattr(lost_branches, "LOOK_SECONDS", 0.2)
    with private_server("mariadb", {"innodb-flush-log-at-timeout": 2700}) as server:
        made = create_database(server)
        made.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        made.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
        yield made


@pytest.fixture
def run(database: Database, pauses: Path) -> Iterator[Run]:
    """At the gate, where it has verified."""
    with paused_at(pauses, "workflow.gate_open"):
        found = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.gate_open", found)
        yield found


def branch(session: Session, *statements: str) -> None:
    for each in (f"XA START {BRANCH}", *statements, f"XA END {BRANCH}", f"XA PREPARE {BRANCH}"):
        session.execute_raw(each)


def has_gone_round(database: Database) -> bool:
    """InnoDB's master, twice: its second round, a second behind the start, writes the log down whatever is set."""
    loops = "SHOW GLOBAL STATUS LIKE 'Innodb\\_master\\_thread\\_%\\_loops'"
    return sum(int(value) for _, value in database.admin.rows(loops)) >= 2


def forget(database: Database) -> None:
    """From now on InnoDB writes nothing down."""
    wait_until(lambda: has_gone_round(database), "InnoDB's master does not go round", 30)
    database.admin.execute_raw("SET GLOBAL innodb_flush_log_at_trx_commit=0")


def crash(database: Database) -> None:
    kill(database.server)
    database.server.restart()
    database.reconnect()


def listed(database: Database) -> int:
    return len(database.admin.rows("XA RECOVER"))


def test_a_branch_that_is_only_in_the_log_is_given_up(database: Database, run: Run, pauses: Path) -> None:
    with connect(database.app_url) as app:
        forget(database)
        branch(app, "UPDATE t SET v=99 WHERE id=2")
        crash(database)
    assert listed(database) == 0
    database.admin.execute_raw("UPDATE t SET v=20 WHERE id=2")
    (pauses / "workflow.gate_open").unlink()
    assert run.result().event == "complete", run.said
    assert database.admin.rows("SELECT id, v FROM t") == [(1, 1), (2, 20), (3, 3)]


def test_a_branch_that_ends_otherwise_the_second_time(database: Database, run: Run, pauses: Path) -> None:
    """The log said that it was committed, and that is applied; the verification that a crash asks for sees it."""
    with connect(database.app_url) as app:
        branch(app, "UPDATE t SET v=99 WHERE id=2")
        forget(database)
        app.execute_raw(f"XA COMMIT {BRANCH}")
        crash(database)
    assert listed(database) == 1
    (pauses / "workflow.gate_open").unlink()
    database.admin.execute_raw(f"XA ROLLBACK {BRANCH}")
    assert run.ended().event == "complete", run.said
    assert database.admin.rows("SELECT id, v FROM t") == [(1, 1), (2, 2), (3, 3)]
