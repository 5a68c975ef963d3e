"""Compressed transactions and row events without a server: envelopes, in parts, and those too large for memory."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.support.changes import gone, put
from tests.support.log_packets import (
    BEGIN,
    FORMAT,
    GTID,
    MAP,
    OTHER_MAP,
    XID,
    Log,
    Sent,
    framed,
    query,
    read,
    reader,
    rows,
    wire,
)
from tests.support.small_disk import small_disk_at
from vreplication.binlog.events import Group, GroupKind
from vreplication.binlog.framing import Type, uncompressed
from vreplication.binlog.spool import Spooled
from vreplication.errors import SourceChanged, Terminal, Transient
from vreplication.mysql.server import Xid


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


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It has room for all of it but the last bytes, which Python keeps until the file is read."""
    with small_disk_at(tmp_path / "small", 20) as place:
        monkeypatch.setattr("tempfile.tempdir", str(place))
        yield


@pytest.mark.usefixtures("small_disk")
def test_no_room_for_its_last_bytes() -> None:
    log = Log()
    packets = sent_in_pieces(log.packet(FORMAT), log.packet(GTID), log.packet(bulky()))
    with pytest.raises(Terminal, match=r"No space left.*run the same command again"):
        list(reader().items(packets))


def test_no_place_to_set_it_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not told as a lost connection, after which the same would be tried again and again."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(Terminal, match=r"No such file.*point TMPDIR elsewhere"):
        list(sent_in_pieces(Log().packet(bulky())))


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
