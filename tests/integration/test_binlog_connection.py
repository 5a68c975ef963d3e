"""The tailer's connection to a real server: places that are gone, heartbeats, server ids, cuts."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from stream_setup import app, keys, run, source

from sandbox.databases import Database
from tests.support.flow import purge_logs
from tests.support.tailing import groups, here, open_tailer
from vreplication.binlog import position
from vreplication.binlog.events import Group, Heartbeat
from vreplication.binlog.watch import Watch
from vreplication.errors import SourceChanged, Transient, VReplicationError
from vreplication.mysql.session import Session

__all__ = ["app", "source"]


def test_a_begin_inside_a_transaction_stops(database: Database, app: Session, source: Watch) -> None:
    """From behind the first row event there is no way to tell what the transaction did."""
    start = here(database)
    run(app, "BEGIN", "INSERT INTO t VALUES (1,'a')", "INSERT INTO t VALUES (2,'a')", "COMMIT")
    events = database.admin.rows(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    # MariaDB 11 does not tell where an event inside a transaction ends.
    first = next(i for i, row in enumerate(events) if str(row[2]).startswith("Write_rows"))
    inside = int(events[first + 1][1])
    with pytest.raises(SourceChanged, match="whose beginning was not read"):
        groups(database, position.Position.of(start.file, inside), source)


def test_a_purged_log_is_told(database: Database, source: Watch) -> None:
    start = here(database)
    assert position.exists(database.admin, start)
    purge_logs(database)
    assert not position.exists(database.admin, start)
    with pytest.raises(SourceChanged, match=r"Could not find first log file.*Changes in between are lost"):
        groups(database, start, source)


def test_a_place_beyond_the_log_is_told(database: Database, source: Watch) -> None:
    start = here(database)
    beyond = position.Position.of(start.file, start.offset + 1_000_000)
    assert not position.exists(database.admin, beyond)
    with pytest.raises(SourceChanged, match="1236"):
        groups(database, beyond, source)


def test_a_killed_dump_is_transient_and_goes_on_elsewhere(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    run(app, "INSERT INTO t VALUES (1,'a')")
    with open_tailer(database, start, source) as tailer:
        items = iter(tailer)
        last = next(items)
        assert isinstance(last, Group)
        kill_dump(database)
        with pytest.raises(Transient):
            for _ in items:
                pass
    run(app, "INSERT INTO t VALUES (2,'a')")
    assert keys(groups(database, last.end, source)) == [["2"]]


def kill_dump(database: Database) -> None:
    """KILL every dump connection of our user."""
    listed = database.admin.rows("SELECT id, user, command FROM information_schema.processlist")
    dumps = [int(i) for i, user, command in listed if user == database.user and command == "Binlog Dump"]
    assert dumps
    for dump in dumps:
        database.admin.kill(dump)


def test_close_wakes_a_waiting_reader(database: Database, source: Watch) -> None:
    tailer = open_tailer(database, here(database), source, heartbeat_seconds=0.25)
    beating, ended = threading.Event(), []

    def read() -> None:
        try:
            for item in tailer:
                assert isinstance(item, Heartbeat)
                beating.set()
        except VReplicationError as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert beating.wait(20)
    tailer.close()
    reader.join(20)
    assert not reader.is_alive()
    assert [type(e) for e in ended] == [Transient]


def test_heartbeats_come_when_idle(database: Database, app: Session, source: Watch) -> None:
    start = here(database)
    with open_tailer(database, start, source) as tailer:
        items = iter(tailer)
        assert next(items) == Heartbeat(position=start)
        run(app, "INSERT INTO other VALUES (1,'a')")
        group = next(i for i in items if isinstance(i, Group))
        assert next(items) == Heartbeat(position=group.end)
        assert tailer.read_position == group.end == here(database)


def test_a_second_reader_with_the_same_id_ends_the_first_as_transient(database: Database, source: Watch) -> None:
    from vreplication.binlog.tailer import Tailer

    start, drawn = here(database), position.draw_server_id(database.admin)
    options = {"server_id": drawn, "is_mariadb": database.server.is_mariadb}
    with Tailer(database.url, start, [source], **options) as first:  # type: ignore[arg-type]
        items = iter(first)
        next(items)
        with Tailer(database.url, start, [source], **options) as second:  # type: ignore[arg-type]
            next(iter(second))
            with pytest.raises(Transient):
                for _ in items:
                    pass


def test_a_drawn_server_id_avoids_those_in_use(database: Database, source: Watch) -> None:
    with open_tailer(database, here(database), source) as tailer:
        next(iter(tailer))
        listed = database.admin.rows("SHOW SLAVE HOSTS" if database.server.is_mariadb else "SHOW REPLICAS")
        assert len(listed) == 1
        assert 2**31 <= int(listed[0][0]) < 2**32


def test_without_the_privilege_it_is_told(database: Database, source: Watch) -> None:
    from vreplication.binlog.tailer import Tailer

    with pytest.raises(VReplicationError, match="GRANT REPLICATION SLAVE"):
        Tailer(database.app_url, here(database), [source], server_id=2**31 + 5, is_mariadb=database.server.is_mariadb)


def test_retention(database: Database) -> None:
    found = position.retention(database.admin)
    assert found.total_bytes > 0
    assert found.oldest <= here(database)


def test_the_schema_of_the_url_may_be_gone(database: Database, source: Watch, app: Session) -> None:
    """It was dropped while a feed is read, and the reader connects again for whatever reason."""
    from vreplication.binlog.tailer import Tailer

    url, start = replace(database.url, database="vr_is_gone"), here(database)
    run(app, "INSERT INTO other VALUES (1,'a')")
    drawn = position.draw_server_id(database.admin)
    with Tailer(url, start, [source], server_id=drawn, is_mariadb=database.server.is_mariadb) as tailer:
        assert next(i for i in tailer if isinstance(i, Group))
