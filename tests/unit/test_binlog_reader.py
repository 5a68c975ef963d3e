"""Packets to groups without a server: damage, unknown events, positions that cannot be trusted, unfinished groups."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import struct
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.changes import gone, put
from vreplication.binlog import gtids
from vreplication.binlog.events import Group, GroupKind, Heartbeat, Position, RowChange, Stopped
from vreplication.binlog.framing import ARTIFICIAL, Framer, Type, uncompressed
from vreplication.binlog.reader import Reader
from vreplication.binlog.spool import Spooled
from vreplication.binlog.watch import Following, Watch
from vreplication.binlog.wire import Wire
from vreplication.changes.codecs import PlainValues, SqlText
from vreplication.errors import SourceChanged, Terminal, Transient
from vreplication.mysql.server import Xid
from vreplication.schema.model import Column

START = Position.of("log.000007", 1000)
SERVER = 1
WATCH = Watch(
    number=0,
    schema="d",
    table="t",
    columns=(
        Column(name="id", ordinal=1, data_type="int", column_type="int", is_nullable=False),
        Column(name="n", ordinal=2, data_type="smallint", column_type="smallint", is_nullable=True),
    ),
    codec=SqlText(key=((1, "{}"),), values=((1, "{}"), (2, "{}"))),
)
TABLE_MAP = b"\x12\0\0\0\0\0\x01\0\x01d\0\x01t\0\x02\x03\x02\0\x02"
OTHER_MAP = b"\x13\0\0\0\0\0\x01\0\x01d\0\x01u\0\x02\x03\x02\0\x02"
FORMAT = (Type.FORMAT_DESCRIPTION, bytes(80) + b"\x01")
BEGIN = (Type.QUERY, bytes(8) + b"\x01\0\0\0\0d\0BEGIN")
XID = (Type.XID, bytes(8))
GTID = (Type.ANONYMOUS_GTID, bytes(25) + b"\x02" + bytes(16) + (1_700_000_000_000_123).to_bytes(7, "little"))

PLAIN = b"\x02\x03\xfc\xff\0\0"
"""Head of an envelope that is not compressed."""

Sent = tuple[int, bytes]


def rows(*pairs: tuple[int, int | None], table: int = 0x12, kind: int = Type.WRITE_ROWS_V1) -> Sent:
    images = b"".join(
        (b"\xfe" if n is None else b"\xfc") + struct.pack("<i", i) + (b"" if n is None else struct.pack("<h", n))
        for i, n in pairs
    )
    return kind, bytes([table]) + b"\0\0\0\0\0\x01\0\x02\xff" + images


def with_generated(place: int) -> Watch:
    """The table with a generated column at this place, counted from 1."""
    made = [dataclasses.replace(c, ordinal=c.ordinal + (c.ordinal >= place)) for c in WATCH.columns]
    made.insert(place - 1, dataclasses.replace(WATCH.columns[1], name="g", ordinal=place, generated="stored"))
    ordinals = [(c.ordinal, "{}") for c in made if not c.generated]
    codec = SqlText(key=tuple(ordinals[:1]), values=tuple(ordinals))
    return dataclasses.replace(WATCH, columns=tuple(made), codec=codec)


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
        plain = struct.pack("<IBIIIH", 1_700_000_000, kind, SERVER, size, told & 0xFFFFFFFF, flags) + body
        return plain + (zlib.crc32(plain).to_bytes(4, "little") if has_checksum else b"")

    def packets(self, *sent: Sent) -> list[bytes]:
        return [self.packet(s) for s in (FORMAT, *sent)]


def reader(part_bytes: int = 1 << 24, start: Position = START) -> Reader:
    return Reader(start, [WATCH], guarded=(), part_bytes=part_bytes, codec_of=lambda _: "utf-8")


def read(*sent: Sent) -> list[Group | Heartbeat]:
    return list(reader().items(Log().packets(*sent)))


MAP = (Type.TABLE_MAP, TABLE_MAP)


def test_a_transaction() -> None:
    (group,) = read(GTID, BEGIN, MAP, rows((1, 2), (-1, None)), XID)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,2"), put("-1", "-1,NULL")]
    assert (group.kind, group.time_micros, group.start) == (GroupKind.COMMIT, 1_700_000_000_000_123, START)
    assert group.end.offset > START.offset


@pytest.mark.parametrize("original", [None, 1_600_000_000_000_000])
@pytest.mark.parametrize("total", [None, 250, 70_000, 9 << 30])
def test_how_much_of_a_transaction_has_been_read(original: int | None, total: int | None) -> None:
    """A transaction from another server has both times, the first of which is this server's."""
    times = (1_700_000_000_000_123 | bool(original) << 55).to_bytes(7, "little") + (original or 0).to_bytes(7, "little")
    length = b"" if total is None else bytes([total]) if total < 251 else b"\xfe" + total.to_bytes(8, "little")
    body = bytes(25) + b"\x02" + bytes(16) + times[: 14 if original else 7] + length
    packets = Log().packets((Type.ANONYMOUS_GTID, body), BEGIN, MAP, rows((1, 2)), rows((2, 2)), XID)
    found = [g for g in reader(part_bytes=100).items(packets) if isinstance(g, Group)]
    assert {g.time_micros for g in found} == {1_700_000_000_000_123}
    assert [g.read and g.read.total for g in found] == [total, total, None]
    behind = [found[2].end.offset - START.offset - g.read.done for g in found[:2] if g.read]
    xid, row = (23 + len(body) for _, body in (XID, rows((2, 2))))
    assert behind == [row + xid, xid]


