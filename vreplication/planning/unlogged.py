"""Generated columns that a server leaves out of its log: MariaDB 11.8 has them in the rows of inserts alone.

What must stay true: a workflow that would need the value of such a column is refused before it begins. The reader ends
one all the same whose rows lack what it asks for (binlog/rows.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from vreplication.mysql.server import Server
from vreplication.planning.facts import Check, Facts, ok, refuse
from vreplication.schema.model import Column

NAME = "generated columns"
# 11.4.5 logs them and 11.8.9 does not; nothing between was seen.
_LEFT_OUT_SINCE = (11, 5, 0)


def leaves_out(server: Server) -> bool:
    return server.is_mariadb and server.version >= _LEFT_OUT_SINCE


def generated_columns(facts: Facts) -> Check:
    """Of a table that is changed: one that becomes ordinary takes its values from the log."""
    pairs = facts.mapping.pairs if facts.mapping else ()
    # The source of a constant is the key's first column, which it does not read.
    if found := _asked(facts.server, (pair.source for pair in pairs if not pair.is_constant)):
        return refuse(
            NAME,
            f"{found[0]} is generated and is to be an ordinary column, and {facts.server} leaves generated columns out"
            " of its log.",
            "Run a plain ALTER TABLE, or add an ordinary column and fill it by statements of your own.",
        )
    return ok(NAME, "The log has every column that is needed.")


def refuse_to_send(server: Server, name: str, columns: Iterable[Column]) -> Check | None:
    """columns: those of a table that a feed is to send."""
    if found := _asked(server, columns):
        return refuse(
            NAME,
            f"{name} has generated columns ({', '.join(found)}), and {server} leaves them out of its log.",
            f"Send the others alone (--columns {name}:…), or leave the table out (--exclude).",
        )
    return None


def _asked(server: Server, columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns if column.generated] if leaves_out(server) else []
