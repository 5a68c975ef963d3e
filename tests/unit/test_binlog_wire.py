"""The wire without a server: long packets, checksums, damage, and what a server refuses."""

from __future__ import annotations

import struct

import pytest

from tests.support.changes import put
from tests.support.log_packets import BEGIN, GTID, MAP, XID, Log, framed, reader, rows, wire
from vreplication.binlog.events import Group
from vreplication.binlog.framing import Framer
from vreplication.errors import SourceChanged, Terminal, Transient


def test_damage_on_the_way_is_transient() -> None:
    log = Log()
    good = log.packets(GTID, BEGIN, MAP, rows((1, 2)), XID)
    for index in (1, 4):
        packets = list(good)
        packets[index] = packets[index][:-6] + b"\x55" + packets[index][-5:]
        with pytest.raises(Transient, match="checksum"):
            list(reader().items(packets))
    with pytest.raises(Transient, match="arrived with"):
        list(reader().items([good[0], good[1][:-1]]))


def test_logs_without_checksums() -> None:
    log = Log()
    sent = [GTID, BEGIN, MAP, rows((1, 2)), XID]
    packets = [log.packet((15, bytes(80) + b"\0")), *(log.packet(s, has_checksum=False) for s in sent)]
    (group,) = reader().items(packets)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,2")]


def test_an_unknown_checksum_is_refused() -> None:
    with pytest.raises(SourceChanged, match="checksum algorithm 2"):
        Framer().event(Log().packet((15, bytes(80) + b"\x02")))


@pytest.mark.parametrize("size", [0, 1, 0xFFFFFE, 0xFFFFFF, 0x1000000, 2 * 0xFFFFFF])
def test_long_events_come_in_several_packets(size: int) -> None:
    data = b"\0" + b"x" * size
    assert wire(b"".join(framed(data)) + b"".join(framed(b"\0next"))).packet() == data[1:]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"\xff" + struct.pack("<H", 1236) + b"#HY000Could not find first log file", SourceChanged, "not find.*lost"),
        (
            b"\xff" + struct.pack("<H", 1236) + b"#HY000entry exceeded max_allowed_packet",
            SourceChanged,
            "Raise max_all",
        ),
        (b"\xff" + struct.pack("<H", 1236) + b"#HY000A slave with the same server_uuid/server_id", Transient, "same"),
        (b"\xff" + struct.pack("<H", 1227) + b"#42000Access denied", Terminal, "GRANT REPLICATION SLAVE"),
        (b"\xff" + struct.pack("<H", 1053) + b"#08S01Server shutdown in progress", Transient, "shutdown"),
        (b"\xfe\0\0\x02\0", Transient, "ended"),
    ],
)
def test_refusals_of_the_server(answer: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        wire(b"".join(framed(answer))).packet()


def test_a_connection_that_ends_is_transient() -> None:
    for data in (b"", b"\5\0", b"\5\0\0\0\0abc"):
        with pytest.raises(Transient):
            wire(data).packet()


def test_mysql_replication_connects_as_we_expect() -> None:
    """`wire` calls a private method of it: its public way of connecting reconnects silently."""
    from pymysqlreplication import BinLogStreamReader

    assert callable(BinLogStreamReader._BinLogStreamReader__connect_to_stream)
