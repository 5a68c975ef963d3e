"""A DDL does on a target of either flavor what it has done on the source, whatever the session there was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from consume_setup import MODES

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.support.feed_consumers import Consuming
from tests.support.feed_producer import FeedWriter
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import TABLE, Running, origin, start_feed
from vreplication.binlog.control import Query
from vreplication.binlog.definitions import definition
from vreplication.errors import Terminal
from vreplication.feed import running
from vreplication.feed.address import parse
from vreplication.feed.consume import collated
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.speaking import query_of
from vreplication.feed.spoken import Spoken, default_of_utf8mb4, mode_text
from vreplication.feed.spoken import spoken as ask
from vreplication.feed.terms import Feed
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.state import layout

ZONE = "time_zone='+05:00'"
TIMES = "id INT PRIMARY KEY, a TIMESTAMP NULL, b DATETIME NULL", "1,'2020-01-01 00:00:00','2021-01-01 00:00:00'"
TEXTS = "id INT PRIMARY KEY, a CHAR(9), d DATETIME(6)", "1,'abc','2020-01-01 00:00:00.7'"
DAYS = "ALTER TABLE {} ADD COLUMN z VARCHAR(30) DEFAULT (DATE_FORMAT(d,'%W %M'))"
CASES = (
    (ZONE, TIMES, "ALTER TABLE {} MODIFY a DATETIME NULL"),
    (ZONE, TIMES, "ALTER TABLE {} CHANGE b c TIMESTAMP NULL, ADD n INT"),
    (ZONE, TIMES, "ALTER TABLE {} ADD COLUMN z TIMESTAMP DEFAULT '2020-01-01 00:00:00'"),
    (ZONE, TIMES, "ALTER TABLE {} ADD COLUMN z DATETIME NULL DEFAULT (a + INTERVAL 1 DAY)"),
    ("time_zone=SYSTEM", TIMES, "ALTER TABLE {} MODIFY a DATETIME NULL, MODIFY b TIMESTAMP NULL"),
    ("explicit_defaults_for_timestamp=0, sql_mode=''", TIMES, "ALTER TABLE {} ADD COLUMN z TIMESTAMP"),
    ("sql_mode='PIPES_AS_CONCAT'", TEXTS, "ALTER TABLE {} ADD COLUMN z VARCHAR(9) DEFAULT ('1' || '2')"),
    ("sql_mode='ANSI_QUOTES'", TEXTS, 'ALTER TABLE "{}" ADD COLUMN "x y" INT DEFAULT 5'),
    ("sql_mode='NO_BACKSLASH_ESCAPES'", TEXTS, r"ALTER TABLE {} ADD COLUMN z VARCHAR(9) DEFAULT 'a\nb'"),
    ("sql_mode=''", TEXTS, "ALTER TABLE {} MODIFY a CHAR(2)"),
    ("sql_mode='STRICT_ALL_TABLES'", TEXTS, "ALTER TABLE {} MODIFY d DATETIME"),
    ("sql_mode='STRICT_ALL_TABLES,TIME_{}_FRACTIONAL'", TEXTS, "ALTER TABLE {} MODIFY d DATETIME"),
    ("sql_mode='PAD_CHAR_TO_FULL_LENGTH'", TEXTS, "ALTER TABLE {} MODIFY a VARBINARY(20)"),
    ("sql_mode='REAL_AS_FLOAT'", TEXTS, "ALTER TABLE {} ADD COLUMN z REAL DEFAULT 0.1"),
    ("lc_time_names='de_DE'", TEXTS, DAYS),
    ("lc_time_names='en_US'", TEXTS, DAYS),
)


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with database.server.admin() as session:
        layout.install(session)
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def targets(database: Database, _pair_servers: None) -> Iterator[list[Database]]:
    """One of each flavor, in another time zone than the source, and with other words for days."""
    with ExitStack() as stack:
        made = [create_database(server_of(flavor, "target"), database.name) for flavor in ("mariadb", "mysql")]
        for each in made:
            stack.callback(each.drop)
            each.admin.execute_raw("SET GLOBAL time_zone='-03:00', lc_time_names='sv_SE'")
            stack.callback(each.admin.execute_raw, "SET GLOBAL time_zone=DEFAULT, lc_time_names=DEFAULT")
        yield made


def test_a_ddl_is_run_in_the_session_that_the_source_had(
    begin: Callable[..., Running], database: Database, targets: list[Database]
) -> None:
    for each in (database, *targets):
        fill(each)
    feed = begin()
    feed.wait_begun()
    change(database)
    for target in targets:
        flavor = target.server.flavor
        with Consuming(feed.feed.address, target.url, "transaction", group=flavor) as one:
            come(one, target)
        other = [
            (flavor, sql) for n, (_, _, sql) in enumerate(CASES) if rows(target, f"t{n}") != rows(database, f"t{n}")
        ]
        assert other == []


def come(one: Consuming, target: Database) -> None:
    """To the last statement, or to its end."""
    wait_until(lambda: one.error is not None or has(target, "done"), "the last DDL is not run", 60)


def fill(database: Database) -> None:
    for number, (_, (columns, values), _) in enumerate(CASES):
        database.admin.execute_raw(f"CREATE TABLE t{number} ({columns})")
        database.admin.execute_raw(f"INSERT INTO t{number} VALUES ({values})")


def change(database: Database) -> None:
    other = "ROUND" if database.server.is_mariadb else "TRUNCATE"
    for number, (settings, _, sql) in enumerate(CASES):
        with database.server.admin(database.name) as session:
            session.execute_raw("SET SESSION sql_mode=DEFAULT, time_zone=DEFAULT")
            session.execute_raw(f"SET SESSION {settings.format(other)}")
            session.execute_raw(sql.format(f"t{number}"))
    database.admin.execute_raw("CREATE TABLE done (id INT)")


def has(database: Database, table: str) -> bool:
    return bool(database.admin.rows(f"SHOW TABLES LIKE '{table}'"))


def rows(database: Database, table: str) -> list[tuple[Any, ...]]:
    with database.server.admin(database.name) as session:
        return session.rows(f"SELECT * FROM {table} ORDER BY 1")


TEXT = "a VARCHAR(9) NOT NULL"
MADE = (
    f"CREATE TABLE {{}} ({TEXT}, PRIMARY KEY (a))",
    f"CREATE TABLE IF NOT EXISTS `{{}}`(`x)` INT, {TEXT} PRIMARY KEY) ENGINE=InnoDB /* ) */ COMMENT='COLLATE'",
    f"CREATE TABLE {{}} ({TEXT} PRIMARY KEY, n ENUM('x','y') CHARACTER SET latin1) PARTITION BY KEY (a) PARTITIONS 2",
    "CREATE TABLE {} (PRIMARY KEY (a)) SELECT a FROM t0",
    "CREATE TABLE {} LIKE t0",
    f"CREATE TABLE {{}} ({TEXT} COLLATE utf8mb4_unicode_ci PRIMARY KEY) CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci",
    f"CREATE TABLE {{}} ({TEXT}, b VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, UNIQUE (a)) CHARSET=latin1",
)


def test_text_of_a_new_table_is_told_apart_as_by_the_source(
    begin: Callable[..., Running], database: Database, targets: list[Database]
) -> None:
    """By the default of its schema, which is another one on the targets."""
    for each in (database, *targets):
        collation = "utf8mb4_bin" if each is database else "utf8mb4_general_ci"
        each.admin.execute_raw(f"ALTER DATABASE {each.name} COLLATE {collation}")
    feed = begin()
    feed.wait_begun()
    for number, sql in enumerate(MADE):
        database.admin.execute_raw(sql.format(f"t{number}"))
        for letter in "aA":
            with suppress(SqlError):
                database.admin.execute_raw(f"INSERT INTO t{number} (a) VALUES ('{letter}')")
    database.admin.execute_raw("CREATE TABLE done (id INT)")
    for target in targets:
        with Consuming(feed.feed.address, target.url, "transaction", group=target.server.flavor) as one:
            come(one, target)
            wait_until(lambda: one.error or rows(target, "t6"), "rows do not come", 30)  # noqa: B023
        for number in range(len(MADE)):
            table = f"t{number}"
            assert rows(target, table) == rows(database, table), MADE[number]
            assert collations(target, table) == collations(database, table), MADE[number]
    assert len(rows(database, "t0")) == 2


def collations(database: Database, table: str) -> list[Any]:
    sql = "SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema=%s AND table_name=%s"
    return sorted(database.admin.rows(sql, (database.name, table)))


@pytest.mark.either
def test_a_key_under_a_collation_that_the_target_does_not_have_is_made_by_hand(
    kafka: Cluster, database: Database
) -> None:
    with connect(database.server.plain(database.server.url(database.name))) as session:
        layout.complete(session)
    # As in sql/grants/feed_target: MySQL asks for it of a foreign key.
    database.admin.execute_raw(f"GRANT REFERENCES ON `{database.name}`.* TO '{database.user}'@'%'")
    here, other = database.name, Spoken(sql_mode="", collation="utf8mb4_tlh_ci", utf8mb4="utf8mb4_tlh_ci")
    of_table, foreign = Spoken(sql_mode="", collation="utf8mb4_tlh_ci"), "FOREIGN KEY (id) REFERENCES u (id)"
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.ddl(1, here, "CREATE TABLE u (id INT PRIMARY KEY, a TEXT, KEY (a(5))) CHARSET=utf8mb4", spoken=other)
        feed.ddl(2, here, "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY HASH (id)", spoken=other)
        feed.ddl(3, here, "CREATE TABLE t (a VARCHAR(9) PRIMARY KEY)", spoken=other)
        feed.ddl(4, here, "ALTER TABLE u ADD b CHAR(9) CHARACTER SET utf8mb4, ADD UNIQUE (b)", spoken=other)
        feed.ddl(5, here, "ALTER TABLE u ADD UNIQUE i (id)", spoken=of_table)
        feed.ddl(6, here, "ALTER TABLE u ADD c CHAR(9), ADD UNIQUE (c)", spoken=of_table)
        feed.ddl(7, here, "CREATE TABLE IF NOT EXISTS u (a VARCHAR(9) PRIMARY KEY)", spoken=other)
        feed.ddl(8, here, f"CREATE TABLE f (id INT, a TEXT, FULLTEXT (a), {foreign})", spoken=other)
        feed.ddl(9, here, "ALTER TABLE u ADD UNIQUE i (id)", spoken=of_table)
        feed.ddl(10, here, "ALTER TABLE f ADD UNIQUE (id)", spoken=of_table)
        feed.ddl(11, here, "CREATE TABLE done (id INT)")
        feed.resolved(11)
    by_hand = (
        "CREATE TABLE t (a VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY)",
        "ALTER TABLE u ADD b BINARY(9) UNIQUE",
        "ALTER TABLE u ADD c BINARY(9) UNIQUE",
    )
    for sql in by_hand:
        assert "on the source utf8mb4_tlh_ci" in str(Consuming(feed.address(), database.url, "row").failed())
        database.admin.execute_raw(sql)
    with Consuming(feed.address(), database.url, "row") as one:
        come(one, database)
    assert has(database, "p")
    assert has(database, "f")


def test_a_key_under_a_collation_that_tells_all_apart_is_made(database: Database) -> None:
    """The target lacks the source's, or has none but the name (MariaDB 11.8), and its schema has one of its own."""
    others = {True: ("utf8mb4_nopad_bin", "utf8mb4_0900_ai_ci"), False: ("utf8mb4_0900_bin", "utf8mb4_tlh_ci")}
    of_bytes, lacking = others[database.server.is_mariadb]
    ddl = Ddl(1, database.name, "CREATE TABLE t (a CHAR(9) PRIMARY KEY)", Spoken(collation=lacking))
    said = definition(query_of(ddl), "utf-8")
    database.admin.execute_raw(f"ALTER DATABASE {database.name} COLLATE utf8mb4_general_ci")
    with connect(database.url) as session, pytest.raises(Terminal, match="which the target does not have"):
        collated.as_the_source(session, ddl, said)
    database.admin.execute_raw(f"ALTER DATABASE {database.name} COLLATE {of_bytes}")
    with connect(database.url) as session:
        assert collated.as_the_source(session, ddl, said) == ddl