def test_updates_and_deletes() -> None:
    both = (1, 5), (1, 6), (2, 7), (3, 7)
    kind, body = rows(*both, kind=Type.UPDATE_ROWS_V1)
    update = kind, body[:10] + b"\xff" + body[10:]
    (group,) = read(GTID, BEGIN, MAP, update, rows((9, None), kind=Type.DELETE_ROWS_V1), XID)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,6", "1"), put("3", "3,7", "2"), gone("9")]


def test_several_tables_each_in_the_form_that_its_consumer_wants() -> None:
    """A change tells its table, and has both images as far as the codec asks for them."""
    plain = dataclasses.replace(WATCH, number=3, table="u", codec=PlainValues())
    kind, body = rows((1, 5), (2, None), table=0x13, kind=Type.UPDATE_ROWS_V1)
    update = kind, body[:10] + b"\xff" + body[10:]
    sent = GTID, BEGIN, MAP, (Type.TABLE_MAP, OTHER_MAP), update, rows((9, 4)), XID
    both = Reader(START, [WATCH, plain], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    (group,) = both.items(Log().packets(*sent))
    assert isinstance(group, Group)
    assert group.items == [RowChange(3, {"id": 1, "n": 5}, {"id": 2, "n": None}), put("9", "9,4")]


@pytest.mark.parametrize("name", ["t", "u"])
def test_a_definition_that_changes_ends_it_whichever_table_it_is_of(name: str) -> None:
    other = dataclasses.replace(WATCH, number=1, table="u")
    both = Reader(START, [WATCH, other], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    with pytest.raises(SourceChanged, match="ALTER TABLE"):
        list(both.items(Log().packets(GTID, query(f"ALTER TABLE {name} COMMENT='x'"))))


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_generated_column_that_the_log_leaves_out(place: int) -> None:
    """Of updates and deletes; inserts have it. The bits for NULLs are those of the columns that are there."""
    watch, types = with_generated(place), [b"\x03", b"\x02"]
    types.insert(place - 1, b"\x02")
    sent_map = Type.TABLE_MAP, b"\x12\0\0\0\0\0\x01\0\x01d\0\x01t\0\x03" + b"".join(types) + b"\0\x07"
    there = bytes([0xF8 | (7 & ~(1 << place - 1))])
    head = b"\x12\0\0\0\0\0\x01\0\x03"

    def rest(*pairs: tuple[int, int | None]) -> bytes:
        return rows(*pairs)[1][10:]

    whole = [b"\x01\0\0\0", b"\x05\0"]
    whole.insert(place - 1, b"\x09\0")
    insert = Type.WRITE_ROWS_V1, head + b"\xff" + b"\xf8" + b"".join(whole)
    update = Type.UPDATE_ROWS_V1, head + there * 2 + rest((1, 5), (1, None), (2, None), (3, 7))
    delete = Type.DELETE_ROWS_V1, head + there + rest((9, None), (8, 4))
    one = Reader(START, [watch], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    (group,) = one.items(Log().packets(GTID, BEGIN, sent_map, insert, update, delete, XID))
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,5"), put("1", "1,NULL", "1"), put("3", "3,7", "2"), gone("9"), gone("8")]


@pytest.mark.parametrize(("generated", "words"), [("stored", "generated column n"), ("", "does not hold all columns")])
def test_a_column_that_is_asked_for_and_not_there(generated: str, words: str) -> None:
    columns = (WATCH.columns[0], dataclasses.replace(WATCH.columns[1], generated=generated))
    one = Reader(
        START, [dataclasses.replace(WATCH, columns=columns)], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8"
    )
    image = Type.UPDATE_ROWS_V1, b"\x12\0\0\0\0\0\x01\0\x02" + b"\xff\xfd" + rows((1, 2))[1][10:] + b"\xfe\1\0\0\0"
    with pytest.raises(SourceChanged, match=words):
        list(one.items(Log().packets(GTID, BEGIN, MAP, image, XID)))


@pytest.mark.parametrize("unsent", [True, False])
def test_an_ordinary_column_that_nobody_asks_for_is_there_too(unsent: bool) -> None:
    """Unless it may be a generated one: a feed knows the log alone."""
    watch = dataclasses.replace(WATCH, unsent=frozenset({2} if unsent else ()))
    one = Reader(START, [watch], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    delete = Type.DELETE_ROWS_V1, b"\x12\0\0\0\0\0\x01\0\x02" + b"\xfd" + b"\xfe\1\0\0\0"
    packets = Log().packets(GTID, BEGIN, MAP, delete, XID)
    if not unsent:
        with pytest.raises(SourceChanged, match="does not hold all columns"):
            list(one.items(packets))
        return
    (group,) = one.items(packets)
    assert isinstance(group, Group)
    assert group.items == [gone("1")]


def test_a_row_image_that_one_cannot_follow_stops_that_one_alone() -> None:
    """And what it had of the transaction before stays in the order of the others."""
    other = dataclasses.replace(WATCH, number=1, table="u")
    both = Reader(START, [WATCH], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    both.join(Following(name="b", watches=(other,)))
    kind, body = rows((7, 8), table=0x13)
    minimal = kind, body[:9] + b"\x01" + body[10:]
    sent = GTID, BEGIN, MAP, rows((1, 5)), (Type.TABLE_MAP, OTHER_MAP), minimal, rows((2, 6)), XID
    stopped, group = both.items(Log().packets(*sent))
    assert isinstance(stopped, Stopped)
    assert (stopped.name, "does not hold all columns" in str(stopped.error)) == ("b", True)
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,5"), put("2", "2,6")]


def test_a_table_of_ours_of_another_shape_ends_all() -> None:
    ours = dataclasses.replace(WATCH, number=-1, columns=WATCH.columns[:1])
    all_of_them = Reader(START, [ours], guarded=(), part_bytes=1 << 24, codec_of=lambda _: "utf-8")
    all_of_them.join(Following(name="b", watches=(dataclasses.replace(WATCH, number=1, table="u"),)))
    with pytest.raises(SourceChanged):
        list(all_of_them.items(Log().packets(GTID, BEGIN, MAP, rows((1, 5)), XID)))


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
        ([GTID, BEGIN, GTID], "has no end"),
        ([GTID, BEGIN, MAP, rows((1, 1)), (Type.MARIADB_GTID, bytes(13))], "has no end"),
        (
            [GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x03\xfc\xff\0\0" + bytes(9) + b"\x05" + bytes(9))],
            "ends inside an event",
        ),
    ],
)
def test_what_ends_the_workflow(sent: list[Sent], words: str) -> None:
    with pytest.raises(SourceChanged, match=words) as caught:
        read(*sent)
    assert "log.000007:" in str(caught.value)
    assert caught.value.cure


def plain(*sent: Sent) -> bytes:
    """Events as they stand in a compressed transaction: without places and checksums."""
    return b"".join(struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body), 0, 0) + body for kind, body in sent)


def payload(*sent: Sent) -> Sent:
    return Type.TRANSACTION_PAYLOAD, b"\x02\x01\0\0" + zstandard.ZstdCompressor().compress(plain(*sent))


def sized(told: int, inside: bytes, *, is_zstd: bool = True) -> Sent:
    """An envelope that tells how many bytes of events it holds."""
    head = b"\x02\x01\0" if is_zstd else b"\x02\x03\xfc\xff\0"
    head += b"\x03\x09\xfe" + told.to_bytes(8, "little") + b"\0"
    return Type.TRANSACTION_PAYLOAD, head + (zstandard.ZstdCompressor().compress(inside) if is_zstd else inside)


@pytest.mark.parametrize("is_zstd", [True, False])
def test_a_compressed_transaction_is_as_long_as_it_tells(is_zstd: bool) -> None:
    """Cut at an event's end it would look whole, and its commit would be missing."""
    whole = plain(BEGIN, MAP, rows((1, 2)), XID)
    (group,) = read(GTID, sized(len(whole), whole, is_zstd=is_zstd))
    assert isinstance(group, Group)
    assert group.items == [put("1", "1,2")]
    cut = plain(BEGIN, MAP, rows((1, 2)))
    with pytest.raises(SourceChanged, match=f"holds {len(cut)} bytes of events and tells {len(whole)}"):
        read(GTID, sized(len(whole), cut, is_zstd=is_zstd))


def test_unknown_events_inside_are_told_with_the_envelopes_place() -> None:
    with pytest.raises(SourceChanged, match=r"type 99.*event at log\.000007:1072"):
        read(GTID, payload(BEGIN, (99, b"")), XID)


def test_compressed_transactions_in_several_frames() -> None:
    kind, first = payload(BEGIN, MAP)
    _, second = payload(rows((1, 2)), XID)
    log = Log()
    found = list(reader().items(log.packets(GTID, (kind, first + second[4:]))))
    assert [(g.items, g.end.offset) for g in found if isinstance(g, Group)] == [([put("1", "1,2")], log.offset)]


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
    assert kept == [put("5", "5,2")]


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
    assert group.items == [put("2", "2,2")]
    assert str(group.start) == "log.000008:4"


def test_table_ids_are_forgotten_with_the_file() -> None:
    with pytest.raises(SourceChanged, match="without the table's map"):
        read(GTID, BEGIN, MAP, rows((1, 2)), XID, FORMAT, GTID, BEGIN, rows((1, 2)))


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


def test_mariadb_branches_and_compression() -> None:
    begin = Type.MARIADB_GTID, struct.pack("<QIBQIBB", 1, 0, 0x4E, 5, 7, 2, 1) + b"g\0b"
    kind, body = rows((1, 2))
    images = b"\x81" + bytes([len(body) - 10]) + zlib.compress(body[10:])
    prepare = Type.XA_PREPARE, struct.pack("<BIII", 0, 7, 2, 1) + b"g\0b"
    (group,) = read(begin, MAP, (166, body[:10] + images), query("XA END X'6700',X'62',7"), prepare)
    assert isinstance(group, Group)
    assert (group.kind, group.xid, group.items) == (GroupKind.XA_PREPARE, Xid(7, b"g\0", b"b"), [put("1", "1,2")])
    assert kind == 23
    assert uncompressed(b"\x82\0\x03" + zlib.compress(b"abc")) == b"abc"
    with pytest.raises(SourceChanged, match="length"):
        uncompressed(b"\x81\x04" + zlib.compress(b"abc"))


@pytest.mark.parametrize("has_extra", [False, True])
@pytest.mark.parametrize("act", ["write", "update", "delete"])
def test_every_kind_of_compressed_row_event(act: str, has_extra: bool) -> None:
    """166 to 168, and 169 to 171 with a length of extra data in front."""
    kind = {"write": 166, "update": 167, "delete": 168}[act] + 3 * has_extra
    pairs = ((1, 5), (2, 6)) if act == "update" else ((1, 5),)
    _, body = rows(*pairs)
    head = body[:8] + (b"\x02\0" if has_extra else b"") + body[8:10] + (b"\xff" if act == "update" else b"")
    packed = b"\x82" + len(body[10:]).to_bytes(2, "big") + zlib.compress(body[10:])
    wanted = {"write": put("1", "1,5"), "update": put("2", "2,6", "1"), "delete": gone("1")}
    (group,) = read(GTID, BEGIN, MAP, (kind, head + packed), XID)
    assert isinstance(group, Group)
    assert group.items == [wanted[act]]


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


def sent_in_pieces(*packets: bytes) -> Iterator[bytes | Spooled]:
    """Through the protocol, where an event of 16 MiB and more comes in several packets."""
    made = wire(b"".join(piece for packet in packets for piece in framed(b"\0" + packet)))
    for _ in packets:
        yield made.packet()


def bulky() -> Sent:
    """A transaction of 20 MiB that cannot be compressed, with one row of ours."""
    noise = [(int(Type.WRITE_ROWS), b"\x13\0\0\0\0\0" + os.urandom(4 << 20)) for _ in range(5)]
    inside = plain(BEGIN, (Type.TABLE_MAP, OTHER_MAP), *noise, MAP, rows((1, 2)), XID)
    return sized(len(inside), inside)


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_large_compressed_transaction_is_set_down_in_a_file(has_checksum: bool) -> None:
    log = Log()
    head = log.packet(FORMAT if has_checksum else (15, bytes(80) + b"\0"))
    packets = list(sent_in_pieces(head, *(log.packet(s, has_checksum=has_checksum) for s in (GTID, bulky()))))
    assert [type(p) for p in packets] == [bytes, bytes, Spooled]
    (group,) = reader().items(packets)
    assert isinstance(group, Group)
    assert (group.items, group.end.offset) == ([put("1", "1,2")], log.offset)


def test_damage_in_what_was_set_down_is_transient() -> None:
    log = Log()
    good = [log.packet(FORMAT), log.packet(GTID), log.packet(bulky())]
    for at in (300, 17 << 20, len(good[2]) - 2):
        packets = [*good[:2], good[2][:at] + bytes([good[2][at] ^ 1]) + good[2][at + 1 :]]
        with pytest.raises(Transient, match="checksum"):
            list(reader().items(sent_in_pieces(*packets)))
    with pytest.raises(Transient, match="arrived with"):
        list(reader().items(sent_in_pieces(*good[:2], good[2][:-1])))


def test_no_room_for_what_is_set_down(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(Terminal, match=r"No space left.*run the same command again"):
        list(reader().items(sent_in_pieces(Log().packet(bulky()))))


def test_memory_does_not_grow_with_what_is_compressed() -> None:
    """More than 300 MiB of events, some with rows of ours, which go out in parts."""
    ours = rows(*((n, 1) for n in range(1000)))
    bulk = plain((Type.TABLE_MAP, OTHER_MAP), (Type.WRITE_ROWS, b"\x13\0\0\0\0\0" + bytes(4 << 20)), ours)
    pieces = [plain(BEGIN, MAP), *[bulk] * 80, plain(XID)]
    packer = zstandard.ZstdCompressor().compressobj()
    packed = b"".join([*map(packer.compress, pieces), packer.flush()])
    packets = Log().packets(GTID, (Type.TRANSACTION_PAYLOAD, b"\x02\x01\0\0" + packed))
    tracemalloc.start()
    try:
        count = sum(len(g.items) for g in reader(part_bytes=1 << 20).items(packets) if isinstance(g, Group))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(map(len, pieces)) > 300 << 20
    assert count == 80_000
    assert peak < 16 << 20


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
