"""Unique keys over what a session computes by settings of its own: rows that differ for the application may be one for
us, and REPLACE would take the first one out."""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, wait_until
from tests.support.private_server import is_older
from vreplication.mysql.session import connect
from vreplication.state import gate
from vreplication.verify import since
from vreplication.workflows.online_ddl import conflicts

pytestmark = [pytest.mark.usefixtures("quick")]

BY_DIVISION = "a INT, b INT, g DECIMAL(30,12) AS (a / b) VIRTUAL, UNIQUE KEY (g)"
BY_ROUNDING = "a DATETIME(3), b INT, g DATETIME AS (a) VIRTUAL, UNIQUE KEY (g)"
BY_JSON = "a JSON, b INT, g DATE AS (JSON_VALUE(a,'$.born' RETURNING DATE)) VIRTUAL, UNIQUE KEY (g)"
BY_NUMBER = "a INT, b INT, g DATE AS (CAST(a AS DATE)) VIRTUAL, UNIQUE KEY (g)"
BY_TEXT = "a VARCHAR(40), b INT, g INT AS (DAYOFYEAR(a)) VIRTUAL, UNIQUE KEY (g)"
BY_INTERVAL = "a VARCHAR(40), b INT, g DATETIME AS (a + INTERVAL (b+1) DAY) VIRTUAL, UNIQUE KEY (g)"
BY_PATTERN = "a VARCHAR(40), b INT, g VARCHAR(40) AS (IF(a REGEXP '^a.b$', NULL, LEFT(a,1))) VIRTUAL, UNIQUE KEY (g)"
NO_DAY_IN_JSON = """'{"born":"0000-00-00"}',1"""


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
        # As the server's own sessions are: for the application a day of zero is none.
        pytest.param(
            *(BY_JSON, NO_DAY_IN_JSON, NO_DAY_IN_JSON, "sql_mode=DEFAULT"),
            id="json",
            marks=pytest.mark.only_on("mysql"),
        ),
        pytest.param(BY_NUMBER, "20240230,1", "20240230,1", "sql_mode=''", id="number"),
        pytest.param(
            *(BY_TEXT, "'2024-01-02 01:00:00+05:00',1", "'2024-01-01 12:00:00',1", "time_zone='+05:00'"),
            id="text",
            marks=pytest.mark.only_on("mysql"),
        ),
        pytest.param(
            *(BY_INTERVAL, "'2024-01-02 01:00:00+05:00',1", "'2024-01-01 20:00:00',1", "time_zone='+05:00'"),
            id="interval",
            marks=pytest.mark.only_on("mysql"),
        ),
        pytest.param(
            *(BY_PATTERN, "'a\\nb',1", "'a\\nb',1", "default_regex_flags='DOTALL'"),
            id="pattern",
            marks=pytest.mark.only_on("mariadb"),
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


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("g DATE AS (DATE(a)) VIRTUAL, UNIQUE KEY (g, b)", id="column"),
        pytest.param("UNIQUE KEY g ((DATE(a)), b)", id="expression", marks=pytest.mark.only_on("mysql")),
        pytest.param(
            "g DATETIME AS (IF(b=1,a,NULL)) VIRTUAL, UNIQUE KEY (g, b)",
            id="choice",
            marks=pytest.mark.only_on("mariadb"),
        ),
    ],
)
def test_a_day_of_zero_under_such_a_key_ends_it(database: Database, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """By the application's mode both rows' keys are NULL; days that there are go on as ever."""
    if not database.server.is_mariadb and is_older("mysql", (9, 0)):
        pytest.skip("its keys hold the day of zero, whatever the mode")
    monkeypatch.setattr(since, "_SAMPLES", 0)
    with connect(database.app_url) as app:
        app.execute_raw("SET SESSION sql_mode='NO_ZERO_DATE'")
        app.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, a DATETIME NOT NULL, b INT, {key})")
        app.execute_raw("INSERT INTO t (id, a, b) VALUES (1,'0000-00-00',1),(3,'2026-01-01 10:00:00',1)")
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: any("release" in words for words in run.said), "it does not come to the gate")
        app.execute_raw("UPDATE t SET a='2026-01-02 00:00:00' WHERE id=3")
        app.execute_raw("INSERT INTO t (id, a, b) VALUES (2,'0000-00-00',1)")
        gate.release(database.admin, run.workflow, "a test")
        result = run.result()
        assert result.event == "failed", result
        assert "was written with the day '0000-00-00" in (result.reason or ""), result
        assert app.rows("SELECT id FROM t FORCE INDEX (PRIMARY) ORDER BY id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "alter",
    [
        "ADD COLUMN d DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, ADD COLUMN g DATE AS (DATE(d)) VIRTUAL,"
        " ADD UNIQUE KEY u (g, id)",
        "MODIFY s DATETIME, ADD COLUMN g DATE AS (DATE(s)) VIRTUAL, ADD UNIQUE KEY u (v, g)",
    ],
    ids=["added", "of text"],
)
def test_a_day_of_the_new_table_alone_is_no_matter(database: Database, alter: str) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT, s VARCHAR(40))")
        app.execute_raw("INSERT INTO t VALUES (1,1,'2024-01-02 10:00:00')")
        run = begin(database, "t", alter, cutover="manual")
        wait_until(lambda: any("release" in words for words in run.said), "it does not come to the gate")
        app.execute_raw("INSERT INTO t VALUES (2,2,'2024-01-03 10:00:00')")
        gate.release(database.admin, run.workflow, "a test")
        result = run.result()
        assert result.event == "complete", result
        assert app.rows("SELECT id, v FROM t ORDER BY id") == [(1, 1), (2, 2)]


def test_a_date_that_becomes_a_timestamp_by_the_session(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(since, "_SAMPLES", 0)
    monkeypatch.setattr(conflicts, "CONFLICT_SECONDS", 1.0)
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a DATETIME, g TIMESTAMP AS (a) VIRTUAL, UNIQUE KEY (g))")
        app.execute_raw("SET SESSION time_zone='+05:00'")
        app.execute_raw("INSERT INTO t (id, a) VALUES (1,'2024-01-01 10:00:00')")
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual")
        wait_until(lambda: any("release" in words for words in run.said), "it does not come to the gate")
        app.execute_raw("SET SESSION time_zone='+00:00'")
        app.execute_raw("INSERT INTO t (id, a) VALUES (2,'2024-01-01 10:00:00')")
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
