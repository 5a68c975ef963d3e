"""What could be lost without a word while tables move: changes that stand in no log that is read, and what a
verification has found wrong."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import local_spark
from tests.support.flow import contents, paused_at, pauses, wait_reached, wait_until
from tests.support.moving import Move, begin, quick, route_of
from tests.support.pairs import FOLLOW, Pair, _pair_servers, pair
from vreplication import names
from vreplication.cutover import deny
from vreplication.mysql.processes import processes
from vreplication.state import moves, verdicts, workflows
from vreplication.state.moves import Side
from vreplication.verify import ranges, since
from vreplication.workflows.move_tables import operate, steps

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick", "unsampled"), pytest.mark.either]
BOTH_WAYS = pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
ROWS = 300
HIDDEN = names.shadow_table("t")


@pytest.fixture
def unsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large table the rows that are looked at once more before a switch are few; here they would be all."""
    monkeypatch.setattr(since, "_SAMPLES", 0)


def fill(pair: Pair, columns: str = "n INT NOT NULL, v VARCHAR(40)") -> None:
    pair.source.admin.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) COLLATE utf8mb4_general_ci")
    values = ",".join(f"({i},{i * 7},'v{i}')" for i in range(ROWS))
    pair.source.admin.execute_raw(f"INSERT INTO t (id,n,v) VALUES {values}")


def at_the_gate(pair: Pair) -> Move:
    fill(pair)
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    return move


