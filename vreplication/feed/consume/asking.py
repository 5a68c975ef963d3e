"""Asks a feed's source for rows of which the feed has sent the key alone (policy key-only).

The source may be further than the message by now. A row that it has changed since is written as it is now, and messages
that are still to come say all that happened to it, so it ends as the source has it; of a row that is gone there is
nothing to write, and its DELETE is to come.

What must stay true: what is read is never older than the message. The row is read with a lock, for which a transaction
that is in the log already and not yet visible is waited for; and only the server that wrote the log is asked, or, once
the feed goes on with another one in its place (failover.py), that one alone: it has all that was sent before, and the
former, where it has come back, may have what is nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vreplication.binlog.position import executed
from vreplication.errors import Refused, Terminal, Transient
from vreplication.feed.failover import Successors
from vreplication.feed.formats.open import Cell, Change, Open, read_row
from vreplication.feed.layout import Layout
from vreplication.feed.messages import KeyOnly, Place, Row
from vreplication.feed.snapshot import plain_reader
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session, SqlError, connect, is_passing
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Column
from vreplication.state.feed_asked import Asked

_CURE = "Pass --source with the server that the feed reads, or begin a feed with --max-message claim-check."
_LOCK_SECONDS, _IDLE_SECONDS = 20, 600
_LOOK_SECONDS = 30.0
"""So often it is asked whether the feed has gone on elsewhere: a server that it has left may answer for long."""
_COPY = "What the message needs is not there any more: begin again with a copy and a new feed."


@dataclass(slots=True)
class Asking:
    """sources: servers that may be asked. Opened when the first row needs them.

    successors: of servers that the feed has read before, by identity, those that it reads now.
    """

    sources: Sequence[SourceUrl] = ()
    successors: Successors = dict
    _sessions: dict[str, Session] = field(default_factory=dict)
    _away: list[Transient] = field(default_factory=list)
    _instead: Mapping[str, str] = field(default_factory=dict)
    _looked_at: float = float("-inf")
    _of: set[tuple[str, str, str]] = field(default_factory=set)
    _format: Open = field(default_factory=Open)

    def whole(self, change: Change, where: str) -> Change | None:
        """With all columns, as it is now; a DELETE where it is gone. where: its key, as SQL. Raises Terminal."""
        # For a DELETE the key is enough.
        if change.only is None or change.after is None:
            return change
        session = self._session(change.only)
        columns = self._columns(session, change, change.only)
        reach("consume.before_ask")
        row = self._read(session, change, columns, where)
        # Also where there is no such row: a table that has got the name since may lack what the one that is meant has,
        # and a row would be passed over.
        self._of.add((change.schema, change.table, change.only.source))
        if row is None:
            gone = Change(schema=change.schema, table=change.table, before=change.before, after=None)
            return gone if change.before is not None else None
        key = tuple(name for name, cell in change.after.items() if cell.is_unique)
        after = self._cells(change, columns, key, row)
        return Change(schema=change.schema, table=change.table, before=change.before, after=after)

    def taken(self) -> list[Asked]:
        """Of which tables rows have been asked since the last call, and how far their source is by now."""
        asked, self._of = sorted(self._of), set()
        # Read behind the rows: a DDL whose effect they show is counted by then.
        marks = {source: self._mark(source) for source in {of for *_, of in asked}}
        return [Asked(schema=schema, table=table, **marks[source]) for schema, table, source in asked]

    def _mark(self, source: str) -> dict[str, Any]:
        """Raises Transient where it has gone meanwhile: then the rows are not written, and asked again."""
        session = self._known(source)
        if session is None:
            raise Transient(f"The connection to source {source} was lost.")
        micros = int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))
        gtids = executed(session, is_mariadb(session))
        return {"source": source, "micros": micros, "gtids": str(gtids or "")}

    def _session(self, said: KeyOnly) -> Session:
        if not self.sources:
            raise Refused("The feed has a row of which only the key is sent, and no source to ask.", cure=_CURE)
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._instead, self._looked_at = self.successors(), time.monotonic()
        found = self._known(said.source)
        if found is None or not found.is_alive():
            self._connect()
            found = self._known(said.source)
        if found is not None:
            return found
        if self._away:
            raise self._away[0]
        raise self._none(said.source)

    def _known(self, source: str) -> Session | None:
        return self._sessions.get(self._instead.get(source, source))

    def _none(self, source: str) -> Refused:
        if (now := self._instead.get(source, source)) != source:
            return Refused(
                f"The feed has a row of server {source}, in whose place it goes on with {now}, which is none of the"
                " sources given.",
                cure=_CURE,
            )
        return Refused(
            f"The feed has a row of server {source}, which is none of the sources given, nor does the feed go"
            " on with one of them in its place.",
            cure=_CURE,
        )

    def _connect(self) -> None:
        """A source that is away holds up only who needs it: the former one may be gone for good."""
        self.close()
        self._instead, self._looked_at = self.successors(), time.monotonic()
        for url in self.sources:
            try:
                session = connect(url, use_database=False, lock_wait_seconds=_LOCK_SECONDS, idle_seconds=_IDLE_SECONDS)
            except Transient as error:
                self._away.append(error)
                continue
            try:
                # A TIMESTAMP is text in UTC in a message.
                session.execute("SET time_zone='+00:00'")
                self._sessions[identity_of(session)] = session
            except Transient as error:
                session.close()
                self._away.append(error)

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
            # Ended by somebody while it waited for the row: it is asked again.
            if is_passing(error):
                raise
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
        self._away.clear()


def same_key(literals: Sequence[tuple[str, str]]) -> str:
    """SQL of a row by its key: names and literals."""
    return " AND ".join(f"{ident(name)}={value}" for name, value in literals)
