"""A DDL of the feed, run on the target once.

It does not roll back and commits by itself, so that it is run stands in no transaction with it. Before it is run, its
intent is saved with what the tables are that it names; who finds an intent looks first whether they are something else
by now. The connection that runs it holds a named lock: when the process is killed, the server goes on with the
statement, and nobody looks before that has ended.

What must stay true: nobody runs a DDL without the lock; a statement that the server refuses ends the consumer with the
server's words, and the same intent is found again by the next one.
"""

from __future__ import annotations

import hashlib
import json

from vreplication import names
from vreplication.binlog.definitions import Definition, definition
from vreplication.cutover.identity import table_identity
from vreplication.errors import Terminal
from vreplication.feed.catalog import Filter
from vreplication.feed.consume import collated, misled, own_values, repeated
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.speaking import as_the_source, connected_as_the_source, cut_of, query_of
from vreplication.feed.failover import Successors
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import NO_SUCH_SCHEMA, NO_SUCH_TABLE, Session, SqlError, connect, is_passing
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.schema.introspect import COUNTER, read_create_sql
from vreplication.settings import TABLE_SECONDS
from vreplication.state import feed_asked, feed_offsets
from vreplication.state.feed_offsets import Group, Key, Stand

_NO_TABLE = frozenset({NO_SUCH_TABLE, NO_SUCH_SCHEMA})
_DONE_BEFORE = frozenset({1007, 1008, 1050, 1051, 1054, 1060, 1061, 1068, 1091, 1146})
"""What is made is there already, or what goes is gone."""
_ALTERED = (
    "Give it the source's new definition there, by an ALTER TABLE of your own (FORCE where it has it already); then"
    " start the consumer again."
)
_REVERTED = (
    " An online DDL was reverted there: where it had dropped a column or changed values, rows are on the source as they"
    " were before it, which no message tells, so copy the table again instead."
)
_SCHEMA_IS_THERE = 1007
_IDLE_SECONDS = 60
_LONG_AGO = 10**15
"""µs. Below, a time is none of a clock."""


def lock_name(key: Key, what: str) -> str:
    """Of a named lock of the server."""
    return f"vreplication.{what}.{hashlib.sha256('/'.join(key).encode()).hexdigest()[:40]}"


def run(target: SourceUrl, key: Key, ddl: Ddl, successors: Successors = dict) -> bool:
    """Unless somebody else is doing it; returns whether it is done. successors: as of Asking.

    Raises Transient, Terminal.
    """
    # No schema of its own: an unqualified name means the one of the message, or is an error.
    with connect(target, use_database=False, found_rows=True, idle_seconds=_IDLE_SECONDS) as session:
        if session.value("SELECT GET_LOCK(%s,0)", (lock_name(key, "ddl"),)) != 1:
            return False
        # Behind the lock: whoever had it may have run this very statement meanwhile.
        state = feed_offsets.load(session, key)
        at = state.all_at(Stand.DDL) if state else None
        if state is None or at is None or at.stand_t != ddl.t or state.group.ddl_done >= ddl.t:
            return state is not None and state.group.ddl_done >= ddl.t
        _run(session, key, state.group, ddl, successors)
    return True


def _run(session: Session, key: Key, group: Group, ddl: Ddl, successors: Successors) -> None:
    said = _definition(ddl)
    now = _look(session, said)
    is_again = group.ddl_intent == ddl.t
    if not is_again:
        # D4: committed before the statement is sent, with what the tables are by now: DDL does not roll back, and who
        # comes after a crash tells by that whether it was run.
        group = feed_offsets.intend(session, key, group, ddl.t, now)
    if not is_again or not _has_happened(said, str(group.ddl_before), now):
        # Behind the intent: who does it by hand, knowing better, has it found done.
        _check_text(ddl)
        misled.check(session, key, ddl, said, successors)
        own_values.check(session, ddl, said)
        _check_strangers(session, ddl)
        reach("consume.before_ddl")
        if followed := _of_followed(session, ddl, said):
            _execute(session, followed, said, is_again=is_again)
        reach("consume.after_ddl")
    if said is not None and said.what == "TABLE" and said.verb in ("DROP", "TRUNCATE"):
        # Rows that were asked of it have gone with it: what has its name from now on is another matter.
        feed_asked.forget(session, key, said.tables)
    feed_offsets.finish(session, key, group)


def _check_text(ddl: Ddl) -> None:
    """Raises Terminal."""
    if ddl.spoken.is_garbled:
        raise Terminal(
            f"A DDL of the feed has text in a client's character set that cannot be read: {ddl.sql[:500]}",
            cure="Do by hand on the target what it does, and start the consumer again: a table that is another one by"
            " then counts as done (ALTER TABLE … FORCE makes it one, where nothing is to be done).",
        )


def _check_strangers(session: Session, ddl: Ddl) -> None:
    """Where there is none of that name the server says so. Raises Terminal."""
    for schema, table in ddl.spoken.strangers:
        sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        if session.value(sql, (schema, table)) is not None:
            raise Terminal(
                f"A DDL of the feed would take rows from the target's own table {schema}.{table}, which the feed does"
                f" not follow: what the source has in it is in no message. It is: {ddl.sql[:500]}",
                cure="Do by hand on the target what it does, with the source's rows; then start the consumer again: a"
                " table that is another one by then counts as done.",
            )


