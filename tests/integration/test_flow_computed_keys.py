"""Unique keys over what a session computes by settings of its own: rows that differ for the application may be one for
us, and REPLACE would take the first one out."""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, wait_until
from vreplication.mysql.session import connect
from vreplication.state import gate
from vreplication.verify import since
from vreplication.workflows.online_ddl import conflicts

pytestmark = [pytest.mark.usefixtures("quick")]

BY_DIVISION = "a INT, b INT, g DECIMAL(30,12) AS (a / b) VIRTUAL, UNIQUE KEY (g)"
BY_ROUNDING = "a DATETIME(3), b INT, g DATETIME AS (a) VIRTUAL, UNIQUE KEY (g)"


@pytest.mark.parametrize(
    ("columns", "one", "other", "setting"),
    [
        pytest.param(BY_DIVISION, "1,3", "333333333,1000000000", "div_precision_increment=12", id="digits"),
        pytest.param(
            BY_ROUNDING,
            "'2026-01-01 10:00:13.1',1",
            "'2026-01-01 10:00:12.9',1",
            "sql_mode='TIME_TRUNCATE_FRACTIONAL'",
            id="rounding",
            marks=pytest.mark.only_on("mysql"),
        ),
    ],
)
def test_rows_that_are_one_by_our_settings_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch, columns: str, one: str, other: str, setting: str
) -> None:
    """Behind the verification, in a table so large that the last look is at other rows."""
    monkeypatch.setattr(since, "_SAMPLES", 0)
    monkeypatch.setattr(conflicts, "CONFLICT_SECONDS", 1.0)
    with connect(database.app_url) as app:
        app.execute_raw(f"SET SESSION {setting}")
        app.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        app.execute_raw(f"INSERT INTO t (id, a, b) VALUES (1,{one})")
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: any("release" in words for words in run.said), "it does not come to the gate")
        # What a table is computed by is what the session that opened it had.
        database.admin.execute_raw("FLUSH NO_WRITE_TO_BINLOG TABLES")
        app.execute_raw(f"INSERT INTO t (id, a, b) VALUES (2,{other})")
        gate.release(database.admin, run.workflow, "a test")
        result = run.result()
        assert result.event == "failed", result
        assert "new unique key" in (result.reason or ""), result
        assert app.rows("SELECT id FROM t FORCE INDEX (PRIMARY) ORDER BY id") == [(1,), (2,)]


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("begin_with", ["BEGIN", "XA START 'b'"])
def test_a_session_that_pads_is_seen_in_the_log(
    database: Database, monkeypatch: pytest.MonkeyPatch, begin_with: str
) -> None:
    monkeypatch.setattr(since, "_SAMPLES", 0)
    with connect(database.app_url) as app:
        columns = "a CHAR(10), g VARCHAR(30) AS (CONCAT(a,'x')) VIRTUAL, UNIQUE KEY (g)"
        app.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
        app.execute_raw("INSERT INTO t (id, a) VALUES (1,'a')")
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: any("release" in words for words in run.said), "it does not come to the gate")
        database.admin.execute_raw("FLUSH NO_WRITE_TO_BINLOG TABLES")
        app.execute_raw("SET SESSION sql_mode='PAD_CHAR_TO_FULL_LENGTH'")
        app.execute_raw(begin_with)
        app.execute_raw("INSERT INTO t (id, a) VALUES (2,'a')")
        for ending in ["XA END 'b'", "XA PREPARE 'b'", "XA COMMIT 'b'"] if "XA" in begin_with else ["COMMIT"]:
            app.execute_raw(ending)
        gate.release(database.admin, run.workflow, "a test")
        result = run.result()
        assert result.event == "failed", result
        assert "PAD_CHAR_TO_FULL_LENGTH" in (result.reason or ""), result
        assert app.rows("SELECT id FROM t FORCE INDEX (PRIMARY) ORDER BY id") == [(1,), (2,)]
