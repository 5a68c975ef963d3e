"""kill -9 of the server between the statements that move foreign keys on MySQL: the command goes on by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support import private_server
from tests.support.families import PEOPLE, Families, grant
from tests.support.flow import paused_at
from tests.support.run_ddl import start, wait_reached
from vreplication.mysql.session import SqlError, connect

pytestmark = [pytest.mark.slow, pytest.mark.only_on("mysql")]
WORDS = ("--table", PEOPLE, "--alter", "ADD COLUMN z INT", "--foreign-keys", "rebuild", "--workflow", "w")


def test_server_killed(database: Database, tmp_path: Path, pauses: Path) -> None:
    grant(database)
    families = Families(database, "")
    before = families.foreign_keys()
    command = start(database, tmp_path / "state", ("online-ddl", *WORDS, "--yes", "--json"))
    for point in ("cutover.key_given", "cutover.key_moved", "cutover.after_rename"):
        with paused_at(pauses, point):
            wait_reached(pauses, point, command)
            database.close()
            private_server.kill(database.server)
            database.server.restart()
            with connect(database.app_url) as app, pytest.raises(SqlError, match="1451"):
                app.execute_raw(f"DELETE FROM {PEOPLE} WHERE id=7")
    ended = command.finish()
    assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
    assert families.foreign_keys() == before
    families.prove()
