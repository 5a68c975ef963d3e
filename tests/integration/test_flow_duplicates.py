"""`--on-duplicate`: what is refused, what is said, and what is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.duplicates import ALTER, ROWS, TABLE, check, ours
from tests.support.flow import begin, call, settings, wait_until
from vreplication import names
from vreplication.engine.result import Result
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import Spec
from vreplication.progress import snapshot
from vreplication.settings import SIDECAR
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]

REFUSED = {
    "ADD COLUMN c INT": "adds no unique key",
    "ADD UNIQUE KEY one (u), ADD UNIQUE KEY two (v)": "several unique keys",
    "ADD UNIQUE KEY one (v(3))": "over a prefix",
    "ADD COLUMN c INT AS (u+1) VIRTUAL, ADD UNIQUE KEY one (c)": "virtual column",
    "ADD UNIQUE KEY one (e), DROP PRIMARY KEY, ADD PRIMARY KEY (e,id), MODIFY e ENUM('b','a') NOT NULL": "sorted",
}


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with settings(database, {"log_bin_trust_function_creators": 1}), connect(database.app_url) as app:
        app.execute_raw(TABLE)
        app.execute_raw(f"INSERT INTO t VALUES {ROWS}")
        yield app


def test_what_cannot_be_is_refused_by_name(app: Session, database: Database) -> None:
    app.execute_raw(
        "CREATE TABLE r (id INT, e ENUM('a','b') NOT NULL, u INT, v VARCHAR(9), ts TIMESTAMP NULL,"
        " PRIMARY KEY (e,id)) ENGINE=InnoDB"
    )

    def refusals(alter: str, table: str = "r", **more: str) -> str:
        with connect(database.url) as session:
            made = make_plan(session, Spec(table=table, alter=alter, on_duplicate="keep-first", **more))
            return " ".join(check.sentence for check in made.refusals)

    for alter, words in REFUSED.items():
        assert words in refusals(alter), (alter, refusals(alter))
    assert "--revert-window" in refusals(ALTER, "t", revert_window="1h")
    assert "--triggers preserve" in refusals(ALTER, "t", triggers="preserve")
    assert "--foreign-keys rebuild" in refusals(ALTER, "t", foreign_keys="rebuild")
    assert "--on-duplicate" in refusals(ALTER, "t", strategy="instant")
    assert refusals(ALTER, "t") == ""
    with settings(database, {"log_bin_trust_function_creators": 0}):
        assert "log_bin_trust_function_creators" in refusals(ALTER, "t")
    with connect(database.url) as session:
        made = make_plan(session, Spec(table="t", alter=ALTER))
        assert any("--on-duplicate" in check.cure for check in made.refusals), made.refusals
    assert ours(app) == []


def test_a_cancelled_one_leaves_nothing(app: Session, database: Database) -> None:
    run = begin(database, "t", ALTER, on_duplicate="keep-first", cutover="manual")
    wait_until(lambda: any("waiting" in line for line in run.said), "it does not wait")
    assert len(ours(app)) == 2
    operate.cancel(database.url, run.workflow, "ann")
    assert run.result().event == "cancelled"
    assert ours(app) == []
    assert app.rows("SHOW TRIGGERS") == []
    touched = names.touched_table(run.workflow)
    assert database.admin.rows(f"SHOW TABLES IN {SIDECAR} LIKE '{touched}'") == []


def test_the_side_table_is_named_and_goes_only_when_asked_for(app: Session, database: Database) -> None:
    result = completed(database)
    check(app, result.workflow, "keep-last")
    side = names.side_table("t", result.workflow)
    assert (result.side_table, result.side_rows) == (side, app.value(f"SELECT COUNT(*) FROM {side}"))
    assert seen(database, result.workflow) == (side, result.side_rows)
    command = f"vreplication cleanup {result.workflow} --duplicates"
    assert f"{side}, {result.side_rows} rows; {command} drops it" in call(database, "status", result.workflow).out
    operate.cleanup(database.url, result.workflow, "ann")
    assert ours(app) == [side]
    assert operate.drop_duplicates(database.url, result.workflow, "ann") == [f"{database.name}.{side}"]
    assert (ours(app), seen(database, result.workflow)) == ([], None)
    assert operate.drop_duplicates(database.url, result.workflow, "ann") == []


def test_where_nothing_gave_way_there_is_no_side_table(app: Session, database: Database) -> None:
    app.execute_raw("UPDATE t SET u=id")
    result = completed(database)
    assert (result.side_table, ours(app)) == (None, [result.retired_table])
    plain = begin(database, "t", "ADD COLUMN plain INT", strategy="online").result()
    with pytest.raises(Refused, match="without --on-duplicate"):
        operate.drop_duplicates(database.url, plain.workflow, "ann")


def completed(database: Database) -> Result:
    result = begin(database, "t", ALTER, on_duplicate="keep-last").result()
    assert result.event == "complete", result
    return result


def seen(database: Database, workflow: str) -> tuple[str, int] | None:
    with connect(database.url) as session:
        return snapshot.read(session, workflow).side
