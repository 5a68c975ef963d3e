"""The oracle: an online DDL ends with what a plain ALTER TABLE makes of the final source, or with its refusal.

What must stay true: the plain ALTER runs in a session with the server's own settings, after the last write, on the very
rows that the source held; what it refuses must have ended the workflow, with the source as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from sandbox.databases import Database
from tests.support.flow import Run, begin, contents, definition, wait_until
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.phases import Phase
from vreplication.state import workflows
from vreplication.workflows import operate


@contextlib.contextmanager
def settings(database: Database, **values: Any) -> Iterator[None]:
    """Global variables of the server, set back at the end."""
    admin = database.admin
    before = {name: admin.value(f"SELECT @@GLOBAL.{name}") for name in values}
    try:
        for name, value in values.items():
            admin.execute(f"SET GLOBAL {name}=%s", (value,))
        yield
    finally:
        for name, value in before.items():
            admin.execute(f"SET GLOBAL {name}=%s", (value,))


@contextlib.contextmanager
def application(database: Database) -> Iterator[Session]:
    """A session with the server's own settings, as an application's or an operator's plain ALTER has them."""
    with connect(database.app_url) as app:
        app.execute_raw(
            "SET SESSION time_zone=DEFAULT, sql_mode=DEFAULT, completion_type=DEFAULT, sql_quote_show_create=DEFAULT,"
            " lc_time_names=DEFAULT"
        )
        yield app


def wait_at_gate(database: Database, run: Run) -> None:
    """Copied, verified and level."""

    def is_waiting() -> bool:
        assert run.is_going, f"it ended before the gate: {run.result()}"
        row = workflows.find(session, run.workflow)
        return row is not None and row.phase is Phase.WAITING

    with connect(database.url) as session:
        wait_until(is_waiting, f"it does not get to the gate: {run.said}")


def at_the_gate(
    database: Database, alter: str, writes: Iterable[str], *, table: str = "t", application_sets: str = "", **more: Any
) -> Run:
    """Run an online DDL to the gate, write in one transaction, release; then ask the oracle."""
    run = begin(database, table, alter, cutover="manual", **more)
    wait_at_gate(database, run)
    with application(database) as app:
        if application_sets:
            app.execute_raw(application_sets)
        with app.transaction():
            for write in writes:
                app.execute_raw(write)
    operate.release(database.url, run.workflow, "test")
    is_what_a_plain_alter_gives(database, run, alter, table)
    return run


def is_what_a_plain_alter_gives(database: Database, run: Run, alter: str, table: str = "t") -> None:
    """Raises AssertionError when the end is another than that of the plain ALTER on the final source."""
    result = run.result()
    with application(database) as app:
        if result.event != "complete":
            refusal = plain_alter(app, table, alter)
            assert refusal is not None, f"a plain ALTER takes it, and the workflow ended: {result} {run.said}"
            return
        found, shape = contents(app, table), definition(app, table)
        app.execute_raw(f"DROP TABLE {ident(table)}")
        refusal = plain_alter(app, str(result.retired_table), alter)
        assert refusal is None, f"complete, where a plain ALTER is refused: {refusal}"
        assert found == contents(app, str(result.retired_table))
        assert shape == definition(app, str(result.retired_table))


def plain_alter(app: Session, table: str, alter: str) -> SqlError | None:
    """Run it; returns the server's refusal."""
    try:
        app.execute_raw(f"ALTER TABLE {ident(table)} {alter}")
    except SqlError as error:
        return error
    return None
