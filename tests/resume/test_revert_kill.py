"""kill -9 at every step of the window to revert, of the revert and of its end: the same command goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import paused_at
from tests.support.revertible import ALTER, fill, rows_of, told, writing, written
from tests.support.run_ddl import start, wait_gone, wait_reached
from vreplication.mysql.session import connect

pytestmark = pytest.mark.either

WORDS = ("online-ddl", "--table", "t", "--alter", ALTER, "--workflow", "w", "--revert-window", "1d", "--yes", "--json")
REVERT, CLEANUP = ("revert", "w", "--yes", "--json"), ("cleanup", "w", "--yes", "--json")
OPENING = ("revert.place_found", "revert.opened", "workflow.cleaned")
SWITCHING = ("workflow.gate_open", "cutover.rename_pending", "cutover.after_rename", "workflow.switched")
CLOSING = ("revert.closed", "revert.emptying", "revert.emptied")


def killed(database: Database, logs: Path, pauses: Path, words: tuple[str, ...], point: str) -> None:
    with paused_at(pauses, point):
        command = start(database, logs, words)
        wait_reached(pauses, point, command)
        orphans = command.kill()
    wait_gone(orphans)


def done(database: Database, logs: Path, words: tuple[str, ...]) -> None:
    ended = start(database, logs, words).finish()
    assert ended.code == 0, (ended.out[-3000:], ended.err[-3000:])


def ours(database: Database) -> int:
    with connect(database.url) as session:
        return len(session.rows("SHOW TABLES LIKE 't\\_\\_%'"))


@pytest.mark.slow
def test_killed_at_each_step_until_it_is_reverted(database: Database, tmp_path: Path, pauses: Path) -> None:
    fill(database)
    before = {key: row for key, row in rows_of(database).items() if key > 1000}
    with writing(database):
        for point in OPENING:
            killed(database, tmp_path, pauses, WORDS, point)
        done(database, tmp_path, WORDS)
        killed(database, tmp_path, pauses, ("resume", "w", "--json"), "workflow.verified")
        for point in SWITCHING:
            killed(database, tmp_path, pauses, REVERT, point)
        done(database, tmp_path, REVERT)
    assert {key: row for key, row in rows_of(database).items() if key > 1000} == before
    assert written(database) == told(database)
    assert ours(database) == 1


@pytest.mark.slow
def test_killed_at_each_step_of_the_end(database: Database, tmp_path: Path, pauses: Path) -> None:
    """The first row of the original goes only when nothing can lead back to it."""
    fill(database)
    done(database, tmp_path, WORDS)
    for point in CLOSING:
        killed(database, tmp_path, pauses, CLEANUP, point)
        ended = start(database, tmp_path, REVERT).finish()
        assert (ended.code, "cannot be reverted" in ended.last["reason"]) == (2, True), ended
    done(database, tmp_path, CLEANUP)
    assert ours(database) == 0
    with connect(database.url) as session:
        assert session.value("SELECT COUNT(amount) FROM t") == 100
