"""What a statement of ours is about, as a comment at its end, for whoever reads it in the binary log.

The RENAME of a cut-over says by which ALTER the table has changed: no other statement in the log does. An ALTER that
drops a foreign key which the table has twice by then says that it is ours. Servers write a statement into the log as
the client sent it, comments and all, under every sql_mode.

What must stay true: the comment is ASCII, and nothing in it can end it or open another one, whatever the ALTER holds;
the same statement reads the same for ever, so that a log that is read again says the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_CHARS = 256 << 10
"""Of a comment, so that the statement is far below every max_allowed_packet that a table can be used with."""
_REMARK = re.compile(r"/\* vreplication (\{[^*]*\}) \*/\s*\Z")


_OF_KEYS = "/* vreplication keys */"


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """A table that a cut-over puts in place. clauses: what would follow `ALTER TABLE t` in a plain statement.

    moment: what a new column's CURRENT_TIMESTAMP is in the rows that were there, µs since 1970; 0: not told.
    """

    schema: str
    table: str
    clauses: str
    moment: int = 0


def with_remark(sql: str, altered: Iterable[Altered]) -> str:
    """The statement, and by which ALTERs. Without them where they are too long, or where there are none."""
    told = list(altered)
    said = [[each.schema, each.table, each.clauses] for each in told]
    # Apart from the rest, of which programs of before take three words each.
    moments = [each.moment for each in told]
    # JSON's own escape: without a star there is neither the end of a comment nor the beginning of one.
    text = json.dumps({"altered": said, "moments": moments}).replace("*", "\\u002a")
    return f"{sql} /* vreplication {text} */" if said and len(text) <= _MOST_CHARS else sql


def read_remark(sql: str) -> tuple[Altered, ...]:
    """What `with_remark` has said; nothing where there is no such comment, or none that can be read."""
    found = _REMARK.search(sql)
    try:
        read = json.loads(found.group(1)) if found else {"altered": []}
        moments = read.get("moments") or [0] * len(read["altered"])
        return tuple(
            Altered(schema=schema, table=table, clauses=clauses, moment=int(moment))
            for (schema, table, clauses), moment in zip(read["altered"], moments, strict=True)
        )
    except (ValueError, KeyError, TypeError):
        # Anybody may write such a comment, and a later version of ours another one: neither is an error of the log.
        return ()


def of_keys(sql: str) -> str:
    """An ALTER that is a part of how a cut-over moves foreign keys: behind all of them the table has what it had."""
    return f"{sql} {_OF_KEYS}"


def is_of_keys(sql: str) -> bool:
    return sql.rstrip().endswith(_OF_KEYS)
