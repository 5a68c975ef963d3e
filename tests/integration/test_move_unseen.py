"""What a move met in a moment in which it did not look: tables and rows that come within the switch, and what others
do to the side that was left.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.flow import let_go, paused_at, pauses, until_taken, wait_reached, wait_until
from tests.support.moving import Move, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication import names
from vreplication.errors import Refused, Terminal
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.state import journal, moves, workflows
from vreplication.state.moves import Side
from vreplication.verify import since
from vreplication.workflows import operate
from vreplication.workflows.move_tables import opening

__all__ = ["_pair_servers", "pair", "pauses", "quick"]

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
APPLYING = "apply.before_flush"
BOTH = pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
TABLE = "(id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40)) COLLATE utf8mb4_general_ci"


def fill(pair: Pair, *tables: str, rows: int = 300) -> None:
    for name in tables:
        pair.source.admin.execute_raw(f"CREATE TABLE {name} {TABLE}")
        values = ",".join(f"({i},{i * 7},'v{i}')" for i in range(rows))
        pair.source.admin.execute_raw(f"INSERT INTO {name} VALUES {values}")


def events(move: Move) -> list[tuple[str, str]]:
    return [(str(e["event"]), str(e["details"])) for e in journal.read(move.pair.target.admin, move.workflow)]


@BOTH
def test_what_stays_behind_loses_no_rows_by_a_foreign_key_made_later(pair: Pair) -> None:
    """REPLACE deletes first, and MariaDB's foreign keys act on that: ON DELETE CASCADE."""
    fill(pair, "t")
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    old = pair.source.admin
    old.execute_raw(
        "CREATE TABLE child (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES t (id) ON DELETE CASCADE)"
    )
    old.execute_raw("INSERT INTO child VALUES (1,1),(2,2),(3,3)")
    with connect(pair.target.app_url) as app:
        app.execute_raw("UPDATE t SET v='changed' WHERE id IN (1,2)")
    wait_until(lambda: old.value("SELECT v FROM t WHERE id=2") == "changed", "the way back does not follow")
    assert old.value("SELECT COUNT(*) FROM child") == 3
    move.stop.set()
    move.result()


@BOTH
def test_a_table_that_makes_way_is_looked_at_once_more(pair: Pair, pauses: Path) -> None:
    """A transaction that has filled it commits while RENAME waits for it."""
    fill(pair, "t")
    pair.target.admin.execute_raw(f"CREATE TABLE t {TABLE}")
    move = begin(pair, "t", cutover="manual", resume_into=True)
    move.wait_for_release()
    with connect(pair.target.app_url) as app:
        with paused_at(pauses, "switch.compared"):
            move.release()
            wait_reached(pauses, "switch.compared", move)
            app.execute_raw("BEGIN")
            app.execute_raw("INSERT INTO t VALUES (7777,1,'written on the target')")
        wait_until(lambda: is_renaming(pair), "it does not wait for the transaction")
        app.execute_raw("COMMIT")
    ended = move.result()
    assert (ended.event, "has rows" in (ended.reason or "")) == ("failed", True), ended
    with connect(pair.source.app_url) as app:
        app.execute_raw("UPDATE t SET v='open' WHERE id=1")


def is_renaming(pair: Pair) -> bool:
    return any("RENAME" in str(info) for *_, info in pair.target.admin.rows("SHOW PROCESSLIST")) or any(
        "RENAME" in str(row) for row in pair.target.admin.rows("SHOW FULL PROCESSLIST")
    )