def _of_followed(session: Session, ddl: Ddl, said: Definition | None) -> Ddl | None:
    """Where the source drops a schema of which the feed has not all tables: those that it has. None: nothing."""
    told = ddl.spoken
    if said is None or not said.tables or not told.tables or not (said.verb == "DROP" or _is_made_anew(ddl)):
        return ddl
    schema, filter = said.tables[0][0], Filter(tables=told.tables, exclude=told.exclude)
    sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_TYPE<>'VIEW' ORDER BY 1"
    there = [str(name) for (name,) in session.rows(sql, (schema,))]
    folded = str.lower if told.is_folded else str
    gone = [qualified(schema, name) for name in there if filter.has(folded(schema), folded(name))]
    return ddl._replace(sql=f"DROP TABLE {', '.join(gone)}") if gone else None


def _is_made_anew(ddl: Ddl) -> bool:
    """MariaDB: CREATE OR REPLACE DATABASE."""
    cut = cut_of(ddl)
    return len(cut) > 1 and cut[1].is_word("OR")


def _execute(session: Session, ddl: Ddl, said: Definition | None, *, is_again: bool) -> None:
    with as_the_source(session, ddl), session.patient(TABLE_SECONDS):
        try:
            _use(session, ddl.schema)
            _go_back(session, ddl)
            ddl = collated.as_the_source(session, ddl, said)
            with connected_as_the_source(session, ddl):
                session.execute_raw(ddl.sql)
        except SqlError as error:
            # Ended by somebody: what it has done by then is looked for when it is sent again.
            if is_passing(error):
                raise
            is_done = error.code in _DONE_BEFORE and (
                (is_again and _was_done(session, said)) or _is_there(session, ddl, said, error.code)
            )
            if not is_done:
                raise _refused(ddl, said, error) from None


def _go_back(session: Session, ddl: Ddl) -> None:
    """A new column's DEFAULT CURRENT_TIMESTAMP is for the rows that are there when the source ran it, not now."""
    # The message's own time is none of a statement: a session's SET timestamp may have driven it ahead.
    if moment := ddl.spoken.moment or (ddl.t if ddl.t > _LONG_AGO else 0):
        try:
            session.execute_raw(f"SET SESSION timestamp={moment // 10**6}.{moment % 10**6:06}")
        except SqlError as error:
            if is_passing(error):
                raise


def _refused(ddl: Ddl, said: Definition | None, error: SqlError) -> Terminal:
    if said is not None and said.replaced and error.code in _NO_TABLE:
        # Of an online schema change of another tool, whose copy is not followed, or was made before the feed began.
        places = ", ".join(f"{schema}.{table}" for schema, table in said.replaced)
        return Terminal(
            f"The source has put another table in the place of {places}, and the target has none: {error.message}."
            f" It is: {ddl.sql[:500]}",
            cure=_ALTERED + (_REVERTED if _is_revert(said) else ""),
        )
    return Terminal(
        f"A DDL of the feed cannot be run on the target: {error.message}. It is: {ddl.sql[:500]}",
        cure="Do by hand what it does, or make it possible without altering the table, for one that is another by then"
        " counts as done; then start the consumer again.",
    )


def _is_revert(said: Definition) -> bool:
    """A retired table comes back; at a cut-over there is a shadow."""
    ours = [table for _, table in said.tables if names.is_ours(table)]
    return bool(ours) and not any(map(names.is_shadow, ours))


def _was_done(session: Session, said: Definition | None) -> bool:
    """Refused when it came again, as what has been done: where we know no table, or all that it drops are gone."""
    return said is None or (said.verb == "DROP" and _has_happened(said, "", _look(session, said)))


def _is_there(session: Session, ddl: Ddl, said: Definition | None, code: int) -> bool:
    """Refused the first time, as what another source has told already, or somebody has done here."""
    if said is None:
        return False
    if said.verb == "DROP" and said.what == "TABLE":
        return _has_happened(said, "", _look(session, said))
    if code == _SCHEMA_IS_THERE and ddl.spoken.tables:
        # It did not go with the feed's tables, or was there for others before them.
        return True
    return repeated.is_there(session, ddl, said, code)


def _use(session: Session, schema: str) -> None:
    """A schema that is not here decides nothing where every name has its own."""
    if schema:
        try:
            session.execute_raw(f"USE {ident(schema)}")
        except SqlError as error:
            if error.code != NO_SUCH_SCHEMA:
                raise


def _definition(ddl: Ddl) -> Definition | None:
    return definition(query_of(ddl), "utf-8")


def _look(session: Session, said: Definition | None) -> str:
    """What the tables are that it names."""
    found = {f"{schema}.{table}": _of(session, schema, table) for schema, table in (said.tables if said else ())}
    return json.dumps(found, sort_keys=True)


def _of(session: Session, schema: str, table: str) -> list[str | None] | None:
    """Its definition, and by which number InnoDB knows it; None: it is not there."""
    if not table:
        sql = "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME=%s"
        found = session.value(sql, (schema,))
        return None if found is None else [str(found)]
    try:
        # The counter rises with rows, and would make a statement that was not run look as if it had been.
        create = COUNTER.sub("", read_create_sql(session, schema, table))
    except SqlError as error:
        if error.code in _NO_TABLE:
            return None
        raise
    # TRUNCATE leaves the definition as it was; only the number tells that it was run.
    return [create, table_identity(session, schema, table, is_mariadb(session))]


def _has_happened(said: Definition | None, before: str, now: str) -> bool:
    """MariaDB drops several tables one by one: it has happened when the last is gone."""
    if said is not None and said.verb == "DROP" and said.what == "TABLE":
        return not any(json.loads(now).values())
    return before != now
