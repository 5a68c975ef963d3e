"""Denying writes on tables that move to another server: three triggers a table that refuse every row.

What must stay true:
- The triggers are made in the session that holds the WRITE lock of all the tables, so once `deny` has returned no row
  is written, whoever waits, has prepared a statement or has a transaction open. The lock is taken with autocommit off:
  then it waits for InnoDB's own table lock as well, which a prepared XA branch keeps on both servers, also when its
  connection has ended.
- What stands is told by the server, never by what a statement answered: `denied_tables`.
- A trigger lets a session write that says the exemption. That is for our own stream, a guard against mistakes; who may
  create triggers can read it.
- Triggers do not see TRUNCATE, DDL, cascades of foreign keys, and rows that a replica applies: docs/cut-over.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vreplication.cutover.ahead import defines
from vreplication.errors import Terminal, Transient, VReplicationError
from vreplication.mysql.processes import Process, processes
from vreplication.mysql.quoting import binary, qualified, text
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import ConnectionLost, LockWait, Session, SqlError
from vreplication.names import DENIED_EVENTS, deny_trigger, is_deny_trigger
from vreplication.pausepoints import reach
from vreplication.planning import privileges
from vreplication.state.lease import end_connections

LOCK_SECONDS = 1
"""How long one lock is waited for; the servers count whole seconds, for each table anew."""
ERRNO = 1290
"""What a server says that is read-only: pools and drivers know it."""
MOST_MESSAGE = 128
"""Characters that SIGNAL takes."""
_NOT_LOCKED = 1100
_EXISTS = 1359
_MAY_NOT = 1419
_PROBE = "vr_not_locked"
_MAY_NOT_CREATE = (
    "The server writes a binary log and log_bin_trust_function_creators is off, so only a user with SUPER may create "
    "and drop the triggers that deny writes during the switch."
)
TRUST_CURE = (
    "SET GLOBAL log_bin_trust_function_creators=ON until the workflow has ended, or GRANT SUPER ON *.* TO the user."
)

Table = tuple[str, str]
"""(schema, name)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """Writes are denied on `tables`, and `session` holds their WRITE lock until `release`.

    While the lock is held writers wait; behind it they fail. lock_millis: waited for the lock; made_millis: from the
    lock until all triggers stood.
    """

    session: Session
    tables: tuple[Table, ...]
    workflow: str
    lock_millis: float
    made_millis: float

    def check_locked(self) -> None:
        """Raises Transient when the lock is not held any more: begin again."""
        check_locked(self.session, self.tables)

    def release(self) -> None:
        """Give the lock back; the triggers stay. Idempotent. Raises ConnectionLost."""
        unlock(self.session)


def deny(
    session: Session,
    tables: Sequence[Table],
    *,
    workflow: str,
    token: str,
    message: str,
    lock_seconds: int = LOCK_SECONDS,
) -> Denied:
    """Lock the tables, then make the triggers. The session is one for this alone: its settings are changed.

    token: who says `exempt` with it may write. message: what everybody else gets, at most MOST_MESSAGE characters.
    Triggers of an earlier attempt are replaced. Raises LockWait (the tables are not locked, nothing was made), Terminal
    or Transient (what was made has been removed, as far as that was possible), ConnectionLost (nobody knows: end that
    connection, then ask `denied_tables`). After any of them `allow` makes sure.

    A lock is waited for `lock_seconds` for each table: who wants a bound for all runs a Watchdog beside it.
    """
    wanted = tuple(tables)
    began = time.monotonic()
    lock(session, wanted, lock_seconds)
    locked = time.monotonic()
    with _undone(session, wanted, workflow):
        reach("deny.locked")
        _make(session, wanted, workflow, _body(token, message))
        # A session that has lost its lock in between has let writes pass before all triggers stood: begin again.
        check_locked(session, wanted)
    return Denied(
        session=session,
        tables=wanted,
        workflow=workflow,
        lock_millis=(locked - began) * 1000,
        made_millis=(time.monotonic() - locked) * 1000,
    )


@contextlib.contextmanager
def _undone(session: Session, tables: tuple[Table, ...], workflow: str) -> Iterator[None]:
    """Whatever is raised inside: no trigger and no lock stays, as far as this session can still do it."""
    try:
        yield
    except ConnectionLost:
        raise
    except VReplicationError:
        # Still under the lock: no writer has seen them. What cannot be removed is told by `denied_tables`.
        with contextlib.suppress(Terminal, Transient):
            _remove(session, tables, workflow)
        unlock(session)
        raise
    except BaseException:
        # In the middle of an answer nothing more can be said on this connection; its end frees the lock.
        session.abort()
        raise