@pytest.mark.either
@pytest.mark.parametrize("mode", MODES)
def test_a_session_that_the_target_cannot_have_ends_it_before_the_ddl_is_run(
    kafka: Cluster, database: Database, mode: str
) -> None:
    with connect(database.server.plain(database.server.url(database.name))) as session:
        layout.complete(session)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a TIMESTAMP NULL)")
    database.admin.execute_raw("INSERT INTO t VALUES (1,'2020-01-01 00:00:00')")
    told = {
        "time zone: 'Mars/Olympus'": Spoken(sql_mode="", time_zone="Mars/Olympus"),
        "that of the target's is another one": Spoken(sql_mode="", time_zone="SYSTEM", system_zone="0123456789abcdef"),
        "'sql_mode' can't be set to the value of 'bit 40'": Spoken(sql_mode="bit 40"),
    }
    for words, spoken in told.items():
        feed = FeedWriter(kafka, 1)
        with feed.transaction():
            feed.ddl(1, database.name, "ALTER TABLE t MODIFY a DATETIME", spoken=spoken)
            feed.resolved(1)
        for _ in range(2):
            assert words in str(Consuming(feed.address(), database.url, mode).failed())
        assert "timestamp" in database.admin.rows("SHOW COLUMNS FROM t")[1][1]


