"""The private PostgreSQL of Airflow's metadata: who gets in, and that nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from sandbox import postgres
from sandbox.install import postgres_folder
from sandbox.processes import is_there

pytestmark = pytest.mark.skipif(postgres_folder() is None, reason="PostgreSQL is not installed")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[postgres.Postgres]:
    found = postgres.start(tmp_path / "note")
    yield found
    found.stop()


def asked(found: postgres.Postgres, sql: str, password: str = "") -> object:
    url = found.url.replace("+psycopg2", "").replace(found.password, password or found.password)
    session = psycopg2.connect(url)
    try:
        with session, session.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()
    finally:
        session.close()


def test_its_password_is_needed_and_it_keeps_what_it_has_when_it_dies(made: postgres.Postgres) -> None:
    assert asked(made, "CREATE TABLE t AS SELECT 7 AS n; SELECT n FROM t") == (7,)
    with pytest.raises(psycopg2.OperationalError, match="password"):
        asked(made, "SELECT 1", "wrong")
    made.process.kill()
    made.process.wait()
    revived = postgres.again(made)
    try:
        assert postgres.is_ready(revived)
        assert asked(revived, "SELECT n FROM t") == (7,)
    finally:
        revived.stop()


def test_what_a_killed_owner_left_is_ended_and_removed(made: postgres.Postgres) -> None:
    postgres.end_left_over(made.note)
    made.process.wait(10)
    assert not is_there(made.process.pid)
    assert not made.folder.exists()
    assert not made.note.exists()
    postgres.end_left_over(made.note)
