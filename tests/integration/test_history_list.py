"""`--max-history-list`: what a snapshot keeps from being purged holds the copy, by the figures of either server."""

from __future__ import annotations

import pytest
from throttling_setup import fill, held

from sandbox.databases import Database
from tests.support.flow import begin, settings, wait_until
from vreplication.mysql import load
from vreplication.mysql.session import Session, connect
from vreplication.planning.facts import Verdict
from vreplication.planning.plan import make_plan
from vreplication.planning.spec import make_spec

ALTER, COUNTED = "ADD COLUMN z INT", "trx_rseg_history_len"
UNKNOWN = f"InnoDB does not count its history list (the metric {COUNTED} is off)"


@pytest.mark.usefixtures("quick")
def test_a_snapshot_holds_it_until_its_end(database: Database) -> None:
    """And so does a server that does not count any more."""
    app = fill(database)
    # Otherwise what is purged is counted for some seconds more.
    with settings(database, {"innodb_purge_rseg_truncate_frequency": 1}), connect(database.url) as session:
        wait_until(lambda: load.history_list(session) < 20, "nothing is purged")
        with connect(database.app_url) as snapshot:
            snapshot.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            for value in range(60):
                app.execute_raw(f"UPDATE t SET v={value} WHERE id=1")
            run = begin(database, "t", ALTER, max_history_list=50, chunk_rows=10)
            held(database, run, "by --max-history-list: InnoDB's history list is ")
            database.admin.execute_raw(f"SET GLOBAL innodb_monitor_disable='{COUNTED}'")
            try:
                held(database, run, f"by --max-history-list: it cannot be told: {UNKNOWN}")
                assert refused(session) == [f"What is to hold it back cannot be asked: {UNKNOWN}."]
            finally:
                database.admin.execute_raw(f"SET GLOBAL innodb_monitor_enable='{COUNTED}'")
            held(database, run, "by --max-history-list: InnoDB's history list is ")
        assert run.result().event == "complete"


def refused(session: Session) -> list[str]:
    plan = make_plan(session, make_spec(table="t", alter=ALTER, max_history_list=50))
    return [check.sentence for check in plan.checks if check.verdict is Verdict.REFUSE and check.name == "held back"]
