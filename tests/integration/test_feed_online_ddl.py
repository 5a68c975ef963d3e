"""A table that a feed follows is changed by an online DDL: the topic says by which ALTER, and consumers run it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database, create_database
from sandbox.kafka import Cluster
from tests.integration.test_feed_producer import POINTS, Killer, kill  # noqa: F401
from tests.integration.test_feed_snapshot import is_filled
from tests.support import flow
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.pairs import server_of
from tests.support.running_feed import Running, check_numbers, content, make_tables, origin, rows, start_feed
from vreplication.feed import snapshot
from vreplication.feed.catalog import Filter
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule
from vreplication.feed.formats.open import read_ddl
from vreplication.feed.messages import Kind
from vreplication.mysql.remark import Altered, with_remark
from vreplication.mysql.session import SqlError
from vreplication.state import layout

pytestmark = pytest.mark.either

ODD = (
    "ADD COLUMN `z` VARCHAR(40) DEFAULT 'ö*/ /*! \\\\ \" \U0001f600 -- ', -- why\n"
    " MODIFY n BIGINT COMMENT '/* vreplication {} */'"
)
MODES = ("", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES,IGNORE_SPACE", "ORACLE", "MSSQL")


@pytest.fixture
def begin(kafka: Cluster, database: Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with database.server.admin() as session:
        layout.install(session)
    yield from start_feed(kafka, database, tmp_path)


@pytest.fixture
def targets(database: Database, _pair_servers: None) -> Iterator[dict[str, Database]]:
    """By mode of their consumers: one of each flavor."""
    flavor = database.server.flavor
    other = "mysql" if database.server.is_mariadb else "mariadb"
    with ExitStack() as stack:
        made = {
            "transaction": create_database(server_of(flavor, "target"), database.name),
            "row": create_database(server_of(other, "target"), database.name),
        }
        for each in made.values():
            stack.callback(each.drop)
        yield made


def test_a_rename_says_in_the_log_by_which_alters_whatever_they_hold(
    begin: Callable[..., Running], database: Database
) -> None:
    """Of two tables that are switched together there are two, each with a time of its own."""
    feed = begin()
    feed.wait_begun()
    here, is_mariadb = database.name, database.server.is_mariadb
    make_tables(database, "t__vr_new", "u__vr_new", "t__vr_old_ffffff", "u__vr_old_ffffff")
    database.admin.execute_raw("RENAME TABLE t__vr_old_ffffff TO t, u__vr_old_ffffff TO u")
    told = [Altered(schema=here, table="t", clauses=ODD), Altered(schema=here, table="u", clauses="ENGINE=InnoDB")]
    with database.server.admin(here) as session:
        session.execute_raw("SET NAMES latin1")
        for number, mode in enumerate(MODES if is_mariadb else MODES[:3]):
            session.execute("SET sql_mode=%s", (mode,))
            pairs = (f"`{t}` TO `{t}__vr_old_00000{number}`, `{t}__vr_new` TO `{t}`" for t in "tu")
            session.execute_raw(with_remark(f"RENAME TABLE {', '.join(pairs)}", told))
            make_tables(database, "t__vr_new", "u__vr_new")
    feed.wait_sent(database)
    assert definitions(feed) == [f"ALTER TABLE `{each.table}` {each.clauses}" for each in told] * (
        5 if is_mariadb else 3
    )
    times = [tags.t for tags, _, _ in content(feed.feed)[0] if tags.kind is Kind.DDL]
    assert times == sorted(set(times))
    check(feed.feed.address)


@contextmanager
def consuming(feed: Running, targets: dict[str, Database]) -> Iterator[list[Consuming]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Consuming(feed.feed.address, target.url, mode)) for mode, target in targets.items()]


@contextmanager
def writing(database: Database, column: str) -> Iterator[None]:
    """Histories of t that its new definition takes as its old one does, until the block ends."""
    is_over, draw = threading.Event(), random.Random(1)

    def write() -> None:
        with database.server.admin(database.name) as session:
            while not is_over.wait(0.005):
                key, value = draw.randint(1, 150), draw.randint(0, 99)
                statements = (
                    f"REPLACE INTO t (id, {column}) VALUES ({key},'{value}')",
                    f"DELETE FROM t WHERE id={key}",
                    f"UPDATE t SET {column}='{value}' WHERE id BETWEEN {key} AND {key + 3}",
                )
                session.execute_raw(draw.choice(statements))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


def definitions(feed: Running) -> list[str]:
    return [read_ddl(key, value)[1] for tags, key, value in content(feed.feed)[0] if tags.kind is Kind.DDL]


def all_rows(database: Database) -> list[Any]:
    return database.admin.rows("SELECT * FROM t ORDER BY id")


def are_level(database: Database, targets: dict[str, Database], consumers: list[Consuming]) -> None:
    def are_so() -> bool:
        for each in consumers:
            each.raise_error()
        with contextlib.suppress(SqlError):  # a table that is still to come
            return all(all_rows(each) == all_rows(database) for each in targets.values())
        return False

    wait_until(are_so, "the targets are not level")


def test_an_online_ddl_is_an_alter_to_consumers_wherever_the_feed_is_killed(
    begin: Callable[..., Running],
    kill: Callable[..., Killer],  # noqa: F811
    database: Database,
    targets: dict[str, Database],
    quick: None,
) -> None:
    """Rows before it have the old layout, rows behind it the new one, and none of the shadow's is there."""
    feed = begin(rule=Rule(way="index-value"), partitions=2)
    feed.wait_begun()
    killer = kill(1, POINTS, share=0.1)
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9), n INT NOT NULL DEFAULT 3)")
    alter = "ADD COLUMN z VARCHAR(40) DEFAULT 'ö*/ \\\" x' AFTER id, DROP COLUMN n, MODIFY a TEXT, ADD KEY by_z (z)"
    with consuming(feed, targets) as consumers, writing(database, "a"):
        run = flow.begin(database, "t", alter)
        assert run.result().event == "complete"
        database.admin.execute_raw("INSERT INTO t (id, a, z) VALUES (1000, REPEAT('x', 500), '*/')")
    with consuming(feed, targets) as consumers:
        assert killer.killed
        killer.is_on = False
        feed.wait_sent(database)
        are_level(database, targets, consumers)
    assert definitions(feed)[1:] == [f"ALTER TABLE `t` {alter}"]
    assert {table for messages in rows(feed.feed).values() for table, _, _ in messages} == {"t"}
    assert [name for name, *_ in targets["row"].admin.rows("SHOW COLUMNS FROM t")] == ["id", "z", "a"]
    check_numbers(feed.feed)
    check(feed.feed.address)


