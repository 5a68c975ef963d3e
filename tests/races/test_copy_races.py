"""Writes between the steps of a chunk, each applied by catch-up before the copy goes on."""

from __future__ import annotations

import pytest
from race_setup import TABLE, Race

from tests.support.flow import wait_until
from vreplication.engine import job
from vreplication.mysql.ends import Route
from vreplication.mysql.session import connect
from vreplication.pausepoints import VARIABLE
from vreplication.rowcopy.chunker import copy_split
from vreplication.state import lease, ledger
from vreplication.state.lease import Lease

CHANGES = {
    "deleted": ("DELETE FROM t WHERE id=50",),
    "key changed": ("UPDATE t SET id=55 WHERE id=50",),
    "key changed to one that is free again": ("DELETE FROM t WHERE id=60", "UPDATE t SET id=60 WHERE id=50"),
    "deleted and inserted": ("DELETE FROM t WHERE id=50", "INSERT INTO t VALUES (50,'new',500)"),
    "updated": ("UPDATE t SET v='new' WHERE id=50",),
    "inserted and deleted": ("INSERT INTO t VALUES (51,'x',1)", "DELETE FROM t WHERE id IN (50,51)"),
    "changed there and back": ("UPDATE t SET id=55 WHERE id=50", "UPDATE t SET id=50, v='back' WHERE id=55"),
    "all deleted": ("DELETE FROM t",),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.in_turn
def test_a_write_between_select_and_insert(race: Race, change: str) -> None:
    """F4: the copy holds the old image when the change has been applied already."""
    race.make()
    with race.held("copy.after_select", copy_path="rows") as run:
        race.write(*CHANGES[change])
        race.applied(run)
    race.complete(run)


@pytest.mark.parametrize("path", ["rows", "server"])
def test_a_delete_that_meets_a_chunk_in_the_middle_of_landing(race: Race, path: str) -> None:
    """R6: the rows are there for nobody to see; catch-up's delete waits for them, it does not look and pass by."""
    race.make()
    with race.held("copy.before_land", copy_path=path, chunk_rows=4) as run:
        gone = race.landing()
        race.write(f"DELETE FROM t WHERE id IN ({gone},200)")
        # InnoDB renews what it shows only when nobody has read it for 100 ms.
        wait_until(race.is_lock_waited_for, "catch-up does not wait for the row", pause_seconds=0.2)
    race.complete(run)
    assert not {gone, 200} & set(race.ids())


@pytest.mark.parametrize("path", ["rows", "server"])
def test_an_insert_between_probe_and_copy(race: Race, path: str) -> None:
    """F2: what is inserted below the bound pushes nothing out."""
    race.make()
    with race.held("copy.after_probe", copy_path=path, chunk_rows=5) as run:
        race.write("INSERT INTO t VALUES (11,'a',0),(12,'b',0),(13,'c',0)")
        race.applied(run)
    race.complete(run)
    assert {11, 12, 13, 20, 50} <= set(race.ids())


def test_a_superseded_attempt_that_wakes_up_late(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """a1 has read its rows and sleeps; a2 copies the split; a row is deleted; a1 wakes up and may write nothing."""
    race.make()
    with race.held("copy.after_select", copy_path="rows") as run:
        monkeypatch.delenv(VARIABLE)
        with connect(race.database.url) as session:
            holder = lease.holder_of(session, run.workflow, lease.DRIVER)
            assert holder
            right = Lease(workflow=run.workflow, role=lease.DRIVER, token=holder.token)
            found = job.load(session, run.workflow)
            number = next(c.split for c in ledger.chunks(session, run.workflow, states=(ledger.OPEN,)))
            again = copy_split(Route.within(race.database.url), right, found.mapping, found.copy_job, number)
            assert again.error is None
            gone = race.app.value("SELECT MIN(id) FROM t")
            race.write(f"DELETE FROM t WHERE id={gone}")
            race.applied(run)
    result = run.result()
    assert (result.event, "newer attempt" in (result.reason or "")) == ("failed", True), result
    race.complete(race.begin(copy_path="rows", workflow=run.workflow))
    assert gone not in race.ids()


@pytest.mark.parametrize(("point", "path"), [("copy.after_select", "rows"), ("copy.after_open", "server")])
def test_a_key_that_only_the_collation_calls_the_same(race: Race, path: str, point: str) -> None:
    """'A' goes and 'a' comes, 'b ' becomes 'B': one key each for the server, two for us."""
    race.make(
        "CREATE TABLE t (id VARCHAR(10) PRIMARY KEY, v VARCHAR(20)) ENGINE=InnoDB "
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        rows="('A','1'),('b ','2'),('C','3'),('d','4'),('É','5')",
    )
    with race.held(point, copy_path=path) as run:
        race.write("DELETE FROM t WHERE id='A'", "INSERT INTO t VALUES ('a','new')")
        race.write("UPDATE t SET id='B' WHERE id='b '")
        race.write("DELETE FROM t WHERE id='c'")
        race.write("UPDATE t SET id='x' WHERE id='D'", "INSERT INTO t VALUES ('D','late')")
        race.write("UPDATE t SET id='e' WHERE id='É'")
        race.applied(run)
    race.complete(run)
    assert sorted(race.ids()) == ["B", "D", "a", "e", "x"]


def test_swapped_values_of_a_unique_key_that_both_sides_have(race: Race) -> None:
    """U3: a stale copied row may keep a fresh one out; that one's own change repairs it."""
    race.make(TABLE.replace("u INT)", "u INT, UNIQUE KEY (u))"))
    with race.held("copy.after_select", copy_path="rows", chunk_rows=5) as run:
        race.write("UPDATE t SET u=NULL WHERE id=10", "UPDATE t SET u=1 WHERE id=200", "UPDATE t SET u=20 WHERE id=10")
        race.write("DELETE FROM t WHERE id=30", "INSERT INTO t VALUES (35,'x',3)")
        race.applied(run)
    race.complete(run)
