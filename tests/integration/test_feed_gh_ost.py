"""gh-ost's own program changes a table that a feed follows, while it is written: consumers end where the source does.

What must stay true: the program is the one that `make bench` takes; where it cannot be had, the tests are skipped and
say why.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox import peers
from sandbox.databases import Database
from tests.integration.test_feed_online_ddl import are_level, begin, consuming, definitions, targets, writing
from tests.integration.test_feed_producer import POINTS, Killer, kill
from tests.integration.test_feed_snapshot import is_filled
from tests.support.feed_consumers import Consuming
from tests.support.flow import wait_until
from tests.support.running_feed import Running, check_numbers, origin
from vreplication.feed import snapshot
from vreplication.feed.catalog import Filter
from vreplication.feed.check import check
from vreplication.feed.dispatch import Rule

__all__ = ["begin", "kill", "targets"]

# One worker: where it is missing, it is built once.
pytestmark = [pytest.mark.either, pytest.mark.seldom, pytest.mark.xdist_group("gh-ost")]
KEYS = Rule(way="index-value")
ALTER = "ADD COLUMN z VARCHAR(40) DEFAULT 'ö' AFTER id, DROP COLUMN n, MODIFY a TEXT, ADD KEY by_z (z)"
THERE = {
    "t": "id INT PRIMARY KEY, a VARCHAR(9), n INT NOT NULL DEFAULT 3",
    "_t_gho": "id INT PRIMARY KEY, z VARCHAR(40) DEFAULT 'ö', a TEXT, KEY by_z (z)",
    "_t_ghc": "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, last_update TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,"
    " hint VARCHAR(64) NOT NULL UNIQUE, value VARCHAR(4096) NOT NULL",
}
"""Tables that stand on the source within its copy, in words that both flavors know."""
TABLE = f"CREATE TABLE t ({THERE['t']})"
ROWS = (
    "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i+1 FROM n WHERE i<900) SELECT 3 * i, i, i FROM n"
)
GhOst = Callable[..., None]


@pytest.fixture
def gh_ost(database: Database, tmp_path: Path) -> GhOst:
    """Runs it on table t, to its end."""
    found = peers.prepared("gh-ost-mariadb" if database.server.is_mariadb else "gh-ost")
    if found.path is None:
        pytest.skip(found.reason)
    program, server, login = found.path, database.server, tmp_path / "login.cnf"
    login.touch(mode=0o600)
    login.write_text(f"[client]\nuser={server.user}\npassword={server.password}\n")
    flavored = ["--skip-metadata-lock-check"] if server.is_mariadb else ["--ssl", "--ssl-allow-insecure"]

    def run(*more: str) -> None:
        # A socket's path may have a hundred bytes.
        with tempfile.TemporaryDirectory(prefix="vreplication-") as scratch:
            words = [
                *(str(program), f"--conf={login}", f"--host={server.host}", f"--port={server.port}"),
                *(f"--database={database.name}", "--table=t", f"--alter={ALTER}", "--chunk-size=200"),
                *("--allow-on-master", "--assume-rbr", f"--serve-socket-file={scratch}/socket", "--execute"),
                *(f"--throttle-additional-flag-file={scratch}/throttle", *flavored, *more),
            ]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]

    return run


@contextmanager
def at_its_gate(run: GhOst, flag: Path) -> Iterator[Callable[[], None]]:
    """It copies, and waits with the swap until that is asked for; the block ends when it has done it."""
    flag.touch()
    failed: list[BaseException] = []

    def act() -> None:
        try:
            run(f"--postpone-cut-over-flag-file={flag}")
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield flag.unlink
    finally:
        flag.unlink(missing_ok=True)
        thread.join()
    assert not failed, failed


@pytest.mark.parametrize("is_followed", [True, False])
def test_consumers_are_level_behind_its_swap(
    begin: Callable[..., Running],
    database: Database,
    targets: dict[str, Database],
    gh_ost: GhOst,
    is_followed: bool,
) -> None:
    """Its copy is a table as any other; where it is not followed, the target's table is altered by hand."""
    only = Filter(tables=(f"{database.name}.{'*' if is_followed else 't'}",))
    feed = begin(rule=KEYS, partitions=3, sources=(replace(origin(database), filter=only),))
    feed.wait_begun()
    database.admin.execute_raw(TABLE)
    database.admin.execute_raw(ROWS)
    if is_followed:
        with consuming(feed, targets), writing(database, "a"):
            gh_ost()
    else:
        with writing(database, "a"):
            gh_ost()
        for mode, target in targets.items():
            said = str(Consuming(feed.feed.address, target.url, mode).failed(60))
            assert f"has put another table in the place of {database.name}.t, and the target has none" in said
            target.admin.execute_raw(f"ALTER TABLE t {ALTER}")
    with consuming(feed, targets) as consumers:
        feed.wait_sent(database)
        are_level(database, targets, consumers)
    assert definitions(feed)[0] == TABLE
    check_numbers(feed.feed)
    check(feed.feed.address)


def test_a_snapshot_that_begins_within_its_copy_has_all_of_it(
    begin: Callable[..., Running],
    kill: Callable[..., Killer],
    database: Database,
    targets: dict[str, Database],
    gh_ost: GhOst,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The copy is read as a table, while gh-ost goes on writing it, and swapped while the snapshot is being read."""
    monkeypatch.setattr(snapshot, "_ROWS", 40)
    database.admin.execute_raw(TABLE)
    database.admin.execute_raw(ROWS)
    killer = kill(1, POINTS, share=0.1)
    with at_its_gate(gh_ost, tmp_path / "postponed") as let_go, writing(database, "a"):
        wait_until(lambda: database.admin.value("SHOW TABLES LIKE '\\_t\\_gho'"), "there is no copy")
        feed = begin(rule=KEYS, partitions=3, is_snapshot=True)
        feed.wait_begun()
        for target in targets.values():
            for name, columns in THERE.items():
                target.admin.execute_raw(f"CREATE TABLE {name} ({columns})")
        let_go()
    killer.is_on = False
    wait_until(lambda: feed.error or is_filled(feed), "the snapshot does not end")
    feed.wait_sent(database)
    assert killer.killed
    with consuming(feed, targets) as consumers:
        are_level(database, targets, consumers)
    check_numbers(feed.feed)
    check(feed.feed.address)
