"""What a DDL's session decided of it beside its text: goes with the message, in the header `vr-session`.

The log tells the session's SQL mode and language, and its time zone where the statement asked for it. What it leaves to
the server (the zone SYSTEM, the default collation of a schema) the source is asked for when the statement is sent.

What must stay true: what is told is the source's; what cannot be told is left out, and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from vreplication.binlog.grammar import ANSI_QUOTES, NO_BACKSLASH_ESCAPES
from vreplication.errors import Terminal
from vreplication.feed.catalog import Filter
from vreplication.feed.messages import Header
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, SqlError, is_passing

HEADER = "vr-session"
_MODES = (
    *("REAL_AS_FLOAT", "PIPES_AS_CONCAT", "ANSI_QUOTES", "IGNORE_SPACE", "IGNORE_BAD_TABLE_OPTIONS"),
    *("ONLY_FULL_GROUP_BY", "NO_UNSIGNED_SUBTRACTION", "NO_DIR_IN_CREATE", "POSTGRESQL", "ORACLE", "MSSQL", "DB2"),
    *("MAXDB", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS", "NO_FIELD_OPTIONS", "MYSQL323", "MYSQL40", "ANSI"),
    *("NO_AUTO_VALUE_ON_ZERO", "NO_BACKSLASH_ESCAPES", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "NO_ZERO_IN_DATE"),
    *("NO_ZERO_DATE", "ALLOW_INVALID_DATES", "ERROR_FOR_DIVISION_BY_ZERO", "TRADITIONAL", "NO_AUTO_CREATE_USER"),
    *("HIGH_NOT_PRECEDENCE", "NO_ENGINE_SUBSTITUTION", "PAD_CHAR_TO_FULL_LENGTH"),
)
"""By their bits, the lowest first; behind them the flavors differ."""
_TRUNCATES, _ROUNDS = "TIME_TRUNCATE_FRACTIONAL", "TIME_ROUND_FRACTIONAL"
_MORE = {False: (_TRUNCATES,), True: ("EMPTY_STRING_IS_NULL", "SIMULTANEOUS_ASSIGNMENT", _ROUNDS)}
_EXPLICIT_TIMESTAMPS = 1 << 24
"""MariaDB: of the session's flags."""
_NOT_IN_MYSQL = (
    *("IGNORE_BAD_TABLE_OPTIONS", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS", "NO_FIELD_OPTIONS", "NO_AUTO_CREATE_USER"),
    "SIMULTANEOUS_ASSIGNMENT",
)
"""Modes of MariaDB's that decide nothing of a DDL that another server can run."""
_KEYS = re.compile(r"\b(?:UNIQUE|PRIMARY)\b", re.I)
_OF_A_ZONE = re.compile(r"TIME|DATE|NOW|CURRENT|\b(?:MODIFY|CHANGE|AS|SELECT)\b|DEFAULT[^,]*\(|\(\s*\(", re.I)
"""Without any of these an ALTER makes no value by the session's time zone."""
_OF_A_LANGUAGE = re.compile(r"FORMAT|NAME\s*\(|STR_TO_DATE|TO_CHAR|TO_DATE", re.I)
"""Without any of these an ALTER makes no value by the words for days and months."""
_UNLESS = re.compile(r"\bIF\s+NOT\s+EXISTS\b", re.I)
_KEY_COLLATIONS = (
    "SELECT DISTINCT COLUMN_NAME, c.COLLATION_NAME FROM information_schema.STATISTICS"
    " JOIN information_schema.COLUMNS c USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME)"
    " JOIN information_schema.TABLES USING (TABLE_SCHEMA, TABLE_NAME)"
    " WHERE NON_UNIQUE=0 AND c.COLLATION_NAME IS NOT NULL"
    " AND TABLE_SCHEMA=%s AND TABLE_NAME=%s AND CREATE_TIME >= FROM_UNIXTIME(%s)"
)
_EXCHANGED = re.compile(r"\bEXCHANGE\s+PARTITION\b|\bCONVERT\s+TABLE\b", re.I)
SYSTEM = "SYSTEM"
_DIGITS = "(SELECT 0 AS d" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, 10)) + ")"
# A thousand steps of 2,142,000 s (24.8 days) end in 2037: older servers know no FROM_UNIXTIME behind January 2038.
_OFFSETS = (
    "SELECT GROUP_CONCAT(DISTINCT o), SUBSTRING(SHA2(GROUP_CONCAT(o ORDER BY t), 256), 1, 16) FROM"
    " (SELECT t, TIMESTAMPDIFF(SECOND, '1970-01-01' + INTERVAL t SECOND, FROM_UNIXTIME(t)) AS o FROM"
    f" (SELECT 86400 + 2142000 * (a.d + 10 * b.d + 100 * c.d) AS t FROM {_DIGITS} a, {_DIGITS} b, {_DIGITS} c) x) y"
)
"""What SYSTEM was ahead of UTC at a thousand moments from 1970 to 2037."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """sql_mode: names, with one of TIME_TRUNCATE_FRACTIONAL and TIME_ROUND_FRACTIONAL; None: not told.

    time_zone: '' where the statement asked for none. system_zone: which zone SYSTEM is, as of `zone_of_system`.
    explicit_timestamps: explicit_defaults_for_timestamp, where the statement has a TIMESTAMP; None: not told.
    collation: as it is by now, the default of the schema of a table that is made, or of a table that gets a unique key.
    utf8mb4: the one of that character set, where the statement has it. is_folded: names of tables that differ in case
    alone are one to the source; None: not told. tables, exclude: of the feed's filter, where a schema goes of which it
    has not all tables. moment: what NOW() was to it, µs since 1970. is_online: it was an
    online DDL of ours, by which rows came one after the other, and in no order of a key. keys: of the table that it has
    made unless it was there, the collations of text in unique keys, by column, where another source may have made it.
    connection: collation of the connection, where it is none of utf8mb4 and the statement has more than ASCII: its
    literals have been in that character set. is_garbled: as of `Definition`. time_names: lc_time_names, by which days
    and months have their names; '': not told. strangers: (schema, table) that the feed does not follow, of which a
    table that it follows gets rows.
    """

    sql_mode: str | None = None
    time_zone: str = ""
    system_zone: str = ""
    explicit_timestamps: bool | None = None
    collation: str = ""
    utf8mb4: str = ""
    is_folded: bool | None = None
    tables: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    moment: int = 0
    is_online: bool = False
    keys: dict[str, str] = {}
    connection: str = ""
    is_garbled: bool = False
    time_names: str = ""
    strangers: tuple[tuple[str, str], ...] = ()

    @property
    def header(self) -> tuple[str, bytes]:
        return HEADER, msgspec.json.encode(self)


def read(data: bytes) -> Spoken:
    """Nothing, of a feed that did not tell. Raises Terminal."""
    try:
        return msgspec.json.decode(data, type=Spoken) if data else Spoken()
    except msgspec.DecodeError as error:
        raise Terminal(f"The header {HEADER} of a DDL of the feed cannot be read ({error}).") from None


class Asker:
    """Of one source, on a connection of its own: the one of the catalog is of who reads the log, in another thread."""

    def __init__(self, connect: Callable[[], Session], filter: Filter, *, is_alone: bool) -> None:
        self._connect, self._filter, self._is_alone = connect, filter, is_alone
        self._session: Session | None = None

    def header(self, said: Mapping[str, Any]) -> Header:
        """said: fields of the Definition."""
        if self._session is None or not self._session.is_alive():
            self._session = self._connect()
        told = self._with_filter(spoken(self._session, said), said)
        keys = {} if self._is_alone else _of_keys(self._session, said)
        return msgspec.structs.replace(told, keys=keys, strangers=self._strangers(told, said)).header

    def _strangers(self, told: Spoken, said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """A target may have a table of that name, with other rows."""

        def has(name: tuple[str, str]) -> bool:
            schema, table = name
            return self._filter.has(schema.lower(), table.lower()) if told.is_folded else self._filter.has(*name)

        return tuple(dict.fromkeys(name for name, to in _given(said) if has(to) and not has(name)))

    def _with_filter(self, told: Spoken, said: Mapping[str, Any]) -> Spoken:
        """A target may have tables of its own in a schema that the source drops (MariaDB: or makes anew)."""
        if said["what"] != "DATABASE" or said["verb"] == "ALTER":
            return told
        schema = said["tables"][0][0]
        if self._filter.has_all_of(schema.lower() if told.is_folded else schema):
            return told
        return msgspec.structs.replace(told, tables=self._filter.tables, exclude=self._filter.exclude)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def _given(said: Mapping[str, Any]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Pairs of tables: rows of the first one are the second one's behind the statement."""
    tables = [(schema, table) for schema, table in said["tables"]]
    if said["verb"] == "RENAME":
        renamed, of = [(schema, table) for schema, table in said["renamed"]], dict[tuple[str, str], tuple[str, str]]()
        # One statement may exchange names over a third (a TO x, b TO a, x TO b): followed through, b gets the rows of
        # a.
        for old, new in zip(renamed[::2], renamed[1::2], strict=False):
            of[new] = of.pop(old, old)
        return [(old, new) for new, old in of.items()]
    if (said["verb"], said["what"], len(tables)) != ("ALTER", "TABLE", 2):
        return []
    first, second = tables
    return [(first, second), (second, first)] if _EXCHANGED.search(said["sql"]) else [(first, second)]