OTHERS = (
    Spoken(sql_mode="", time_zone="Mars/Olympus"),
    Spoken(sql_mode="", time_zone="SYSTEM", system_zone="0123456789abcdef"),
    Spoken(sql_mode="", time_names="xx_XX"),
)


@pytest.mark.either
def test_a_zone_or_language_that_the_target_does_not_have_is_wanted_only_where_it_counts(
    kafka: Cluster, database: Database
) -> None:
    """MariaDB tells the zone of nearly each ALTER of a table that has a default of the time; UTC is everywhere."""
    with connect(database.server.plain(database.server.url(database.name))) as session:
        layout.complete(session)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)")
    feed = FeedWriter(kafka, 1)
    with feed.transaction():
        feed.ddl(1, database.name, "ALTER TABLE t ADD COLUMN n INT, ADD INDEX (a)", spoken=OTHERS[0])
        feed.ddl(2, database.name, "ALTER TABLE t ADD INDEX by_n (n)", spoken=OTHERS[1])
        feed.ddl(3, database.name, "ALTER TABLE t ADD INDEX by_both (n, a)", spoken=OTHERS[2])
        feed.ddl(4, database.name, "CREATE TABLE done (id INT)", spoken=Spoken(sql_mode="", time_zone="UTC"))
        feed.resolved(4)
    with Consuming(feed.address(), database.url, "row") as one:
        come(one, database)
    database.admin.execute_raw("ALTER TABLE t ADD COLUMN c CHAR(30) AS (CONCAT(n)) STORED")
    for spoken, word in zip(OTHERS, ("zone", "zone", "locale"), strict=True):
        feed = FeedWriter(kafka, 1)
        with feed.transaction():
            feed.ddl(1, database.name, "ALTER TABLE t ADD COLUMN m INT", spoken=spoken)
            feed.resolved(1)
        assert word in str(Consuming(feed.address(), database.url, "row").failed())