def switched(pair: Pair, move: Move) -> None:
    """And nothing is missing."""
    move.wait_serving(Side.TARGET, 2)
    assert contents(pair.target.admin, "t") == contents(pair.source.admin, "t")
    assert pair.target.admin.value("SELECT COUNT(*) FROM t") == ROWS
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_rows_that_a_verification_at_the_gate_finds_wrong_are_not_switched(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repairs nothing; the one before it was clean, and counts no more."""
    monkeypatch.setattr(operate, "SparkStart", local_spark.LocalStart)
    move = at_the_gate(pair)
    pair.target.admin.execute_raw(f"UPDATE {HIDDEN} SET v='foreign' WHERE id=250")
    route = route_of(pair)
    found = operate.verify(route.home, route.source, move.workflow, "", threading.Event())
    assert found.verdict == verdicts.BAD, found
    move.release()
    switched(pair, move)


@BOTH_WAYS
@pytest.mark.parametrize("statement", ["OPTIMIZE TABLE", "TRUNCATE TABLE"])
def test_a_copy_that_was_made_anew_on_the_target_is_verified_again(pair: Pair, statement: str) -> None:
    """Nobody reads the target's log before the switch. RENAME would not have found it either."""
    move = at_the_gate(pair)
    pair.target.admin.rows(f"{statement} {HIDDEN}")
    move.release()
    switched(pair, move)


@BOTH_WAYS
def test_of_two_tables_the_second_that_was_made_anew_is_verified_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verification of the first, whose last one counts, was ended as needless, and all with it."""
    known = steps.verify

    def of_many_rows(*given: Any, **more: Any) -> Any:
        given[3].on_tick(1)
        return known(*given, **more)

    monkeypatch.setattr(steps, "verify", of_many_rows)
    fill(pair)
    pair.source.admin.execute_raw("CREATE TABLE u LIKE t")
    pair.source.admin.execute_raw("INSERT INTO u SELECT * FROM t")
    move = begin(pair, "t", "u", cutover="manual")
    move.wait_for_release()
    pair.target.admin.rows(f"OPTIMIZE TABLE {names.shadow_table('u')}")
    move.release()
    switched(pair, move)
    assert not any(words.startswith("verification interrupted") for words in move.said), move.said[:20]


@pytest.mark.parametrize("pair", ["mysql-mariadb", "mysql-mysql"], indirect=True)
def test_a_copy_that_is_emptied_behind_the_decision_is_not_opened(pair: Pair, pauses: Path) -> None:
    """Whoever held its lock was lost. It says what to do, and the same command goes on then."""
    move = at_the_gate(pair)
    with paused_at(pauses, "switch.decided"):
        move.release()
        wait_reached(pauses, "switch.decided", move)
        for process in processes(pair.target.admin).values():
            if process.user == pair.target.user:
                pair.target.admin.kill(process.id)
        pair.target.admin.execute_raw(f"CREATE TABLE kept LIKE {HIDDEN}")
        pair.target.admin.execute_raw(f"INSERT INTO kept SELECT * FROM {HIDDEN}")
        pair.target.admin.execute_raw(f"TRUNCATE TABLE {HIDDEN}")
    result = move.result()
    assert result.event == "failed", (result, move.said)
    assert "in the very moment of the switch" in (result.reason or ""), result
    pair.target.admin.execute_raw(f"INSERT INTO {HIDDEN} SELECT * FROM kept")
    pair.target.admin.execute_raw(f"RENAME TABLE {HIDDEN} TO t")
    switched(pair, move.start())


@contextlib.contextmanager
def switching_back(pair: Pair, pauses: Path) -> Iterator[Move]:
    """Verified, and about to deny writes on the target."""
    fill(pair)
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    with paused_at(pauses, "switch.denying"):
        move.ask(moves.REVERSE)
        wait_reached(pauses, "switch.denying", move)
        yield move


@BOTH_WAYS
def test_what_is_looked_at_once_more_before_the_way_back_is_of_the_whole_table(
    pair: Pair, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its verification somebody writes on the old server, which no log that is read tells."""
    monkeypatch.setattr(since, "_SAMPLES", ROWS)
    monkeypatch.setattr(ranges, "_SPAN_ROWS", (20, 20))
    fill(pair)
    move = begin(pair, "t", chunk_rows=20)
    move.wait_serving(Side.TARGET, 2)
    with paused_at(pauses, "workflow.gate_open"):
        move.ask(moves.REVERSE)
        wait_reached(pauses, "workflow.gate_open", move)
        found = move.state()
        assert found is not None
        deny.exempt(pair.source.admin, found.secret)
        pair.source.admin.execute_raw("UPDATE t SET v='foreign' WHERE id=290")
    result = move.result()
    assert result.event == "failed", (result, move.said)
    assert "rows of t on the source differ" in (result.reason or ""), result


@BOTH_WAYS
def test_an_old_table_that_is_truncated_is_not_switched_back_to(pair: Pair, pauses: Path) -> None:
    """No trigger stops that, and behind the verification nobody looks."""
    with switching_back(pair, pauses) as move:
        pair.source.admin.execute_raw("TRUNCATE TABLE t")
    result = move.result()
    assert result.event == "failed", (result, move.said)
    assert "differs from what it was copied from" in (result.reason or ""), result
    pair.target.admin.execute_raw("INSERT INTO t VALUES (5000, 1, 'open')")
    assert pair.target.admin.value("SELECT COUNT(*) FROM t") == ROWS + 1


@BOTH_WAYS
def test_an_old_table_with_another_unique_key_is_not_switched_back_to(pair: Pair, pauses: Path) -> None:
    """A row that is written there pushes out one that nobody has written, and so nobody compares."""
    with switching_back(pair, pauses) as move:
        pair.source.admin.execute_raw("ALTER TABLE t ADD UNIQUE KEY added (n)")
        pair.target.admin.execute_raw("INSERT INTO t VALUES (5000, 7, 'as row 1')")
    result = move.result()
    assert result.event == "failed", (result, move.said)
    assert "the unique key added" in (result.reason or ""), result
    pair.target.admin.execute_raw("INSERT INTO t VALUES (5001, 1, 'open')")
    assert pair.target.admin.value("SELECT COUNT(*) FROM t") == ROWS + 2


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_an_original_whose_other_name_is_taken_stays_denied(pair: Pair) -> None:
    """Of a move before, say: without its new name and without triggers it would take writes that nobody reads."""
    fill(pair)
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    taken = names.retired_table("t", move.workflow)
    pair.source.admin.execute_raw(f"CREATE TABLE {taken} (id INT PRIMARY KEY)")
    move.ask(moves.COMPLETE)
    result = move.result()
    assert result.event == "failed", result
    assert taken in (result.reason or "")
    assert deny.is_denied(pair.source.admin, (pair.source.name, "t"), workflow=move.workflow)
    pair.source.admin.execute_raw(f"DROP TABLE {taken}")
    assert move.start().result().event == "complete"
    assert pair.source.admin.value(f"SELECT COUNT(*) FROM {taken}") == ROWS


@BOTH_WAYS
def test_an_end_that_was_cut_off_behind_the_drop_goes_on(pair: Pair, pauses: Path) -> None:
    """What the application has made there under the old name meanwhile is none of ours."""
    fill(pair)
    move = begin(pair, "t", retired="drop")
    move.wait_serving(Side.TARGET, 2)
    with paused_at(pauses, "complete.dropped"):
        move.ask(moves.COMPLETE)
        wait_reached(pauses, "complete.dropped", move)
        pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        pair.source.admin.execute_raw("INSERT INTO t VALUES (1)")
        for process in processes(pair.target.admin).values():
            if process.user == pair.target.user:
                pair.target.admin.kill(process.id)
    result = move.result()
    assert result.event == "complete", (result, move.said)
    assert pair.source.admin.rows("SHOW TABLES") == [("t",)]
    assert pair.target.admin.value("SELECT COUNT(*) FROM t") == ROWS


@contextlib.contextmanager
def a_replica(database: Database) -> Iterator[None]:
    """Inside the block the server applies what another one might send."""
    follow, word, reset = FOLLOW[database.server.is_mariadb]
    database.admin.execute_raw(follow)
    try:
        database.admin.execute_raw(f"START {word} SQL_THREAD")
        yield
    finally:
        database.admin.execute_raw(f"STOP {word}")
        database.admin.execute_raw(reset)


def wait_not_begun(move: Move, side: Side, number: int) -> None:
    words = f"the {side} is a replica"
    wait_until(lambda: any(words in said for said in move.said), f"it was not seen: {move.said}")
    found = move.state()
    assert found is not None
    assert found.number == number


@BOTH_WAYS
def test_a_source_that_has_become_a_replica_is_not_switched(pair: Pair) -> None:
    """As after a failover to another server, which the application writes to now."""
    move = at_the_gate(pair)
    with a_replica(pair.source):
        move.release()
        wait_not_begun(move, Side.SOURCE, 1)
    switched(pair, move)


@BOTH_WAYS
def test_a_target_that_has_become_a_replica_is_not_switched_back(pair: Pair) -> None:
    """Rows that it replicates would be written there behind the switch, and stay there."""
    fill(pair)
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    with a_replica(pair.target):
        move.ask(moves.REVERSE)
        wait_not_begun(move, Side.TARGET, 2)
    move.wait_serving(Side.SOURCE, 3)
    move.stop.set()
    move.result()


@contextlib.contextmanager
def a_backup(database: Database) -> Iterator[None]:
    """Inside the block one forbids DDL."""
    stages = [f"BACKUP STAGE {stage}" for stage in ("START", "FLUSH", "BLOCK_DDL")]
    begin, end = (stages, "BACKUP STAGE END") if database.server.is_mariadb else ([], "UNLOCK INSTANCE")
    with database.server.admin() as session:
        for sql in begin or ["LOCK INSTANCE FOR BACKUP"]:
            session.execute_raw(sql)
        yield
        session.execute_raw(end)


@BOTH_WAYS
def test_a_backup_that_begins_while_writes_are_denied_does_not_keep_them_so(pair: Pair, pauses: Path) -> None:
    """It forbids DDL for as long as it takes: behind the decision RENAME would wait for it, and all writers."""
    move = at_the_gate(pair)
    with contextlib.ExitStack() as stack:
        with paused_at(pauses, "switch.denied"):
            move.release()
            wait_reached(pauses, "switch.denied", move)
            stack.enter_context(a_backup(pair.target))
        wait_until(lambda: any("switch not done" in words for words in move.said), f"not given up: {move.said}", 30.0)
        pair.source.admin.execute_raw("UPDATE t SET v='meanwhile' WHERE id=1")
    switched(pair, move)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("pair", ["mysql-mysql"], indirect=True)
def test_no_write_is_denied_while_a_backup_forbids_ddl(pair: Pair, side: str) -> None:
    move = at_the_gate(pair)
    with a_backup(pair.source if side == "source" else pair.target):
        move.release()
        wait_until(lambda: any("a backup on" in words for words in move.said), f"it was not seen: {move.said}", 60.0)
        assert not any("switch not done" in words for words in move.said), move.said
        pair.source.admin.execute_raw("UPDATE t SET v='meanwhile' WHERE id=1")
    switched(pair, move)


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_document_with_values_that_no_text_can_hold(pair: Pair) -> None:
    """MariaDB does not know the expression that rebuilds it on MySQL; it has the text, as the copy has."""
    fill(pair, "n INT NOT NULL, v VARCHAR(40), j JSON")
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    pair.source.admin.execute_raw(
        "UPDATE t SET j=JSON_OBJECT('n',CAST(5 AS UNSIGNED),'is',true,'d',CAST('2020-01-02' AS DATE),'x',1.0e0,"
        "'m',CAST('1.50' AS DECIMAL(5,2)),'s','\\t\"ü','l',JSON_ARRAY(NULL,1e20)) WHERE id < 5"
    )
    move.catch_up()
    sql = "SELECT j FROM {} WHERE id=3"
    assert json.loads(pair.target.admin.value(sql.format(HIDDEN))) == json.loads(
        pair.source.admin.value(sql.format("t"))
    )
    move.release()
    move.wait_serving(Side.TARGET, 2)
    move.check_right_at_once()
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"


@BOTH_WAYS
def test_a_copy_that_was_made_anew_is_named_by_the_cancel_that_leaves_it(pair: Pair) -> None:
    """It was said that all had been removed, and the copy stayed on the target."""
    move = at_the_gate(pair)
    pair.target.admin.rows(f"OPTIMIZE TABLE {HIDDEN}")
    workflows.request_cancel(pair.target.admin, move.workflow)
    result = move.result()
    assert (result.event, f"{pair.target.name}.{HIDDEN} on the target: stays" in (result.reason or "")) == (
        "cancelled",
        True,
    ), result
    assert pair.target.admin.value(f"SELECT COUNT(*) FROM {HIDDEN}") == ROWS