def spoken(source: Session, said: Mapping[str, Any]) -> Spoken:
    """said: fields of the Definition. An online DDL of ours converted as a new session of the server would."""
    folds = source.lasting("folded", lambda: int(source.value("SELECT @@lower_case_table_names")))
    told = msgspec.structs.replace(
        _session(source, said) if said["session"] else _new_session(source, str(said["sql"])),
        collation=_of_schema(source, said) or _of_table(source, said),
        is_folded=bool(folds),
        moment=said["session"].get("at") or said.get("moment", 0),
        is_online=not said["session"],
        connection=_of_connection(source, said),
        is_garbled=bool(said.get("is_garbled")),
        time_names=_time_names(source, said),
    )
    if said["what"] != "TABLE" or "utf8mb4" not in said["sql"].lower():
        return told
    return msgspec.structs.replace(told, utf8mb4=_of_utf8mb4(source, said["session"]))


def _new_session(source: Session, sql: str) -> Spoken:
    """The log does not tell what an online DDL asked for, so a zone is told where it may have asked for one."""
    mode, zone, explicit = source.rows(
        "SELECT @@GLOBAL.sql_mode, @@GLOBAL.time_zone, @@GLOBAL.explicit_defaults_for_timestamp"
    )[0]
    names = [name for name in str(mode).split(",") if name]
    told = Spoken(
        sql_mode=_with_fractions(names, is_mariadb=is_mariadb(source)),
        explicit_timestamps=bool(explicit) if _has_timestamp(sql) else None,
    )
    return _with_zone(source, told, str(zone)) if may_ask_for_a_zone(sql) else told


