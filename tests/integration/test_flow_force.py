"""--force-cutover-after, and `blockers`: who is in the way is named, and ended only where a person asked for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.databases import Database
from sandbox.servers import RunningServer
from tests.support.flow import Run, begin, call, let_go, wait_reached, wait_until
from tests.support.private_server import missing, private_server
from vreplication.mysql.session import Session, connect
from vreplication.state import journal

pytestmark = pytest.mark.usefixtures("quick")
ADD = "ADD COLUMN z INT"


@pytest.fixture(scope="module", params=binaries.FLAVORS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """On MariaDB with the plugin that tells who holds a lock."""
    options: dict[str, object] = {}
    if request.param == "mariadb":
        plugin = binaries.mariadb_lock_info()
        if plugin is None:
            missing("MariaDB's plugin metadata_lock_info is not here. Run: python3 -m sandbox.install keyring")
        options = {"plugin-dir": plugin.parent, "plugin-load-add": plugin.name}
    with private_server(request.param, options) as started:
        yield started


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT) ENGINE=InnoDB")
        session.execute_raw("CREATE TABLE other (id INT PRIMARY KEY) ENGINE=InnoDB")
        session.execute_raw("INSERT INTO t VALUES (1,1),(2,2),(3,3)")
        yield session


@pytest.fixture
def may_kill(database: Database) -> None:
    """What sql/grants/ names for it."""
    right = "CONNECTION ADMIN" if database.server.flavor == "mariadb" else "CONNECTION_ADMIN"
    database.admin.execute_raw(f"GRANT {right} ON *.* TO '{database.user}'@'%'")


def _of(database: Database, run: Run, event: str) -> list[str]:
    with connect(database.url) as session:
        return [str(e["details"]) for e in journal.read(session, run.workflow) if e["event"] == event]


def _begin_anew(session: Session, statement: str) -> None:
    for each in ("COMMIT", "BEGIN", statement):
        session.execute_raw(each)


def _killed(database: Database, run: Run) -> list[str]:
    return _of(database, run, "killed")


@pytest.mark.in_turn
@pytest.mark.usefixtures("may_kill")
@pytest.mark.parametrize("strategy", ["online", "instant"])
def test_who_blocks_too_long_is_ended_and_journaled(app: Session, database: Database, strategy: str) -> None:
    with connect(database.app_url) as idle, connect(database.app_url) as innocent:
        innocent.execute_raw("BEGIN")
        innocent.execute_raw("INSERT INTO other VALUES (1)")
        idle.execute_raw("BEGIN")
        idle.execute_raw("UPDATE t SET a=9 WHERE id=1")
        run = begin(database, "t", ADD, force_cutover_after=1, strategy=strategy)
        result = run.result()
        assert result.event == "complete", result
        assert innocent.is_alive()
        (words,) = _killed(database, run)
        assert all(part in words for part in (f"connection {idle.id} ", database.app_user, "1 rows changed"))
        assert app.value("SELECT a FROM t WHERE id=1") == 1


@pytest.mark.either
@pytest.mark.usefixtures("may_kill")
def test_who_is_not_what_was_chosen_any_more_lives(app: Session, database: Database, pauses: Path) -> None:
    """Between choice and KILL: first with another transaction on the table, then with one that is in nobody's way."""
    point = pauses / "force.chosen"
    point.touch()
    with connect(database.app_url) as busy:
        _begin_anew(busy, "UPDATE t SET a=7 WHERE id=1")
        run = begin(database, "t", ADD, force_cutover_after=1)
        wait_reached(pauses, point.name, run)
        _begin_anew(busy, "UPDATE t SET a=9 WHERE id=1")
        (pauses / f"{point.name}.reached").unlink()
        let_go(pauses, point.name)
        point.touch()
        wait_until(lambda: len(_of(database, run, "not killed")) == 1, "nothing is said of the first")
        wait_reached(pauses, point.name, run)
        _begin_anew(busy, "INSERT INTO other VALUES (1)")
        let_go(pauses, point.name)
        assert run.result().event == "complete"
        assert busy.is_alive()
        busy.execute_raw("COMMIT")
    assert [words.count("its transaction") for words in _of(database, run, "not killed")] == [1, 1]
    assert app.value("SELECT a FROM t WHERE id=1") == 9


