"""A table that its server encrypts on disk: copied, followed and switched like any other, and encrypted afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import binaries
from sandbox.databases import Database, create_database
from tests.support import encryption
from tests.support.flow import altered_copy, begin, contents, definition, paused_at, wait_reached
from tests.support.private_server import private_server
from vreplication.mysql.session import connect

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]
WORDS = {"mariadb": "ENCRYPTED=YES", "mysql": "ENCRYPTION='Y'"}


@pytest.fixture(scope="module", params=binaries.FLAVORS)
def encrypting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with pytest.MonkeyPatch.context() as patch:
        options = encryption.options(request.param, tmp_path_factory.mktemp("keys"), patch)
        with private_server(request.param, options) as server:
            yield create_database(server)


@pytest.mark.parametrize("path", ["server", "rows"])
@pytest.mark.in_turn
def test_an_encrypted_table(encrypting: Database, pauses: Path, path: str) -> None:
    table, alter = f"by_{path}", "ADD COLUMN z INT NOT NULL DEFAULT 7, ADD UNIQUE KEY u (v)"
    with connect(encrypting.app_url) as app:
        app.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20)) {WORDS[encrypting.server.flavor]}")
        app.execute_raw(f"INSERT INTO {table} VALUES (1,'a'),(2,'b'),(3,'c'),(4,'d')")
        with paused_at(pauses, "workflow.copied"):
            run = begin(encrypting, table, alter, copy_path=path, chunk_rows=2)
            wait_reached(pauses, "workflow.copied", run)
            app.execute_raw(f"DELETE FROM {table} WHERE id=1")
            app.execute_raw(f"UPDATE {table} SET id=9, v='a' WHERE id=2")
            app.execute_raw(f"INSERT INTO {table} VALUES (5,'e')")
            altered_copy(app, encrypting, table, alter, f"{table}_wanted")
        result = run.result()
        assert result.event == "complete", (result, run.said)
        assert contents(app, table) == contents(app, f"{table}_wanted")
        assert definition(app, table) == definition(app, f"{table}_wanted")
        assert "ENCRYPT" in definition(app, table)