def told(session: Session, schema: str, sql: str, *, is_ours: bool = False) -> Spoken:
    """Of a statement in a session as it is by default, or of an online DDL."""
    asked = Query(schema=schema, text=sql.encode(), collation=45, sql_mode=0, flags=1 << 24, explicit_timestamps=True)
    found = definition(asked, "utf-8")
    assert found is not None
    return ask(session, {**found.fields(), **({"session": {}} if is_ours else {})})


def test_only_what_the_statement_may_ask_for_is_told(database: Database) -> None:
    """Else a target ends at what it cannot have, and has no need of."""
    database.admin.execute_raw("CREATE TABLE t (id INT, a TIMESTAMP NULL) COLLATE utf8mb4_bin")
    with connect(database.url) as session:
        plain = told(session, database.name, "ALTER TABLE t ADD x INT DEFAULT 5", is_ours=True)
        assert (plain.time_zone, plain.explicit_timestamps) == ("", None)
        assert told(session, database.name, "ALTER TABLE t MODIFY a DATETIME", is_ours=True).time_zone
        assert told(session, database.name, "ALTER TABLE t ADD b TIMESTAMP", is_ours=True).explicit_timestamps is True
        assert told(session, database.name, "CREATE TABLE v (id INT)").explicit_timestamps is None
        assert told(session, database.name, "CREATE TABLE v (a TIMESTAMP)").explicit_timestamps is True
        assert told(session, database.name, "ALTER TABLE t ADD c CHAR(9)").collation == ""
        for sql in ("ALTER TABLE t ADD c CHAR(9), ADD UNIQUE (c)", "CREATE UNIQUE INDEX i ON t (id)"):
            assert told(session, database.name, sql).collation == "utf8mb4_bin"


