"""kill -9 in each step of --on-duplicate, with writers that make and end duplicates: no row is lost or there twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.duplicates import ALTER, ROWS, TABLE, Writers, check
from tests.support.flow import paused_at, settings
from tests.support.run_ddl import start, wait_gone, wait_reached
from vreplication.mysql.session import connect

pytestmark = pytest.mark.either

WORDS = (
    *("online-ddl", "--table", "t", "--alter", ALTER, "--workflow", "w", "--yes", "--json", "--chunk-rows", "5"),
    *("--on-duplicate", "keep-first"),
)
POINTS = (
    *("workflow.copied", "dedup.triggers_made", "dedup.filling", "lowest.notes_read", "lowest.before_commit"),
    *("dedup.settled", "cutover.rename_pending", "cutover.after_rename", "dedup.setting_aside", "dedup.set_aside"),
    *("dedup.full_dropped",),
)


@pytest.fixture(autouse=True)
def _trusted(database: Database) -> Iterator[None]:
    with settings(database, {"log_bin_trust_function_creators": 1}):
        yield


@pytest.mark.slow
def test_killed_at_each_step_with_duplicates(database: Database, tmp_path: Path, pauses: Path) -> None:
    with connect(database.app_url) as app:
        app.execute_raw(TABLE)
        app.execute_raw(f"INSERT INTO t VALUES {ROWS}")
        writers = Writers(database, 7)
        with writers.writing():
            for point in POINTS:
                with paused_at(pauses, point):
                    command = start(database, tmp_path, WORDS)
                    wait_reached(pauses, point, command)
                    orphans = command.kill()
                wait_gone(orphans)
            ended = start(database, tmp_path, WORDS).finish()
        assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
        check(app, "w", "keep-first")
