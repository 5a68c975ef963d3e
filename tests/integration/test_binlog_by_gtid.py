"""Reading by GTID: from any place of the history, tags, gaps and domains included; and what is of another history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.flow import wait_until
from tests.support.tailing import changes, groups, here, watch
from vreplication.binlog import gtids, position
from vreplication.binlog.events import Group, Position
from vreplication.binlog.framing import Type
from vreplication.binlog.gtids import Gtids, MariadbGtids, MysqlGtids
from vreplication.binlog.position import Standing
from vreplication.binlog.watch import Watch
from vreplication.binlog.wire import Wire
from vreplication.errors import SourceChanged
from vreplication.mysql.session import Session, connect

FOREIGN = "00112233-4455-6677-8899-aabbccddeeff"


@pytest.fixture
def source(database: Database) -> Watch:
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    return watch(database, "t")


@pytest.fixture
def ours(database: Database, source: Watch) -> Iterator[Session]:
    """Our least-privilege user."""
    with connect(database.url) as session:
        yield session


def begin(database: Database, session: Session) -> Position:
    found = position.begin(session, database.server.is_mariadb)
    assert found.gtids is not None
    return found


def executed(database: Database) -> Gtids | None:
    name = "gtid_binlog_pos" if database.server.is_mariadb else "gtid_executed"
    return gtids.parse(str(database.admin.value(f"SELECT @@global.{name}")))


def write(database: Database, *statements: str) -> None:
    with database.server.admin(database.name) as session:
        for statement in statements:
            session.execute_raw(statement)


def keys(found: list[Group]) -> list[str]:
    return [change.key for change in changes(found)]


def test_every_place_is_one_to_begin_at(database: Database, source: Watch, ours: Session) -> None:
    start = begin(database, ours)
    write(database, *(f"INSERT INTO t VALUES ({n},'a')" for n in range(4)), "FLUSH BINARY LOGS")
    write(database, *(f"INSERT INTO t VALUES ({n},'a')" for n in range(4, 6)))
    found = [g for g in groups(database, start, source) if g.items]
    assert keys(found) == [str(n) for n in range(6)]
    assert found[-1].end.gtids == executed(database)
    for group in found:
        number = int(changes([group])[0].key)
        for place, first in ((group.start, number), (group.end, number + 1)):
            saved = Position.parse(place.saved)
            assert keys(groups(database, saved, source)) == [str(n) for n in range(first, 6)]
            # File and offset tell where it was seen and nothing more.
            elsewhere = Position.of("elsewhere.000099", 77, saved.gtids)
            assert keys(groups(database, elsewhere, source)) == [str(n) for n in range(first, 6)]


def test_both_ways_give_the_same(database: Database, source: Watch, ours: Session) -> None:
    by_file, by_gtid = here(database), begin(database, ours)
    write(database, "INSERT INTO t VALUES (1,'a'),(2,'b')", "UPDATE t SET id=3 WHERE id=1", "CREATE TABLE u (i INT)")
    write(database, "XA START 'x'", "DELETE FROM t WHERE id=2", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    one, other = groups(database, by_file, source), groups(database, by_gtid, source)
    assert one == other
    assert len(one) == 5


@pytest.mark.only_on("mysql", since=(8, 3))
def test_tags_and_gaps(database: Database, source: Watch, ours: Session) -> None:
    write(database, "SET gtid_next='AUTOMATIC:early'", "INSERT INTO t VALUES (0,'a')")
    start = begin(database, ours)
    write(database, "SET gtid_next='AUTOMATIC:early'", "INSERT INTO t VALUES (1,'a')")
    write(database, f"SET gtid_next='{FOREIGN}:7'", "INSERT INTO t VALUES (2,'a')")
    write(database, f"SET gtid_next='{FOREIGN}:5'", "INSERT INTO t VALUES (3,'a')")
    write(database, "SET gtid_next='AUTOMATIC:late'", "INSERT INTO t VALUES (4,'a')")
    write(database, f"SET gtid_next='{FOREIGN}:6'", "INSERT INTO t VALUES (5,'a')")
    found = groups(database, start, source)
    assert keys(found) == ["1", "2", "3", "4", "5"]
    assert found[-1].end.gtids == executed(database)
    shown = [g.end.gtids.ranges.get(FOREIGN) for g in found if isinstance(g.end.gtids, MysqlGtids)]
    assert [r and r[-3:] for r in shown] == [None, ((7, 7),), ((5, 5), (7, 7)), ((5, 5), (7, 7)), ((5, 7),)]
    for index, group in enumerate(found):
        assert keys(groups(database, group.start, source)) == ["1", "2", "3", "4", "5"][index:]


@pytest.mark.only_on("mariadb")
def test_domains(database: Database, source: Watch, ours: Session) -> None:
    start = begin(database, ours)
    for number, domain in enumerate((0, 7, 0, 9, 7)):
        write(database, f"SET SESSION gtid_domain_id={domain}", f"INSERT INTO t VALUES ({number},'a')")
    found = groups(database, start, source)
    assert keys(found) == ["0", "1", "2", "3", "4"]
    assert found[-1].end.gtids == executed(database)
    assert isinstance(found[-1].end.gtids, MariadbGtids)
    assert {0, 7, 9} <= set(found[-1].end.gtids.last)
    for index, group in enumerate(found):
        assert keys(groups(database, group.start, source)) == ["0", "1", "2", "3", "4"][index:]


def test_a_purged_log_is_told(database: Database, source: Watch, ours: Session) -> None:
    start = begin(database, ours)
    write(database, "INSERT INTO t VALUES (1,'a')", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    assert position.standing(ours, start) is Standing.HERE
    now = begin(database, ours)
    purge(database)
    assert position.standing(ours, start) is Standing.PURGED
    assert not position.exists(ours, start)
    # Nothing that comes behind this place was in the files that are gone.
    assert position.standing(ours, now) is Standing.HERE
    with pytest.raises(SourceChanged, match=r"1236.*Changes in between are lost"):
        groups(database, start, source)
    write(database, "INSERT INTO t VALUES (2,'a')")
    assert keys(groups(database, now, source)) == ["2"]


def purge(database: Database) -> None:
    last = here(database).file

    def is_gone() -> bool:
        database.admin.execute_raw(f"PURGE BINARY LOGS TO '{last}'")
        return len(database.admin.rows("SHOW BINARY LOGS")) == 1

    wait_until(is_gone, "a dump still holds a file")


def test_another_history_is_told(database: Database, ours: Session) -> None:
    start = begin(database, ours)
    assert start.gtids is not None
    more: list[gtids.Name] = [(0, 1, 1 << 40), (5, 1, 1)] if database.server.is_mariadb else [(FOREIGN, 1 << 40)]
    for name in more:
        beyond = Position.of(start.file, start.offset, gtids.plus(start.gtids, name))
        assert position.standing(ours, beyond) is Standing.UNKNOWN


@pytest.mark.only_on("mariadb")
def test_mariadb_refuses_what_it_has_not_got(database: Database, source: Watch, ours: Session) -> None:
    """MySQL does so only for transactions of its own, therefore we look before."""
    start = begin(database, ours)
    with pytest.raises(SourceChanged, match=r"behind 0-1-1099511627776.*1236"):
        groups(database, Position.of(start.file, 4, gtids.plus(start.gtids, (0, 1, 1 << 40))), source)


@pytest.mark.only_on("mysql")
def test_heartbeats_of_the_second_kind_come(database: Database, source: Watch, ours: Session) -> None:
    """They tell offsets beyond 4 GiB."""
    both = {int(Type.HEARTBEAT), int(Type.HEARTBEAT_V2)}
    wire = Wire(database.url, begin(database, ours), server_id=position.draw_server_id(ours), heartbeat_seconds=0.2)
    try:
        kinds = (packet[4] for packet in wire.packets() if isinstance(packet, bytes))
        assert next(kind for kind in kinds if kind in both) == Type.HEARTBEAT_V2
    finally:
        wire.close()


@pytest.fixture
def no_gtids(database: Database) -> Iterator[None]:
    """MySQL gives out none."""
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    for step in steps:
        database.admin.execute_raw(f"SET GLOBAL gtid_mode={step}")
    try:
        yield
    finally:
        for step in [*reversed(steps[:-1]), "ON"]:
            database.admin.execute_raw(f"SET GLOBAL gtid_mode={step}")


@pytest.mark.only_on("mysql")
def test_anonymous_transactions_are_read_by_file(
    database: Database, source: Watch, ours: Session, request: pytest.FixtureRequest
) -> None:
    by_gtid = begin(database, ours)
    request.getfixturevalue("no_gtids")
    start = position.begin(ours, False)
    assert start.gtids is None
    write(database, "INSERT INTO t VALUES (1,'a')")
    found = groups(database, start, source)
    assert keys(found) == ["1"]
    assert 0 <= found[0].time_micros - before(database) < 120_000_000
    assert found[-1].end.gtids is None
    assert keys(groups(database, found[-1].start, source)) == ["1"]
    with pytest.raises(SourceChanged, match="1236"):
        groups(database, by_gtid, source)


def before(database: Database) -> int:
    """A minute ago by the server's clock, microseconds."""
    return int(database.admin.value("SELECT FLOOR(UNIX_TIMESTAMP(NOW(6) - INTERVAL 1 MINUTE))")) * 1_000_000
