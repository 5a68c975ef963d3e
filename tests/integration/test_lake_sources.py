"""A lake of a topic that two servers are sent into, MySQL and MariaDB: it is both of them, at each time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.integration.test_feed_sources import begin, both, pulse  # noqa: F401
from tests.integration.test_lake_live import KEYS, comes_to, filling, held, in_the_lake, is_filled, last_time, scaled
from tests.support.flow import wait_until
from tests.support.lakes import LakeServer
from tests.support.running_feed import Running, make_tables, write_history
from vreplication.feed.lake.manifest import Store

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def write_both(both: tuple[Database, Database], seed: int) -> None:  # noqa: F811
    """Rows of the table `both` have keys that tell their servers."""
    own = [("a",), ("b",)]
    writers = [
        threading.Thread(target=write_history, args=(each, random.Random(seed + number), 30, own[number]))
        for number, each in enumerate(both)
    ]
    for writer in writers:
        writer.start()
    for round in range(12):
        for number, each in enumerate(both):
            key = 1_000 * number + (seed + round) % 17
            each.admin.execute_raw(f"REPLACE INTO shared (id, a, n) VALUES ({key},'{seed}',{round})")
            each.admin.execute_raw(f"DELETE FROM shared WHERE id={key - 3}")
    for writer in writers:
        writer.join()


def sources(both: tuple[Database, Database]) -> dict[str, list[tuple[Any, ...]]]:  # noqa: F811
    mysql, mariadb = both
    shared = sorted([*held(mysql, "shared"), *held(mariadb, "shared")])
    return {"a": held(mysql, "a"), "b": held(mariadb, "b"), "shared": shared}


@pytest.mark.seldom
def test_the_lake_is_both_sources_at_each_time(
    begin: Callable[..., Running],  # noqa: F811
    both: tuple[Database, Database],  # noqa: F811
    pulse: object,  # noqa: F811
    lakes: LakeServer,
    tmp_path: Path,
) -> None:
    """With rows of before, a column that is added on one server after the other, 2 → 3 partitions, and a kill.

    A JSON is another type on each of the servers.
    """
    (mysql, mariadb), lake = both, tmp_path / "lake"
    make_tables(mysql, "a", "shared")
    make_tables(mariadb, "b", "shared")
    for number, each in enumerate(both):
        each.admin.execute_raw("ALTER TABLE shared ADD COLUMN j JSON")
        each.admin.execute_raw(f"INSERT INTO shared VALUES ({1000 * number + 99},'before',1,'[1]')")
    feed = begin(rule=KEYS, partitions=2, is_snapshot=True)
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    seen = {}
    for step in range(2):
        with filling(feed.feed.address, lake, "--every", "0.3") as command:
            write_both(both, 10 * step)
            if step == 1:
                mysql.admin.execute_raw("ALTER TABLE shared ADD COLUMN z INT")
                mysql.admin.execute_raw("UPDATE shared SET z=7")
                write_both(both, 40)
                feed.wanted = 3
                scaled(feed, 2)
                mariadb.admin.execute_raw("ALTER TABLE shared ADD COLUMN z INT")
                mariadb.admin.execute_raw("UPDATE shared SET z=8")
                write_both(both, 50)
            for number, each in enumerate(both):
                each.admin.execute_raw(f"REPLACE INTO {'ab'[number]} VALUES (1,'end',{step})")
                feed.wait_sent(each, 60, number=number)
            t = last_time(feed)
            comes_to(command, t)
            seen[t] = sources(both)
            command.kill()
    for t, tables in seen.items():
        server = dict(zip(("a", "b", "shared"), (mysql, mariadb, mysql), strict=True))
        for table, rows in tables.items():
            assert in_the_lake(lakes, lake, server[table], table, t) == rows, (t, table)
    t = max(seen)
    lakes.compact(lake, fold_before=t)
    assert in_the_lake(lakes, lake, mysql, "shared", t) == seen[t]["shared"]
    shared = next(each for each in Store(lake).open().tables.values() if each.folder.endswith("shared"))
    assert len(shared.versions) <= 6, "each batch adds versions"
