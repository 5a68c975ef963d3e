"""The session in which a DDL of the feed is run: what it was at the source decides what the statement makes.

What must stay true: a statement whose session the target cannot have is not run; behind it our session is as before.
Of a feed that does not tell the session the target's own settings count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from vreplication.binlog.control import Query
from vreplication.binlog.grammar import cut
from vreplication.errors import Terminal
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.spoken import (
    SYSTEM,
    Spoken,
    is_offset,
    may_ask_for_a_zone,
    may_name_days,
    mode_for,
    reading_mode,
    zone_of_system,
)
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import ConnectionLost, Session, SqlError, is_passing
from vreplication.mysql.text import Token

_UTF8MB4 = 45
# A column that becomes AUTO_INCREMENT is numbered by steps of 1, whatever the target's own are.
_ALWAYS = "foreign_key_checks=0,auto_increment_increment=1,auto_increment_offset=1"
_NOT_TOLD = (
    "sql_mode=IF(FIND_IN_SET('NO_AUTO_VALUE_ON_ZERO',@@GLOBAL.sql_mode),@@SESSION.sql_mode,"
    "TRIM(BOTH ',' FROM REPLACE(CONCAT(',',@@SESSION.sql_mode,','),',NO_AUTO_VALUE_ON_ZERO,',',')))"
)
"""A column that becomes AUTO_INCREMENT is numbered as in a session of a client's, where ours would leave 0 as it is."""
_SERVERS_ZONE = "@@GLOBAL.time_zone"
_UTC = frozenset({"UTC", "ETC/UTC", "UCT", "ETC/UCT", "GMT", "ETC/GMT", "ZULU", "ETC/ZULU"})
"""A server that has no time zones loaded has this one all the same."""
_GENERATED = "SELECT 1 FROM information_schema.COLUMNS WHERE GENERATION_EXPRESSION<>''"
_OF_EXPRESSIONS = "SELECT 1 FROM information_schema.STATISTICS WHERE EXPRESSION IS NOT NULL"
_BY_HAND = "or do by hand what the statement does; then start the consumer again."


@contextlib.contextmanager
def as_the_source(session: Session, ddl: Ddl) -> Iterator[None]:
    """Raises Terminal."""
    before, names = session.rows("SELECT @@SESSION.sql_mode, @@SESSION.lc_time_names")[0]
    zone = _zone(session, ddl)
    try:
        session.execute_raw(f"SET SESSION {_ALWAYS}")
        _set(session, f"time_zone={zone}", ddl, "Load the time zones there (mysql_tzinfo_to_sql)")
        _set(session, _mode(session, ddl.spoken), ddl, "Use a target that has it")
        _set_timestamps(session, ddl)
        _set_time_names(session, ddl)
        yield
    finally:
        # A connection that is lost has nothing that could be set back.
        with contextlib.suppress(ConnectionLost):
            session.execute("SET SESSION sql_mode=%s, lc_time_names=%s, time_zone='+00:00'", (before, names))


@contextlib.contextmanager
def connected_as_the_source(session: Session, ddl: Ddl) -> Iterator[None]:
    """Its literals are turned into the character set that they had there. For nothing else: names may have others."""
    if not ddl.spoken.connection:
        yield
        return
    before = session.value("SELECT @@SESSION.collation_connection")
    _set(session, f"collation_connection='{ddl.spoken.connection}'", ddl, "Use a target that has it")
    try:
        yield
    finally:
        with contextlib.suppress(ConnectionLost):
            session.execute("SET SESSION collation_connection=%s", (before,))


def _set(session: Session, assignment: str, ddl: Ddl, cure: str) -> None:
    try:
        session.execute_raw(f"SET SESSION {assignment}")
    except SqlError as error:
        if is_passing(error):
            raise
        raise Terminal(
            f"A DDL of the feed was run in a session that the target cannot have: {error.message}. It is:"
            f" {ddl.sql[:500]}",
            cure=f"{cure}, {_BY_HAND}",
        ) from None


def _zone(session: Session, ddl: Ddl) -> str:
    """As SQL. Where the statement did not ask for its zone, any will do. Raises Terminal."""
    told = ddl.spoken
    if not told.time_zone:
        return _SERVERS_ZONE
    if told.time_zone.upper() in _UTC:
        return "'+00:00'"
    if told.time_zone != SYSTEM:
        return f"'{told.time_zone}'" if _knows(session, told.time_zone) or _may_ask(session, ddl) else _SERVERS_ZONE
    # A system that has always had one offset is told by that, which any server can have, whatever zones it has loaded.
    if is_offset(told.system_zone):
        return f"'{told.system_zone}'"
    if zone_of_system(session) != told.system_zone:
        if not _may_ask(session, ddl):
            return _SERVERS_ZONE
        raise Terminal(
            "A DDL of the feed was run in the time zone of the source's system, and that of the target's is another"
            f" one. It is: {ddl.sql[:500]}",
            cure=f"Set the target's system to that zone, {_BY_HAND}",
        )
    return f"'{SYSTEM}'"


def _knows(session: Session, zone: str) -> bool:
    # NULL for a zone that is not loaded; setting it would be an error, also where the statement has no need of it.
    return session.value("SELECT CONVERT_TZ('2026-01-01','+00:00',%s)", (zone,)) is not None


def _may_ask(session: Session, ddl: Ddl) -> bool:
    """Whether the statement may make a value by the time zone: MariaDB tells the zone of nearly each one."""
    return may_ask_for_a_zone(ddl.sql) or _may_compute(session, ddl)


def _may_compute(session: Session, ddl: Ddl) -> bool:
    """There may be generated columns whose values the statement makes anew.

    A table is not looked for in another schema, so a name (or a number) with a point in it counts as if it had some.
    """
    if "." in ddl.sql:
        return True
    wanted = [_GENERATED] if is_mariadb(session) else [_GENERATED, _OF_EXPRESSIONS]
    return any(session.rows(f"{sql} AND TABLE_SCHEMA=%s LIMIT 1", (ddl.schema,)) for sql in wanted)


def _mode(session: Session, told: Spoken) -> str:
    if told.sql_mode is None:
        return _NOT_TOLD
    return f"sql_mode='{mode_for(told.sql_mode, is_mariadb=is_mariadb(session))}'"


def _set_timestamps(session: Session, ddl: Ddl) -> None:
    wanted = ddl.spoken.explicit_timestamps
    # Only where it differs: MySQL wants a privilege for it, of which a target with the same value has no need.
    if wanted is not None and bool(session.value("SELECT @@explicit_defaults_for_timestamp")) is not wanted:
        _set(session, f"explicit_defaults_for_timestamp={int(wanted)}", ddl, "Set it in the target's configuration")


def _set_time_names(session: Session, ddl: Ddl) -> None:
    """Each flavor knows some languages of its own, which are wanted only where they count."""
    if names := ddl.spoken.time_names:
        try:
            session.execute("SET SESSION lc_time_names=%s", (names,))
        except SqlError:
            if may_name_days(ddl.sql) or _may_compute(session, ddl):
                _set(session, f"lc_time_names='{names}'", ddl, "Use a target that has it")


# What it says, read as in its session.


def query_of(ddl: Ddl) -> Query:
    mode = reading_mode(ddl.spoken.sql_mode)
    return Query(schema=ddl.schema, text=ddl.sql.encode(), collation=_UTF8MB4, sql_mode=mode)


def cut_of(ddl: Ddl) -> list[Token]:
    """Raises Unreadable."""
    return cut(ddl.sql, query_of(ddl))
