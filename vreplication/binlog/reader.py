"""Makes groups and heartbeats of the packets of a dump.

What must stay true: what is not understood stops the workflow, naming the event and its place; every group's start and
end are places from which the server can send the log again; an unfinished group is never handed on as a whole.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from vreplication.binlog import control
from vreplication.binlog.control import Query
from vreplication.binlog.definitions import definition
from vreplication.binlog.events import Group, GroupKind, Heartbeat, Position, RowChange, Stopped
from vreplication.binlog.framing import Damaged, Event, Framer, Type, packed_int
from vreplication.binlog.grammar import Kind, Meaning, Names, written
from vreplication.binlog.groups import OpenGroup
from vreplication.binlog.origin import Doubt, LogReplaced
from vreplication.binlog.payload import events_of_payload, fields_of
from vreplication.binlog.rows import ROW_EVENTS
from vreplication.binlog.spool import Spooled
from vreplication.binlog.statements import meaning
from vreplication.binlog.tables import Tables
from vreplication.binlog.track import Track
from vreplication.binlog.watch import DEFINED, Catalog, Following, Watch
from vreplication.errors import SourceChanged

Item = Group | Heartbeat | Stopped
_CURE = "Cancel the workflow and start it again."
_PAYLOAD, _QUERY = int(Type.TRANSACTION_PAYLOAD), int(Type.QUERY)
_MOST_BEGINS = 1_000
_OUTCOMES = {Kind.XA_COMMIT: GroupKind.XA_COMMIT, Kind.XA_ROLLBACK: GroupKind.XA_ROLLBACK}
_IGNORED = (
    *(Type.STOP, Type.INTVAR, Type.RAND, Type.USER_VAR, Type.IGNORABLE, Type.ROWS_QUERY, Type.PREVIOUS_GTIDS),
    *(Type.TRANSACTION_CONTEXT, Type.VIEW_CHANGE, Type.ANNOTATE_ROWS, Type.BINLOG_CHECKPOINT, Type.GTID_LIST),
    Type.START_ENCRYPTION,
)
"""They tell nothing about rows. INTVAR, RAND and USER_VAR precede a statement, and the statement decides."""


class Reader:
    """Takes the packets of one dump, from `start` on, and decodes the watched tables.

    Further consumers may join and leave while it reads; what stops only some of them is handed on as `Stopped`.

    codec_of: Python's name of the character set of a collation, None where there is none.
    server, is_proven: as of `Track`; unless it is proven, whatever is not understood raises Doubt.
    """

    def __init__(
        self,
        start: Position,
        watches: Sequence[Watch],
        *,
        guarded: Iterable[tuple[str, str]],
        part_bytes: int,
        codec_of: Callable[[int], str | None],
        server: str = "",
        is_proven: bool = True,
    ) -> None:
        self._followings: dict[str, Following] = {}
        self._guarded: Names = frozenset()
        self._tables = Tables()
        self._part_bytes = part_bytes
        self._codec_of = codec_of
        self._framer = Framer()
        self._track = Track(start, server=server, is_proven=is_proven)
        self._group: OpenGroup | None = None
        self._out: deque[Item] = deque()
        self._handlers = self._all_handlers()
        self._begins: dict[bytes, bool] = {}
        """BEGINs that were read, by their bytes, and whether each is of a session that pads."""
        self.join(Following(watches=tuple(watches), guarded=frozenset(guarded)))

    # Who follows.

    @property
    def is_between(self) -> bool:
        """Nothing has been read that was not handed on: a place where somebody may join."""
        return self._group is None and not self._out

    def join(self, following: Following) -> None:
        """Follow further tables from here on. To be called while `is_between`."""
        self._tables.add(following.watches, following.guarded)
        self._tables.catalog = following.catalog or self._tables.catalog
        self._followings[following.name] = following
        self._guard()

    def leave(self, name: str) -> None:
        """Follow those no more, from the next event on. One that has left before is passed over."""
        if following := self._followings.pop(name, None):
            self._tables.remove(following.watches, following.guarded)
            self._guard()

    def _guard(self) -> None:
        self._guarded = frozenset().union(*(following.names for following in self._followings.values()))

    def _stop_one(self, name: str, error: SourceChanged) -> None:
        """In its place behind what has been read."""
        error = SourceChanged(f"{error.message} (event at {self._track})", cure=error.cure or _CURE)
        self._out.append(Stopped(name=name, error=error))
        self.leave(name)

    # Events.

    def items(self, packets: Iterable[bytes | Spooled]) -> Iterator[Item]:
        """Raises SourceChanged when the log shows what nobody who follows may pass over."""
        try:
            yield from self._items(packets)
        except LogReplaced:
            # Not to be asked for by GTID instead, which would take what is new for what was read.
            raise
        except (SourceChanged, Damaged) as error:
            if not self._track.is_proven:
                # From the middle of a file anything may look like an event: before the first transaction has proved the
                # place, what is not understood is no reason to end a workflow.
                raise Doubt(error.message) from None
            raise

    def _items(self, packets: Iterable[bytes | Spooled]) -> Iterator[Item]:
        # Bound once, because each of them is used for every event.
        out, handlers, framed, move = self._out, self._handlers, self._framer.event, self._track.move
        try:
            for packet in packets:
                event = framed(packet)
                if not move(event):
                    continue
                if event.type == _PAYLOAD:
                    yield from self._unpacked(event)
                    continue
                handlers.get(event.type, _refuse)(event)
                while out:
                    yield out.popleft()
        except LogReplaced:
            raise
        except SourceChanged as error:
            raise SourceChanged(f"{error.message} (event at {self._track})", cure=error.cure or _CURE) from None
        # Junk may trip any of these while it is taken apart; it is told in our words, with its place.
        except (struct.error, IndexError, KeyError, ValueError, zlib.error) as error:
            raise SourceChanged(f"The event at {self._track} cannot be read ({error!r}).", cure=_CURE) from None

    def _unpacked(self, event: Event) -> Iterator[Item]:
        """Events of a compressed transaction one by one in its place."""
        for each in events_of_payload(event):
            self._handlers.get(each.type, _refuse)(each)
            while self._out:
                yield self._out.popleft()

    @property
    def at(self) -> Position:
        """Just behind the last event that has been read."""
        return self._track.at

    # Places.

    def _rotate(self, event: Event) -> None:
        self._track.rotate(_place(*control.rotated_to(event), event))

    def _format(self, event: Event) -> None:
        """A file begins, perhaps after a crash: table ids may count anew."""
        self._drop_unfinished()
        self._tables.forget()
        self._track.begun(event)

    def _heartbeat(self, event: Event) -> None:
        file, offset = control.heartbeat(event)
        self._idle(_place(file, offset, event), is_whole=not event.end)

    def _heartbeat_v2(self, event: Event) -> None:
        fields, _ = fields_of(event.body)
        self._idle(_place(fields[1].decode(), packed_int(fields[2], 0)[0], event), is_whole=True)

    def _idle(self, told: Position, *, is_whole: bool) -> None:
        # Inside a transaction the place that it names is none to begin at.
        if self._group is None:
            self._out.append(Heartbeat(position=self._track.idle(told, is_whole=is_whole)))

    def _all_handlers(self) -> dict[int, Callable[[Event], None]]:
        handlers: dict[int, Callable[[Event], None]] = dict.fromkeys(_IGNORED, _ignore)
        handlers.update(dict.fromkeys(ROW_EVENTS, self._rows))
        handlers |= {
            Type.TABLE_MAP: self._table_map,
            Type.MARIADB_GTID: self._mariadb_gtid,
            Type.GTID: self._mysql_gtid,
            Type.ANONYMOUS_GTID: self._mysql_gtid,
            Type.GTID_TAGGED: self._tagged_gtid,
            Type.QUERY: self._query,
            Type.QUERY_COMPRESSED: self._query,
            Type.XID: self._commit,
            Type.XA_PREPARE: self._xa_prepare,
            Type.PARTIAL_UPDATE_ROWS: self._partial_rows,
            Type.ROTATE: self._rotate,
            Type.FORMAT_DESCRIPTION: self._format,
            Type.HEARTBEAT: self._heartbeat,
            Type.HEARTBEAT_V2: self._heartbeat_v2,
            Type.INCIDENT: self._incident,
            Type.BEGIN_LOAD_QUERY: self._load_data,
            Type.EXECUTE_LOAD_QUERY: self._load_data,
        }
        return handlers

    # Rows.

    def _table_map(self, event: Event) -> None:
        try:
            is_others = self._tables.learn(event.body)
        except SourceChanged as error:
            self._stop_owner(self._tables.watch_of(event.body), error)
            # Its follower has left, so the same map is learned now as that of a table that nobody watches.
            is_others = self._tables.learn(event.body)
        if is_others and self._group is not None:
            self._group.is_others = True

    def _stop_owner(self, watch: Watch | None, error: SourceChanged) -> None:
        """Who follows this table cannot go on. Raises `error` where nobody else is left who could."""
        names = [name for name, found in self._followings.items() if watch in found.watches]
        # Rows of a table of ours (markers, the ledger) are everybody's, so nobody could go on without them.
        is_theirs = watch is not None and not watch.is_ours and len(names) == 1 and len(self._followings) > 1
        # Of a place that is not proved `items` makes a Doubt of it: then it may be no event at all.
        if not is_theirs or not self._track.is_proven:
            raise error
        self._stop_one(names[0], error)

    def _rows(self, event: Event) -> None:
        body = event.body
        decoder = self._tables.decoder(body[:6])
        if decoder is None:
            return
        group = self._current()
        try:
            if group.is_padding and decoder.watch.is_padding_unsafe:
                raise _padded(decoder.watch)
            group.add_rows(decoder.decode, event.type, body)
        except SourceChanged as error:
            self._stop_owner(decoder.watch, error)
        if group.is_large():
            self._out.append(group.part(self._track.at))

    def _partial_rows(self, event: Event) -> None:
        decoder = self._tables.decoder(event.body[:6])
        if decoder is not None:
            error = SourceChanged(
                "A row event (type 39) holds parts of JSON documents only.",
                cure="Set binlog_row_value_options='' for every session that writes to the table, and start again.",
            )
            self._stop_owner(decoder.watch, error)

    # Groups.

    def _open(self, gtid: control.Gtid, timestamp: int, *, has_begun: bool) -> None:
        # Passed over, the rows of a transaction that was cut would be missing, and nobody would know.
        if self._group is not None:
            raise SourceChanged(f"The transaction that begins at {self._group.start} has no end.")
        self._track.require_place()
        self._track.opens(gtid.name, timestamp)
        self._group = OpenGroup(self._track.event_start, gtid, has_begun=has_begun, part_bytes=self._part_bytes)

    def _current(self) -> OpenGroup:
        if self._group is None:
            raise SourceChanged("The log goes on inside a transaction whose beginning was not read.")
        return self._group

    def _drop_unfinished(self) -> None:
        """A group without an end: the server died while writing it, so it was never committed."""
        # Of one that is not in parts nobody has got anything yet.
        if self._group is not None and self._group.is_split:
            self._out.append(self._group.unfinished())
        self._group = None

    def _close(self, kind: GroupKind) -> None:
        group = self._current()
        self._track.require_place()
        # Before `at` is asked: the place behind the group has to have the group's own name among those that were read.
        self._track.has_read(group.name)
        self._out.append(group.finished(kind, self.at))
        self._group = None

    def _mariadb_gtid(self, event: Event) -> None:
        gtid = control.mariadb_gtid(event)
        self._open(gtid, event.timestamp, has_begun=not gtid.is_standalone)

    def _mysql_gtid(self, event: Event) -> None:
        # MySQL says BEGIN in an event of its own; where none comes one statement makes up the group.
        self._open(control.mysql_gtid(event), event.timestamp, has_begun=False)

    def _tagged_gtid(self, event: Event) -> None:
        self._open(control.tagged_gtid(event), event.timestamp, has_begun=False)

    def _commit(self, event: Event) -> None:
        self._close(GroupKind.COMMIT)

    def _xa_prepare(self, event: Event) -> None:
        is_one_phase, xid = control.xa_prepare(event)
        self._current().xid = xid
        # F10: rows of a branch are logged when it is prepared and wait for the outcome; of XA COMMIT ONE PHASE, which
        # MySQL logs by this event as well, there is no other outcome to come.
        self._close(GroupKind.COMMIT if is_one_phase else GroupKind.XA_PREPARE)

    # Statements.

    def _query(self, event: Event) -> None:
        if self._group is not None and self._begin(self._group, event):
            # Nearly always.
            return
        query = control.query(event)
        if self._group is not None and query.sql_mode & control.PAD_CHAR_TO_FULL_LENGTH:
            # Of a branch (XA START), and of a savepoint: MySQL tells it with every statement in the log.
            self._group.is_padding = True
        found = self._meaning(query, self._guarded)
        if found.kind is Kind.STOP:
            found = self._for_the_others(query, found)
        if self._group is None and found.kind is Kind.BEGIN:
            gtid = control.Gtid(time_micros=event.timestamp * 1_000_000, is_standalone=None)
            self._open(gtid, event.timestamp, has_begun=True)
        # Before `_act`, which closes the group of a statement that stands alone.
        if self._tables.catalog is not None and found.kind is Kind.PASS:
            self._define(query, self._tables.catalog)
        self._act(self._current(), found)

    def _begin(self, group: OpenGroup, event: Event) -> bool:
        """False: it is another statement."""
        # A session writes the same bytes before each transaction, so they are seldom looked at.
        is_padding = self._begins.get(event.body) if event.type == _QUERY else None
        if is_padding is None:
            if not control.is_begin(event):
                return False
            if len(self._begins) >= _MOST_BEGINS:
                self._begins.clear()
            self._begins[event.body] = is_padding = control.is_padding(event)
        group.has_begun, group.is_padding = True, is_padding
        return True

    def _define(self, query: Query, catalog: Catalog) -> None:
        """DDL in its place among the rows."""
        found = definition(query, self._codec_of(query.collation))
        if found is not None and not self._current().is_tentative:
            said = catalog.defined(found)
            self._current().items.extend(RowChange(DEFINED, None, each.fields()) for each in said)

    def _meaning(self, query: Query, names: Names) -> Meaning:
        return meaning(query, self._codec_of(query.collation), names)

    def _for_the_others(self, query: Query, found: Meaning) -> Meaning:
        """What a statement means once those have left whose tables it may change; as it was where all of them must."""
        means = {name: self._meaning(query, followed.names) for name, followed in self._followings.items()}
        if not self._track.is_proven or all(each.kind is Kind.STOP for each in means.values()):
            return found
        for name, each in means.items():
            if each.kind is Kind.STOP:
                words = _stop_text(each.why, self._followings[name].tables)
                self._stop_one(name, SourceChanged(words, cure=each.cure))
        return self._meaning(query, self._guarded)

    def _act(self, group: OpenGroup, found: Meaning) -> None:
        kind = found.kind
        if kind is Kind.STOP:
            tables = frozenset().union(*(each.tables for each in self._followings.values()))
            raise SourceChanged(_stop_text(found.why, tables), cure=found.cure)
        if kind in (Kind.BEGIN, Kind.XA_START):
            # MariaDB names the branch in the GTID event, MySQL by XA START.
            group.has_begun, group.xid = True, found.xid or group.xid
        elif kind is Kind.SAVEPOINT:
            group.set_savepoint(found.name)
        elif kind is Kind.ROLLBACK_TO:
            group.roll_back_to(found.name)
        elif kind is Kind.ROLLBACK:
            # It is handed on without rows, because it moves the position all the same.
            group.roll_back()
            self._close(GroupKind.COMMIT)
        elif kind in _OUTCOMES:
            group.xid = found.xid
            self._close(_OUTCOMES[kind])
        # A statement that stands alone makes up its group: nothing else ends it.
        elif kind is Kind.COMMIT or (kind is Kind.PASS and not group.has_begun):
            self._close(GroupKind.COMMIT)

    def _load_data(self, event: Event) -> None:
        self._act(self._current(), written("LOAD DATA"))

    def _incident(self, event: Event) -> None:
        raise SourceChanged("The server tells that events are missing in its binary log (INCIDENT).")


def _padded(watch: Watch) -> SourceChanged:
    # REPLACE would take the other row out, and nothing would tell.
    return SourceChanged(
        f"A session with the SQL mode PAD_CHAR_TO_FULL_LENGTH has written to {watch.schema}.{watch.table}, which has a"
        " unique key over an expression of a CHAR: rows that differ for it may be one for others.",
        cure="Let no session have that mode while the table is changed, and start again.",
    )


def _stop_text(why: str, tables: Names) -> str:
    followed = ", ".join(sorted(f"{schema}.{table}" for schema, table in tables))
    if not followed:
        return f"The binary log shows {why}: what it changes is in no row event."
    return f"The binary log shows {why}, which changes or may change {followed} or its copy."


def _refuse(event: Event) -> None:
    # F12: never passed over. Rows in an event that nobody reads would be missing, and nobody would know.
    raise SourceChanged(f"The binary log holds an event of type {event.type}, which we do not read.")


def _ignore(event: Event) -> None:
    """Pass over an event that tells nothing about rows."""


def _place(file: str, offset: int, event: Event) -> Position:
    """A position that an event names. Raises SourceChanged where that is no log file's name."""
    try:
        return Position.of(file, offset)
    except ValueError:
        raise SourceChanged(
            f"An event of type {event.type} names {file!r} as a binary log file.",
            cure="Cancel this workflow and start again; report it if it happens again.",
        ) from None
