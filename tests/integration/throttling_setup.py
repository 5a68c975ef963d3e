"""A table to be copied, and the wait until its copy is held back."""

from __future__ import annotations

import contextlib

from sandbox.databases import Database
from tests.support.flow import Run, wait_until
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.settings import SIDECAR
from vreplication.state import gate


def fill(database: Database) -> Session:
    session = connect(database.app_url)
    session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    session.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i})" for i in range(1, 301)))
    return session


def held(database: Database, run: Run, words: str) -> None:
    """Until the copy is held back by this, and nothing of it has come."""
    with connect(database.url) as session:
        wait_until(lambda: words in reason(session, run) or not run.is_going, f"it is not held back {words}")
        assert run.is_going, run.result().reason
        assert session.value(f"SELECT COUNT(*) FROM {SIDECAR}.chunk WHERE workflow=%s", (run.workflow,)) == 0


def reason(session: Session, run: Run) -> str:
    """'' before our schema is there, too."""
    with contextlib.suppress(SqlError):
        return gate.read(session, run.workflow).reason
    return ""
