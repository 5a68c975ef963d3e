"""Asks a feed's source for rows of which the feed has sent the key alone (policy key-only).

The source may be further than the message by now. A row that it has changed since is written as it is now, and messages
that are still to come say all that happened to it, so it ends as the source has it; of a row that is gone there is
nothing to write, and its DELETE is to come.

What must stay true: what is read is never older than the message. The row is read with a lock, for which a transaction
that is in the log already and not yet visible is waited for; and only the server that wrote the log is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vreplication.errors import Refused, Terminal
from vreplication.feed.formats.open import Cell, Change, Open, read_row
from vreplication.feed.layout import Layout
from vreplication.feed.messages import KeyOnly, Place, Row
from vreplication.feed.snapshot import plain_reader
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Column

_CURE = "Pass --source with the server that the feed reads, or begin a feed with --max-message claim-check."
_LOCK_SECONDS, _IDLE_SECONDS = 20, 600
_COPY = "What the message needs is not there any more: begin again with a copy and a new feed."


@dataclass(slots=True)
class Asking:
    """sources: servers that may be asked. Opened when the first row needs them."""

    sources: Sequence[SourceUrl] = ()
    _sessions: dict[str, Session] = field(default_factory=dict)
    _format: Open = field(default_factory=Open)

    def whole(self, change: Change, where: str) -> Change | None:
        """With all columns, as it is now; a DELETE where it is gone. where: its key, as SQL. Raises Terminal."""
        if change.only is None or change.after is None:
            return change
        session = self._session(change.only)
        columns = self._columns(session, change, change.only)
        reach("consume.before_ask")
        row = self._read(session, change, columns, where)
        if row is None:
            gone = Change(schema=change.schema, table=change.table, before=change.before, after=None)
            return gone if change.before is not None else None
        key = tuple(name for name, cell in change.after.items() if cell.is_unique)
        after = self._cells(change, columns, key, row)
        return Change(schema=change.schema, table=change.table, before=change.before, after=after)

    def _session(self, said: KeyOnly) -> Session:
        found = self._sessions.get(said.source)
        if found is not None and found.is_alive():
            return found
        if not self.sources:
            raise Refused("The feed has a row of which only the key is sent, and no source to ask.", cure=_CURE)
        self._connect()
        if said.source not in self._sessions:
            raise Refused(
                f"The feed has a row of server {said.source}, which is none of the sources given.", cure=_CURE
            )
        return self._sessions[said.source]

    def _connect(self) -> None:
        self.close()
        for url in self.sources:
            session = connect(url, lock_wait_seconds=_LOCK_SECONDS, idle_seconds=_IDLE_SECONDS)
            session.execute("SET time_zone='+00:00'")
            self._sessions[identity_of(session)] = session

    def _columns(self, session: Session, change: Change, said: KeyOnly) -> tuple[Column, ...]:
        try:
            table = introspect(session, change.schema, change.table)
        except Refused:
            raise Terminal(
                f"The source has no table {change.schema}.{change.table} any more, of which a row is to be asked.",
                cure=_COPY,
            ) from None
        there = {column.name: column for column in table.columns}
        if lost := [name for name in said.columns if name not in there]:
            raise Terminal(
                f"The source's table {change.schema}.{change.table} has no column {lost[0]} any more, of which a row"
                " is to be asked.",
                cure=_COPY,
            )
        return tuple(there[name] for name in said.columns)

    def _read(
        self, session: Session, change: Change, columns: tuple[Column, ...], where: str
    ) -> tuple[object, ...] | None:
        cells, plain = plain_reader(session, columns)
        # A server sends a transaction to the reader of its log a moment before it shows it to others, and holds its
        # rows locked until then: a plain SELECT could still find the row of before the message.
        lock = "LOCK IN SHARE MODE" if is_mariadb(session) else "FOR SHARE"
        try:
            found = session.bytes_rows(
                f"SELECT {cells} FROM {qualified(change.schema, change.table)} WHERE {where} {lock}"
            )
        except SqlError as error:
            raise Terminal(f"A row of {change.schema}.{change.table} cannot be asked: {error.message}.") from None
        return plain(found[0]) if found else None

    def _cells(
        self, change: Change, columns: tuple[Column, ...], key: tuple[str, ...], row: tuple[object, ...]
    ) -> dict[str, Cell]:
        """As if it had been sent."""
        layout = Layout(
            number=0, schema=change.schema, table=change.table, columns=columns, key=key, unique=(key,), has_key=True
        )
        (sent,) = self._format.row(Row(layout=layout, place=Place(0, 0), before=None, after=row))
        found = read_row(sent.key, sent.value).after
        assert found is not None
        return found

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


def same_key(literals: Sequence[tuple[str, str]]) -> str:
    """SQL of a row by its key: names and literals."""
    return " AND ".join(f"{ident(name)}={value}" for name, value in literals)