@pytest.mark.parametrize("is_followed", [True, False])
@pytest.mark.in_turn
def test_a_swap_by_another_tool_goes_on_or_says_what_to_do(
    begin: Callable[..., Running], database: Database, targets: dict[str, Database], is_followed: bool
) -> None:
    """As gh-ost does it. Its copy is a table as any other: where it is followed nothing is to be done."""
    only = Filter(tables=(f"{database.name}.{'*' if is_followed else 't'}",))
    feed = begin(sources=(replace(origin(database), filter=only),))
    feed.wait_begun()
    with database.server.admin(database.name) as session:
        for sql in (
            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9))",
            "INSERT INTO t VALUES (1,'x'),(2,'y')",
            "create /* gh-ost */ table `_t_gho` like `t`",
            "alter /* gh-ost */ table `_t_gho` ADD COLUMN z INT DEFAULT 5, DROP COLUMN a, ADD COLUMN b INT",
            "create /* gh-ost */ table `_t_ghc` (id BIGINT AUTO_INCREMENT PRIMARY KEY, hint VARCHAR(64) CHARSET ascii"
            " NOT NULL, value VARCHAR(4096) CHARSET ascii NOT NULL,"
            " UNIQUE KEY hint_uidx (hint)) AUTO_INCREMENT=256",
            "insert /* gh-ost */ ignore into `_t_gho` (id) (select id from `t`)",
            *(
                "insert /* gh-ost */ into `_t_ghc` (id, hint, value) values (NULLIF(1, 0), 'heartbeat', 'x')"
                f" on duplicate key update value={number}"
                for number in range(3)
            ),
            "create /* gh-ost */ table `_t_del` (id INT AUTO_INCREMENT PRIMARY KEY) COMMENT='ghost-cut-over-sentry'",
            "drop /* gh-ost */ table if exists `_t_del`",
            "rename /* gh-ost */ table `t` to `_t_del`, `_t_gho` to `t`",
            "INSERT INTO t VALUES (3,6,7)",
            "DROP TABLE _t_ghc",
            "DROP TABLE _t_del",
        ):
            session.execute_raw(sql)
    feed.wait_sent(database)
    if not is_followed:
        for mode, target in targets.items():
            said = str(Consuming(feed.feed.address, target.url, mode).failed())
            assert f"has put another table in the place of {database.name}.t, and the target has none" in said
            target.admin.execute_raw("ALTER TABLE t ADD COLUMN z INT DEFAULT 5, DROP COLUMN a, ADD COLUMN b INT")
    with consuming(feed, targets) as consumers:
        are_level(database, targets, consumers)
    assert all_rows(database) == [(1, 5, None), (2, 5, None), (3, 6, 7)]


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.in_turn
def test_a_cut_over_between_two_chunks_of_a_snapshot_loses_no_row(
    begin: Callable[..., Running],
    database: Database,
    targets: dict[str, Database],
    monkeypatch: pytest.MonkeyPatch,
    quick: None,
    when: str,
) -> None:
    """Columns go, and rows have another order from there on. A chunk is read before the RENAME or behind it."""
    monkeypatch.setattr(snapshot, "_ROWS", 10)
    make_tables(database, "t")
    for target in targets.values():
        make_tables(target, "t")
    database.admin.execute_raw(
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<99) "
        "SELECT i, 'b', 999-i FROM n"
    )
    keys = "DROP PRIMARY KEY, ADD PRIMARY KEY (n, id), ADD UNIQUE KEY by_id (id)"
    alter = f"DROP COLUMN a, {keys}, ADD COLUMN z INT DEFAULT 5"
    reads, read, results = iter(range(1000)), snapshot._TableReader.next, []

    def alter_beside_it(reader: Any, after: Any) -> Any:
        is_now = next(reads) == 4
        found = None if is_now and when == "before" else read(reader, after)
        if is_now:
            results.append(flow.begin(database, "t", alter).result())
        return found or read(reader, after)

    monkeypatch.setattr(snapshot._TableReader, "next", alter_beside_it)
    with writing(database, "n"):
        feed = begin(is_snapshot=True)
        with consuming(feed, targets) as consumers:
            wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    assert (feed.error, [each.event for each in results]) == (None, ["complete"])
    feed.wait_sent(database)
    with consuming(feed, targets) as consumers:
        are_level(database, targets, consumers)
    assert definitions(feed) == [f"ALTER TABLE `t` {alter}"]
    check(feed.feed.address)
