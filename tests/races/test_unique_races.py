"""A new unique key while the table is written to: legal swaps come out exactly, real duplicates end the workflow."""

from __future__ import annotations

import re
import time

import pytest
from race_setup import Race

from tests.support.flow import Run, paused_at, wait_reached, wait_until
from vreplication import names
from vreplication.apply import rounds
from vreplication.settings import SIDECAR
from vreplication.state import keytables

pytestmark = pytest.mark.either

ALTER = "ADD UNIQUE KEY one (u)"
PATHS = ("rows", "server")

LEGAL = {
    "swapped": (
        "UPDATE t SET u=NULL WHERE id=10",
        "UPDATE t SET u=1 WHERE id=200",
        "UPDATE t SET u=20 WHERE id=10",
    ),
    "handed on to a new row": ("UPDATE t SET u=NULL WHERE id=30", "INSERT INTO t VALUES (35,'x',3)"),
    "of a deleted row": ("DELETE FROM t WHERE id=40", "INSERT INTO t VALUES (1000,'x',4)"),
    "handed on along the rows": tuple(f"UPDATE t SET u={100 + i} WHERE id={i * 10}" for i in range(1, 21))
    + tuple(f"UPDATE t SET u={i + 1} WHERE id={i * 10}" for i in range(1, 21)),
    "key changed": ("UPDATE t SET id=205 WHERE id=50", "UPDATE t SET u=5 WHERE id=205"),
}


@pytest.mark.parametrize("change", LEGAL)
@pytest.mark.parametrize(
    ("point", "path"), [("copy.after_select", "rows"), ("copy.after_open", "server"), ("workflow.copied", "server")]
)
@pytest.mark.in_turn
def test_a_legal_change_comes_out_exactly(race: Race, change: str, point: str, path: str) -> None:
    race.make()
    with race.held(point, ALTER, copy_path=path, chunk_rows=7) as run:
        race.write(*LEGAL[change])
        race.applied(run)
    race.complete(run)


def test_an_old_image_does_not_come_back_behind_the_row_that_pushed_it_out(race: Race) -> None:
    """U4 (b): row 10 is changed, a new row takes the changed value; the copy holds the first image of row 10."""
    race.make()
    with race.held("copy.after_select", ALTER, copy_path="rows") as run:
        race.write("UPDATE t SET u=500 WHERE id=10")
        race.applied(run)
        race.write("UPDATE t SET u=501 WHERE id=10", "INSERT INTO t VALUES (11,'x',500)")
        race.applied(run)
    race.complete(run)


@pytest.mark.parametrize("path", PATHS)
def test_a_real_duplicate_that_comes_by_the_log(race: Race, path: str) -> None:
    race.make()
    with race.held("workflow.copied", ALTER, copy_path=path) as run:
        race.write("INSERT INTO t VALUES (500,'twice',5)")
    failed_by_name(race, run.result())


@pytest.mark.parametrize("path", PATHS)
def test_a_real_duplicate_that_comes_by_the_copy(race: Race, path: str) -> None:
    """Written after the plan has looked for duplicates and before the log is read."""
    race.make()
    with race.held("prepare.tables_made", ALTER, copy_path=path) as run:
        race.write("INSERT INTO t VALUES (500,'twice',5)")
    failed_by_name(race, run.result())


def failed_by_name(race: Race, result: object) -> None:
    assert (result.event, result.exit_code) == ("failed", 1), result  # type: ignore[attr-defined]
    reason = result.reason  # type: ignore[attr-defined]
    assert "one" in reason
    assert "5" in reason
    assert race.app.value("SELECT COUNT(*) FROM t") == 21
    assert race.app.row("SHOW INDEX FROM t WHERE key_name='one'") is None


