"""Servers that keep names of tables in lower case, whatever is written: as asked, so changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.databases import Database, create_database
from tests.support.flow import Run, altered_copy, contents, definition, paused_at, wait_reached
from tests.support.private_server import private_server
from vreplication.mysql.session import connect
from vreplication.planning.spec import Spec
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]
ALTER = "ADD COLUMN D INT NOT NULL DEFAULT 7, ADD UNIQUE KEY `By_B` (b)"


@pytest.fixture(scope="module", params=binaries.FLAVORS)
def folded(request: pytest.FixtureRequest) -> Iterator[Database]:
    with private_server(request.param, {"lower_case_table_names": 1}) as server:
        yield create_database(server, "Shop")


@pytest.mark.parametrize("asked", ["Orders", "orders", "SHOP.ORDERS"])
def test_a_table_is_found_however_its_name_is_spelled(folded: Database, pauses: Path, asked: str) -> None:
    """And its changes are found in the log, and the switch by its name, where it stands in lower case."""
    with connect(folded.app_url) as app:
        for name in ("Orders", "plain"):
            app.execute_raw(f"DROP TABLE IF EXISTS {name}")
        app.execute_raw("CREATE TABLE Orders (Id INT PRIMARY KEY, b INT, v VARCHAR(20)) ENGINE=InnoDB")
        app.execute_raw("INSERT INTO Orders VALUES " + ",".join(f"({i},{i},'v{i}')" for i in range(300)))
        with paused_at(pauses, "workflow.copied"):
            run = Run(Spec(table=asked, alter=ALTER, workflow=f"w-{len(asked)}-{asked[0]}")).start(folded.url)
            wait_reached(pauses, "workflow.copied", run)
            app.execute_raw("INSERT INTO Orders VALUES (1000, 1000, 'new')")
            app.execute_raw("UPDATE oRDERS SET v='changed', b=b+2000 WHERE Id < 10")
            app.execute_raw("DELETE FROM Orders WHERE id IN (20, 21)")
            altered_copy(app, folded, "Orders", ALTER, "plain")
        result = run.result()
        assert (result.event, run.said) == ("complete", run.said), result
        assert contents(app, "Orders") == contents(app, "plain")
        assert definition(app, "orders") == definition(app, "plain")
    assert operate.cleanup(folded.url, run.workflow, by="test")
