"""The sentry: an empty table under the retired table's name, which no RENAME can pass while it stands.

What must stay true: a table is removed here only while we hold its lock and have seen under that lock that it is the
one that we mean; so a RENAME that arrives in between finds the name taken, and never has its result dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from vreplication.cutover.identity import table_identity
from vreplication.errors import Terminal
from vreplication.mysql.quoting import qualified, text
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError
from vreplication.names import is_deny_trigger
from vreplication.schema import triggers
from vreplication.settings import TABLE_SECONDS

DROP_WAIT_SECONDS = 10
ANSWER_MARGIN_SECONDS = 5
"""How much longer than the lock its answer is waited for."""
_EXISTS = 1050


def comment(workflow: str) -> str:
    """What marks a table as the sentry of this workflow."""
    return f"vreplication sentry of workflow {workflow}; empty, safe to drop"


def create_sentry(session: Session, schema: str, name: str, workflow: str) -> None:
    """Raises Terminal when another table has the name."""
    columns = "(id INT NOT NULL PRIMARY KEY)"
    try:
        session.execute_raw(
            f"CREATE TABLE {qualified(schema, name)} {columns} ENGINE=InnoDB COMMENT={_literal(workflow)}"
        )
    except SqlError as error:
        if error.code != _EXISTS:
            raise
        raise taken(schema, name) from None


def taken(schema: str, name: str) -> Terminal:
    return Terminal(
        f"Table {schema}.{name} exists and is not ours, so the original cannot be set aside under that name.",
        cure=f"Rename or drop {qualified(schema, name)}, then resume.",
    )


def _literal(workflow: str) -> str:
    # A comment must be a plain string; a workflow id has no character that would need escaping.
    return f"'{comment(workflow)}'"


def remove_sentry(session: Session, schema: str, name: str, workflow: str) -> bool:
    """Drop the sentry if one stands there. A table that is not ours, or not empty, stays. True: it was dropped."""
    return drop_if(session, schema, name, lambda: is_sentry(session, schema, name, workflow))


def is_sentry(session: Session, schema: str, name: str, workflow: str) -> bool:
    """Is the table of this name our sentry, as far as can be seen without a lock?"""
    sql = (
        "SELECT table_comment FROM information_schema.tables "
        f"WHERE table_schema={text(schema)} AND table_name={text(name)}"
    )
    if session.value(sql) != comment(workflow):
        return False
    return session.row(f"SELECT 1 FROM {qualified(schema, name)} LIMIT 1") is None


def drop_table(session: Session, schema: str, name: str, identity: str, *, is_mariadb: bool) -> bool:
    """Drop a retired or shadow table, only if it is the one whose identity was recorded. True: it was dropped."""

    def is_ours() -> bool:
        return table_identity(session, schema, name, is_mariadb) == identity

    if is_ours():
        drop_triggers(session, schema, name)
    return drop_if(session, schema, name, is_ours)


def drop_triggers(session: Session, schema: str, name: str) -> None:
    """Of a table that is about to be dropped: LOCK TABLES takes along what they use, for as long as that takes.

    Those that deny writes stay, to the end. Raises LockWait.
    """
    found = [each for each in triggers.names_on(session, schema, name) if not is_deny_trigger(each)]
    # Who may not do that (any more) may drop the table all the same.
    with patience(session), contextlib.suppress(SqlError):
        triggers.drop(session, schema, found)


def drop_if(session: Session, schema: str, name: str, is_ours: Callable[[], bool]) -> bool:
    """Drop a table for which `is_ours` holds under its WRITE lock. False: there is none, or it is another one.

    Raises LockWait when somebody holds the table for longer than DROP_WAIT_SECONDS.
    """
    with patience(session), _locked(session, schema, name) as exists:
        if not exists or not is_ours():
            return False
        # DROP of a large table frees the pages of all its rows before it answers.
        with session.patient(TABLE_SECONDS):
            session.execute_raw(f"DROP TABLE {qualified(schema, name)}")
        return True


@contextlib.contextmanager
def patience(session: Session) -> Iterator[None]:
    """The servers' own default is a day or a year, with everybody who comes later queued behind us."""
    before = int(session.value("SELECT @@lock_wait_timeout"))
    session.execute_raw(f"SET SESSION lock_wait_timeout={DROP_WAIT_SECONDS}")
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            session.execute_raw(f"SET SESSION lock_wait_timeout={before}")


@contextlib.contextmanager
def _locked(session: Session, schema: str, name: str) -> Iterator[bool]:
    """The table's WRITE lock; False when there is no such table."""
    try:
        # The connections of an attempt wait 10 s for an answer, as long as the lock may take by itself.
        with session.patient(DROP_WAIT_SECONDS + ANSWER_MARGIN_SECONDS):
            session.execute_raw(f"LOCK TABLES {qualified(schema, name)} WRITE")
    except SqlError as error:
        if error.code != NO_SUCH_TABLE:
            raise
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(Exception):
            session.execute_raw("UNLOCK TABLES")
