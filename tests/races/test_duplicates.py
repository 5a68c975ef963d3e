"""`--on-duplicate`: of each value one row stays, as they are at the cut-over, and all others are in the side table."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest
from race_setup import Race

from sandbox.databases import Database
from tests.support.duplicates import ALTER, ROWS, TABLE, Writers, check
from tests.support.flow import let_go, paused_at, settings, wait_reached, wait_until
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import connect
from vreplication.settings import SIDECAR
from vreplication.workflows.online_ddl import dedup

POINTS = (
    "copy.after_open",
    "workflow.copied",
    "dedup.triggers_made",
    "dedup.filling",
    "dedup.filled",
    "lowest.notes_read",
    "lowest.before_commit",
    "workflow.gate_open",
    "cutover.before_lock",
)
SEEDS = range(int(os.environ.get("VREPLICATION_DUPLICATES", "1")))


@pytest.fixture
def trusted(database: Database) -> Iterator[None]:
    with settings(database, {"log_bin_trust_function_creators": 1}):
        yield


pytestmark = [pytest.mark.usefixtures("trusted"), pytest.mark.either]


CHANGES = (
    "DELETE FROM t WHERE id=10",
    "UPDATE t SET u=NULL WHERE id=20",
    "UPDATE t SET u=11 WHERE id=30",
    "INSERT INTO t (id,v,u) VALUES (4,'lower',4),(504,'higher',4)",
    "UPDATE t SET id=505 WHERE id=50",
    "DELETE FROM t WHERE id=61",
    "UPDATE t SET v='another' WHERE id=70",
    "UPDATE t SET v=UPPER(v) WHERE id=71",
    "DELETE FROM t WHERE u=8",
    "UPDATE t SET u=9 WHERE id=1",
    "UPDATE t SET id=3 WHERE id=101",
    "UPDATE t SET u=1011 WHERE id=110",
    "UPDATE t SET u=1012 WHERE id=120",
    "UPDATE t SET u=11 WHERE id=120",
    "UPDATE t SET u=12 WHERE id=110",
)
"""Each of other values: what stays gives its place up, or gets another one, in every way that there is."""


@pytest.mark.parametrize("keep", ["keep-first", "keep-last"])
@pytest.mark.parametrize("point", ["dedup.triggers_made", "dedup.filled", "cutover.before_lock"])
@pytest.mark.in_turn
def test_a_row_comes_back_where_another_one_gave_its_value_up(race: Race, point: str, keep: str) -> None:
    race.make(
        TABLE, ",".join(f"({i * 10 + n},'v{i}',{i},0)" for i in range(1, 13) for n in range(2)) + ",(1,'',NULL,0)"
    )
    with race.held(point, ALTER, on_duplicate=keep) as run:
        for change in CHANGES:
            race.write(change)
        race.applied(run)
    result = run.result()
    assert result.event == "complete", result
    check(race.app, result.workflow, keep)


def test_a_snapshot_from_before_the_new_table_was_filled_holds_the_gate(race: Race) -> None:
    """The copy is complete by then, but of the new table it would show no row, without any error."""
    race.make(TABLE, ROWS)
    with connect(race.database.app_url) as reader:
        with race.held("dedup.triggers_made", ALTER, on_duplicate="keep-first") as run:
            # Beginnings are known to the second.
            later = f"SELECT NOW() > MAX(matched_at) + INTERVAL 1 SECOND FROM {SIDECAR}.chunk"
            wait_until(lambda: race.database.admin.value(later), "no second passes")
            reader.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        race.waiting_for(run, f"onnection {reader.id} ", "snapshot")
        assert reader.value("SELECT COUNT(*) FROM t") == 20
    assert run.result().event == "complete", run.result()


def test_rows_are_put_aside_whatever_becomes_of_the_table_in_use(race: Race) -> None:
    """It is the application's from the cut-over on: here it gives the key up again."""
    race.make(TABLE, ROWS)
    with race.held("workflow.switched", ALTER, on_duplicate="keep-last") as run:
        race.app.execute_raw("ALTER TABLE t DROP KEY one")
    result = run.result()
    assert result.event == "complete", result
    check(race.app, result.workflow, "keep-last")


