"""A DDL by which a name means other rows, or a value another one, where rows were asked of the source that had run it.

A row of which the key alone was sent is asked by its table's name, of a source that may be further than the message: by
then another table may have the name (RENAME, EXCHANGE PARTITION), or another column a column's. Nothing at the source
tells that, and the log does not say which table a name means. But that DDL is in the feed, behind the message, and all
rows before it are applied when the consumer comes to it: so what is noted of each question (state/feed_asked.py) tells
then whether it was asked before or behind it. An ALTER that converts values, as of a TIMESTAMP to a DATETIME, would do
so with those that were asked behind it once more.

What must stay true: such a DDL is not run where a row before it may have been asked behind it; what cannot be told
counts as asked behind it.
"""

from __future__ import annotations

import contextlib
import re

from vreplication.binlog.definitions import Definition
from vreplication.binlog.gtids import is_within, parse
from vreplication.errors import Refused, Terminal
from vreplication.feed.consume import collated
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.speaking import as_the_source, cut_of
from vreplication.feed.failover import Successors
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.text import Token, Unreadable
from vreplication.schema.introspect import introspect
from vreplication.schema.literals import APPROXIMATE, BINARIES, CHARACTERS, DECIMALS, INTEGERS
from vreplication.schema.model import Column
from vreplication.state import feed_asked
from vreplication.state.feed_asked import Asked
from vreplication.state.feed_offsets import Key

_FAMILIES = {
    "number": INTEGERS | DECIMALS | APPROXIMATE,
    "text": CHARACTERS,
    "bytes": BINARIES,
    "day": frozenset({"date", "datetime"}),
}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:", re.IGNORECASE)
_DOMAIN = re.compile(r"\d+-\d+-\d+")
_MARGIN_MICROS = 10_000
"""Where the log names no transactions the source's clock has to tell. A DDL's time is a little more than its clock's
where several were in one microsecond."""
_COPY = "Begin again with a copy and a new feed."
_CURE = (
    f"{_COPY} Only where the tables have the same rows (an online schema change by"
    " another tool) do by hand on the target what the statement does, and start the consumer again: it finds it done."
)


def check(session: Session, key: Key, ddl: Ddl, said: Definition | None, successors: Successors) -> None:
    """Raises Transient, Terminal."""
    is_misleading = _may_mislead(ddl, said)
    if not (is_misleading or _may_convert(ddl, said)):
        return
    named = {_folded(*each) for each in said.tables} if said is not None else set()
    for asked in feed_asked.load(session, key):
        # Of a statement that cannot be read it is not known which tables it is about.
        is_named = not named or _folded(asked.schema, asked.table) in named
        if is_named and _was_behind(asked, ddl) and _is_of(asked.source, ddl.source, successors):
            if is_misleading:
                raise _misled(asked, ddl, _CURE if named else _COPY)
            if said is not None and _converts(session, ddl, said):
                raise _converted(asked, ddl)


def _misled(asked: Asked, ddl: Ddl, cure: str) -> Terminal:
    return Terminal(
        f"Rows of {asked.schema}.{asked.table} were asked of the source when it had run this already, so they"
        f" may be rows of another table or column: {ddl.sql[:500]}",
        cure=cure,
    )


def _converted(asked: Asked, ddl: Ddl) -> Terminal:
    return Terminal(
        f"Rows of {asked.schema}.{asked.table} were asked of the source when it had run this already, so their values"
        f" are converted, and would be converted again: {ddl.sql[:500]}",
        cure=f"{_COPY} Or do by hand on the target what the statement does, give the table the source's rows there, and"
        " start the consumer again: it finds it done.",
    )


def _is_of(asked: str, source: str, successors: Successors) -> bool:
    """What another source of the feed has run is no matter of this one's rows. source: '' where it is not told."""
    if not source or asked == source:
        return True
    # Or the feed has gone on elsewhere between the two.
    now = successors()
    return now.get(asked, asked) == now.get(source, source)


def _folded(schema: str, table: str) -> tuple[str, str]:
    """A server may take names for the same that differ in case."""
    return schema.casefold(), table.casefold()


def _may_mislead(ddl: Ddl, said: Definition | None) -> bool:
    """What a table loses by DROP and TRUNCATE it loses on the target as well, whatever was written to it before."""
    if said is None:
        return True
    if said.what != "TABLE" or said.verb not in ("RENAME", "ALTER"):
        return False
    # A second table of an ALTER is its new name, or gives rows and gets some.
    return said.verb == "RENAME" or len(said.tables) != 1 or _renames_a_column(ddl)


def _renames_a_column(ddl: Ddl) -> bool:
    try:
        cut = cut_of(ddl)
    except Unreadable:
        return True
    return any(_is_rename(cut[at:]) for at in range(len(cut)))


def _is_rename(rest: list[Token]) -> bool:
    if rest[0].is_word("RENAME"):
        return len(rest) > 1 and rest[1].is_word("COLUMN")
    if not rest[0].is_word("CHANGE"):
        return False
    # MariaDB: CHANGE COLUMN IF EXISTS old new, the longest one.
    names = [each for each in rest[1:6] if not each.is_word("COLUMN", "IF", "EXISTS")]
    return len(names) < 2 or names[0].value.casefold() != names[1].value.casefold()


# Values that it converts.


def _may_convert(ddl: Ddl, said: Definition | None) -> bool:
    """By its words."""
    if said is None or (said.verb, said.what) != ("ALTER", "TABLE"):
        return False
    try:
        cut = cut_of(ddl)
    except Unreadable:
        return True
    return any(each.is_word("MODIFY", "CHANGE", "CONVERT") for each in cut)


def _converts(session: Session, ddl: Ddl, said: Definition) -> bool:
    """A value of it may become another one once more; also where that cannot be tried. Raises Terminal."""
    with contextlib.suppress(SqlError, Refused, Unreadable), as_the_source(session, ddl):
        before, behind = introspect(session, *said.tables[0]), collated.tried(session, ddl, said)
        pairs = ((column, behind.column(column.name)) for column in before.columns if behind.has_column(column.name))
        return any(_family(old) != _family(new) for old, new in pairs)
    return True


def _family(column: Column) -> str:
    """Between types of one family what was converted stays as it is, or does not fit and is refused.

    A TIMESTAMP is none of the other times: what it is there depends on the session's time zone.
    """
    return next((name for name, types in _FAMILIES.items() if column.data_type in types), column.data_type)


def _was_behind(asked: Asked, ddl: Ddl) -> bool:
    """The statement stood in the log of the source when it was asked, as far as is known."""
    known = parse(asked.gtids)
    # Elsewhere the statement's name is file:offset, which is in no set: then the clock decides.
    if known is not None and (_UUID.match(ddl.gtid) or _DOMAIN.fullmatch(ddl.gtid)):
        name = parse(ddl.gtid)
        return name is None or is_within(name, known)
    return ddl.t <= asked.micros + _MARGIN_MICROS
