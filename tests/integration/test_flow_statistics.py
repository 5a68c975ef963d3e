"""Histograms and persistent statistics go with a table when it is renamed: the new one has its own at the cut-over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import altered_copy, begin, paused_at, settings, wait_reached, wait_until
from tests.support.private_server import is_older
from vreplication.mysql.session import Session, connect
from vreplication.planning.facts import Verdict
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import make_spec
from vreplication.schema import statistics
from vreplication.state import journal
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]

COLUMNS = "a INT, b VARCHAR(20), c DATETIME, d INT, e INT, w INT, g INT AS (a + 1) STORED, KEY ka (a), KEY kd (d, c)"
ALTER = "ADD COLUMN z INT, RENAME COLUMN b TO bb, MODIFY d BIGINT, DROP COLUMN e, RENAME KEY ka TO kb"
AUTO = "" if is_older("mysql", (8, 4)) else " AUTO UPDATE"
COLLECT = {
    "mysql": [
        "ANALYZE TABLE {} UPDATE HISTOGRAM ON a, b, g WITH 16 BUCKETS",
        f"ANALYZE TABLE {{}} UPDATE HISTOGRAM ON c, d, e WITH 33 BUCKETS{AUTO}",
    ],
    "mariadb": [
        "SET STATEMENT histogram_size=30, histogram_type='DOUBLE_PREC_HB' FOR "
        "ANALYZE TABLE {} PERSISTENT FOR COLUMNS (a, b, g, id) INDEXES (PRIMARY, ka)",
        "SET STATEMENT histogram_size=12, histogram_type='JSON_HB' FOR "
        "ANALYZE TABLE {} PERSISTENT FOR COLUMNS (c, e) INDEXES (kd)",
        "SET STATEMENT histogram_size=0 FOR ANALYZE TABLE {} PERSISTENT FOR COLUMNS (d) INDEXES ()",
    ],
}
MANUAL, AUTOMATIC = ("16 false", "33 true") if AUTO else ("16 None", "33 None")
WANTED = {
    "mysql": {"a": MANUAL, "bb": MANUAL, "g": MANUAL, "c": AUTOMATIC, "d": AUTOMATIC},
    "mariadb": {
        **{"a": "30 DOUBLE_PREC_HB", "bb": "30 DOUBLE_PREC_HB", "g": "30 DOUBLE_PREC_HB"},
        **{"c": "12 JSON_HB", "d": "0 None", "id": "None None", "rows": "600"},
        **{"PRIMARY": "1", "kb": "2", "kd": "3"},
    },
}


def fill(app: Session) -> None:
    app.execute_raw(f"CREATE TABLE t (id INT PRIMARY KEY, {COLUMNS})")
    rows = (f"({i},{i % 7},'x{i % 50}','2024-01-01'+INTERVAL {i} HOUR,{i % 3},{i % 5},{i})" for i in range(600))
    app.execute_raw(f"INSERT INTO t (id, a, b, c, d, e, w) VALUES {','.join(rows)}")


def collect(database: Database, table: str) -> None:
    for sql in COLLECT[database.server.flavor]:
        assert [
            r[2] for r in database.admin.rows(sql.format(table)) if str(r[2]).lower() not in ("status", "note")
        ] == []


def found(database: Database) -> dict[str, dict[str, str]]:
    """By table, then column or index: what the server has, whatever the tables are."""
    known: dict[str, dict[str, str]] = {}
    for table, name, *rest in _mariadb(database) if database.server.is_mariadb else _mysql(database):
        known.setdefault(str(table), {})[str(name)] = " ".join(map(str, rest))
    return known


def _mysql(database: Database) -> Iterator[tuple[object, ...]]:
    yield from database.admin.rows(
        """SELECT table_name, column_name, histogram->>'$."number-of-buckets-specified"',"""
        """histogram->>'$."auto-update"' FROM information_schema.column_statistics WHERE schema_name=%s""",
        (database.name,),
    )


def _mariadb(database: Database) -> Iterator[tuple[object, ...]]:
    for what, table in (
        ("'rows', cardinality", "table_stats"),
        ("column_name, hist_size, hist_type", "column_stats"),
        ("index_name, MAX(prefix_arity)", "index_stats"),
    ):
        by = "GROUP BY table_name, index_name" if table == "index_stats" else ""
        sql = f"SELECT table_name, {what} FROM mysql.{table} WHERE db_name=%s {by}"
        yield from database.admin.rows(sql, (database.name,))


def estimate(database: Database, sql: str) -> float:
    """How many of 100 rows the optimizer thinks will pass."""
    explain = "EXPLAIN EXTENDED" if database.server.is_mariadb else "EXPLAIN FORMAT=TRADITIONAL"
    return float(database.admin.named_rows(f"{explain} {sql}")[0]["filtered"])


@pytest.mark.parametrize(
    ("alter", "more"), [(ALTER, {}), (f"{ALTER}, ADD UNIQUE KEY one (w)", {"on_duplicate": "keep-first"})]
)
def test_they_are_those_of_the_new_table(database: Database, alter: str, more: dict[str, str]) -> None:
    with connect(database.app_url) as app, settings(database, {"log_bin_trust_function_creators": 1}):
        fill(app)
        collect(database, "t")
        run = begin(database, "t", alter, retired="drop", **more)
        result = run.result()
        assert result.event == "complete", (result.reason, run.said)
        # Nothing is left of the retired table, the shadow, a full copy or the sentry.
        assert found(database) == {"t": WANTED[database.server.flavor]}
        assert 12 < estimate(database, "SELECT * FROM t WHERE g = 3") < 16
        assert not [each for each in run.said if "statistics" in each and not each.startswith("optimizer statistics:")]


def test_they_hold_what_a_plain_alter_keeps(database: Database, pauses: Path) -> None:
    with connect(database.app_url) as app:
        fill(app)
        altered_copy(app, database, "t", "FORCE", "plain")
        for table in ("t", "plain"):
            collect(database, table)
        app.execute_raw(f"ALTER TABLE plain {ALTER}")
        assert begin(database, "t", ALTER).result().event == "complete"
    known = found(database)
    assert known["plain"].items() <= known["t"].items()
    retired = next(name for name in known if "_vr_old_" in name)
    assert set(known) == {"t", "plain", retired}
    assert "e" in known[retired]


def test_a_table_without_any_gets_none(database: Database) -> None:
    with connect(database.app_url) as app:
        fill(app)
    assert begin(database, "t", ALTER).result().event == "complete"
    assert found(database) == {}


def test_the_plan_tells_of_them(database: Database) -> None:
    with connect(database.app_url) as app, connect(database.url) as session:
        fill(app)

        def told(alter: str) -> tuple[Verdict, str]:
            plan = make_plan(session, make_spec(table="t", alter=alter))
            return next((c.verdict, c.sentence) for c in plan.checks if c.name == "optimizer statistics")

        assert told(ALTER) == (Verdict.OK, "None but those that InnoDB keeps.")
        collect(database, "t")
        verdict, sentence = told("ADD COLUMN z INT")
        assert verdict is Verdict.OK
        assert " a, b, c, d, e, g" in sentence
        assert told(ALTER)[0] is Verdict.WARN
        assert " of e end " in told(ALTER)[1]


@pytest.mark.only_on("mariadb")
def test_without_the_grant_they_stay_behind(database: Database) -> None:
    with connect(database.app_url) as app:
        fill(app)
    collect(database, "t")
    database.admin.execute(f"REVOKE SELECT ON mysql.column_stats FROM '{database.user}'@'%'")
    with connect(database.url) as session:
        plan = make_plan(session, make_spec(table="t", alter=ALTER))
    check = next(c for c in plan.checks if c.name == "optimizer statistics")
    assert check.verdict is Verdict.WARN
    assert "GRANT SELECT ON mysql.column_stats TO" in check.cure
    assert begin(database, "t", ALTER).result().event == "complete"
    assert "t" not in found(database)


def test_what_cannot_be_collected_is_said_and_holds_nothing_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Iterator[str]:
        yield "ANALYZE TABLE gone PERSISTENT FOR ALL" if database.server.is_mariadb else "ANALYZE TABLE t HISTOGRAM"
        yield "ANALYZE TABLE missing"

    with connect(database.app_url) as app:
        fill(app)
    collect(database, "t")
    monkeypatch.setattr(statistics, "statements", refused)
    run = begin(database, "t", ALTER)
    assert run.result().event == "complete", run.said
    said = [words for words in run.said if "lacks statistics" in words]
    assert len(said) == 1
    assert "missing" in said[0]
    with connect(database.url) as session:
        assert [e["details"] for e in journal.read(session, run.workflow) if e["event"] == "statistics"] == said


def test_an_interrupt_is_heard_while_statistics_wait_for_a_lock(database: Database, pauses: Path) -> None:
    with connect(database.app_url) as app, database.server.admin(database.name) as locker:
        fill(app)
        with paused_at(pauses, "workflow.verified"):
            run = begin(database, "t", ALTER)
            wait_reached(pauses, "workflow.verified", run)
            locker.execute_raw("LOCK TABLES t__vr_new WRITE")
        wait_until(lambda: _waits_for_analyze(database.admin), "the table is not analyzed")
        run.stop.set()
        assert run.result(20).event == "interrupted"
        assert not _waits_for_analyze(database.admin)


def _waits_for_analyze(session: Session) -> bool:
    return bool(session.rows("SELECT id FROM information_schema.processlist WHERE info LIKE 'ANALYZE%'"))


def test_a_cancel_leaves_none_behind(database: Database, pauses: Path) -> None:
    with connect(database.app_url) as app:
        fill(app)
    collect(database, "t")
    before = found(database)
    with paused_at(pauses, "workflow.gate_open"):
        run = begin(database, "t", ALTER)
        wait_reached(pauses, "workflow.gate_open", run)
        assert set(found(database)) == {"t", "t__vr_new"}
        run.stop.set()
    assert run.result().event == "interrupted"
    operate.cancel(database.url, run.workflow, "test")
    assert found(database) == before
