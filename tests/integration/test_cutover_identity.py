"""Table identity on real servers: odd names, long names, partitions, RENAME."""

from __future__ import annotations

import pytest

from sandbox.databases import Database
from vreplication.cutover.filenames import encode
from vreplication.cutover.identity import table_identities, table_identity
from vreplication.mysql.quoting import ident, text
from vreplication.mysql.session import connect

NAMES = ("t", "a b", "p#x", "p#p#p0", "ü", "Ü", "größe", "grüße", "t$x", "order", "Ab", "ab", "t@x", "x" * 64, "ü" * 64)
MORE = ("n`q", "con", "NUL", "漢字", "1", "a-b.c", "Ж", "ЁёΣς", "t_x", "t%x", "tax", "Ａ", "it's", 'q"q', "back\\slash")


def test_every_name_has_an_identity_of_its_own(database: Database) -> None:
    with connect(database.app_url) as app, connect(database.url) as session:
        for name in NAMES + MORE:
            app.execute_raw(f"CREATE TABLE {ident(name)} (id INT PRIMARY KEY)")
        found = table_identities(session, database.name, NAMES + MORE, database.server.is_mariadb)
        assert None not in found.values(), [n for n, i in found.items() if i is None]
        assert len(set(found.values())) == len(NAMES + MORE)


def test_rename_keeps_it_and_a_rebuild_changes_it(database: Database) -> None:
    mariadb = database.server.is_mariadb
    with connect(database.app_url) as app, connect(database.url) as session:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        first = table_identity(session, database.name, "t", mariadb)
        app.execute_raw("RENAME TABLE t TO `größer #1`")
        assert table_identity(session, database.name, "größer #1", mariadb) == first
        assert table_identity(session, database.name, "t", mariadb) is None
        app.execute_raw("TRUNCATE TABLE `größer #1`")
        second = table_identity(session, database.name, "größer #1", mariadb)
        app.execute_raw("ALTER TABLE `größer #1` FORCE")
        assert len({first, second, table_identity(session, database.name, "größer #1", mariadb)}) == 3


def test_a_partitioned_table_is_all_of_its_partitions(database: Database) -> None:
    mariadb = database.server.is_mariadb
    with connect(database.app_url) as app, connect(database.url) as session:
        app.execute_raw(
            "CREATE TABLE `p$t` (id INT PRIMARY KEY) PARTITION BY RANGE (id) SUBPARTITION BY HASH (id) SUBPARTITIONS 2 "
            "(PARTITION `P$0` VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)"
        )
        found = table_identity(session, database.name, "p$t", mariadb)
        assert found is not None
        assert len(found.split(",")) == 4
        app.execute_raw("RENAME TABLE `p$t` TO renamed")
        assert table_identity(session, database.name, "renamed", mariadb) == found
        app.execute_raw("ALTER TABLE renamed TRUNCATE PARTITION p1")
        assert table_identity(session, database.name, "renamed", mariadb) != found


def test_however_many_partitions_there_are_it_can_be_noted(database: Database) -> None:
    """In a column of 255 characters, and each of them counts."""
    mariadb = database.server.is_mariadb
    with connect(database.app_url) as app, connect(database.url) as session:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 100")
        found = table_identity(session, database.name, "t", mariadb)
        assert found is not None
        assert len(found) < 255
        app.execute_raw("ALTER TABLE t TRUNCATE PARTITION p99")
        assert table_identity(session, database.name, "t", mariadb) not in (None, found)


@pytest.mark.only_on("mariadb")
def test_every_character_is_encoded_as_the_server_does(database: Database) -> None:
    characters = [chr(c) for c in (*range(1, 0xD800), *range(0xE000, 0x10000))]
    with connect(database.url) as session:
        for start in range(0, len(characters), 4000):
            part = characters[start : start + 4000]
            # Each result would be a column of its own otherwise; a line feed is in no encoded name.
            sql = ",'\n',".join(f"CONVERT(BINARY CONVERT({text(c)} USING filename) USING latin1)" for c in part)
            assert session.value(f"SELECT CONCAT({sql})").split("\n") == [encode(c) for c in part]
