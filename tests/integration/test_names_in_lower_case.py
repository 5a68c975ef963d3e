"""Servers that keep names of tables in lower case, whatever is written: as asked, so changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.databases import Database, create_database
from tests.support.flow import Run, altered_copy, contents, definition, paused_at, wait_reached
from tests.support.private_server import private_server
from tests.support.tailing import changes, groups, here, watch
from vreplication.errors import SourceChanged
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
@pytest.mark.in_turn
def test_a_table_is_found_however_its_name_is_spelled(folded: Database, pauses: Path, asked: str) -> None:
    """And its changes are found in the log, and the cut-over by its name, where it stands in lower case."""
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


@pytest.mark.parametrize(
    ("name", "said"), [("plainest", "PLAINest"), ("tä", "TÄ"), ("οδοσ", "ΟΔΟΣ"), ("ix", "İX"), ("kx", "\u212ax")]
)
def test_a_definition_is_seen_however_the_name_is_spelled(folded: Database, name: str, said: str) -> None:
    """The server folds letter by letter."""
    folded.admin.execute_raw(f"CREATE TABLE IF NOT EXISTS `{name}` (id INT PRIMARY KEY)")
    source, start = replace(watch(folded, name), schema=folded.name.lower()), here(folded)
    folded.admin.execute_raw(f"INSERT INTO `{said}` VALUES (1)")
    assert len(changes(groups(folded, start, source))) == 1
    folded.admin.execute_raw(f"TRUNCATE `{said}`")
    with pytest.raises(SourceChanged, match="TRUNCATE"):
        groups(folded, start, source)