def may_ask_for_a_zone(sql: str) -> bool:
    """False: by its words an ALTER makes no value by the session's time zone, but for those of generated columns."""
    return _OF_A_ZONE.search(sql) is not None


def _session(source: Session, said: Mapping[str, Any]) -> Spoken:
    session = said["session"]
    told = Spoken(
        sql_mode=mode_text(int(session["sql_mode"]), is_mariadb=is_mariadb(source)),
        explicit_timestamps=_explicit(source, session) if _has_timestamp(said["sql"]) else None,
    )
    return _with_zone(source, told, str(session["time_zone"]))


def _has_timestamp(sql: str) -> bool:
    """MariaDB's flag is there at every statement, and a target may want a privilege to have it otherwise."""
    return "timestamp" in sql.lower()


def _explicit(source: Session, session: Mapping[str, Any]) -> bool | None:
    """MariaDB's flag says it where a session may set it, and is never there where none may."""
    if not is_mariadb(source):
        return session["explicit_timestamps"]  # type: ignore[no-any-return]
    if session["flags"] & _EXPLICIT_TIMESTAMPS:
        return True
    return False if source.lasting("explicit timestamps", lambda: _may_set_timestamps(source)) else None


def _may_set_timestamps(source: Session) -> bool:
    sql = "SELECT VARIABLE_SCOPE FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_NAME=%s"
    return bool(source.value(sql, ("EXPLICIT_DEFAULTS_FOR_TIMESTAMP",)) == "SESSION")


# Names of days and months.


def may_name_days(sql: str) -> bool:
    """False: by its words it makes no value by lc_time_names, but for those of generated columns."""
    return _OF_A_LANGUAGE.search(sql) is not None


def _time_names(source: Session, said: Mapping[str, Any]) -> str:
    if said["verb"] not in ("CREATE", "ALTER") or said["what"] == "DATABASE":
        return ""
    if not said["session"]:
        return str(source.value("SELECT @@GLOBAL.lc_time_names"))
    number = int(said["session"].get("language", 0))
    return source.lasting(f"time names {number}", lambda: _named(source, number))


def _named(source: Session, number: int) -> str:
    """The log tells its number, which need not mean the same to another server; '': nothing to this one."""
    before = source.value("SELECT @@SESSION.lc_time_names")
    try:
        source.execute_raw(f"SET SESSION lc_time_names={number}")
    except SqlError as error:
        if is_passing(error):
            raise
        return ""
    try:
        return str(source.value("SELECT @@SESSION.lc_time_names"))
    finally:
        source.execute("SET SESSION lc_time_names=%s", (before,))


# Collations.


def _of_schema(source: Session, said: Mapping[str, Any]) -> str:
    """The log does not tell it."""
    if (said["verb"], said["what"]) != ("CREATE", "TABLE") or not said["tables"]:
        return ""
    sql = "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME=%s"
    return str(source.value(sql, (said["tables"][0][0],)) or "")


