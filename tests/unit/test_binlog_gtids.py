"""Sets of GTIDs, and places in a log that hold one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.binlog import gtids, position
from vreplication.binlog.events import Origin, Position
from vreplication.binlog.gtids import MariadbGtids, MysqlGtids

ONE, TWO = "bea2b2a4-e5b9-11f1-8092-02fc00000001", "0ea2b2a4-e5b9-11f1-8092-02fc00000002"
TEXTS = (
    f"{ONE}:1",
    f"{ONE}:1-5",
    f"{ONE}:1-5:8:10-12",
    f"{TWO}:7-9,{ONE}:1-5",
    f"{ONE}:1-5,{ONE}:some_tag:1-2:4",
    "0-1-100",
    "0-2-100,1-1-7,4294967295-3-18446744073709551615",
)


def numbers(of: gtids.Gtids | None) -> dict[str, set[int]]:
    assert isinstance(of, MysqlGtids)
    return {source: {n for low, high in ranges for n in range(low, high + 1)} for source, ranges in of.ranges.items()}


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str) -> None:
    found = gtids.parse(text)
    assert gtids.parse(str(found)) == found
    assert set(str(found).split(",")) == set(text.split(","))


def test_text_as_a_server_writes_it() -> None:
    """Lines are broken behind commas; a tag stands behind the ranges without one."""
    found = gtids.parse(f"{ONE.upper()}:1-5:8:some_tag:1-2:other:7,\n{TWO}:9")
    assert str(found) == f"{TWO}:9,{ONE}:1-5:8,{ONE}:other:7,{ONE}:some_tag:1-2"
    assert gtids.parse("") is None
    assert gtids.parse(" \n") is None


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, f"{ONE}:t"]), st.integers(1, 30)), min_size=1))
def test_a_set_is_what_was_added(names: list[tuple[str, int]]) -> None:
    """Any order, gaps and repetitions."""
    found: gtids.Gtids | None = MysqlGtids({})
    for name in names:
        found = gtids.plus(found, name)
    wanted: dict[str, set[int]] = {}
    for source, number in names:
        wanted.setdefault(source, set()).add(number)
    assert numbers(found) == wanted
    assert isinstance(found, MysqlGtids)
    for ranges in found.ranges.values():
        assert all(high + 1 < low for (_, high), (low, _) in pairwise(ranges))
    assert gtids.parse(str(found)) == found


def test_who_holds_a_set_keeps_it() -> None:
    before = gtids.parse(f"{ONE}:1-5")
    assert str(gtids.plus(before, (ONE, 6))) == f"{ONE}:1-6"
    assert str(before) == f"{ONE}:1-5"


def test_mariadb_keeps_the_last_of_each_domain() -> None:
    found = gtids.parse("0-1-100,7-1-3")
    assert str(gtids.plus(found, (0, 2, 101))) == "0-2-101,7-1-3"
    assert str(gtids.plus(found, (9, 2, 1))) == "0-1-100,7-1-3,9-2-1"


def test_without_a_name_nothing_is_known() -> None:
    assert gtids.plus(gtids.parse("0-1-100"), None) is None
    assert gtids.plus(None, (0, 1, 101)) is None


def test_as_the_dump_command_takes_it() -> None:
    plain = MysqlGtids({ONE: ((1, 5), (8, 8))})
    uuid = bytes.fromhex(ONE.replace("-", ""))
    ranges = b"".join(n.to_bytes(8, "little") for n in (2, 1, 6, 8, 9))
    assert plain.encoded() == (1).to_bytes(8, "little") + uuid + ranges
    tagged = MysqlGtids({f"{ONE}:tag": ((1, 1),)})
    one = b"".join(n.to_bytes(8, "little") for n in (1, 1, 2))
    assert tagged.encoded() == b"\1\1\0\0\0\0\0\1" + uuid + b"\6tag" + one


@pytest.mark.parametrize("gtid_text", ["", *TEXTS])
@pytest.mark.parametrize("file", ["binlog.000001", "my log:1.000007", "a.b.1000000"])
def test_a_place_comes_back_whole(file: str, gtid_text: str) -> None:
    place = Position.of(file, 5_000_000_000, gtids.parse(gtid_text))
    found = Position.parse(place.saved)
    assert (found, found.gtids, str(found)) == (place, place.gtids, f"{file}:5000000000")


ORIGIN = Origin("3e11fa47-71ca-11e1-9e33-c80aa9429562", 1_700_000_000, 1)


@pytest.mark.parametrize("gtid_text", TEXTS)
def test_a_place_says_whose_file_it_is(gtid_text: str) -> None:
    place = Position(number=7, offset=9, stem="b", gtids=gtids.parse(gtid_text), origin=ORIGIN)
    assert Position.parse(place.saved).origin == ORIGIN
    assert Position.parse(place.saved).saved == place.saved
    older = f"b.000007:9 {gtid_text}"
    assert (Position.parse(older), Position.parse(older).origin) == (place, None)


def test_without_gtids_a_place_is_saved_as_ever() -> None:
    place = Position(number=7, offset=9, stem="b", origin=ORIGIN)
    assert place.saved == "b.000007:9"


NEXT: list[tuple[gtids.Name | None, str, bool]] = [
    ((ONE, 6), f"{ONE}:1-5", True),
    ((ONE, 7), f"{ONE}:1-5", False),
    ((ONE, 5), f"{ONE}:1-5", False),
    ((ONE, 6), f"{ONE}:1-5:7-9", True),
    ((ONE, 9), f"{ONE}:1-5:7-9", False),
    ((f"{ONE}:tag", 1), f"{ONE}:1-5", True),
    ((f"{ONE}:tag", 2), f"{ONE}:1-5", False),
    (None, f"{ONE}:1-5", False),
    ((0, 1, 6), f"{ONE}:1-5", False),
    ((0, 1, 6), "0-1-5", True),
    ((0, 2, 6), "0-1-5", True),
    ((0, 1, 7), "0-1-5", False),
    ((0, 1, 5), "0-1-5", False),
    ((3, 1, 1), "0-1-5", True),
    ((3, 1, 2), "0-1-5", False),
    (None, "0-1-5", False),
]


@pytest.mark.parametrize(("name", "read", "is_next"), NEXT)
def test_what_follows_a_set(name: gtids.Name | None, read: str, is_next: bool) -> None:
    found = gtids.parse(read)
    assert found is not None
    assert gtids.follows(name, found) is is_next


def test_places_are_ordered_by_file_and_offset_alone() -> None:
    early, late = Position.of("b.000009", 900, MariadbGtids({0: (1, 9)})), Position.of("b.000010", 4)
    assert early < late
    assert Position.of("b.000009", 900) == early


def test_what_is_no_place() -> None:
    for text in ("", "binlog.000001", "binlog.000001:", "binlog.000001:x"):
        with pytest.raises(ValueError, match="no place"):
            Position.parse(text)


KEPT = [
    ("0-1-9", "", True),
    ("0-1-9", "0-1-9", True),
    ("0-1-10", "0-1-9", True),
    ("0-1-8", "0-1-9", False),
    # The last of its server before the file, but not the last of all.
    ("0-1-9", "0-1-9,0-2-3", False),
    # Another server's number says nothing.
    ("0-2-3", "0-1-9,0-2-3", True),
    ("0-3-1", "0-1-9,0-2-3", True),
    ("0-1-10", "0-1-9,0-2-30", True),
    ("0-1-9", "0-1-9,1-1-1", False),
    ("0-1-9,1-1-1", "0-1-9,1-1-1", True),
]


@pytest.mark.parametrize(("read", "purged", "is_kept"), KEPT)
def test_what_mariadb_still_holds(read: str, purged: str, is_kept: bool) -> None:
    found = gtids.parse(read)
    assert isinstance(found, MariadbGtids)
    assert position._is_kept(found, gtids.names(purged)) is is_kept
