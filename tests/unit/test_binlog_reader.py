"""Packets to groups without a server: damage, unknown events, positions that cannot be trusted, unfinished groups."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from vreplication.binlog.events import Change, Group, GroupKind, Heartbeat, Position, SourceWatch, Xid
from vreplication.binlog.framing import ARTIFICIAL, Framer, Type, uncompressed
from vreplication.binlog.reader import Reader
from vreplication.binlog.wire import Wire
from vreplication.errors import SourceChanged, Terminal, Transient
from vreplication.schema.model import Column

START = Position.of("log.000007", 1000)
WATCH = SourceWatch(
    schema="d",
    table="t",
    columns=(
        Column(name="id", ordinal=1, data_type="int", column_type="int", is_nullable=False),
        Column(name="n", ordinal=2, data_type="smallint", column_type="smallint", is_nullable=True),
    ),
    key=((1, "{}"),),
    values=((1, "{}"), (2, "{}")),
)
TABLE_MAP = b"\x12\0\0\0\0\0\x01\0\x01d\0\x01t\0\x02\x03\x02\0\x02"
OTHER_MAP = b"\x13\0\0\0\0\0\x01\0\x01d\0\x01u\0\x02\x03\x02\0\x02"
FORMAT = (Type.FORMAT_DESCRIPTION, bytes(80) + b"\x01")
BEGIN = (Type.QUERY, bytes(8) + b"\x01\0\0\0\0d\0BEGIN")
XID = (Type.XID, bytes(8))
GTID = (Type.ANONYMOUS_GTID, bytes(25) + b"\x02" + bytes(16) + (1_700_000_000_000_123).to_bytes(7, "little"))

Sent = tuple[int, bytes]


def rows(*pairs: tuple[int, int | None], table: int = 0x12, kind: int = Type.WRITE_ROWS_V1) -> Sent:
    images = b"".join(
        (b"\xfe" if n is None else b"\xfc") + struct.pack("<i", i) + (b"" if n is None else struct.pack("<h", n))
        for i, n in pairs
    )
    return kind, bytes([table]) + b"\0\0\0\0\0\x01\0\x02\xff" + images


def query(sql: str) -> Sent:
    return Type.QUERY, bytes(8) + b"\x01\0\0\0\0d\0" + sql.encode()


class Log:
    """Packets as a server would send them."""

    def __init__(self, offset: int = START.offset) -> None:
        self.offset = offset

    def packet(self, sent: Sent, *, flags: int = 0, end: int | None = None, has_checksum: bool = True) -> bytes:
        kind, body = sent
        size = 19 + len(body) + 4 * has_checksum
        if kind != Type.FORMAT_DESCRIPTION and not flags & ARTIFICIAL and kind != Type.HEARTBEAT:
            self.offset += size
        told = (self.offset if kind != Type.FORMAT_DESCRIPTION else 0) if end is None else end
        plain = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, told, flags) + body
        return plain + (zlib.crc32(plain).to_bytes(4, "little") if has_checksum else b"")

    def packets(self, *sent: Sent) -> list[bytes]:
        return [self.packet(s) for s in (FORMAT, *sent)]


def reader(part_bytes: int = 1 << 24) -> Reader:
    return Reader(START, WATCH, (), guarded=(), part_bytes=part_bytes, codec_of=lambda _: "utf-8")


def read(*sent: Sent) -> list[Group | Heartbeat]:
    return list(reader().items(Log().packets(*sent)))


MAP = (Type.TABLE_MAP, TABLE_MAP)


def test_a_transaction() -> None:
    (group,) = read(GTID, BEGIN, MAP, rows((1, 2), (-1, None)), XID)
    assert isinstance(group, Group)
    assert group.items == [Change("1", "1,2"), Change("-1", "-1,NULL")]
    assert (group.kind, group.time_micros, group.start) == (GroupKind.COMMIT, 1_700_000_000_000_123, START)
    assert group.end.offset > START.offset


def test_updates_and_deletes() -> None:
    both = (1, 5), (1, 6), (2, 7), (3, 7)
    kind, body = rows(*both, kind=Type.UPDATE_ROWS_V1)
    update = kind, body[:10] + b"\xff" + body[10:]
    (group,) = read(GTID, BEGIN, MAP, update, rows((9, None), kind=Type.DELETE_ROWS_V1), XID)
    assert isinstance(group, Group)
    assert group.items == [Change("1", "1,6"), Change("2", None), Change("3", "3,7"), Change("9", None)]


def test_tables_that_nobody_watches_are_passed_over() -> None:
    (group,) = read(GTID, BEGIN, (Type.TABLE_MAP, OTHER_MAP), (Type.WRITE_ROWS, b"\x13\0\0\0\0\0junk"), XID)
    assert isinstance(group, Group)
    assert group.items == []


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([GTID, BEGIN, (26, b"")], "INCIDENT"),
        ([GTID, BEGIN, (99, b"")], "type 99"),
        ([GTID, BEGIN, (9, b"")], "type 9"),
        ([GTID, BEGIN, (20, b"")], "type 20"),
        ([GTID, BEGIN, (Type.BEGIN_LOAD_QUERY, b"")], "LOAD DATA"),
        ([GTID, BEGIN, MAP, (Type.PARTIAL_UPDATE_ROWS, TABLE_MAP)], "parts of JSON"),
        ([GTID, BEGIN, rows((1, 1))], "without the table's map"),
        ([MAP, rows((1, 1))], "whose beginning was not read"),
        ([XID], "whose beginning was not read"),
        ([query("COMMIT")], "whose beginning was not read"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1][:-1])], "cannot be read|does not end"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1] + b"\xfc")], "cannot be read|does not end"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1].replace(b"\x02\xff", b"\x02\x01", 1))], "all columns"),
        ([GTID, BEGIN, MAP, (Type.WRITE_ROWS_V1, rows((1, 1))[1].replace(b"\x02\xff", b"\x03\xff", 1))], "3 columns"),
        ([GTID, BEGIN, (Type.TABLE_MAP, TABLE_MAP.replace(b"\x02\x03\x02", b"\x02\x03\x03"))], "type 3, not smallint"),
        ([GTID, BEGIN, (Type.TABLE_MAP, TABLE_MAP.replace(b"\x02\x03\x02", b"\x02\x03\x63"))], "unknown type 99"),
        ([GTID, query("ROLLBACK TO s")], "savepoint 's'"),
        ([GTID, query("TRUNCATE t")], "TRUNCATE"),
        ([GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x01\x07\0")], "algorithm 7"),
        ([GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x01\0\0junk")], "cannot be read"),
        ([GTID, BEGIN, (Type.QUERY_COMPRESSED, BEGIN[1])], "compressed in a way"),
        ([(Type.MARIADB_GTID, b"\0")], "cannot be read"),
        ([(Type.XA_PREPARE, b"\0")], "cannot be read"),
    ],
)
def test_what_ends_the_workflow(sent: list[Sent], words: str) -> None:
    with pytest.raises(SourceChanged, match=words) as caught:
        read(*sent)
    assert "log.000007:" in str(caught.value)
    assert caught.value.cure


def payload(*sent: Sent) -> Sent:
    inside = b"".join(struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body), 0, 0) + body for kind, body in sent)
    packed = zstandard.ZstdCompressor().compress(inside)
    return Type.TRANSACTION_PAYLOAD, b"\x02\x01\0\0" + packed


def test_compressed_transactions_in_several_frames() -> None:
    kind, first = payload(BEGIN, MAP)
    _, second = payload(rows((1, 2)), XID)
    log = Log()
    found = list(reader().items(log.packets(GTID, (kind, first + second[4:]))))
    assert [(g.items, g.end.offset) for g in found if isinstance(g, Group)] == [([Change("1", "1,2")], log.offset)]


def test_compressed_transactions_come_in_parts() -> None:
    found = list(
        reader(part_bytes=100).items(Log().packets(GTID, payload(BEGIN, MAP, rows((1, 2)), rows((2, 2)), XID)))
    )
    assert [g.is_last for g in found if isinstance(g, Group)] == [False, False, True]


def test_what_is_rolled_back_after_it_was_handed_on_is_told() -> None:
    sent = [GTID, BEGIN, query("SAVEPOINT a"), MAP, rows((1, 2)), query("SAVEPOINT b"), rows((2, 2)), rows((3, 2))]
    packets = Log().packets(*sent, query("ROLLBACK TO b"), rows((4, 2)), query("ROLLBACK TO a"), rows((5, 2)), XID)
    found = [g for g in reader(part_bytes=100).items(packets) if isinstance(g, Group)]
    assert [len(g.items) for g in found] == [1, 1, 1, 1, 1, 0]
    assert [g.keep for g in found] == [None, None, None, 1, 0, None]
    kept: list[object] = []
    for group in found:
        kept = [*kept[: group.keep], *group.items]
    assert kept == [Change("5", "5,2")]


def test_the_missing_end_of_a_transaction_in_parts_is_told() -> None:
    log = Log()
    packets = log.packets(GTID, BEGIN, MAP, rows((1, 2)), FORMAT, GTID, BEGIN, MAP, rows((2, 2)), XID)
    found = [g for g in reader(part_bytes=100).items(packets) if isinstance(g, Group)]
    assert [(g.kind, len(g.items), g.is_last) for g in found] == [
        (GroupKind.COMMIT, 1, False),
        (GroupKind.UNFINISHED, 0, True),
        (GroupKind.COMMIT, 1, False),
        (GroupKind.COMMIT, 0, True),
    ]


def test_a_rolled_back_group_still_moves_the_position() -> None:
    (group,) = read(GTID, BEGIN, MAP, rows((1, 2)), query("ROLLBACK"))
    assert isinstance(group, Group)
    assert (group.items, group.kind) == ([], GroupKind.COMMIT)


def test_an_unfinished_group_before_a_new_file_never_committed() -> None:
    log = Log()
    packets = log.packets(GTID, BEGIN, MAP, rows((1, 2)))
    rotate = Type.ROTATE, (4).to_bytes(8, "little") + b"log.000008"
    log.offset = 4
    packets += [log.packet(rotate, flags=ARTIFICIAL), *log.packets(GTID, BEGIN, MAP, rows((2, 2)), XID)]
    (group,) = reader().items(packets)
    assert isinstance(group, Group)
    assert group.items == [Change("2", "2,2")]
    assert str(group.start) == "log.000008:4"


def test_table_ids_are_forgotten_with_the_file() -> None:
    with pytest.raises(SourceChanged, match="without the table's map"):
        read(GTID, BEGIN, MAP, rows((1, 2)), XID, FORMAT, GTID, BEGIN, rows((1, 2)))


def test_positions_that_wrap_are_refused() -> None:
    log = Log()
    packets = [*log.packets(GTID, BEGIN), log.packet(XID, end=999)]
    with pytest.raises(SourceChanged, match="4 GiB"):
        list(reader().items(packets))


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
    assert group.items == [Change("1", "1,2")]


def test_an_unknown_checksum_is_refused() -> None:
    with pytest.raises(SourceChanged, match="checksum algorithm 2"):
        Framer().event(Log().packet((15, bytes(80) + b"\x02")))


def test_mariadb_branches_and_compression() -> None:
    begin = Type.MARIADB_GTID, struct.pack("<QIBQIBB", 1, 0, 0x4E, 5, 7, 2, 1) + b"g\0b"
    kind, body = rows((1, 2))
    images = b"\x81" + bytes([len(body) - 10]) + zlib.compress(body[10:])
    prepare = Type.XA_PREPARE, struct.pack("<BIII", 0, 7, 2, 1) + b"g\0b"
    (group,) = read(begin, MAP, (166, body[:10] + images), query("XA END X'6700',X'62',7"), prepare)
    assert isinstance(group, Group)
    assert (group.kind, group.xid, group.items) == (GroupKind.XA_PREPARE, Xid(7, b"g\0", b"b"), [Change("1", "1,2")])
    assert kind == 23
    assert uncompressed(b"\x82\0\x03" + zlib.compress(b"abc")) == b"abc"
    with pytest.raises(SourceChanged, match="length"):
        uncompressed(b"\x81\x04" + zlib.compress(b"abc"))


@given(st.lists(st.tuples(st.integers(0, 172), st.binary(max_size=40)), max_size=6))
def test_junk_is_refused_in_our_words(sent: list[Sent]) -> None:
    with contextlib.suppress(SourceChanged, Transient):
        read(GTID, BEGIN, MAP, *sent)


def wire(data: bytes) -> Wire:
    """A wire whose server has sent `data` and then closed the connection."""
    made = object.__new__(Wire)
    made.start, made._stream = START, io.BytesIO(data)
    return made


def framed(payload: bytes) -> Iterator[bytes]:
    """As packets of at most 2^24 - 1 bytes; a full one is always followed by another."""
    for at in range(0, len(payload) + 1, 0xFFFFFF):
        piece = payload[at : at + 0xFFFFFF]
        yield len(piece).to_bytes(3, "little") + b"\0" + piece


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