def test_rows_that_change_faster_than_the_new_table_follows_are_waited_for(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of what changed is applied while they do, and the table is filled and verified: it ends no workflow."""
    genuine, may_settle = dedup.settle_some, threading.Event()
    monkeypatch.setattr(dedup, "settle_some", lambda *given: genuine(*given) if may_settle.is_set() else None)
    monkeypatch.setattr(dedup, "FEW_NOTES", 5)
    monkeypatch.setattr(dedup, "_LOOK_SECONDS", 0.1)
    race.make(TABLE, ROWS)
    with race.held("dedup.filled", ALTER, on_duplicate="keep-first") as run:
        race.write(*(f"UPDATE t SET v='new' WHERE id={3 * n}" for n in range(1, 11)))
        race.applied(run)
    race.waiting_for(run, "Rows change faster than the new table can follow: 20 wait.")
    race.said(run, "waiting: Rows change faster")
    may_settle.set()
    result = run.result()
    assert result.event == "complete", result
    check(race.app, result.workflow, "keep-first")


SHAPE = (
    "CREATE TABLE t (a VARCHAR(5) NOT NULL, b INT NOT NULL, v VARCHAR(20) COLLATE utf8mb4_general_ci, n INT,"
    " d DATETIME(3), f DOUBLE, x BLOB, g INT AS (n*2) STORED, UNIQUE KEY k (b,a), KEY (v)) CHARACTER SET utf8mb4"
)
VALUES = (
    *(
        "('z',1,'one',1,'2024-01-01 10:00:00.125',0.1,'x')",
        "('a',1,'ONE',1,NULL,NULL,NULL)",
        "('b',2,'one',1,NULL,-0.0,'')",
    ),
    *("('a',3,'one',NULL,NULL,1e300,'y')", "('a',4,'One',NULL,NULL,1,'y')", "('a',5,NULL,7,NULL,1,'y')"),
    *(
        "('a',6,NULL,7,NULL,1,'y')",
        "('q',7,'two',2,NULL,1,'y')",
        "('p',7,'two ',2,NULL,1,'y')",
        "('o',8,'tWo',2,NULL,1,'')",
    ),
)


@pytest.mark.parametrize("keep", ["keep-first", "keep-last"])
@pytest.mark.in_turn
def test_keys_of_several_columns_and_text_that_a_collation_calls_the_same(race: Race, keep: str) -> None:
    """The shared key is no primary key, and has another order than its columns; the new one is over two columns."""
    race.app.execute_raw(SHAPE)
    race.app.execute_raw(f"INSERT INTO t (a,b,v,n,d,f,x) VALUES {','.join(VALUES)}")
    with race.held("dedup.filled", "ADD UNIQUE KEY one (v,n), MODIFY n BIGINT", on_duplicate=keep, chunk_rows=2) as run:
        race.write("DELETE FROM t WHERE (a,b) IN (('a',1),('o',8))", "UPDATE t SET a='n' WHERE a='q'")
        race.write(
            "INSERT INTO t (a,b,v,n) VALUES ('c',0,'ONE',1),('c',9,'two',2)", "UPDATE t SET n=9 WHERE v='one' AND b>2"
        )
        race.applied(run)
    result = run.result()
    assert result.event == "complete", result
    retired, sign = ident(result.retired_table or ""), "<" if keep == "keep-first" else ">"
    beaten = f"EXISTS (SELECT 1 FROM {retired} l WHERE l.v=r.v AND l.n=r.n AND (l.b,l.a){sign}(r.b,r.a))"
    shown = ",".join(f"HEX({name})" for name in ("a", "b", "v", "n", "d", "f", "x", "g"))
    for table, which in (("t", f"NOT {beaten}"), (ident(result.side_table or ""), beaten)):
        wanted = race.app.rows(f"SELECT {shown} FROM {retired} r WHERE {which} ORDER BY b,a")
        assert race.app.rows(f"SELECT {shown} FROM {table} ORDER BY b,a") == wanted, table
        assert len(wanted) > 2


@pytest.mark.parametrize("keep", ["keep-first", "keep-last"])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_row_of_each_value_stays_whatever_is_written(
    race: Race, keep: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(dedup, "RANGE_ROWS", 7)
    race.make(TABLE, ROWS)
    points = random.Random(seed).sample(POINTS, 4)
    writers = Writers(race.database, seed)
    with writers.writing(), paused_at(race.pauses, *points):
        run = race.begin(ALTER, on_duplicate=keep, chunk_rows=5, apply_parallelism=2)
        for point in sorted(points, key=POINTS.index):
            wait_reached(race.pauses, point, run)
            writers.some(lambda: run.is_going)
            let_go(race.pauses, point)
        result = run.result()
    assert result.event == "complete", result
    check(race.app, result.workflow, keep)
