"""The database user has no connection free for a while, by a limit of its account."""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from tests.support.flow import Run
from vreplication.mysql.session import connect
from vreplication.planning.spec import Spec

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


class Lifting(list[str]):
    """Takes the limit away when the run tells that it waits."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, line: str) -> None:
        super().append(line)
        limit(self._database, 0)


def limit(database: Database, most: int) -> None:
    database.admin.execute_raw(f"ALTER USER '{database.user}'@'%' WITH MAX_USER_CONNECTIONS {most}")


def test_a_run_waits_for_a_connection(database: Database) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        app.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
    limit(database, 1)
    run = Run(Spec(table="`t`", alter="ADD COLUMN z INT", workflow="full"), said=Lifting(database)).start(database.url)
    assert run.result().event == "complete"
    assert "takes no connection at the moment" in run.said[0]
