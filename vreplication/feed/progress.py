"""How far a feed is: a record in a topic of its own, written in the Kafka transaction of the messages it tells of.

What must stay true: it is produced behind all other messages of its transaction, when those are acknowledged, so that
no accident commits it without them; the last committed record is the only truth about where the feed goes on.
"""

from __future__ import annotations

import zlib

import msgspec

from vreplication.errors import Terminal

PROGRESS = "_vreplication."
"""The topic of such records is named so, with the feed's id behind it."""
VERSION = 3
_READ = (2, VERSION)
_LONG = 32 << 10
"""Bytes from which on a record is compressed: one of many topics."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Of a partition. offset: of the last message of ours, -1: none. n: of the last one that was counted."""

    offset: int = -1
    n: int = 0


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """An XA branch that was prepared and has not ended.

    start: where its rows begin in the log; rows: of followed tables.
    """

    format_id: int
    gtrid: str
    bqual: str
    start: str
    rows: int = 1


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """How far a snapshot is: all tables before this one were sent, and of it rows up to the key `after` (literals).

    key: what that key was, for it means nothing in the order of another one; empty: an older version did not note it.
    """

    schema: str = ""
    table: str = ""
    after: tuple[str, ...] | None = None
    is_done: bool = False
    key: str = ""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """How far one source's log has been sent. source: identity of the server.

    position: everything before it has been sent, but for open branches. again_from: the log is read from there first,
    for the branches in between. assigned: the time of the last transaction that was sent whole. inside: of one that is
    being sent, (t, seq) of the last row that was. inside_of: which transaction that is, where its rows have one time by
    its name in the log; '': not known. filled: None: rows that were there before are not sent. before: servers that
    were read in its place, each until it failed.
    """

    source: str
    position: str
    again_from: str | None = None
    assigned: int = 0
    inside: tuple[int, int] | None = None
    inside_of: str = ""
    branches: tuple[Branch, ...] = ()
    filled: Filled | None = None
    before: tuple[str, ...] = ()


class TableTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that one table has to itself, in few bytes. id: what Kafka tells it by. before: generations that the feed
    had before it. since: time of its first Admin. ends: as of `Progress`, offset and n of each partition in turn.
    """

    schema: str
    table: str
    id: str
    before: int
    since: int
    ends: tuple[int, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """sources: in the order that gives their times (reading.py). ends: of every partition that the topic has.
    partitions: how many of them are in use, as generation `generation`; intent: how many are to be. resolved: what the
    last Resolved said. rules: how rows are dispatched and written. piece: bytes at which a value is cut into parts.
    topics: of the tables, where each has its own; topic and ends are then of the one beside them.
    """

    feed: str
    sources: tuple[Followed, ...]
    resolved: int = 0
    topic: str
    topic_id: str
    partitions: int
    generation: int = 1
    intent: int | None = None
    ends: tuple[End, ...] = ()
    rules: str = ""
    piece: int = 0
    topics: tuple[TableTopic, ...] = ()
    version: int = VERSION

    def encoded(self) -> bytes:
        data = msgspec.json.encode(self)
        # It is done in each commit, so at the quickest level.
        return zlib.compress(data, 1) if len(data) > _LONG else data


def decode(data: bytes) -> Progress:
    """Raises Terminal for a record of another program."""
    try:
        # Compressed data never begins with a brace.
        found = msgspec.json.decode(data if data[:1] == b"{" else zlib.decompress(data), type=Progress)
    except (msgspec.DecodeError, zlib.error) as error:
        raise Terminal(f"The feed's progress record cannot be read ({error}).") from None
    if found.version not in _READ:
        raise Terminal(
            f"The feed's progress record is of version {found.version}; this program knows {VERSION}.",
            cure="Use the newer vreplication that wrote it.",
        )
    return found
