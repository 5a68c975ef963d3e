"""An ALTER that leaves in the rows that are there what every server finds for itself.

UUID() and RAND() give others on the target than on the source, and no message tells the source's. Nor do rows of a
table without a key come in one order on both, so a new AUTO_INCREMENT column numbers them otherwise, and of rows that
are the same under a new unique key ALTER IGNORE (MariaDB) keeps another one. InnoDB alone has rows in a key's order.

What must stay true: no such statement is run on a table with rows that has not got the column; where the column is
there, by hand or before, its values are somebody else's care.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from vreplication.binlog.definitions import Definition
from vreplication.errors import Refused, Terminal
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.repeated import place_of_name
from vreplication.feed.consume.speaking import cut_of
from vreplication.feed.layout import make_layout
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session
from vreplication.mysql.text import Token, Unreadable
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Table
from vreplication.schema.written import cut_at_commas

_CALLED = (
    *("UUID", "UUID_SHORT", "UUID_V4", "UUID_V7", "SYS_GUID", "RAND", "RANDOM_BYTES", "SYSDATE", "ENCRYPT"),
    *("NEXTVAL", "LASTVAL", "SETVAL", "CONNECTION_ID", "LAST_INSERT_ID", "FOUND_ROWS", "ROW_COUNT", "LOAD_FILE"),
    *("USER", "SESSION_USER", "SYSTEM_USER", "CURRENT_USER", "CURRENT_ROLE", "VERSION"),
)
_NOW = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP")
_CLOCK = (
    *_NOW,
    *("CURRENT_DATE", "CURRENT_TIME", "CURDATE", "CURTIME", "UNIX_TIMESTAMP"),
    *("UTC_TIMESTAMP", "UTC_DATE", "UTC_TIME"),
)
_BARE = ("CURRENT_USER", "CURRENT_ROLE")
_OF_SEQUENCES = ("NEXTVAL", "CURRVAL")
_CURE = (
    "Make that change on the target by hand, with the source's values in the column; then start the consumer again: it"
    " finds the column there and goes on."
)


class _Added(NamedTuple):
    """A column that the statement adds. drawn: by what its values are found, ''; or it is a counter."""

    name: str
    drawn: str
    is_counter: bool


def check(session: Session, ddl: Ddl, said: Definition | None) -> None:
    """Raises Terminal."""
    if said is None or (said.verb, said.what) != ("ALTER", "TABLE") or not said.tables:
        return
    schema, name = said.tables[0]
    # What cannot be read here, or is no table of the target's, its server judges.
    with contextlib.suppress(Unreadable, Refused):
        cut = cut_of(ddl)
        if _may_drop_others(cut, introspect(session, schema, name)) and _has_rows(session, schema, name):
            raise _other_rows(f"{schema}.{name}", ddl.sql)
        is_online = ddl.spoken.is_online
        added = [each for each in _added(cut, said, is_online=is_online) if each.drawn or each.is_counter]
        found = _first(introspect(session, schema, name), added, is_online=is_online) if added else None
        if found is not None and _has_rows(session, schema, name):
            raise _refused(f"{schema}.{name}", found, ddl.sql)


def _may_drop_others(cut: list[Token], table: Table) -> bool:
    words = list(itertools.takewhile(lambda each: not each.is_word("TABLE"), cut))
    if not any(each.is_word("IGNORE") for each in words[-2:]) or _is_in_order(table):
        return False
    return any(key.is_unique for key in table.keys) or any(each.is_word("UNIQUE", "PRIMARY") for each in cut)


def _is_in_order(table: Table) -> bool:
    has_key = make_layout(0, table).has_key
    return has_key and table.engine.lower() == "innodb"


def _other_rows(table: str, sql: str) -> Terminal:
    return Terminal(
        f"A DDL of the feed (ALTER IGNORE) may drop other rows of {table} on the target than it has dropped on the"
        f" source, for the table has no key by which both have them in one order. It is: {sql[:500]}",
        cure="Make that change on the target by hand, with the rows that the source has kept; then start the consumer"
        " again: a table that is another one by then counts as done.",
    )


def _refused(table: str, column: _Added, sql: str) -> Terminal:
    why = f"DEFAULT {column.drawn}" if column.drawn else "AUTO_INCREMENT, in no order of a key"
    return Terminal(
        f"A DDL of the feed would give the rows of {table} other values on the target than the source has, in the new"
        f" column {column.name} ({why}). It is: {sql[:500]}",
        cure=_CURE,
    )


def _first(table: Table, added: Sequence[_Added], *, is_online: bool) -> _Added | None:
    """What is not there yet, and cannot be told. is_online: rows were numbered as several readers of the copy came."""
    is_in_order = _is_in_order(table) and not is_online
    missing = (each for each in added if not table.has_column(each.name))
    return next((each for each in missing if each.drawn or not is_in_order), None)


def _has_rows(session: Session, schema: str, name: str) -> bool:
    return session.value(f"SELECT 1 FROM {qualified(schema, name)} LIMIT 1") is not None


# What the statement adds.


def _added(cut: list[Token], said: Definition, *, is_online: bool) -> Iterator[_Added]:
    """Raises Unreadable."""
    _, end = place_of_name(cut, said)
    for clause in cut_at_commas([each for each in cut if each.start >= end]):
        for column in _columns(_without_wait(clause)):
            default = _default(column)
            drawn = _drawn(default) or (_of_the_clock(default) if is_online else "")
            yield _Added(column[0].value, drawn, _is_counter(column))


def _without_wait(clause: list[Token]) -> list[Token]:
    """MariaDB: ALTER TABLE t WAIT 5 ADD …, t NOWAIT ADD …"""
    if clause and clause[0].is_word("WAIT", "NOWAIT"):
        return clause[1 + clause[0].is_word("WAIT") :]
    return clause


def _columns(clause: list[Token]) -> Iterator[list[Token]]:
    """Of ADD: name and definition of each. A key among them has no default and does not count."""
    if not clause or not clause[0].is_word("ADD"):
        return
    rest = clause[1:]
    for word in ("COLUMN", "IF", "NOT", "EXISTS"):
        rest = rest[1:] if len(rest) > 1 and rest[0].is_word(word) else rest
    if rest and rest[0].is_punct("("):
        # The last one that closes: types and defaults have parentheses of their own.
        last = max((at for at, each in enumerate(rest) if each.is_punct(")")), default=len(rest))
        yield from filter(None, cut_at_commas(rest[1:last]))
    elif rest:
        yield rest


def _default(column: list[Token]) -> list[Token]:
    return column[next((at for at, each in enumerate(column) if at and each.is_word("DEFAULT")), len(column)) :]


def _drawn(default: list[Token]) -> str:
    """By what the values are found, in its own words; '': by the row alone."""
    for at, each in enumerate(default):
        behind = default[at + 1 : at + 3]
        if each.is_word(*_CALLED) and behind and behind[0].is_punct("("):
            return f"{each.text}()"
        if each.is_word(*_BARE) or (each.is_word(*_OF_SEQUENCES) and default[at - 1].is_punct(".")):
            return each.text
        if each.is_word("NEXT", "PREVIOUS") and len(behind) == 2 and behind[0].is_word("VALUE"):
            return f"{each.text} VALUE FOR"
    return ""


def _of_the_clock(default: list[Token]) -> str:
    """An online DDL gives all rows one CURRENT_TIMESTAMP, but each its own time where that is a part of more."""
    value = list(itertools.takewhile(lambda each: not each.is_word("ON", "COMMENT"), default[1:]))
    bare = [each for each in value if not each.is_punct("(", ")")]
    is_plain = bool(bare) and bare[0].is_word(*_NOW) and not any(each.is_punct("+", "-") for each in bare)
    return "" if is_plain else next((each.text for each in bare if each.is_word(*_CLOCK)), "")


def _is_counter(column: list[Token]) -> bool:
    # Behind AFTER stands the name of a column, which may be called so.
    return any(each.is_word("AUTO_INCREMENT", "SERIAL") and not at.is_word("AFTER") for at, each in pairwise(column))
