"""kill -9 of the server in the middle of a RENAME of two tables: both are switched or none, and the command goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support import private_server
from tests.support.flow import paused_at
from tests.support.related import ALTER, TABLES, Related, create
from tests.support.run_ddl import start, wait_reached
from vreplication.mysql.session import Session, connect

pytestmark = pytest.mark.either

WORDS = ("--table", "orders", "--table", "items", "--alter", ALTER, "--workflow", "atomic", "--atomic")


@pytest.mark.slow
@pytest.mark.parametrize("points", [("cutover.locked", "cutover.handed_over"), ("cutover.after_unlock",)])
def test_server_killed(database: Database, tmp_path: Path, pauses: Path, points: tuple[str, ...]) -> None:
    with connect(database.app_url) as app:
        create(app)
    command = start(database, tmp_path / "state", ("online-ddl", *WORDS, "--yes", "--json"))
    for point in points:
        with paused_at(pauses, point):
            wait_reached(pauses, point, command)
            database.close()
            private_server.kill(database.server)
        database.server.restart()
        with connect(database.app_url) as app:
            assert len(altered(app)) in (0, len(TABLES)), (point, altered(app))
    ended = command.finish()
    assert (ended.code, [each["event"] for each in ended.last["tables"]]) == (0, ["complete"] * 2), ended
    with connect(database.app_url) as app:
        assert altered(app) == set(TABLES)
        assert Related(database.app_url).differences(app) == []


def altered(app: Session) -> set[str]:
    return {table for table in TABLES for (name, *_) in app.rows(f"SHOW COLUMNS FROM {table}") if name == "region"}
