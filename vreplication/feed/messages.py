"""What a feed sends, before a format gives it its bytes.

A message is known by (source, t, seq): t is the commit time, microseconds, assigned so that it only ever rises in the
order of the log; seq counts the rows of one transaction from 0 on, over all partitions. The same log gives the same
numbers, whoever reads it and when.

Every message carries the headers below in every format; `n` counts rows, DDL and Admin in each partition without gaps,
so that a reader sees a duplicate (not above the last one) and a loss (a gap). Resolved and Align carry the last `n`.
An Align has its own number for `vr-t` and `vr-seq` (feed/conflicts.py).

What must stay true: what is in a header or a key never depends on when it is sent, but for `vr-n` and `vr-gen`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import msgspec

from vreplication.feed.layout import Layout

Header = tuple[str, bytes]


class Kind(StrEnum):
    """As of `vr-kind`."""

    ROW = "row"
    DDL = "ddl"
    RESOLVED = "resolved"
    ADMIN = "admin"
    ALIGN = "align"


COUNTED = (Kind.ROW, Kind.DDL, Kind.ADMIN)
"""Those that `n` counts."""


class Place(NamedTuple):
    """Where a row stands in the log of its source: t in microseconds, and its number in the transaction."""

    t: int
    seq: int


# Made for each row, as `Encoded` is, and never part of a cycle: the collector need not look at them (gc=False).
class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """before None: INSERT. after None: DELETE. Both are tuples of values (feed/values.py) in the layout's order.

    gtid: the transaction's name, or file:offset where the log has no names. commit: what the source says, µs.
    is_snapshot: it was read from the table, and not from the log.
    """

    layout: Layout
    place: Place
    before: tuple[Any, ...] | None
    after: tuple[Any, ...] | None
    gtid: str = ""
    source: str = ""
    commit: int = 0
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """what: TABLE, INDEX or DATABASE. tables: (schema, table) that the statement names; schema: the session's."""

    place: Place
    schema: str
    sql: str
    verb: str
    what: str
    tables: tuple[tuple[str, str], ...]
    gtid: str = ""
    source: str = ""
    commit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """From here on the topic's partitions are the first `partitions`, as generation `generation`.

    snapshot "done": that is as before, and all rows that were in the tables at the start have been sent.
    """

    t: int
    partitions: int
    generation: int
    snapshot: str = ""


class Encoded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message's bytes. key None: it has none. value None: a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    """Beside those that every format has."""


class KeyOnly(msgspec.Struct, frozen=True, kw_only=True):
    """Of a row that was too large: only its key is in the message. columns: all that would be; source: has them."""

    source: str
    columns: tuple[str, ...]


class Format(Protocol):
    """What a protocol makes of each kind. One row may be several messages (a key change, a tombstone)."""

    name: str

    def row(self, row: Row) -> Sequence[Encoded]: ...

    def ddl(self, ddl: Ddl) -> Sequence[Encoded]: ...

    def resolved(self, t: int) -> Encoded: ...

    def admin(self, admin: Admin) -> Encoded: ...

    def align(self, number: Place) -> Encoded: ...

    def mark(self, message: Encoded, said: Any) -> Encoded:
        """Say in a row or a DDL that more of it is elsewhere: said is a Claim (claims.py), or KeyOnly."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The headers, read. part: (number, of how many), from 0 on, of a message that was too large for one."""

    kind: Kind
    t: int
    seq: int
    n: int
    generation: int
    source: str = ""
    gtid: str = ""
    part: tuple[int, int] | None = None
    snapshot: str = ""
    """As of an Admin that begins no generation."""
    claim: bytes = b""
    """Where the value is, if not here (claims.py)."""
    is_key_only: bool = False
    is_moved: bool = False
    dispatch: str = ""
    """By which rule rows are sent, as of an Admin that begins a generation."""
    session: bytes = b""
    """As of a DDL (spoken.py)."""


_KINDS: dict[Kind, Header] = {kind: ("vr-kind", kind.encode()) for kind in Kind}


def headers(
    kind: Kind, place: Place, n: int, generation: int, *, source: str = "", gtid: str = "", part: str = ""
) -> list[Header]:
    found: list[Header] = [
        _KINDS[kind],
        ("vr-t", b"%d" % place.t),
        ("vr-seq", b"%d" % place.seq),
        ("vr-n", b"%d" % n),
        ("vr-gen", b"%d" % generation),
    ]
    if source or gtid or part:
        named = (("vr-source", source), ("vr-gtid", gtid), ("vr-part", part))
        found += [(name, value.encode()) for name, value in named if value]
    return found


MOVED = ("vr-moved", b"1")
"""A row gives its key up, and another partition may bring that key: who applies each by itself knows no order."""


class NotOurs(ValueError):
    """A message without our headers."""


def read_tags(given: Any) -> Tags:
    """Raises NotOurs."""
    found: Mapping[str, bytes] = dict(given or ())
    try:
        number, _, of = found.get("vr-part", b"").partition(b"/")
        return Tags(
            kind=Kind(found["vr-kind"].decode()),
            t=int(found["vr-t"]),
            seq=int(found["vr-seq"]),
            n=int(found["vr-n"]),
            generation=int(found["vr-gen"]),
            source=found.get("vr-source", b"").decode(),
            gtid=found.get("vr-gtid", b"").decode(),
            part=(int(number), int(of)) if of else None,
            snapshot=found.get("vr-snapshot", b"").decode(),
            claim=found.get("vr-claim-check", b""),
            is_key_only="vr-key-only" in found,
            is_moved=MOVED[0] in found,
            dispatch=found.get("vr-dispatch", b"").decode(),
            session=found.get("vr-session", b""),
        )
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise NotOurs(f"a message without the headers of a feed ({error})") from None
