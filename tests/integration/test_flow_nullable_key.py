"""--allow-nullable-key: a table whose only key may be NULL is changed exactly, or ends by name at the first NULL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import (
    Run,
    altered_copy,
    begin,
    contents,
    definition,
    let_go,
    paused_at,
    wait_reached,
    wait_until,
)
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session, connect
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import Spec
from vreplication.progress import snapshot
from vreplication.state import workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
ADD = "ADD COLUMN z INT NOT NULL DEFAULT 7"


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw(
            "CREATE TABLE t (a INT, b VARCHAR(9) CHARACTER SET latin1, v INT, UNIQUE KEY u (a, b)) ENGINE=InnoDB"
        )
        values = ",".join(f"({n // 3},'{n % 3}',{n})" for n in range(900))
        session.execute_raw(f"INSERT INTO t VALUES {values}")
        yield session


def start(database: Database, **more: object) -> Run:
    return begin(database, "t", ADD, strategy="online", allow_nullable_key=True, **more)


def _phase_is(database: Database, run: Run, phase: str) -> bool:
    with connect(database.url) as session:
        seen = snapshot.find(session, run.workflow)
    return seen is not None and seen.phase == phase


def test_without_null_it_is_exact_under_writes(app: Session, database: Database, pauses: Path) -> None:
    """Rows are written, moved and deleted before their chunk, in it and behind it; a branch with NULL rolls back."""
    with paused_at(pauses, "copy.after_open", "workflow.copied"):
        run = start(database, chunk_rows=100)
        for point, at in (("copy.after_open", 0), ("workflow.copied", 150)):
            wait_reached(pauses, point, run)
            app.execute_raw(f"UPDATE t SET b='moved' WHERE a={at + 1} AND b='1'")
            app.execute_raw(f"UPDATE t SET a=a+1000 WHERE a={at + 2}")
            app.execute_raw(f"DELETE FROM t WHERE a IN ({at + 3}, {at + 120})")
            app.execute_raw(f"INSERT INTO t VALUES ({at - 500},'NULL',1),({at + 500},'',2)")
            app.execute_raw(f"XA START 'n{at}'")
            app.execute_raw("INSERT INTO t VALUES (NULL,'x',3)")
            app.execute_raw(f"XA END 'n{at}'")
            app.execute_raw(f"XA PREPARE 'n{at}'")
            app.execute_raw(f"XA ROLLBACK 'n{at}'")
            let_go(pauses, point)
        assert run.result().event == "complete"
    with connect(database.url) as session:
        retired = workflows.load(session, run.workflow).retired_table
    altered_copy(database.admin, database, retired, ADD, "expected")
    assert contents(app, "t") == contents(app, "expected")
    assert "`z`" in definition(app, "t")


@pytest.mark.parametrize("null", ["NULL,'x'", "5000,NULL"])
def test_a_null_in_the_last_moment_ends_it_by_name(app: Session, database: Database, pauses: Path, null: str) -> None:
    """Written and deleted again when nothing holds the cut-over any more."""
    with paused_at(pauses, "workflow.gate_open"):
        run = start(database)
        wait_reached(pauses, "workflow.gate_open", run)
        app.execute_raw("BEGIN")
        app.execute_raw(f"INSERT INTO t VALUES ({null},1)")
        app.execute_raw("DELETE FROM t WHERE a IS NULL OR b IS NULL")
        app.execute_raw("COMMIT")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1)
    assert f"has NULL in {'a' if null.startswith('NULL') else 'b'}, of the key u" in (result.reason or "")
    assert ("`z`" in definition(app, "t"), app.value("SELECT COUNT(*) FROM t")) == (False, 900)
    again = Run(run.spec).start(database.url).result()
    assert (again.event, "has NULL in" in (again.reason or "")) == ("failed", True)


def test_a_null_that_is_there_is_refused_and_nothing_stays(app: Session, database: Database, pauses: Path) -> None:
    """By the plan; by the preparation where it came behind the plan. It takes no such key where there is another."""
    with connect(database.url) as session:
        made = make_plan(session, Spec(table="t", alter=ADD, strategy="online"))
        assert any("--allow-nullable-key" in check.cure for check in made.refusals), made.refusals
        way_back = Spec(table="t", alter=ADD, strategy="online", allow_nullable_key=True, revert_window="1h")
        assert [check.name for check in make_plan(session, way_back).refusals] == ["revert"]
        app.execute_raw("CREATE TABLE n (a INT UNIQUE, b INT NOT NULL, UNIQUE KEY (b)) ENGINE=InnoDB")
        made = make_plan(session, Spec(table="n", alter=ADD, strategy="online", allow_nullable_key=True))
        assert (made.refusals, made.mapping and made.mapping.source_index) == ((), "b")
        # No cure where the key that goes has no NULL: none other is left.
        made = make_plan(session, Spec(table="n", alter="DROP KEY b, DROP KEY a", strategy="online"))
        assert [" if no row has NULL in a," in check.cure for check in made.refusals] == [True], made.refusals
        app.execute_raw("ALTER TABLE n DROP KEY a")
        made = make_plan(session, Spec(table="n", alter="DROP KEY b", strategy="online"))
        assert ["--allow-nullable-key" in check.cure for check in made.refusals] == [False], made.refusals
        app.execute_raw("DROP TABLE n")
    with paused_at(pauses, "prepare.tables_made"):
        run = start(database)
        wait_reached(pauses, "prepare.tables_made", run)
        app.execute_raw("INSERT INTO t VALUES (1,NULL,1)")
    for result in (run.result(), start(database).result()):
        assert (result.event, result.exit_code) == ("refused", 2)
        assert "has NULL in b, of the key u" in (result.reason or "")
    assert app.rows("SHOW TABLES") == [("t",)]


def test_a_null_that_the_log_does_not_have_is_found_by_a_verification(app: Session, database: Database) -> None:
    run = start(database, cutover="manual")
    wait_until(lambda: _phase_is(database, run, "waiting"), "it does not wait")
    with database.server.admin() as hidden:
        hidden.execute_raw("SET SESSION sql_log_bin=0")
        hidden.execute_raw(f"INSERT INTO {database.name}.t VALUES (NULL,'x',1)")
    with pytest.raises(SourceChanged, match="has NULL in a, of the key u"):
        operate.verify(database.url, run.workflow, "local", threading.Event())
    operate.cancel(database.url, run.workflow, "ann")
    assert run.result().event == "cancelled"