@BOTH
@pytest.mark.parametrize(("point", "is_held"), [("switch.denied", True), ("switch.decided", False)])
def test_a_table_that_comes_within_the_switch(pair: Pair, pauses: Path, point: str, is_held: bool) -> None:
    """Of a move of all tables: it holds the switch, or it is told that it was left behind."""
    fill(pair, "t")
    move = begin(pair, all_tables=True)
    with paused_at(pauses, point):
        wait_reached(pauses, point, move)
        pair.source.admin.execute_raw("CREATE TABLE late (id INT PRIMARY KEY)")
    wait_until(lambda: ("left behind", "late") in events(move), f"not told: {move.said}")
    if is_held:
        assert moves.load(pair.target.admin, move.workflow).serving is Side.SOURCE
    else:
        move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_branch_that_the_way_back_does_not_know_is_not_passed_over(
    pair: Pair, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MariaDB's log may have one behind a crash. What was compared before its commit counts no more."""
    monkeypatch.setattr(since, "_SAMPLES", 0)
    fill(pair, "t", rows=5_000)
    move = begin(pair, "t")
    move.wait_serving(Side.TARGET, 2)
    target = pair.target.admin
    with paused_at(pauses, "workflow.gate_open"):
        move.ask(moves.REVERSE)
        wait_reached(pauses, "workflow.gate_open", move)
        with pair.target.server.admin(pair.target.name) as other:
            other.execute_raw("SET SESSION sql_log_bin=0")
            for words in ("START 'z'", "END 'z'", "PREPARE 'z'"):
                other.execute_raw(f"XA {words}")
                if words.startswith("START"):
                    other.execute_raw("UPDATE t SET v='branch' WHERE id=4999")
        until_taken(target, "XA COMMIT 'z'")
    wait_until(lambda: not move.is_going or has_come_back(pair, move), "neither ended nor switched back", 180)
    assert pair.source.admin.value("SELECT v FROM t WHERE id=4999") == "branch" or not has_come_back(pair, move)
    move.stop.set()


def has_come_back(pair: Pair, move: Move) -> bool:
    return moves.load(pair.target.admin, move.workflow).serving is Side.SOURCE


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_cancel_that_was_refused_is_not_kept(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the decision, by an operator who is told so; after `reverse` it would take the target's tables away."""
    fill(pair, "t")
    with monkeypatch.context() as patched:

        def dies(*_: object) -> None:
            raise Terminal("the driver dies here")

        patched.setattr(opening, "rename", dies)
        move = begin(pair, "t")
        move.result()
    refused = operate.cancel(pair.target.url, move.workflow, "ann", pair.source.url)
    # `reverse` and `complete` would be refused by now.
    cure = f"vreplication resume {move.workflow}"
    assert (refused.event, cure in (refused.reason or "")) == ("refused", True), refused
    assert not workflows.load(pair.target.admin, move.workflow).is_cancel_requested


@BOTH
def test_a_cancel_behind_the_decision_does_not_leave_writes_denied_on_both_sides(pair: Pair, pauses: Path) -> None:
    """A reader of the new table, who came as soon as its lock was gone, holds RENAME up."""
    fill(pair, "t")
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    hidden, home = names.shadow_table("t"), pair.target.admin
    with connect(pair.target.app_url) as reader, paused_at(pauses, "switch.decided"):
        move.release()
        wait_reached(pauses, "switch.decided", move)
        reader.execute_raw("BEGIN")
        taken = until_waits(home, reader, f"SELECT COUNT(*) FROM {hidden}")
        operate.request_cancel(home, workflows.load(home, move.workflow), "ann")
        let_go(pauses, "switch.decided")
        taken.join(30)
        wait_until(lambda: not move.is_going or is_held_up(move), f"RENAME does not wait: {move.said}")
        reader.execute_raw("COMMIT")
        move.wait_serving(Side.TARGET, 2)
    assert ("cancel came too late", "the tables are switched") in events(move)
    move.stop.set()
    move.result()


def is_held_up(move: Move) -> bool:
    """Also behind what gives an attempt up."""
    return sum("Trying again." in words for words in move.said) > 2


def until_waits(home: Session, reader: Session, sql: str) -> threading.Thread:
    """A statement that waits for a lock by now, in a thread."""
    thread = threading.Thread(target=reader.rows, args=(sql,), daemon=True)
    thread.start()
    states = "SELECT COUNT(*) FROM information_schema.processlist WHERE id=%s AND state LIKE 'Waiting for%%lock'"
    wait_until(lambda: bool(home.value(states, (reader.id,))), "the reader does not wait")
    return thread


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
@pytest.mark.parametrize("retired", ["keep", "drop"])
def test_an_old_table_that_was_dropped_does_not_hold_the_end(pair: Pair, retired: str) -> None:
    fill(pair, "t", "u")
    move = begin(pair, "t", "u", retired=retired)
    move.wait_serving(Side.TARGET, 2)
    move.stop.set()
    move.result()
    pair.source.admin.execute_raw("DROP TABLE t")
    move.ask(moves.COMPLETE)
    ended = move.start().result()
    assert ended.event == "complete", ended
    left = [str(name) for (name,) in pair.source.admin.rows("SHOW TABLES")]
    assert left == ([names.retired_table("u", move.workflow)] if retired == "keep" else [])


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_an_old_table_that_was_rebuilt_stays_and_is_named(pair: Pair) -> None:
    """With `--retired drop`: it is not known any more for the original."""
    fill(pair, "t")
    move = begin(pair, "t", retired="drop")
    move.wait_serving(Side.TARGET, 2)
    # Beside the last steps of the switch it may fail, which it says in a row.
    wait_until(lambda: pair.source.admin.rows("OPTIMIZE TABLE t")[-1][3] == "OK", "it was not rebuilt")
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"
    kept = names.retired_table("t", move.workflow)
    assert any(kept in details for event, details in events(move) if event == "not dropped"), events(move)


@BOTH
def test_an_old_table_that_was_rebuilt_is_named_by_cleanup(pair: Pair) -> None:
    """It said that nothing was left, and the original stayed with all of its rows."""
    fill(pair, "t", "u")
    move = begin(pair, "t", "u")
    move.wait_serving(Side.TARGET, 2)
    move.ask(moves.COMPLETE)
    assert move.result().event == "complete"
    t, u = (names.retired_table(name, move.workflow) for name in "tu")
    source, target = pair.source, pair.target
    source.admin.rows(f"OPTIMIZE TABLE {u}")
    with pytest.raises(Refused, match="rebuilt"):
        operate.cleanup(target.url, move.workflow, "ann", source.url)
    assert sorted(str(name) for (name,) in source.admin.rows("SHOW TABLES")) == sorted([t, u])
    source.admin.execute_raw(f"DROP TABLE {u}")
    assert operate.cleanup(target.url, move.workflow, "ann", source.url) == [f"{source.name}.{t}"]


@BOTH
def test_who_keeps_writes_denied_behind_an_attempt_is_named(pair: Pair, pauses: Path) -> None:
    """It has read the table in a transaction since writes are denied, and the triggers cannot be dropped."""
    fill(pair, "t")
    move = begin(pair, "t", cutover="manual")
    move.wait_for_release()
    with connect(pair.source.app_url) as reader, connect(pair.source.app_url) as app, paused_at(pauses, APPLYING):
        with paused_at(pauses, "switch.denied"):
            (pauses / APPLYING).unlink()
            with paused_at(pauses, "switch.denying"):
                move.release()
                wait_reached(pauses, "switch.denying", move)
                # Catch-up does not come to the last marker in time.
                (pauses / APPLYING).touch()
                app.execute_raw("UPDATE t SET n=n+1 WHERE id=2")
                wait_reached(pauses, APPLYING, move)
            wait_reached(pauses, "switch.denied", move)
            reader.execute_raw("BEGIN")
            reader.rows("SELECT COUNT(*) FROM t")
        wait_until(lambda: any(f"connection {reader.id} " in words for words in move.said), f"not named: {move.said}")
        reader.execute_raw("COMMIT")
        wait_until(lambda: takes_writes(app), "writes stay denied")
        move.stop.set()
    move.result()


def takes_writes(app: Session) -> bool:
    try:
        app.execute_raw("UPDATE t SET v='open' WHERE id=1")
    except SqlError:
        return False
    return True
