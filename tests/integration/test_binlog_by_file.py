"""Beginning at file and offset where it is the very place. Whatever becomes of the log, nothing is lost or doubled.

A place is taken, something becomes of the server or its log, more is written, and the log is read from the place on.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox import replicas, servers
from sandbox.databases import Database, create_database
from sandbox.servers import RunningServer
from tests.support import in_memory
from tests.support.flow import wait_until
from tests.support.private_server import forget_logs, private_server
from tests.support.tailing import changes, groups, here, open_tailer, watch
from vreplication.binlog import gtids, position
from vreplication.binlog.events import Group, Heartbeat, Position
from vreplication.binlog.origin import LogReplaced
from vreplication.binlog.watch import Watch
from vreplication.binlog.wire import Wire, origin_of
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session, connect

pytestmark = pytest.mark.either


@dataclass(slots=True)
class Log:
    """A server with a table whose changes are looked for."""

    database: Database
    source: Watch

    def write(self, *keys: int) -> None:
        with self.session() as session:
            for key in keys:
                session.execute_raw(f"INSERT INTO t VALUES ({key},'a')")

    def session(self) -> Session:
        return self.database.server.admin(self.database.name)

    def run(self, *statements: str) -> None:
        with self.session() as session:
            for statement in statements:
                session.execute_raw(statement)

    def begin(self) -> Position:
        """As a workflow does, on a file that has been there for a second."""
        is_mariadb = self.database.server.is_mariadb
        with connect(self.database.url) as session:
            place = position.begin(session, is_mariadb, lambda: self.run("INSERT INTO u VALUES (NULL)"))
            server_id = position.draw_server_id(session)
        wait_until(lambda: origin_of(self.database.url, place, server_id) is not None, "its origin is not told")
        return replace(place, origin=origin_of(self.database.url, place, server_id))

    def flush(self) -> None:
        """Go on in a file that has been there for a second."""
        self.run("FLUSH BINARY LOGS")
        self.begin()

    def read(self, start: Position) -> tuple[list[Group], bool]:
        """All from there to the present end, and whether it began, and went on, at file and offset."""
        end, found = here(self.database), list[Group]()
        with open_tailer(self.database, Position.parse(start.saved), self.source) as tailer:
            for item in tailer:
                if isinstance(item, Group):
                    found.append(item)
                elif item.position >= end:
                    return found, tailer.is_by_file
        raise AssertionError("the tailer ended by itself")

    def by_file(self, start: Position) -> list[str]:
        found, is_by_file = self.read(start)
        assert is_by_file
        return keys(found)

    def by_gtid(self, start: Position) -> list[str]:
        found, is_by_file = self.read(start)
        assert not is_by_file
        return keys(found)

    def first_place(self, start: Position) -> int:
        """Where in a file the server itself says that it begins."""
        with connect(self.database.url) as session:
            server_id = position.draw_server_id(session)
        wire = Wire(self.database.url, start, server_id=server_id, heartbeat_seconds=0.2, by_file=True)
        try:
            rotate = wire.packet if wire._first is None else lambda: wire._first
            packet = rotate()
            assert isinstance(packet, bytes)
            return int.from_bytes(packet[19:27], "little")
        finally:
            wire.close()


def keys(found: list[Group]) -> list[str]:
    return [change.key for change in changes(found)]


def log_of(database: Database) -> Log:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    database.admin.execute_raw("CREATE TABLE u (id INT PRIMARY KEY AUTO_INCREMENT)")
    return Log(database, watch(database, "t"))


@pytest.fixture
def log(database: Database) -> Log:
    return log_of(database)


@pytest.fixture(params=["mariadb", "mysql"])
def alone(request: pytest.FixtureRequest) -> Iterator[Log]:
    """On a server to which anything may be done."""
    flavor = str(request.param)
    with private_server(flavor, replicas.GTID_OPTIONS[flavor]) as server:
        database = create_database(server)
        yield log_of(database)
        database.close()


def reset(log: Log) -> None:
    log.run(forget_logs(log.database.server.flavor))


# Where it is the place.


def test_a_dump_begins_where_it_was_asked_for(log: Log) -> None:
    log.write(1, 2, 3)
    start = log.begin()
    assert start.offset > 1000
    log.write(4, 5)
    assert log.by_file(start) == ["4", "5"]
    assert log.by_gtid(replace(start, origin=None)) == ["4", "5"]
    assert log.first_place(start) == start.offset
    assert log.first_place(replace(start, origin=None)) == 4


def test_every_place_is_one_to_begin_at(log: Log) -> None:
    start = log.begin()
    log.write(*range(3))
    log.flush()
    log.write(3, 4)
    log.run("XA START 'x'", "INSERT INTO t VALUES (5,'a')", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    log.flush()
    log.write(6)
    found, _ = log.read(start)
    for group in found:
        after = [c for other in found for c in keys([other]) if other.start >= group.end]
        for place, expected in ((group.end, after), (group.start, keys([group]) + after)):
            # Of a file in its first second no place is told.
            assert (log.by_file if place.origin else log.by_gtid)(place) == expected
    assert found[0].end.origin
    assert found[-1].end.origin


def test_the_first_transaction_may_come_later(log: Log) -> None:
    start = log.begin()
    with open_tailer(log.database, start, log.source) as tailer:
        items = iter(tailer)
        assert isinstance(next(items), Heartbeat)
        log.write(1)
        group = next(item for item in items if isinstance(item, Group))
        assert (keys([group]), tailer.is_by_file) == (["1"], True)


def test_begun_under_writes_both_ways_give_the_same(log: Log) -> None:
    """What stands before the place is in the GTIDs, whatever commits at that moment; XA is the hard case."""
    is_over = threading.Event()
    writers = [threading.Thread(target=_write, args=(log, number, is_over)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        starts = [log.begin() for _ in range(12)]
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    ways = []
    for start in starts:
        (one, is_by_file), (other, _) = log.read(start), log.read(replace(start, origin=None))
        assert keys(one) == keys(other)
        assert [g.end.gtids for g in one] == [g.end.gtids for g in other]
        ways.append(is_by_file)
    # MariaDB may find no moment without a write.
    assert any(ways) if log.database.server.is_mariadb else all(ways)


def _write(log: Log, writer: int, is_over: threading.Event) -> None:
    number = writer * 1_000_000
    with log.session() as session:
        while not is_over.is_set():
            number += 1
            insert = f"INSERT INTO t VALUES ({number},'a')"
            branch = f"'b{number}'"
            xa = (f"XA START {branch}", insert, f"XA END {branch}", f"XA PREPARE {branch}", f"XA COMMIT {branch}")
            for statement in xa if number % 5 == 0 else (insert,):
                session.execute_raw(statement)


@pytest.mark.only_on("mariadb")
def test_domains(log: Log) -> None:
    start = log.begin()
    for number, domain in enumerate((0, 7, 0, 9, 7)):
        log.run(f"SET SESSION gtid_domain_id={domain}", f"INSERT INTO t VALUES ({number},'a')")
    found, _ = log.read(start)
    for index, group in enumerate(found):
        assert log.by_file(group.start) == [str(n) for n in range(index, 5)]


def test_a_server_that_was_killed_goes_on_in_its_next_file(alone: Log) -> None:
    alone.write(1)
    start = alone.begin()
    alone.write(2)
    (group,), _ = alone.read(start)
    restarted(alone, lambda server: server.kill())
    alone.write(3)
    assert alone.by_file(start) == ["2", "3"]
    assert alone.by_file(group.end) == ["3"]


def restarted(log: Log, end: Callable[[RunningServer], None]) -> None:
    log.database.close()
    end(log.database.server)
    log.database.server = log.database.server.restart()


# Where it is not.


def test_after_a_reset_nothing_is_passed_over(alone: Log) -> None:
    """The file's name is the same, it is longer, and has the GTIDs of before, for other transactions."""
    alone.write(1, 2, 3)
    start = alone.begin()
    reset(alone)
    alone.write(*range(10, 30))
    assert here(alone.database) > start
    assert start.gtids is not None
    with connect(alone.database.url) as session:
        # By them alone nobody could tell.
        assert position.exists(session, start)
    with pytest.raises(LogReplaced, match="was reset"):
        alone.read(start)


