"""Servers on which no workflow can be run, whatever the table: refused with exit 2 by the command itself."""

from __future__ import annotations

import pytest

from sandbox import binaries
from sandbox.databases import create_database
from tests.support.flow import call
from tests.support.private_server import private_server
from vreplication.binlog import position

UPDATES = {"mariadb": "log-slave-updates", "mysql": "log-replica-updates"}
FOLLOW = {
    "mariadb": "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='nobody'",
    "mysql": "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=1, SOURCE_USER='nobody'",
}


@pytest.mark.slow
@pytest.mark.parametrize("flavor", binaries.FLAVORS)
def test_a_replica_without_a_log_of_its_own(flavor: str) -> None:
    with private_server(flavor, {"skip-log-bin": "", UPDATES[flavor]: "OFF"}) as server:
        database = create_database(server)
        database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        database.admin.execute_raw(FOLLOW[flavor])
        before = database.admin.rows("SHOW DATABASES"), database.admin.rows("SHOW TABLES")
        ended = call(database, "online-ddl", "--table", "t", "--alter", "ADD x INT", "--yes", "--json")
        assert (ended.code, ended.last["event"]) == (2, "refused"), (ended.out, ended.err)
        assert "The binary log is off." in ended.last["reason"]
        assert "is a replica and does not log what it replicates" in ended.last["reason"]
        assert (database.admin.rows("SHOW DATABASES"), database.admin.rows("SHOW TABLES")) == before


@pytest.mark.slow
@pytest.mark.parametrize("flavor", binaries.FLAVORS)
def test_a_log_that_leaves_a_schema_out(flavor: str) -> None:
    """Not ours; but what a session does to our table from there is missing, too."""
    with private_server(flavor, {"binlog-ignore-db": "elsewhere"}) as server:
        database = create_database(server)
        database.admin.execute_raw("CREATE DATABASE elsewhere")
        database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        before = position.current(database.admin, server.is_mariadb)
        with server.admin("elsewhere") as session:
            session.execute_raw(f"TRUNCATE {database.name}.t")
        assert position.current(database.admin, server.is_mariadb) == before
        ended = call(database, "online-ddl", "--table", "t", "--alter", "ADD x INT", "--yes", "--json")
        assert (ended.code, ended.last["event"]) == (2, "refused"), (ended.out, ended.err)
        assert "binlog_ignore_db=elsewhere" in ended.last["reason"]
