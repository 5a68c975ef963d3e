"""Changes and groups as bytes, for what is put aside on disk.

What must stay true: what is read is what was written, byte for byte; reading runs no code (marshal, not pickle); a file
written by another version of Python is recognised by `FORMAT` and never read.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence
from typing import Any

from vreplication.binlog.events import Change, Group, GroupKind, Position, TableRow, Xid

FORMAT = f"2/{marshal.version}/{sys.version_info.major}.{sys.version_info.minor}"
"""Who reads must have written the same."""

Item = Change | TableRow


def encode_items(items: Sequence[Item]) -> bytes:
    return marshal.dumps([tuple(item) for item in items])


def decode_items(data: bytes) -> list[Item]:
    """A change has two fields, a row of the sidecar three."""
    return [Change(*item) if len(item) == 2 else TableRow(*item) for item in marshal.loads(data)]


def encode_groups(groups: Sequence[Group]) -> bytes:
    return marshal.dumps([_of_group(group) for group in groups])


def decode_groups(data: bytes) -> list[Group]:
    return [_to_group(fields) for fields in marshal.loads(data)]


def _of_group(group: Group) -> tuple[Any, ...]:
    return (
        group.kind.value,
        group.start.saved,
        group.end.saved,
        group.time_micros,
        encode_items(group.items),
        group.nbytes,
        tuple(group.xid) if group.xid else None,
        group.is_last,
        group.keep,
    )


def _to_group(fields: tuple[Any, ...]) -> Group:
    kind, start, end, time_micros, items, nbytes, xid, is_last, keep = fields
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
    )