def test_of_a_file_that_was_just_begun_no_place_is_told(alone: Log) -> None:
    """Begun anew within the same second it would say the same of itself; and by GTID it is as quick."""
    for _ in range(5):
        reset(alone)
        with connect(alone.database.url) as session:
            place = position.begin(session, alone.database.server.is_mariadb)
            server_id = position.draw_server_id(session)
        found = origin_of(alone.database.url, place, server_id)
        assert found is None or found.born < _clock(alone)
        alone.write(1)
        start = alone.begin()
        alone.run("DELETE FROM t")
        at_once, _ = alone.read(start)
        assert all(g.end.origin is None or g.end.origin.born < _clock(alone) for g in at_once)


def _clock(log: Log) -> int:
    return int(log.database.admin.value("SELECT UNIX_TIMESTAMP()"))


def test_after_a_reset_the_file_may_not_be_there_yet(alone: Log) -> None:
    alone.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    start = alone.begin()
    reset(alone)
    alone.write(1)
    with pytest.raises(LogReplaced, match="nor a later one"):
        alone.read(start)


def test_a_log_that_lost_its_end(alone: Log) -> None:
    """As after a power cut with sync_binlog=0: its last GTIDs are given out again."""
    before = alone.begin()
    alone.write(1, 2, 3)
    start = alone.begin()
    folder = alone.database.server.folder
    assert folder
    alone.database.close()
    alone.database.server.kill()
    with (folder / "data" / start.file).open("r+b") as file:
        file.truncate(before.offset)
    alone.database.server = alone.database.server.restart()
    alone.write(*range(10, 20))
    with pytest.raises(LogReplaced, match="ends before"):
        alone.read(start)


