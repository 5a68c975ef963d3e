"""Definitions that the log alone tells: the server is asked for what is not in the log, and else not at all."""

from __future__ import annotations

import pytest

from vreplication.binlog.control import TableMap
from vreplication.binlog.described import described
from vreplication.errors import SourceChanged
from vreplication.feed.catalog import tells_all

_BIGINT, _VARCHAR, _STRING, _GEOMETRY = 8, 15, 254, 255
_BINARY_16, _BINARY_8 = 0xFE10, 0xFE08


def _field(kind: int, data: bytes) -> bytes:
    return bytes([kind, len(data)]) + data


def _map(*types: tuple[int, int], collation: int = 45, is_unsigned: bool = False) -> TableMap:
    names = b"".join(_named(f"c{place}") for place in range(len(types)))
    fields = [_field(1, b"\x80" if is_unsigned else b"\0"), _field(2, bytes([collation])), _field(4, names)]
    return TableMap(
        schema="s",
        table="t",
        types=tuple(kind for kind, _ in types),
        metadata=tuple(meta for _, meta in types),
        described=b"".join(fields),
        nullable=b"\0",
    )


def _named(name: str) -> bytes:
    return bytes([len(name)]) + name.encode()


@pytest.mark.parametrize(
    ("found", "is_enough"),
    [
        (_map((_BIGINT, 0), (_VARCHAR, 160), (_STRING, _BINARY_16)), True),
        (_map((_BIGINT, 0), is_unsigned=True), False),  # may be ZEROFILL
        (_map((_BIGINT, 0), (_GEOMETRY, 4)), False),  # a point, a polygon
        (_map((_BIGINT, 0), (_STRING, _BINARY_16), collation=63), False),  # may be a UUID
        (_map((_BIGINT, 0), (_STRING, _BINARY_8), collation=63), True),
    ],
)
def test_the_server_is_asked_for_what_the_log_does_not_tell(found: TableMap, is_enough: bool) -> None:
    said = described(found, is_mariadb=True)
    assert said is not None
    assert tells_all(found, said) is is_enough


def _with_year(bits: bytes) -> TableMap:
    """`y YEAR, a INT, b INT UNSIGNED`."""
    names = b"".join(map(_named, "yab"))
    described = _field(1, bits) + _field(4, names)
    return TableMap(schema="s", table="t", types=(13, 3, 3), metadata=(0, 0, 0), described=described, nullable=b"\0")


def test_a_year_has_a_bit_among_those_of_signs() -> None:
    said = described(_with_year(b"\xa0"), is_mariadb=True)
    assert said is not None
    assert said.unsigned == {2}
    with pytest.raises(SourceChanged, match="a YEAR with a sign"):
        described(_with_year(b"\x40"), is_mariadb=True)