@pytest.mark.in_turn
@pytest.mark.usefixtures("may_kill")
@pytest.mark.parametrize("caps", [{"force_cutover_max_rows": 1}, {"force_cutover_max_age": 1}])
def test_who_would_lose_too_much_is_named_and_lives(app: Session, database: Database, caps: dict[str, int]) -> None:
    with connect(database.app_url) as busy:
        busy.execute_raw("BEGIN")
        busy.execute_raw("UPDATE t SET a=9")
        run = begin(database, "t", ADD, force_cutover_after=1, **caps)
        wait_until(lambda: any(f"{busy.id} is not ended" in words for words in run.said), "it is not said")
        assert busy.is_alive()
        seen = call(database, "blockers", run.workflow, "--json").last
        assert [b["connection_id"] for b in seen["blockers"]] == [busy.id]
        assert str(busy.id) in call(database, "blockers", run.workflow).out
        busy.execute_raw("COMMIT")
        assert run.result().event == "complete"
        assert _killed(database, run) == []
        assert call(database, "blockers", run.workflow).code == 2
    assert app.value("SELECT SUM(a) FROM t") == 27


@pytest.mark.usefixtures("may_kill")
def test_who_commits_while_it_is_chosen_is_not_journaled_as_ended(
    app: Session, database: Database, pauses: Path
) -> None:
    """Between the looks at transactions and locks, where its rows are no longer counted and its lock is still known."""
    point = pauses / "force.transactions_read"
    point.touch()
    with connect(database.app_url) as busy:
        _begin_anew(busy, "UPDATE t SET a=9")
        run = begin(database, "t", ADD, force_cutover_after=1, force_cutover_max_rows=1)
        wait_reached(pauses, point.name, run)
        busy.execute_raw("COMMIT")
        let_go(pauses, point.name)
        assert run.result().event == "complete"
        assert busy.is_alive()
    assert _killed(database, run) == []


def test_without_the_right_it_is_refused(app: Session, database: Database) -> None:
    result = begin(database, "t", ADD, force_cutover_after=1).result()
    assert (result.event, result.exit_code) == ("refused", 2)
    assert "CONNECTION" in (result.reason or "")


@pytest.mark.either
@pytest.mark.usefixtures("may_kill")
def test_a_transaction_that_grows_while_others_look_too_often_lives(app: Session, database: Database) -> None:
    """InnoDB shows an old copy of its transactions to whoever reads it often: there it has changed one row."""
    over, seen = threading.Event(), list[int]()

    def look() -> None:
        sql = "SELECT trx_rows_modified FROM information_schema.innodb_trx WHERE trx_mysql_thread_id=%s"
        with database.server.admin() as monitor:
            while not over.wait(0.02):
                seen.extend(int(rows) for (rows,) in monitor.rows(sql, (busy.id,)))

    with connect(database.app_url) as busy:
        busy.execute_raw("BEGIN")
        busy.execute_raw("UPDATE t SET a=9 WHERE id=1")
        looking = threading.Thread(target=look)
        looking.start()
        try:
            wait_until(lambda: 1 in seen, "it is not seen")
            busy.execute_raw("UPDATE t SET a=8")
            run = begin(database, "t", ADD, force_cutover_after=1, force_cutover_max_rows=1)
            said = (f"connection {busy.id} is not ended", f"ended connection {busy.id} ")
            wait_until(lambda: any(w.startswith(said) for w in run.said), "nothing is said of it")
            assert busy.is_alive()
        finally:
            over.set()
            looking.join()
        busy.execute_raw("ROLLBACK")
    assert run.result().event == "complete"
