"""Changes and groups as bytes (MessagePack), for what is put aside on disk.

What must stay true: what is read is what was written, byte for byte; reading runs no code; a file that holds another
layout of changes is recognised by `FORMAT` and never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.mysql.server import Xid

FORMAT = "5/msgpack"
"""Who reads must have written the same."""


class _Stored(NamedTuple):
    """A change with rows of the types that codecs make, so that texts come back as a tuple and not as a list."""

    table: int
    before: str | dict[str, Any] | tuple[Any, ...] | None
    after: str | dict[str, Any] | tuple[Any, ...] | None


_encoder = msgspec.msgpack.Encoder()
_items = msgspec.msgpack.Decoder(list[_Stored])
_groups = msgspec.msgpack.Decoder()


def encode_items(items: Sequence[RowChange]) -> bytes:
    return _encoder.encode(items)


def decode_items(data: bytes) -> list[RowChange]:
    return [RowChange(*item) for item in _items.decode(data)]


def encode_groups(groups: Sequence[Group]) -> bytes:
    return _encoder.encode([_of_group(group) for group in groups])


def decode_groups(data: bytes) -> list[Group]:
    return [_to_group(fields) for fields in _groups.decode(data)]


def _of_group(group: Group) -> tuple[Any, ...]:
    # `read` and `is_others` are looked at before a group is put aside, and `changes` comes from the matcher, behind the
    # queue: so none of the three has to come back.
    return (
        group.kind.value,
        group.start.saved,
        group.end.saved,
        group.time_micros,
        # As bytes of their own, for `_items` to read: the decoder of groups has no types and makes lists of tuples.
        encode_items(group.items),
        group.nbytes,
        tuple(group.xid) if group.xid else None,
        group.is_last,
        group.keep,
        group.gtid,
    )


def _to_group(fields: tuple[Any, ...]) -> Group:
    kind, start, end, time_micros, items, nbytes, xid, is_last, keep, gtid = fields
    return Group(
        kind=GroupKind(kind),
        start=Position.parse(start),
        end=Position.parse(end),
        time_micros=time_micros,
        items=decode_items(items),
        nbytes=nbytes,
        xid=Xid(*xid) if xid else None,
        is_last=is_last,
        keep=keep,
        gtid=tuple(gtid) if gtid else None,
    )
