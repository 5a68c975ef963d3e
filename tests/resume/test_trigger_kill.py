"""kill -9 around the making of triggers: whatever dies, each write fires once, of the table that is in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support import triggered
from tests.support.flow import paused_at, settings
from tests.support.private_server import any_definer
from tests.support.run_ddl import start, wait_gone, wait_reached

pytestmark = pytest.mark.either

WORDS = (
    *("online-ddl", "--table", "t", "--alter", triggered.ALTER, "--workflow", "w", "--triggers", "preserve"),
    *("--revert-window", "1d", "--yes", "--json"),
)
POINTS = ("cutover.catch_up_fenced", "cutover.trigger_made", "revert.triggers_dropped")


@pytest.fixture(autouse=True)
def _trusted(database: Database) -> Iterator[None]:
    right = any_definer(database.server.flavor)
    database.admin.execute_raw(f"GRANT {right} ON *.* TO '{database.user}'@'%'")
    with settings(database, {"log_bin_trust_function_creators": 1}):
        yield


@pytest.mark.slow
def test_killed_at_each_step_with_triggers(database: Database, tmp_path: Path, pauses: Path) -> None:
    triggered.fill(database)
    before = triggered.on(database)
    with triggered.writing(database):
        for point in POINTS:
            _kill(database, tmp_path, pauses, point)
            assert all(each.is_as(was) for each, was in zip(triggered.on(database), before, strict=True)), point
        ended = start(database, tmp_path, WORDS).finish()
        assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])
    assert [each.name for each in triggered.on(database)] == [f"{each.name}__vr" for each in before]
    assert triggered.on(database, triggered.retired(database)) == ()
    triggered.prove(database)


def _kill(database: Database, logs: Path, pauses: Path, point: str) -> None:
    with paused_at(pauses, point):
        command = start(database, logs, WORDS)
        wait_reached(pauses, point, command)
        orphans = command.kill()
    wait_gone(orphans)
