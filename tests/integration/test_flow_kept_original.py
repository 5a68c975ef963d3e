"""What a workflow has kept, or another one has, is not dropped, cancelled or switched in its name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, paused_at, wait_reached
from tests.support.oracle import wait_at_gate
from tests.support.run_ddl import start, wait_gone
from vreplication.errors import Refused
from vreplication.mysql.session import connect
from vreplication.state import gate
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


def make(database: Database, *names: str) -> None:
    for name in names:
        database.admin.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, c INT)")
        database.admin.execute_raw(f"INSERT INTO {name} VALUES (1,1,7),(2,2,7)")


def tables(database: Database) -> list[str]:
    return [str(name) for (name,) in database.admin.rows("SHOW TABLES")]


def test_the_original_stays_where_no_window_could_be_opened(database: Database, pauses: Path) -> None:
    """With `--retired drop`: it is all that is left of what was asked for, and it is said that it is kept."""
    make(database, "t")
    with paused_at(pauses, "workflow.switched"):
        run = begin(database, "t", "DROP COLUMN c", retired="drop", revert_window="24h")
        wait_reached(pauses, "workflow.switched", run)
        database.admin.execute_raw("ALTER TABLE t ADD COLUMN later INT")
    result = run.result()
    assert result.event == "complete"
    assert any("The original is kept as" in words for words in run.said), run.said
    (kept,) = (name for name in tables(database) if "__vr_old" in name)
    assert database.admin.rows(f"SELECT id, c FROM {kept}") == [(1, 7), (2, 7)]


def test_a_workflow_that_a_person_calls_revert_is_no_way_back(database: Database) -> None:
    """`cleanup w` neither cancels `w.revert` nor drops what it keeps."""
    make(database, "t", "x")
    assert begin(database, "t", "ADD COLUMN z INT", workflow="w").result().event == "complete"
    other = begin(database, "x", "DROP COLUMN a", workflow="w.revert", cutover="manual")
    wait_at_gate(database, other)
    operate.cleanup(database.url, "w", "ann")
    assert other.is_going
    operate.release(database.url, "w.revert", "ann")
    kept = other.result().retired_table
    operate.cleanup(database.url, "w", "ann")
    assert kept in tables(database)


def test_revert_does_not_switch_a_workflow_that_a_person_calls_so(database: Database) -> None:
    make(database, "t", "x")
    other = begin(database, "x", "ADD COLUMN y INT", workflow="w.revert", cutover="manual")
    wait_at_gate(database, other)
    refused = begin(database, "t", "ADD COLUMN z INT", workflow="w", revert_window="24h").result()
    assert (refused.event, "w.revert" in (refused.reason or "")) == ("refused", True), refused
    assert begin(database, "t", "ADD COLUMN z INT", workflow="w").result().event == "complete"
    with pytest.raises(Refused):
        operate.revert(database.url, "w", "ann", threading.Event(), lambda _: None)
    with connect(database.url) as session:
        assert gate.released_by(session, "w.revert") is None
    other.stop.set()
    other.result()


@pytest.mark.parametrize(
    ("began", "asked"),
    [
        ({"retired": "drop"}, {"revert_window": "24h"}),
        ({"retired": "drop"}, {}),
    ],
)
def test_it_goes_on_with_what_it_began_with_or_not_at_all(
    database: Database, began: dict[str, str], asked: dict[str, str]
) -> None:
    make(database, "t")
    first = begin(database, "t", "ADD COLUMN z INT", cutover="manual", **began)
    wait_at_gate(database, first)
    first.stop.set()
    first.result()
    again = begin(database, "t", "ADD COLUMN z INT", workflow=first.workflow, **asked).result()
    assert (again.event, "retired drop" in (again.reason or "")) == ("refused", True), again
    assert "z" not in str(database.admin.row("SHOW CREATE TABLE t"))
    done = begin(database, "t", "ADD COLUMN z INT", workflow=first.workflow, **began).result()
    assert done.event == "complete"


def test_a_new_table_that_was_truncated_behind_the_switch_is_the_new_one_all_the_same(
    database: Database, tmp_path: Path, pauses: Path
) -> None:
    """By the application, before anything could tell that the tables are switched: TRUNCATE makes it anew."""
    make(database, "t")
    words = ("online-ddl", "--table", "t", "--alter", "ADD COLUMN z INT", "--workflow", "w", "--yes", "--json")
    with paused_at(pauses, "cutover.after_rename"):
        command = start(database, tmp_path / "state", words)
        wait_reached(pauses, "cutover.after_rename", command)
        wait_gone(command.kill())
    database.admin.execute_raw("TRUNCATE TABLE t")
    database.admin.execute_raw("INSERT INTO t VALUES (5,5,5,5)")
    ended = start(database, tmp_path / "state", words).finish()
    assert (ended.code, ended.last["event"]) == (0, "complete"), ended
    assert database.admin.rows(f"SELECT id FROM {ended.last['retired_table']} ORDER BY id") == [(1,), (2,)]