def test_a_language_of_which_the_source_knows_no_number_is_not_told(database: Database) -> None:
    """Another server may have written it into the log of one that replicates."""
    said = {"verb": "ALTER", "what": "TABLE", "sql": "ALTER TABLE t ADD a INT", "tables": [(database.name, "t")]}
    with connect(database.url) as session:
        found = [ask(session, {**said, "session": _SESSION | {"language": n}}).time_names for n in (0, 4, 9999)]
        assert session.value("SELECT @@SESSION.lc_time_names") == session.value("SELECT @@GLOBAL.lc_time_names")
    assert found == ["en_US", "de_DE", ""]


_SESSION = {"sql_mode": 0, "flags": 0, "time_zone": "", "explicit_timestamps": None, "at": 0}


def test_the_default_of_utf8mb4_is_the_one_that_columns_get(database: Database) -> None:
    database.admin.execute_raw("CREATE TABLE t (a CHAR(9) CHARACTER SET utf8mb4)")
    with connect(database.url) as session:
        assert collations(database, "t") == [("a", default_of_utf8mb4(session))]


def test_who_sends_asks_the_source_beside_who_reads_its_log(database: Database, tmp_path: Path) -> None:
    """The logs of several sources are read by threads of their own, and a connection is one thread's."""
    kafka = parse("kafka://127.0.0.1:1/t")
    feed = Feed(rule=TABLE, home=tmp_path, sources=(origin(database),), id="f", address=kafka, partitions=1)
    said = {"verb": "DROP", "what": "TABLE", "sql": "DROP TABLE t", "tables": [], "session": {}}
    with connect(feed.sources[0].url) as session, running._source(feed, session, 0, None, print) as source:
        reading = source.tables.session.stream("SELECT 1 UNION ALL SELECT 2")
        assert next(reading) == (1,)
        source.spoken(said)
        assert list(reading) == [(2,)]


def test_bits_of_a_mode_are_called_as_the_server_calls_them(database: Database) -> None:
    is_mariadb = database.server.is_mariadb
    with database.server.admin() as session:
        for bit in range(36):
            try:
                session.execute_raw(f"SET SESSION sql_mode={1 << bit}")
            except SqlError:
                continue
            number, name = session.rows("SELECT @@sql_mode + 0, @@sql_mode")[0]
            if number == 1 << bit and name != "NOT_USED":
                assert name in mode_text(number, is_mariadb=is_mariadb).split(",")
