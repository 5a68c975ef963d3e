"""Sets of GTIDs: which transactions of a history have been read, whatever server and file they stand in.

MySQL names a transaction by the server that first committed it (with a tag, perhaps) and a number, and a set is ranges
of numbers; MariaDB numbers each domain on its own, and the last name of each domain stands for all before it.

What must stay true: a set is never changed, it is given anew with one name more, so that who holds one may keep it; the
text of a set is what the servers take and give.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

_TAGGED = 1
_RANGE = struct.Struct("<QQ")

Range = tuple[int, int]
"""First and last number."""
MysqlName = tuple[str, int]
"""(uuid or uuid:tag, number)"""
MariadbName = tuple[int, int, int]
"""(domain, server id, number)"""


@dataclass(frozen=True, slots=True)
class MysqlGtids:
    """Ranges of numbers by source, which is a server's uuid, or `uuid:tag`."""

    ranges: Mapping[str, tuple[Range, ...]]

    def plus(self, name: MysqlName) -> MysqlGtids:
        source, number = name
        before = self.ranges.get(source, ())
        return MysqlGtids({**self.ranges, source: _with(before, number)})

    def has(self, name: MysqlName) -> bool:
        return _has(self.ranges.get(name[0], ()), name[1])

    def encoded(self) -> bytes:
        """As COM_BINLOG_DUMP_GTID takes it. Tags came with MySQL 8.3, and with them another head and names."""
        has_tags = any(":" in source for source in self.ranges)
        count = len(self.ranges)
        head = _TAGGED << 56 | count << 8 | _TAGGED if has_tags else count
        return head.to_bytes(8, "little") + b"".join(_encoded(s, r, has_tags) for s, r in sorted(self.ranges.items()))

    def __str__(self) -> str:
        return ",".join(f"{source}:{_text(ranges)}" for source, ranges in sorted(self.ranges.items()))


def _with(ranges: tuple[Range, ...], number: int) -> tuple[Range, ...]:
    """Mostly the number is the one behind the last."""
    if ranges and ranges[-1][1] + 1 == number:
        return (*ranges[:-1], (ranges[-1][0], number))
    at = bisect_right(ranges, (number, number))
    low, high = number, number
    before, behind = ranges[:at], ranges[at:]
    if before and before[-1][1] >= number - 1:
        low, high = before[-1][0], max(high, before[-1][1])
        before = before[:-1]
    if behind and behind[0][0] <= high + 1:
        high = max(high, behind[0][1])
        behind = behind[1:]
    return (*before, (low, high), *behind)


def _text(ranges: tuple[Range, ...]) -> str:
    return ":".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)


def _encoded(source: str, ranges: tuple[Range, ...], has_tags: bool) -> bytes:
    uuid, _, tag = source.partition(":")
    # A length in the servers' variable form; a tag is too short for more than one byte of it.
    name = bytes([len(tag) << 1]) + tag.encode() if has_tags else b""
    # The command takes a range with the first number behind it.
    pairs = b"".join(_RANGE.pack(low, high + 1) for low, high in ranges)
    return UUID(uuid).bytes + name + len(ranges).to_bytes(8, "little") + pairs


@dataclass(frozen=True, slots=True)
class MariadbGtids:
    """The last (server id, number) of each domain."""

    last: Mapping[int, tuple[int, int]]

    def plus(self, name: MariadbName) -> MariadbGtids:
        domain, server, number = name
        return MariadbGtids({**self.last, domain: (server, number)})

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))


Gtids = MysqlGtids | MariadbGtids
Name = MysqlName | MariadbName


def parse(text: str) -> Gtids | None:
    """A set as a server or we wrote it; None for an empty one, of which nobody can tell whose it is."""
    parts = [part for part in "".join(text.split()).split(",") if part]
    if not parts:
        return None
    if ":" in parts[0]:
        return _mysql(parts)
    return MariadbGtids({domain: (server, number) for domain, server, number in names(text)})


def _mysql(parts: list[str]) -> MysqlGtids:
    """uuid:range:range:tag:range,uuid:…"""
    found: dict[str, tuple[Range, ...]] = {}
    for part in parts:
        uuid, *pieces = part.lower().split(":")
        source = uuid
        for piece in pieces:
            if piece[0].isdigit():
                low, _, high = piece.partition("-")
                found[source] = tuple(sorted((*found.get(source, ()), (int(low), int(high or low)))))
            else:
                source = f"{uuid}:{piece}"
    return MysqlGtids(found)


def names(text: str) -> list[MariadbName]:
    """A list as MariaDB writes it; in some of its lists a domain stands more than once, with each of its servers."""
    found = []
    for part in "".join(text.split()).split(","):
        if part:
            domain, server, number = map(int, part.split("-"))
            found.append((domain, server, number))
    return found


def is_within(inner: Gtids, outer: Gtids) -> bool:
    """True when `outer` has every transaction of `inner`."""
    if isinstance(inner, MysqlGtids) and isinstance(outer, MysqlGtids):
        return all(
            any(low <= first and last <= high for low, high in outer.ranges.get(source, ()))
            for source, ranges in inner.ranges.items()
            for first, last in ranges
        )
    # By numbers alone, whichever server wrote them. Where those of a domain go back (several servers, no strict mode)
    # the answer may be wrong, and whoever asks has to be right all the same (`Matcher._has_been_applied`).
    if isinstance(inner, MariadbGtids) and isinstance(outer, MariadbGtids):
        return all(number <= outer.last.get(domain, (0, -1))[1] for domain, (_, number) in inner.last.items())
    # Sets of two flavors tell nothing of each other.
    return False


def follows(name: Name | None, gtids: Gtids) -> bool:
    """True when it is not in the set, and nothing of its source is missing between the set and it."""
    # A server gives the number behind the highest one of the domain, whichever server wrote that.
    if isinstance(gtids, MariadbGtids):
        return name is not None and len(name) == 3 and name[2] == gtids.last.get(name[0], (0, 0))[1] + 1
    if name is None or len(name) == 3:
        return False
    source, number = name
    before = gtids.ranges.get(source, ())
    # A replica may log its source's transactions in another order. That costs a dump by GTID, and no change.
    return not _has(before, number) and (number == 1 or _has(before, number - 1))


def _has(ranges: tuple[Range, ...], number: int) -> bool:
    return any(low <= number <= high for low, high in ranges)


def plus(gtids: Gtids | None, name: Name | None) -> Gtids | None:
    """The set with one name more. None: a transaction without a name, after which no set tells what has been read."""
    if gtids is None or name is None:
        return None
    return gtids.plus(name)  # type: ignore[arg-type]
