"""A DDL by which a name means other rows, where rows were asked of the source that had run it already.

A row of which the key alone was sent is asked by its table's name, of a source that may be further than the message: by
then another table may have the name (RENAME, EXCHANGE PARTITION), or another column a column's. Nothing at the source
tells that, and the log does not say which table a name means. But that DDL is in the feed, behind the message, and all
rows before it are applied when the consumer comes to it: so what is noted of each question (state/feed_asked.py) tells
then whether it was asked before or behind it.

What must stay true: such a DDL is not run where a row before it may have been asked behind it; what cannot be told
counts as asked behind it.
"""

from __future__ import annotations

import re

from vreplication.binlog.definitions import Definition
from vreplication.binlog.gtids import is_within, parse
from vreplication.errors import Terminal
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.speaking import cut_of
from vreplication.feed.failover import Successors
from vreplication.mysql.session import Session
from vreplication.mysql.text import Token, Unreadable
from vreplication.state import feed_asked
from vreplication.state.feed_asked import Asked
from vreplication.state.feed_offsets import Key

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
    if not _may_mislead(ddl, said):
        return
    named = {_folded(*each) for each in said.tables} if said is not None else set()
    for asked in feed_asked.load(session, key):
        # Of a statement that cannot be read it is not known which tables it is about.
        is_named = not named or _folded(asked.schema, asked.table) in named
        if is_named and _was_behind(asked, ddl) and _is_of(asked.source, ddl.source, successors):
            raise Terminal(
                f"Rows of {asked.schema}.{asked.table} were asked of the source when it had run this already, so they"
                f" may be rows of another table or column: {ddl.sql[:500]}",
                cure=_CURE if named else _COPY,
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
    names = [each for each in rest[1:6] if not each.is_word("COLUMN", "IF", "EXISTS")]
    return len(names) < 2 or names[0].value.casefold() != names[1].value.casefold()


def _was_behind(asked: Asked, ddl: Ddl) -> bool:
    """The statement stood in the log of the source when it was asked, as far as is known."""
    known = parse(asked.gtids)
    if known is not None and (_UUID.match(ddl.gtid) or _DOMAIN.fullmatch(ddl.gtid)):
        name = parse(ddl.gtid)
        return name is None or is_within(name, known)
    return ddl.t <= asked.micros + _MARGIN_MICROS
