"""Places of groups without a server: beyond 4 GiB, by GTIDs, of heartbeats, and those that cannot be trusted."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.changes import put
from tests.support.log_packets import BEGIN, FORMAT, GTID, MAP, XID, Log, Sent, read, reader, rows
from vreplication.binlog import gtids
from vreplication.binlog.events import Group, Heartbeat, Position
from vreplication.binlog.framing import ARTIFICIAL, Type
from vreplication.errors import SourceChanged


def test_positions_that_go_back_are_refused() -> None:
    log = Log()
    packets = [*log.packets(GTID, BEGIN), log.packet(XID, end=999)]
    with pytest.raises(SourceChanged, match="goes back to place 999"):
        list(reader().items(packets))


FAR = 1 << 32


def beyond(log: Log, *jumps: int) -> list[bytes]:
    """Ignorable events, each behind so many bytes that nobody asked for."""
    packets = []
    for jump in jumps:
        log.offset += jump
        packets.append(log.packet((Type.IGNORABLE, b"")))
    return packets


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=40))
def test_places_beyond_4_gib_are_counted(jumps: list[int]) -> None:
    """Headers tell four bytes of them."""
    log, packets, wanted = Log(FAR - 3000), [], []
    start = log.offset
    packets.append(log.packet(FORMAT))
    for number, jump in enumerate(jumps):
        packets += beyond(log, jump)
        begun = log.offset
        packets += [log.packet(s) for s in (GTID, BEGIN, MAP, rows((number, 1)), XID)]
        wanted.append((begun, log.offset))
    found = reader(start=Position.of("log.000007", start)).items(packets)
    assert [(g.start.offset, g.end.offset) for g in found if isinstance(g, Group)] == wanted


def test_a_place_of_4_gib_exactly() -> None:
    """Its low four bytes are 0, as where no place is told."""
    sent = [GTID, BEGIN, MAP, rows((1, 2)), XID]
    total = sum(19 + len(body) + 4 for _, body in sent)
    log = Log(FAR - total)
    (group,) = reader(start=Position.of("log.000007", log.offset)).items(log.packets(*sent))
    assert isinstance(group, Group)
    assert group.end.offset == FAR


def from_the_file_on(target: int) -> tuple[Log, list[bytes]]:
    """What a server sends that was asked for offset 4, up to a little before `target`, with groups of the table."""
    log = Log(4)
    packets = [log.packet((Type.ROTATE, (4).to_bytes(8, "little") + b"log.000007"), flags=ARTIFICIAL, end=0)]
    packets.append(log.packet(FORMAT, end=120))
    while log.offset < target - (1 << 30):
        packets += beyond(log, 1 << 30)
        packets += [log.packet(s) for s in (GTID, BEGIN, MAP, rows((7, 7)), XID)]
    return log, packets


def test_a_place_beyond_4_gib_is_reached_from_the_begin_of_the_file() -> None:
    log, packets = from_the_file_on(2 * FAR)
    start = Position.of("log.000007", log.offset)
    packets += [log.packet(s) for s in (GTID, BEGIN, MAP, rows((1, 2)), XID)]
    (group,) = reader(start=start).items(packets)
    assert isinstance(group, Group)
    assert (group.start, group.items) == (start, [put("1", "1,2")])


def test_a_place_beyond_4_gib_that_is_none() -> None:
    log, packets = from_the_file_on(2 * FAR)
    start = Position.of("log.000007", log.offset + 5)
    packets += [log.packet(s) for s in (GTID, BEGIN)]
    with pytest.raises(SourceChanged, match="No event of the binary log begins at"):
        list(reader(start=start).items(packets))
    rotate = log.packet((Type.ROTATE, (4).to_bytes(8, "little") + b"log.000008"), flags=ARTIFICIAL, end=0)
    with pytest.raises(SourceChanged, match="ends before"):
        list(reader(start=Position.of("log.000007", 2 * start.offset)).items([*packets[:-2], rotate]))


def test_heartbeats_beyond_4_gib() -> None:
    log = Log(FAR + 500)
    start = Position.of("log.000007", log.offset)
    packets = [log.packet(FORMAT), log.packet((27, b"log.000007")), *beyond(log, 1 << 30)]
    log.offset += 1000
    packets.append(log.packet((27, b"log.000007")))
    log.offset += 1000
    packets.append(log.packet((27, log.offset.to_bytes(8, "little") + b"log.000007"), end=0))
    packets.append(log.packet((27, b"log.000007"), end=700))
    found = [h.position.offset for h in reader(start=start).items(packets) if isinstance(h, Heartbeat)]
    assert found == [FAR + 500, log.offset - 1000, log.offset, log.offset]


UUID = "00112233-4455-6677-8899-aabbccddeeff"


def mysql_gtid(number: int) -> Sent:
    _, body = GTID
    return Type.GTID, b"\0" + bytes.fromhex(UUID.replace("-", "")) + number.to_bytes(8, "little") + body[25:]


def mariadb_gtid(number: int, domain: int = 0) -> Sent:
    return Type.MARIADB_GTID, struct.pack("<QIB", number, domain, 4) + bytes(6)


def saved(found: Sequence[Group | Heartbeat]) -> list[tuple[str, str]]:
    """GTIDs at the begin and end of each group."""
    return [(str(g.start.gtids), str(g.end.gtids)) for g in found if isinstance(g, Group)]


def read_from(gtid_text: str, *sent: Sent) -> list[Group | Heartbeat]:
    start = Position.of("log.000007", 1000, gtids.parse(gtid_text))
    return list(reader(start=start).items(Log().packets(*sent)))


def test_places_hold_the_transactions_before_them() -> None:
    one, two = (mysql_gtid(5), BEGIN, MAP, rows((1, 2)), XID), (mysql_gtid(6), BEGIN, XID)
    assert saved(read_from(f"{UUID}:1-4", *one, *two)) == [
        (f"{UUID}:1-4", f"{UUID}:1-5"),
        (f"{UUID}:1-5", f"{UUID}:1-6"),
    ]
    other = (mariadb_gtid(8, domain=3), XID)
    assert saved(read_from("0-9-7,3-1-7", mariadb_gtid(8), XID, *other)) == [
        ("0-9-7,3-1-7", "0-1-8,3-1-7"),
        ("0-1-8,3-1-7", "0-1-8,3-1-8"),
    ]
    assert [g.start.gtids for g in read(*one) if isinstance(g, Group)] == [None]


def test_a_part_is_not_read_and_an_unfinished_group_neither() -> None:
    start = Position.of("log.000007", 1000, gtids.parse("0-1-7"))
    packets = Log().packets(mariadb_gtid(8), BEGIN, MAP, rows((1, 2)), rows((2, 2)), XID)
    assert saved(list(reader(100, start).items(packets))) == [("0-1-7", "0-1-7")] * 2 + [("0-1-7", "0-1-8")]
    assert saved(read_from("0-1-7", mariadb_gtid(8), BEGIN, FORMAT, mariadb_gtid(8), XID)) == [("0-1-7", "0-1-8")]


def test_after_an_anonymous_transaction_only_file_and_offset_count() -> None:
    found = read_from(f"{UUID}:1-4", GTID, BEGIN, XID, mysql_gtid(5), BEGIN, XID)
    assert saved(found) == [(f"{UUID}:1-4", "None"), ("None", "None")]


def test_by_gtids_a_log_need_not_tell_places() -> None:
    """MariaDB 11.4 leaves them out inside groups; the count goes on without."""
    log = Log()
    packets = [log.packet(FORMAT), *(log.packet(s, end=0) for s in (mariadb_gtid(8), MAP, rows((1, 2)), XID))]
    start = Position.of("log.000007", 1000, gtids.parse("0-1-7"))
    (group,) = reader(start=start).items(packets)
    assert isinstance(group, Group)
    assert (group.start.offset, group.end.offset, str(group.end.gtids)) == (1000, log.offset, "0-1-8")


@pytest.mark.parametrize("silent", ["begin", "end"])
def test_groups_without_a_place_are_refused(silent: str) -> None:
    log = Log()
    packets = [log.packet(FORMAT), log.packet(GTID, end=0 if silent == "begin" else None), log.packet(BEGIN, end=0)]
    packets.append(log.packet(XID, end=0 if silent == "end" else None))
    with pytest.raises(SourceChanged, match="binlog_legacy_event_pos=ON"):
        list(reader().items(packets))


def test_heartbeats_of_both_kinds() -> None:
    log = Log()
    log.offset = 2000
    second = Type.HEARTBEAT_V2, b"\x01\x0alog.000007\x02\x03\xfc\xff\x0f\0"
    first, later = reader().items([log.packet(FORMAT), log.packet((27, b"log.000007")), log.packet(second)])
    assert [str(h.position) for h in (first, later) if isinstance(h, Heartbeat)] == [
        "log.000007:2000",
        "log.000007:4095",
    ]


def test_heartbeats_inside_a_group_are_not_told() -> None:
    log = Log()
    packets = [*log.packets(GTID, BEGIN), log.packet((27, b"log.000007")), log.packet(XID)]
    assert [type(i) for i in reader().items(packets)] == [Group]
