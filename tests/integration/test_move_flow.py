"""Tables move to another server and back, under live writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.flow import contents, let_go, paused_at, pauses, wait_reached, wait_until
from tests.support.moving import Move, application, begin, quick, route_of
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication import names
from vreplication.cutover import deny
from vreplication.mysql.processes import processes
from vreplication.mysql.session import LockWait, SqlError, connect
from vreplication.settings import SIDECAR
from vreplication.state import moves, since, source_marks
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import run, switch

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]

T = "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40), KEY (n)) COLLATE utf8mb4_general_ci"
U = "CREATE TABLE u (a VARCHAR(20), b INT, d DECIMAL(9,3), PRIMARY KEY (a, b)) COLLATE latin1_swedish_ci"


def fill(pair: Pair, rows: int = 3_000) -> None:
    admin = pair.source.admin
    for create in (T, U):
        admin.execute_raw(create)
    values = ",".join(f"({i},{i * 7},'v{i}')" for i in range(rows))
    admin.execute_raw(f"INSERT INTO t VALUES {values}")
    admin.execute_raw("INSERT INTO u VALUES " + ",".join(f"('k{i % 17}',{i},{i}.125)" for i in range(rows // 4)))


def assert_refused(pair: Pair, side: Side) -> None:
    """The side that does not serve takes no write."""
    database = pair.source if side is Side.SOURCE else pair.target
    with connect(database.app_url) as session:
        with pytest.raises(SqlError) as refusal:
            session.execute_raw("INSERT INTO t VALUES (9999999, 1, 'x')")
    assert refusal.value.code == 1290
    assert contents(database.admin, "t")


def test_there_and_back_and_there_again(pair: Pair) -> None:
    fill(pair)
    with application(pair) as app:
        move = begin(pair, "t", "u")
        move.reach(Side.TARGET, 2, app)
        assert_refused(pair, Side.SOURCE)
        move.ask(moves.REVERSE)
        move.reach(Side.SOURCE, 3, app)
        assert_refused(pair, Side.TARGET)
        move.release()
        move.reach(Side.TARGET, 4, app)
        app.end()
        app.check(pair.target.admin)
        move.ask(moves.COMPLETE)
        result = move.result()
    assert result.event == "complete", (result, move.said)
    move.check_right_at_once()
    app.check(pair.target.admin)
    assert pair.target.admin.value("SELECT COUNT(*) FROM u") == 750
    left = {str(name) for (name,) in pair.source.admin.rows("SHOW TABLES")}
    assert left.isdisjoint({"t", "u"})
    assert len(left) == 2


def test_branches_deletes_and_swaps_beside_the_copy(pair: Pair, pauses: Path) -> None:
    """While a chunk is open: an XA branch that commits, one that is rolled back, a delete, a swap of unique values."""
    admin = pair.source.admin
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL UNIQUE, v VARCHAR(40)) COLLATE utf8mb4_bin")
    admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i},'v{i}')" for i in range(600)))
    with paused_at(pauses, "copy.after_select"):
        move = begin(pair, "t", cutover="manual", chunk_rows=200)
        wait_until(lambda: (pauses / "copy.after_select.reached").exists(), "nobody copies")
        with connect(pair.source.app_url) as session:
            for name, end in (("kept", "COMMIT"), ("gone", "ROLLBACK")):
                for statement in (
                    f"XA START '{name}'",
                    f"UPDATE t SET v='{name}' WHERE id={5 if end == 'COMMIT' else 6}",
                    f"XA END '{name}'",
                    f"XA PREPARE '{name}'",
                    f"XA {end} '{name}'",
                ):
                    session.execute_raw(statement)
            session.execute_raw("DELETE FROM t WHERE id IN (1, 201, 599)")
            with session.transaction():
                session.execute_raw("UPDATE t SET n=-1 WHERE id=10")
                session.execute_raw("UPDATE t SET n=10 WHERE id=11")
                session.execute_raw("UPDATE t SET n=11 WHERE id=10")
            session.execute_raw("UPDATE t SET id=1000 WHERE id=300")
            expected = session.rows("SELECT id, n, v FROM t ORDER BY id")
        # A delete is applied before the row that it deletes lands.
        move.catch_up()
    move.wait_for_release()
    move.release()
    move.wait_serving(Side.TARGET, 2)
    assert pair.target.admin.rows("SELECT id, n, v FROM t ORDER BY id") == expected
    move.check_right_at_once()
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_transaction_is_whole_or_not_there(pair: Pair) -> None:
    """Over two tables, also one of more rows than a batch: who reads both on the other side sees all or nothing."""
    admin = pair.source.admin
    for name in ("t", "u"):
        admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT NOT NULL)")
        admin.execute_raw(f"INSERT INTO {name} VALUES " + ",".join(f"({i},0)" for i in range(6_000)))
    move = begin(pair, "t", "u", cutover="manual")
    move.wait_for_release()
    seen: set[tuple[int, ...]] = set()
    hidden = [names.shadow_table(name) for name in ("t", "u")]
    with connect(pair.target.app_url) as reader, connect(pair.source.app_url) as writer:
        for n in range(1, 12):
            rows = 6_000 if n % 4 == 0 else 3
            with writer.transaction():
                for name in ("t", "u"):
                    writer.execute(f"UPDATE {name} SET n=%s WHERE id < %s", (n, rows))

            def is_there() -> bool:
                sql = f"SELECT MIN(a.n), MAX(a.n), MIN(b.n), MAX(b.n) FROM {hidden[0]} a JOIN {hidden[1]} b USING (id) "
                found = reader.row(sql + "WHERE id < 3")
                assert found is not None
                seen.add(tuple(map(int, found)))
                return found[0] == n  # noqa: B023

            wait_until(is_there, f"change {n} does not come")
    assert all(len(set(found)) == 1 for found in seen), seen
    move.stop.set()
    assert move.result().event == "interrupted"


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_what_ends_a_move_leaves_the_source_serving(pair: Pair) -> None:
    """DDL on a moved table; then a cancel removes what was made, on both servers."""
    fill(pair, 500)
    move = begin(pair, "t", "u", cutover="manual")
    move.wait_for_release()
    pair.source.admin.execute_raw("ALTER TABLE u ADD COLUMN e INT")
    result = move.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert "ALTER TABLE" in (result.reason or "")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (77777, 1, 'x')")
    assert run.cancel(route_of(pair), move.workflow).event == "cancelled"
    assert pair.target.admin.rows("SHOW TABLES") == []
    assert source_marks.streams(pair.source.admin) == []


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_what_ends_a_move_in_the_middle_of_its_copy_is_its_reason(pair: Pair, pauses: Path) -> None:
    """Catch-up meets it; the copy sees no more than that the workflow has ended."""
    fill(pair, 500)
    with paused_at(pauses, "copy.after_select"):
        move = begin(pair, "t", "u")
        wait_reached(pauses, "copy.after_select", move)
        pair.source.admin.execute_raw("ALTER TABLE u ADD COLUMN e INT")
        ended = f"SELECT 1 FROM {SIDECAR}.workflow WHERE id='{move.workflow}' AND phase='failed'"
        wait_until(lambda: pair.target.admin.row(ended), "catch-up does not end it")
    result = move.result()
    assert result.event == "failed", result
    assert "ALTER TABLE" in (result.reason or "")


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_who_writes_to_the_target_is_found(pair: Pair) -> None:
    """A row of somebody else on the target is copied again once, and named when it comes back."""
    fill(pair, 500)
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    hidden = names.shadow_table("t")
    pair.target.admin.execute_raw(f"UPDATE {hidden} SET v='foreign' WHERE id=250")
    # The application writes the same row, so that it is compared again before the switch.
    pair.source.admin.execute_raw("UPDATE t SET n=n+1 WHERE id=251")
    with connect(pair.target.url) as home:
        since.add(home, f"{move.workflow}.1", ["250"], 1)
    move.release()
    move.wait_serving(Side.TARGET, 2)
    assert pair.target.admin.value("SELECT v FROM t WHERE id=250") == "v250"
    assert any("differ" in words for words in journal_of(pair, move))
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


def journal_of(pair: Pair, move: Move) -> list[str]:
    sql = "SELECT details FROM _vreplication.journal WHERE workflow=%s"
    return [str(words) for (words,) in pair.target.admin.rows(sql, (move.workflow,))]


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_writer_in_the_way_gives_the_switch_up(pair: Pair) -> None:
    """A transaction that holds the table: the attempt ends after a second, the source is open, it is tried again."""
    fill(pair, 300)
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    with connect(pair.source.app_url) as writer:
        with writer.transaction():
            writer.execute_raw("UPDATE t SET n=99 WHERE id=1")
            move.release()
            wait_until(lambda: any("switch not done" in words for words in move.said), f"not given up: {move.said}")
            with connect(pair.source.app_url) as other:
                other.execute_raw("UPDATE t SET n=98 WHERE id=2")
    move.wait_serving(Side.TARGET, 2)
    assert pair.target.admin.rows("SELECT n FROM t WHERE id IN (1, 2) ORDER BY id") == [(99,), (98,)]
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mariadb-mysql", "mysql-mariadb"], indirect=True)
def test_who_waits_for_a_switch_that_is_given_up_sees_no_error(pair: Pair, pauses: Path) -> None:
    """Catch-up does not come to the last marker in time: with --deny wait the queued writer goes on, on the source."""
    fill(pair, 300)
    move = begin(pair, "t", cutover="manual", deny="wait")
    move.wait_for_release()
    with paused_at(pauses, "switch.denying", "apply.before_flush", "switch.marked"):
        move.release()
        wait_until(lambda: (pauses / "switch.denying.reached").exists(), "it is not tried")
        pair.source.admin.execute_raw("UPDATE t SET n=-1 WHERE id=1")
        wait_until(lambda: (pauses / "apply.before_flush.reached").exists(), "catch-up does not hold")
        let_go(pauses, "switch.denying")
        wait_until(lambda: (pauses / "switch.marked.reached").exists(), "it is not denied")
        with ThreadPoolExecutor(1) as queued, connect(pair.source.app_url) as writer:
            waiting = queued.submit(writer.execute_raw, "UPDATE t SET n=-2 WHERE id=2")
            let_go(pauses, "switch.marked")
            assert waiting.result(30) == 1
        assert deny.standing(pair.source.admin, (pair.source.name, "t"), workflow=move.workflow) == frozenset()
    move.wait_serving(Side.TARGET, 2)
    assert pair.target.admin.rows("SELECT n FROM t WHERE id IN (1, 2) ORDER BY id") == [(-1,), (-2,)]
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_a_table_that_is_truncated_meanwhile_is_not_switched(pair: Pair, pauses: Path) -> None:
    """No trigger stops TRUNCATE: behind the denial it waits, and one that waits is seen."""
    with denied_at(pair, pauses, "switch.marked") as move, ThreadPoolExecutor(1) as queued:
        with connect(pair.source.app_url) as other:
            waiting = queued.submit(other.execute_raw, "TRUNCATE TABLE t")
            wait_until(lambda: any("TRUNCATE" in str(row) for row in processlist(pair)), "nobody truncates")
            let_go(pauses, "switch.marked")
            waiting.result(60)
    assert_truncated(pair, move)


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_a_table_that_is_truncated_before_ddl_is_held_off(pair: Pair, pauses: Path) -> None:
    """Between the lock and the metadata lock: writes are not denied for longer than it takes to see it."""
    with denied_at(pair, pauses, "switch.released") as move:
        pair.source.admin.execute_raw("TRUNCATE TABLE t")
    assert_truncated(pair, move)
    assert any("was truncated" in words for words in move.said), move.said


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_a_table_that_is_truncated_when_the_lock_is_lost_is_not_switched(pair: Pair, pauses: Path) -> None:
    """Whoever has held DDL off is ended by the server, after all else has been looked at."""
    with denied_at(pair, pauses, "switch.compared") as move, connect(pair.source.app_url) as other:
        other.execute_raw("SET SESSION lock_wait_timeout=1")
        with pytest.raises(LockWait):
            other.execute_raw("TRUNCATE TABLE t")
        for process in processes(pair.source.admin).values():
            if process.user == pair.source.user:
                pair.source.admin.kill(process.id)
        other.execute_raw("TRUNCATE TABLE t")
    assert_truncated(pair, move)


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_ddl_waits_for_a_decision_that_takes_longer_than_the_deadline(
    pair: Pair, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TRUNCATE that got in before the commit would be one of the source that nobody carries over."""
    monkeypatch.setattr(switch, "DEADLINE_SECONDS", 2.0)
    with denied_at(pair, pauses, "switch.deciding") as move, ThreadPoolExecutor(1) as queued:
        with connect(pair.source.app_url) as other:
            waiting = queued.submit(other.execute_raw, "TRUNCATE TABLE t")
            with pytest.raises(TimeoutError):
                waiting.result(2.5)
            let_go(pauses, "switch.deciding")
            move.wait_serving(Side.TARGET, 2)
            waiting.result(60)
    assert len(contents(pair.target.admin, "t")) == 300
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_who_stood_still_before_the_decision_does_not_decide(
    pair: Pair, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a frozen host: meanwhile the server has ended the session that held DDL off, and the source was truncated."""
    monkeypatch.setattr(switch, "SURE_SECONDS", 0.5)
    with denied_at(pair, pauses, "switch.deciding") as move:
        for process in processes(pair.source.admin).values():
            if process.user == pair.source.user:
                pair.source.admin.kill(process.id)
        with connect(pair.source.app_url) as other:
            other.execute_raw("TRUNCATE TABLE t")
        pair.target.admin.rows("SELECT SLEEP(1)")
    assert_truncated(pair, move)


@contextlib.contextmanager
def denied_at(pair: Pair, pauses: Path, point: str) -> Iterator[Move]:
    """The switch stands there, with writes denied."""
    fill(pair, 300)
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    with paused_at(pauses, point):
        move.release()
        wait_until(lambda: (pauses / f"{point}.reached").exists(), "it is not denied")
        yield move


def assert_truncated(pair: Pair, move: Move) -> None:
    """The stream meets it in the log; the source is open, and as the TRUNCATE has left it."""
    result = move.result()
    assert result.event == "failed", result
    assert "TRUNCATE" in (result.reason or "")
    assert pair.source.admin.value("SELECT COUNT(*) FROM t") == 0
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1, 1, 'open')")


def processlist(pair: Pair) -> list[object]:
    return list(pair.source.admin.rows("SHOW FULL PROCESSLIST"))


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_a_reader_on_the_old_server_gives_the_way_back_up(pair: Pair) -> None:
    """Behind the decision nothing may hold off the opening: who holds the old table is met before it."""
    fill(pair, 300)
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    with connect(pair.source.app_url) as reader:
        with reader.transaction():
            reader.rows("SELECT COUNT(*) FROM t")
            move.ask(moves.REVERSE)
            wait_until(lambda: any("switch not done" in words for words in move.said), f"not given up: {move.said}")
            pair.target.admin.execute_raw("INSERT INTO t VALUES (5000, 1, 'meanwhile')")
    move.wait_serving(Side.SOURCE, 3)
    assert pair.source.admin.value("SELECT v FROM t WHERE id=5000") == "meanwhile"
    move.stop.set()
    move.result()
    assert run.cancel(route_of(pair), move.workflow).event == "cancelled"
    assert pair.target.admin.rows("SHOW TABLES") == []


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_an_empty_table_makes_way_and_the_way_back_goes_on(pair: Pair) -> None:
    fill(pair, 300)
    pair.target.admin.execute_raw(T)
    move = begin(pair, "t", resume_into=True)
    move.wait_serving(Side.TARGET, 2)
    pair.target.admin.execute_raw("INSERT INTO t VALUES (5000, 1, 'new')")
    wait_until(lambda: pair.source.admin.value("SELECT v FROM t WHERE id=5000") == "new", f"{move.said}")
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_an_empty_table_that_made_way_comes_back_with_a_cancel(pair: Pair, pauses: Path) -> None:
    """The deadline passed behind it."""
    fill(pair, 30)
    pair.target.admin.execute_raw(T)
    with paused_at(pauses, "switch.before_decided", "switch.aborted"):
        move = begin(pair, "t", resume_into=True)
        wait_reached(pauses, "switch.before_decided", move)
        assert pair.target.admin.rows("SHOW TABLES LIKE 't'") == []
        denying = _denying(pair, move)
        wait_until(lambda: not denying & _ours(pair), "the session that denies outlives the deadline")
        let_go(pauses, "switch.before_decided")
        wait_reached(pauses, "switch.aborted", move)
        move.stop.set()
    move.result()
    assert run.cancel(route_of(pair), move.workflow).event == "cancelled"
    assert pair.target.admin.rows("SHOW TABLES") == [("t",)]
    assert contents(pair.target.admin, "t") == []


def _denying(pair: Pair, move: Move) -> set[int]:
    """As the driver notes them on the source; catch-up, which has lost its lease, may end there at any time."""
    sql = "SELECT detail FROM _vreplication.stream_marker WHERE stream=%s AND id='connections/driver'"
    return set(json.loads(str(pair.source.admin.value(sql, (move.workflow,))))["ids"])


def _ours(pair: Pair) -> set[int]:
    """Connections of ours to the source."""
    return {each.id for each in processes(pair.source.admin).values() if each.user == pair.source.user}


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_a_table_that_is_filled_on_the_target_meanwhile_does_not_make_way(pair: Pair, pauses: Path) -> None:
    """Made after the last look at the names: its rows are somebody's."""
    with denied_at(pair, pauses, "switch.marked") as move:
        pair.target.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        pair.target.admin.execute_raw("INSERT INTO t VALUES (77)")
    result = move.result()
    assert result.event == "failed", (result, move.said)
    assert "on the target has rows" in (result.reason or "")
    assert pair.target.admin.rows("SELECT * FROM t") == [(77,)]
    pair.source.admin.execute_raw("INSERT INTO t VALUES (5000, 1, 'open')")
    pair.target.admin.execute_raw("DROP TABLE t")
    move.start().wait_serving(Side.TARGET, 2)
    assert pair.target.admin.value("SELECT v FROM t WHERE id=5000") == "open"


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_name_that_is_taken_behind_the_decision(pair: Pair, pauses: Path) -> None:
    """Nobody can write: it says what to do, and the same command opens the target."""
    with denied_at(pair, pauses, "switch.decided") as move:
        pair.target.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    result = move.result()
    assert "Rename or drop it" in (result.reason or ""), result
    assert "writes fail until resume" in (result.reason or ""), result
    assert result.leftovers == ()
    pair.target.admin.execute_raw("DROP TABLE t")
    move.start()
    wait_until(lambda: (found := move.state()) and found.number == 2, f"not switched: {move.said}")
    pair.target.admin.execute_raw("INSERT INTO t VALUES (5000, 1, 'open')")
    # CREATE TABLE stands in the log that the way back reads.
    move.stop.set()
    move.result()


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
def test_a_definition_that_changes_on_the_new_server_ends_the_way_back(pair: Pair) -> None:
    """Whoever sees it first: it says what ends the workflow, and that does."""
    fill(pair, 300)
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    pair.target.admin.execute_raw("ALTER TABLE t ADD COLUMN more INT")
    result = move.result()
    assert result.event == "failed", result
    assert f"`vreplication complete {move.workflow}` ends it" in (result.reason or ""), result
    assert "RENAME COLUMN" not in (result.reason or ""), result
    pair.target.admin.execute_raw("INSERT INTO t VALUES (5000, 1, 'open', 1)")
    move.ask(moves.COMPLETE)
    assert move.start().result().event == "complete"


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_table_that_another_move_has_switched_is_not_switched_again(pair: Pair) -> None:
    fill(pair, 300)
    second = begin(pair, "t", cutover="manual")
    second.wait_for_release()
    deny.deny(pair.source.admin, [(pair.source.name, "t")], workflow="another", token="x", message="away").release()
    second.release()
    result = second.result()
    assert result.event == "failed", result
    assert "another workflow" in (result.reason or "")
    assert deny.is_denied(pair.source.admin, (pair.source.name, "t"), workflow="another")
