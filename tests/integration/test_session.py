"""What an error of the driver is taken for: a connection that is lost is opened again, for as long as it takes."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from sandbox.databases import Database
from tests.support.flow import wait_until
from tests.support.oracle import settings
from vreplication.errors import Refused
from vreplication.mysql.session import ConnectionLost, connect


def test_a_stream_that_is_closed_is_a_lost_connection(database: Database) -> None:
    """As another thread does that ends what this one waits for."""
    with connect(database.url) as session:
        session._connection._rfile.close()
        with pytest.raises(ConnectionLost):
            session.rows("SELECT 1")


def test_a_value_that_cannot_be_sent_is_none(database: Database) -> None:
    with connect(database.url) as session, pytest.raises(UnicodeEncodeError):
        session.rows("SELECT %s", ("\ud800",))


def test_an_answer_that_cannot_be_read_is_none_and_is_not_gone_on_with(database: Database) -> None:
    """Behind the row that cannot be read others wait, which the next question would get."""
    with connect(database.url) as session:
        session._connection.decoders = dict.fromkeys(session._connection.decoders, _unreadable)
        with pytest.raises(ValueError, match="unreadable"):
            session.rows("SELECT 1 UNION ALL SELECT 9223372036854775807 UNION ALL SELECT 3")
        with pytest.raises(ConnectionLost):
            session.rows("SELECT 4")


def _unreadable(value: str) -> int:
    raise ValueError("unreadable")


def test_a_url_that_cannot_be_sent_is_refused(database: Database) -> None:
    wrong = {"password": "\u4f60"}, {"database": "d" * 65}, {"database": "\U0001f600"}
    for url in (replace(database.url, host="a..b", unix_socket=None), *(replace(database.url, **it) for it in wrong)):
        with pytest.raises(Refused) as told:
            connect(url)
        assert "\u4f60" not in str(told.value)


@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("mode", ["EMPTY_STRING_IS_NULL", "ORACLE", "ANSI,TIME_ROUND_FRACTIONAL,EMPTY_STRING_IS_NULL"])
def test_our_mode_whatever_the_servers_is(database: Database, mode: str) -> None:
    """Without it a row of id 0 would get another one, and what does not fit would be cut."""
    with settings(database, sql_mode=mode), connect(database.url) as session:
        found = set(str(session.value("SELECT @@sql_mode")).split(","))
    ours = {"STRICT_ALL_TABLES", "NO_AUTO_VALUE_ON_ZERO", "NO_ENGINE_SUBSTITUTION", "ALLOW_INVALID_DATES"}
    assert found == ours | ({"TIME_ROUND_FRACTIONAL"} & set(mode.split(",")))


@pytest.mark.only_on("mariadb")
def test_rows_left_out_are_told_whatever_the_servers_settings_are(database: Database) -> None:
    """The copy counts them: a server that keeps that to itself would make it take them for copied."""
    quiet = {"note_verbosity": "", "old_mode": "UTF8_IS_UTF8MB3,NO_DUP_KEY_WARNINGS_WITH_IGNORE"}
    with settings(database, **quiet), connect(database.url) as session:
        session.execute_raw("CREATE TABLE n (id INT PRIMARY KEY)")
        for _ in range(2):
            session.execute_raw("INSERT IGNORE INTO n VALUES (1)")
        assert [code for _, code, _ in session.rows("SHOW WARNINGS")] == [1062]
        assert session.value("SELECT @@old_mode") == "UTF8_IS_UTF8MB3"


@pytest.mark.only_on("mariadb")
def test_a_chunk_meets_what_catch_up_has_written_since_it_began(database: Database) -> None:
    """Under MariaDB 11.6's default the server refuses the whole chunk with 1020, so each chunk with a written row."""
    with settings(database, innodb_snapshot_isolation=1), connect(database.url) as copy, connect(database.url) as other:
        other.execute_raw("CREATE TABLE n (id INT PRIMARY KEY, v INT) ENGINE=InnoDB")
        other.execute_raw("CREATE TABLE m LIKE n")
        other.execute_raw("INSERT INTO n VALUES (1,1),(2,1)")
        other.value("SELECT GET_LOCK('held',0)")
        chunk = "INSERT IGNORE INTO m SELECT id, IF(id=1,GET_LOCK('held',60),v) FROM n ORDER BY id"
        copying = threading.Thread(target=copy.execute_raw, args=(chunk,))
        copying.start()
        waits = f"SELECT state='User lock' FROM information_schema.processlist WHERE id={copy.id}"
        wait_until(lambda: other.value(waits), "the chunk does not wait")
        other.execute_raw("REPLACE INTO m VALUES (2,7)")
        other.value("SELECT RELEASE_LOCK('held')")
        copying.join()
        assert other.rows("SELECT id, v FROM m ORDER BY id") == [(1, 1), (2, 7)]