def test_a_backup_put_back(alone: Log) -> None:
    """The same server, with its identity and the files of then: what was read since never happened."""
    alone.write(1, 2)
    kept = alone.begin()
    folder = alone.database.server.folder
    assert folder
    with in_memory.temporary("vreplication-backup-") as backup:
        restarted(alone, lambda server: (server.stop(), shutil.copytree(folder / "data", f"{backup}/data"), None)[-1])
        alone.write(3, 4)
        lost = alone.begin()
        alone.write(5)

        def put_back(server: RunningServer) -> None:
            server.stop()
            shutil.rmtree(folder / "data")
            shutil.copytree(f"{backup}/data", folder / "data")

        restarted(alone, put_back)
    alone.write(*range(10, 30))
    assert alone.by_file(kept) == [str(n) for n in range(10, 30)]
    with pytest.raises(LogReplaced, match=r"was reset|ends before"):
        alone.read(lost)


def test_a_promoted_replica_has_the_same_names(alone: Log) -> None:
    """Another server is asked by GTID, and sends what it has got, once."""
    server = alone.database.server
    with in_memory.temporary("vreplication-replica-") as folder:
        replica = replicas.start_replica(server, Path(folder) / "two")
        try:
            alone.write(1, 2)
            start = alone.begin()
            alone.write(3)
            replicas.wait_level(server, replica)
            replicas.promote(replica)
            promoted = Log(replace(alone.database, server=replica, _admin=None), alone.source)
            promoted.write(4, 5)
            assert here(promoted.database).file == start.file
            assert promoted.by_gtid(start) == ["3", "4", "5"]
            promoted.database.close()
        finally:
            replica.kill()