def _of_table(source: Session, said: Mapping[str, Any]) -> str:
    """Of one that is there and gets a unique key, whose text is told apart by it unless the column says another one."""
    if said["verb"] not in ("CREATE", "ALTER") or said["what"] == "DATABASE" or not said["tables"]:
        return ""
    if not _KEYS.search(said["sql"]) or (said["verb"], said["what"]) == ("CREATE", "TABLE"):
        return ""
    sql = "SELECT TABLE_COLLATION FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
    return str(source.value(sql, tuple(said["tables"][0])) or "")


def _of_keys(source: Session, said: Mapping[str, Any]) -> dict[str, str]:
    """Of a table that was there before the statement nothing: it has made none."""
    if (said["verb"], said["what"]) != ("CREATE", "TABLE") or not said["tables"] or not _UNLESS.search(said["sql"]):
        return {}
    began = int(said["session"].get("at", 0)) // 10**6
    return {str(name): str(found) for name, found in source.rows(_KEY_COLLATIONS, (*said["tables"][0], began))}


def _of_connection(source: Session, said: Mapping[str, Any]) -> str:
    if said["sql"].isascii() or not said["session"].get("connection"):
        return ""
    sql = "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE ID=%s AND CHARACTER_SET_NAME<>'utf8mb4'"
    return str(source.value(sql, (said["session"]["connection"],)) or "")


def _of_utf8mb4(source: Session, said: Mapping[str, Any]) -> str:
    if number := said.get("utf8mb4"):
        return str(source.value("SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE ID=%s", (number,)))
    return default_of_utf8mb4(source)


def default_of_utf8mb4(session: Session) -> str:
    """Of a CHARACTER SET utf8mb4 without a COLLATE, in a new session there."""
    if not is_mariadb(session):
        return str(session.value("SELECT @@GLOBAL.default_collation_for_utf8mb4"))
    # Since 11.2 it may be one that information_schema.COLLATIONS has without a character set (uca1400_ai_ci).
    return str(session.value("SELECT COLLATION(CONVERT('' USING utf8mb4))"))


# SQL modes.


def mode_text(bits: int, *, is_mariadb: bool) -> str:
    """What we have no name for is named so that no server takes it for a mode."""
    known = (*_MODES, *_MORE[is_mariadb])
    places = [place for place in range(bits.bit_length()) if bits >> place & 1]
    names = [known[place] if place < len(known) else f"bit {place}" for place in places]
    return _with_fractions(names, is_mariadb=is_mariadb)


def _with_fractions(names: list[str], *, is_mariadb: bool) -> str:
    """Whether a fraction of a second is rounded or cut: each flavor has a mode for what it does not do by itself."""
    own, other = (_ROUNDS, _TRUNCATES) if is_mariadb else (_TRUNCATES, _ROUNDS)
    return ",".join(names if own in names else [*names, other])


def mode_for(told: str, *, is_mariadb: bool) -> str:
    """As a target of this flavor is told it: without what has no meaning there, and what it does by itself."""
    without = (_TRUNCATES,) if is_mariadb else (_ROUNDS, *_NOT_IN_MYSQL)
    return ",".join(name for name in told.split(",") if name and name not in without)


def reading_mode(told: str | None) -> int:
    """What of a mode decides how a statement's text is read, as bits."""
    names = (told or "").split(",")
    return ANSI_QUOTES * ("ANSI_QUOTES" in names) | NO_BACKSLASH_ESCAPES * ("NO_BACKSLASH_ESCAPES" in names)


# Time zones.


def _with_zone(source: Session, told: Spoken, zone: str) -> Spoken:
    """SYSTEM is another zone on another host: by its offset, where that has always been one."""
    if zone != SYSTEM:
        return msgspec.structs.replace(told, time_zone=zone)
    return msgspec.structs.replace(told, time_zone=SYSTEM, system_zone=zone_of_system(source))


def zone_of_system(session: Session) -> str:
    """Which zone SYSTEM is there: +01:00 where that has been its offset since 1970, else a digest of what it was."""
    return session.lasting("zone of system", lambda: _zone_of_system(session))


def _zone_of_system(session: Session) -> str:
    before = session.value("SELECT @@SESSION.time_zone")
    session.execute_raw("SET SESSION time_zone='SYSTEM'")
    try:
        offsets, digest = session.rows(_OFFSETS)[0]
    finally:
        session.execute("SET SESSION time_zone=%s", (before,))
    return str(digest) if "," in str(offsets) else _offset(int(offsets))


def is_offset(zone: str) -> bool:
    return zone[:1] in ("+", "-")


def _offset(seconds: int) -> str:
    sign, minutes = "-" if seconds < 0 else "+", abs(seconds) // 60
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}"