def lock(session: Session, tables: Iterable[Table], seconds: int = LOCK_SECONDS) -> None:
    """LOCK TABLES … WRITE, also against prepared XA branches. Raises LockWait."""
    session.execute_raw(
        # With autocommit on MariaDB grants the lock beside a prepared branch whose connection has ended, and its XA
        # COMMIT would write to a table that is denied (measured; MySQL waits either way).
        f"SET SESSION autocommit=0, innodb_table_locks=1, lock_wait_timeout={int(seconds)}, "
        f"innodb_lock_wait_timeout={int(seconds)}"
    )
    try:
        session.execute_raw("LOCK TABLES " + ", ".join(f"{qualified(*table)} WRITE" for table in tables))
    except (LockWait, SqlError):
        # Left off, whatever is asked next would begin a transaction that nobody ends.
        session.execute_raw("SET SESSION autocommit=1")
        raise


def unlock(session: Session) -> None:
    """Idempotent."""
    session.execute_raw("UNLOCK TABLES")
    session.execute_raw("SET SESSION autocommit=1")


def _make(session: Session, tables: Iterable[Table], workflow: str, body: str) -> None:
    for table in tables:
        for event in DENIED_EVENTS:
            _create(session, table, event, workflow, body)
        reach("deny.table_denied")


def _create(session: Session, table: Table, event: str, workflow: str, body: str) -> None:
    """In the place of one that an earlier attempt has left, whose token may be another."""
    name = qualified(table[0], deny_trigger(workflow, table[1], event))
    sql = f"CREATE TRIGGER {name} BEFORE {event} ON {qualified(*table)} FOR EACH ROW {body}"
    try:
        _define(session, sql)
    except SqlError as error:
        if error.code != _EXISTS:
            raise
        # Its token is the former attempt's: our own stream would be denied by it on the way back.
        _define(session, f"DROP TRIGGER {name}")
        _define(session, sql)


def _define(session: Session, sql: str) -> None:
    """Raises Terminal with what to do where the user may not."""
    try:
        session.execute_raw(sql)
    except SqlError as error:
        if error.code != _MAY_NOT:
            raise
        raise Terminal(_MAY_NOT_CREATE, cure=TRUST_CURE) from None


def _body(token: str, message: str) -> str:
    """An error ends INSERT IGNORE, too. Bytes are compared: 0 is equal to most texts, and no character set matters."""
    return (
        f"IF NOT (CAST(@vreplication AS BINARY) <=> {binary(_exemption(token))}) THEN "
        f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO={ERRNO}, MESSAGE_TEXT={_literal(message)}; END IF"
    )