def test_a_clone_keeps_names_and_files(alone: Log) -> None:
    """All that it does not keep is who it is."""
    alone.write(1, 2)
    start = alone.begin()
    server = alone.database.server
    assert server.folder
    alone.database.close()
    server.stop()
    with in_memory.temporary("vreplication-clone-") as folder:
        target = Path(folder) / "clone"
        shutil.copytree(server.folder, target, ignore=shutil.ignore_patterns("*.sock", "*.sock.lock", "auto.cnf"))
        alone.database.server = server.restart()
        clone = replace(server, folder=target, port=servers._free_port()).restart()
        try:
            cloned = Log(replace(alone.database, server=clone, _admin=None), alone.source)
            cloned.write(3)
            alone.write(7)
            assert cloned.by_gtid(start) == ["3"]
            assert alone.by_file(start) == ["7"]
            cloned.database.close()
        finally:
            clone.kill()


def test_a_file_that_was_purged(alone: Log) -> None:
    start = alone.begin()
    alone.write(1)
    ((group,), _), end = alone.read(start), alone.begin()
    alone.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")

    def is_gone() -> bool:
        alone.run(f"PURGE BINARY LOGS TO '{here(alone.database).file}'")
        return len(alone.database.admin.rows("SHOW BINARY LOGS")) == 1

    wait_until(is_gone, "a dump still holds a file")
    alone.write(2)
    assert group.items
    # Of the transactions behind this place none was purged.
    assert alone.by_gtid(end) == ["2"]
    with pytest.raises(SourceChanged, match="1236"):
        alone.read(start)


# A place that does not hold what it says, which nothing here writes.


def test_a_place_that_leaves_something_out(log: Log) -> None:
    start = log.begin()
    log.write(1, 2, 3)
    found, _ = log.read(start)
    wrong = replace(start, offset=found[0].end.offset)
    assert log.by_gtid(wrong) == ["1", "2", "3"]
    beyond = replace(found[0].end, offset=found[2].end.offset)
    # Nothing has come from there yet.
    assert log.by_file(beyond) == []
    log.write(4)
    assert log.by_gtid(beyond) == ["2", "3", "4"]


def test_a_place_before_what_was_read(log: Log) -> None:
    """MySQL leaves out what is in the GTIDs; MariaDB would send it again."""
    start = log.begin()
    log.write(1, 2, 3)
    found, _ = log.read(start)
    early = replace(found[1].end, offset=start.offset)
    assert keys(log.read(early)[0]) == ["3"]


@pytest.mark.parametrize("step", [1, 19, 40])
def test_a_place_inside_an_event(log: Log, step: int) -> None:
    start = log.begin()
    log.write(1, 2)
    assert log.by_gtid(replace(start, offset=start.offset + step)) == ["1", "2"]


def test_a_file_before_which_something_is_missing(log: Log) -> None:
    log.write(1, 2)
    start = log.begin()
    log.write(3)
    log.run("FLUSH BINARY LOGS")
    later = log.begin()
    log.write(4)
    assert later.number == start.number + 1
    assert log.by_gtid(replace(later, gtids=start.gtids)) == ["3", "4"]


@pytest.mark.only_on("mysql")
def test_gtids_of_another_source(log: Log) -> None:
    """Behind them no number can be expected: asked by GTID, it is right all the same."""
    start = log.begin()
    log.run(f"SET gtid_next='{uuid.uuid4()}:7'", "INSERT INTO t VALUES (1,'a')")
    assert isinstance(start.gtids, gtids.MysqlGtids)
    assert log.by_gtid(start) == ["1"]


def test_what_older_programs_have_saved(log: Log) -> None:
    """Without origin it is a place by GTID; and of ours they take the GTIDs."""
    start = log.begin()
    older = f"{start.file}:{start.offset} {start.gtids}"
    log.write(1)
    assert Position.parse(older).origin is None
    assert log.by_gtid(Position.parse(older)) == ["1"]
    assert keys(groups(log.database, Position.parse(start.saved), log.source)) == ["1"]