def test_two_connections_want_one_row_out_of_the_way(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2000 is about to push out row 60 when row 1000, which has pushed out row 50, finds row 60 in its way, too.

    By the time that it may go on row 2000 is there instead, and must not go without being noted.
    """
    monkeypatch.setattr(rounds, "_WORTH_SHARING", 1)
    race.make()
    first, second = "apply.before_push.one", "apply.before_push.two"
    with race.held("workflow.copied", f"{ALTER}, ADD UNIQUE KEY two (v)", apply_parallelism=2) as run:
        with paused_at(race.pauses, second):
            with paused_at(race.pauses, first):
                race.write("INSERT INTO t VALUES (1000,'v6',5),(2000,'v6',2000)")
                for point in (first, second):
                    wait_reached(race.pauses, point, run)
            wait_until(lambda: is_waiting_for_a_row(race), "the other connection does not wait")
            race.write("UPDATE t SET u=NULL WHERE id=50", "UPDATE t SET v=CONCAT(v, id) WHERE id IN (60,1000)")
        race.applied(run)
    race.complete(run)


def is_waiting_for_a_row(race: Race) -> bool:
    # The table is computed anew at most each 0.1 s.
    time.sleep(0.2)
    return bool(
        race.database.admin.value("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'")
    )


def test_duplicates_before_the_start_are_refused_with_up_to_ten(race: Race) -> None:
    rows = ",".join(f"({i},'v',{i % 15})" for i in range(1, 31))
    race.make(rows=rows)
    result = race.begin(ALTER).result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    named = re.findall(r"\((\d+)\) 2 times", result.reason or "")
    assert len(set(named)) == 10, result.reason
    assert race.ours() == []


LABELS = ("b", "ñ'", "1")


@pytest.mark.parametrize("label", LABELS)
def test_rows_that_were_pushed_out_are_copied_again_by_a_key_with_labels(race: Race, label: str) -> None:
    """An ENUM sorts by its number, and a key is told by its label."""
    labels = "ENUM('z','b','ñ''','1') NOT NULL"
    race.make(f"CREATE TABLE t (id INT, e {labels}, u INT, PRIMARY KEY (e, id)) CHARACTER SET utf8mb4", "(0,'z',0)")
    value = label.replace("'", "''")
    race.write(*(f"INSERT INTO t VALUES ({i * 10},'{value}',{i})" for i in range(1, 21)))
    alter = f"{ALTER}, MODIFY e ENUM('1','b','ñ''','z') NOT NULL"
    with race.held("workflow.copied", alter, chunk_rows=7) as run:
        race.applied(run)
        push_out(race, run)
    race.complete(run)
    assert any("conflicted with the new unique key were copied again" in line for line in run.said), run.said


def push_out(race: Race, run: Run) -> None:
    """Two rows of the copy, as catch-up does it that finds them in another row's way."""
    table = f"{SIDECAR}.{names.dirty_table(run.workflow)}"
    race.database.admin.execute_raw("SET sql_log_bin=0")
    race.database.admin.execute_raw(f"DELETE FROM {names.shadow_table('t')} WHERE id IN (10,200)")
    columns = ",".join(keytables.key_column(i) for i in range(2))
    race.database.admin.execute_raw(f"INSERT INTO {table} ({columns},seen) SELECT e,id,1 FROM t WHERE id IN (10,200)")
    race.database.admin.execute_raw("SET sql_log_bin=1")


NARROWED = {
    "fewer columns": ("two (u, v)", "DROP KEY two, ADD UNIQUE KEY two (u)", "(500,'other',5)"),
    "a prefix": ("two (v)", "DROP KEY two, ADD UNIQUE KEY two (v(3))", "(500,'v10 and more',NULL)"),
    "either case": ("two (v)", "MODIFY v VARCHAR(20) COLLATE utf8mb4_general_ci", "(500,'V5',NULL)"),
}
"""A unique key, what makes it narrower, and a row that only the wider one takes."""


def make_narrow(race: Race, kind: str) -> str:
    """The table under the wider key; returns the ALTER."""
    key, alter, _ = NARROWED[kind]
    columns = "id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_bin, u INT"
    race.make(f"CREATE TABLE t ({columns}, UNIQUE KEY {key}) CHARACTER SET utf8mb4")
    return alter


@pytest.mark.parametrize("kind", NARROWED)
@pytest.mark.parametrize(("point", "path"), [("copy.after_select", "rows"), ("copy.after_open", "server")])
@pytest.mark.in_turn
def test_legal_changes_under_a_narrowed_key_come_out_exactly(race: Race, kind: str, point: str, path: str) -> None:
    alter = make_narrow(race, kind)
    with race.held(point, alter, copy_path=path, chunk_rows=7) as run:
        race.write("UPDATE t SET u=NULL, v='x' WHERE id=10", "UPDATE t SET u=1, v='v1' WHERE id=200")
        race.write("UPDATE t SET u=20, v='V20' WHERE id=10", "DELETE FROM t WHERE id=50")
        race.write("INSERT INTO t VALUES (51,'V5',5)")
        race.applied(run)
    race.complete(run)


@pytest.mark.parametrize("kind", NARROWED)
def test_a_row_that_the_narrowed_key_does_not_take_ends_it(race: Race, kind: str) -> None:
    alter = make_narrow(race, kind)
    with race.held("workflow.copied", alter) as run:
        race.write(f"INSERT INTO t VALUES {NARROWED[kind][2]}")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert "two" in str(result.reason)
    assert race.app.value("SELECT COUNT(*) FROM t") == 21


@pytest.mark.parametrize("kind", NARROWED)
def test_rows_that_the_narrowed_key_does_not_take_are_refused(race: Race, kind: str) -> None:
    alter = make_narrow(race, kind)
    race.write(f"INSERT INTO t VALUES {NARROWED[kind][2]}")
    result = race.begin(alter).result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    assert "2 times" in str(result.reason)
    assert race.ours() == []
