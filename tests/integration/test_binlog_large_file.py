"""A log file of more than 4 GiB on real servers: its headers tell the low four bytes of a place only.

The file is made while the server stands still: what it had written, then ignorable events, mostly holes, then the rest
with its places moved. It lies in memory where there is a file system for that: what is read of a disk's holes takes
4 GiB of memory, which has to be cleared first.
"""

from __future__ import annotations

import functools
import operator
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox import replicas, servers
from sandbox.databases import Database, create_database
from tests.support import in_memory
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog import position
from vreplication.binlog.events import Group, Position
from vreplication.binlog.framing import HEADER, HEADER_BYTES, IGNORABLE, Type

FAR = 1 << 32
FILLER_BYTES = 4 << 20
CRC_BYTES = 4


@pytest.fixture
def logs() -> Iterator[Path]:
    with in_memory.temporary("vreplication-logs-") as folder:
        yield Path(folder)


@pytest.fixture(params=["mariadb", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, logs: Path) -> Iterator[Database]:
    """On a server of its own, for it is stopped."""
    flavor = str(request.param)
    options = {**replicas.GTID_OPTIONS[flavor], "log-bin": logs / "binlog"}
    server = servers.start(flavor, tmp_path / "server", options=options)
    try:
        yield create_database(server)
    finally:
        server.kill()


@pytest.mark.in_turn("mysql")
@pytest.mark.slow
def test_a_file_of_more_than_4_gib(database: Database, logs: Path) -> None:
    admin = database.admin
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    source = watch(database, "t")
    admin.execute_raw("FLUSH BINARY LOGS")
    admin.execute_raw("INSERT INTO t VALUES (1,'before')")
    by_gtid = position.begin(admin, database.server.is_mariadb)
    cut = here(database)
    for statement in ("INSERT INTO t VALUES (2,'far')", "INSERT INTO t VALUES (3,'far')", "FLUSH BINARY LOGS"):
        admin.execute_raw(statement)
    admin.execute_raw("INSERT INTO t VALUES (4,'next file')")
    database.close()
    database.server.stop()
    far = stretch(logs / cut.file, cut.offset)
    database.server = database.server.restart()
    check(groups(database, Position.of(cut.file, far), source), far)
    check(groups(database, by_gtid, source), far)


def check(found: list[Group], far: int) -> None:
    assert [c.key for c in changes(found)] == ["2", "3", "4"]
    first, second, third = (group for group in found if group.items)
    assert first.start.offset == far > FAR
    # MariaDB puts its binlog checkpoint between them now and then.
    assert first.start.offset < first.end.offset <= second.start.offset < second.end.offset
    assert third.start.number == first.start.number + 1
    assert third.start.offset < FAR


def stretch(path: Path, cut: int) -> int:
    """Move what stands from `cut` on to beyond 4 GiB; returns where it begins now."""
    data = path.read_bytes()
    checksum = of_holes(FILLER_BYTES - HEADER_BYTES - CRC_BYTES)
    with path.open("r+b") as file:
        file.truncate(cut)
        at = cut
        while at <= FAR:
            at += FILLER_BYTES
            head = HEADER.pack(0, Type.IGNORABLE, 1, FILLER_BYTES, at & (FAR - 1), IGNORABLE)
            file.seek(at - FILLER_BYTES)
            file.write(head)
            file.seek(at - CRC_BYTES)
            file.write(struct.pack("<I", checksum(zlib.crc32(head))))
        file.seek(at)
        file.write(b"".join(moved(data, cut, at - cut)))
    return at


def of_holes(nbytes: int) -> Callable[[int], int]:
    """The checksum of what has one already and goes on with so many zeros: each of its bits counts by itself."""
    zeros = bytes(nbytes)
    nothing = zlib.crc32(zeros, 0)
    bits = [zlib.crc32(zeros, 1 << bit) ^ nothing for bit in range(32)]
    return lambda crc: functools.reduce(operator.xor, (bits[n] for n in range(32) if crc >> n & 1), nothing)


def moved(data: bytes, at: int, by: int) -> Iterator[bytes]:
    """Events with their places moved, and their checksums made anew."""
    while at < len(data):
        timestamp, kind, server, size, end, flags = HEADER.unpack_from(data, at)
        plain = HEADER.pack(timestamp, kind, server, size, (end + by) & (FAR - 1), flags)
        plain += data[at + HEADER_BYTES : at + size - CRC_BYTES]
        yield plain + struct.pack("<I", zlib.crc32(plain))
        at += size