def _exemption(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _literal(message: str) -> str:
    """Readable in SHOW CREATE TRIGGER where it needs no escaping; the servers' own words have no characters of four
    bytes."""
    words = "".join(c if c <= "\uffff" else "?" for c in message)[:MOST_MESSAGE]
    is_plain = words.isascii() and words.isprintable() and not set("'\\") & set(words)
    return f"'{words}'" if is_plain else text(words)


def check_locked(session: Session, tables: Iterable[Table]) -> None:
    """Raises Transient unless this session holds LOCK TABLES on each of them."""
    for table in tables:
        try:
            # Under LOCK TABLES a table answers by the names that were locked, and no other.
            session.execute_raw(f"SELECT 1 FROM {qualified(*table)} LIMIT 0")
            session.execute_raw(f"SELECT 1 FROM {qualified(*table)} AS {_PROBE} LIMIT 0")
        except SqlError as error:
            if error.code == _NOT_LOCKED and _PROBE in error.message:
                continue
            raise
        raise Transient(f"The lock of {'.'.join(table)} has been lost.")


def exempt(session: Session, token: str) -> None:
    """From now on this session writes to tables that were denied with this token."""
    session.execute_raw(f"SET @vreplication = {binary(_exemption(token))}")


# -- what stands, and how it goes -------------------------------------------------------------------------------------


def standing(session: Session, table: Table, *, workflow: str) -> frozenset[str]:
    """Which of DENIED_EVENTS the workflow's triggers deny on this table now. Needs TRIGGER on it, else none is seen.

    Raises LockWait on MariaDB while somebody rebuilds the table.
    """
    # With both names given MariaDB reads the files of that table; of a whole schema it leaves out what is locked.
    rows = session.rows(
        "SELECT TRIGGER_NAME, EVENT_MANIPULATION FROM information_schema.TRIGGERS "
        f"WHERE EVENT_OBJECT_SCHEMA={text(table[0])} AND EVENT_OBJECT_TABLE={text(table[1])} AND ACTION_TIMING='BEFORE'"
    )
    # By its name at its own event: a trigger of ours that denies deletes does not stand for one that denies inserts.
    return frozenset(str(e) for name, e in rows if str(name) == deny_trigger(workflow, table[1], str(e)))


def foreign(session: Session, table: Table, *, workflow: str) -> list[str]:
    """Triggers on this table that are not the workflow's."""
    rows = session.rows(
        "SELECT TRIGGER_NAME, EVENT_MANIPULATION FROM information_schema.TRIGGERS "
        f"WHERE EVENT_OBJECT_SCHEMA={text(table[0])} AND EVENT_OBJECT_TABLE={text(table[1])}"
    )
    return [str(name) for name, event in rows if str(name) != deny_trigger(workflow, table[1], str(event))]


def not_alone(session: Session, tables: Iterable[Table], *, workflow: str) -> str:
    """A sentence on triggers that are not the workflow's, '' where there are none.

    Where the table is not written any more but by our own stream, they would run again on rows that hold their effect.
    """
    for table in tables:
        if others := foreign(session, table, workflow=workflow):
            where, listed = ".".join(table), ", ".join(others)
            if any(map(is_deny_trigger, others)):
                return f"{where} has triggers that deny writes ({listed}): another workflow may have switched it away."
            return f"{where} has triggers ({listed}), which would run again on every row that comes there afterwards."
    return ""


def denied_tables(session: Session, tables: Iterable[Table], *, workflow: str) -> set[Table]:
    """Those on which nobody can insert, update or delete; one with some of its three triggers is not among them."""
    return {table for table in tables if is_denied(session, table, workflow=workflow)}


def is_denied(session: Session, table: Table, *, workflow: str) -> bool:
    return standing(session, table, workflow=workflow) == frozenset(DENIED_EVENTS)


def allow(
    session: Session,
    tables: Iterable[Table],
    *,
    workflow: str,
    lock_seconds: int = LOCK_SECONDS,
    former: Iterable[int] = (),
) -> None:
    """Drop the workflow's triggers. Idempotent, one table after the other.

    former: connections that may still be making them; they are ended and seen to be gone first. For a trigger that is
    not there yet DROP waits for nobody, and the table would be denied for ever (measured on both). Raises LockWait when
    a transaction holds a table for longer than lock_seconds: call it again.
    """
    # W10: seen to be gone, and only then DROP. A CREATE TRIGGER that is still on its way would come behind it, and the
    # table would be denied with nobody to allow it.
    end_connections(session, tuple(former), user=session.url.user)
    before = int(session.value("SELECT @@lock_wait_timeout"))
    session.execute_raw(f"SET SESSION lock_wait_timeout={int(lock_seconds)}")
    try:
        _remove(session, tables, workflow)
    finally:
        with contextlib.suppress(VReplicationError):
            session.execute_raw(f"SET SESSION lock_wait_timeout={before}")


def _remove(session: Session, tables: Iterable[Table], workflow: str) -> None:
    """By name, so also from a table that somebody has renamed."""
    for schema, table in tables:
        for event in DENIED_EVENTS:
            _define(session, f"DROP TRIGGER IF EXISTS {qualified(schema, deny_trigger(workflow, table, event))}")


# -- what else the switch has to look at ------------------------------------------------------------------------------


def definitions(session: Session, tables: Iterable[Table], own: Iterable[int]) -> list[Process]:
    """Connections, but for our own, that are at a DDL statement on one of the tables: no trigger stops a TRUNCATE.

    Under the lock they wait; let go, they would run on the old table, and nobody would do it to the new one.
    """
    wanted, ours = tuple(tables), {*own, session.id}
    others = [process for number, process in processes(session, is_full=True).items() if number not in ours]
    return [p for p in others if any(defines(p.statement, p.schema, table) for table in wanted)]


def may_create_triggers(session: Session) -> str:
    """'' when it may, or one sentence on why not; TRUST_CURE is what to do. TRIGGER is not looked at."""
    return "" if privileges.may_create_triggers(session, is_mariadb=is_mariadb(session)) else _MAY_NOT_CREATE
