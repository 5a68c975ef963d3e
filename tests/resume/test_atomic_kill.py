"""kill -9 of a command that switches two tables together: both are switched or none, and the same command goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import paused_at, wait_until
from tests.support.related import ALTER, TABLES, Related, create
from tests.support.run_ddl import Command, start, wait_gone, wait_reached
from vreplication import names
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, connect
from vreplication.state import groups

pytestmark = pytest.mark.either

ID = "atomic"
WORDS = ("online-ddl", "--table", "orders", "--table", "items", "--alter", ALTER, "--workflow", ID, "--atomic")
CHAINS = (
    (
        "workflow.gate_open",
        "cutover.before_lock",
        "cutover.rename_pending",
        "cutover.handed_over",
        "cutover.after_unlock",
        "workflow.cleaned",
    ),
    (
        "cutover.locked",
        "cutover.after_barrier",
        "cutover.sentry_dropped",
        "cutover.after_rename",
        "workflow.switched",
        "workflow.complete",
    ),
)
"""Every point of the cut-over, and those around it, in order."""
MAY_DEADLOCK = ("cutover.rename_pending", "cutover.sentry_dropped", "cutover.handed_over")
"""RENAME may have one table when the other's lock goes with the driver: who locks them in the other order meets it."""


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        create(session)
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("points", CHAINS, ids=" ".join)
@pytest.mark.in_turn
def test_driver_killed_again_and_again(
    database: Database, app: Session, tmp_path: Path, pauses: Path, points: tuple[str, ...]
) -> None:
    with Related(database.app_url) as related:
        for point in points:
            with paused_at(pauses, point):
                command = begin(database, tmp_path)
                wait_reached(pauses, point, command)
                assert related.deadlocks == []
                orphans = command.kill()
            wait_gone(orphans)
            wait_until(lambda: not is_renaming(database), "a RENAME of ours does not end")
            assert len(altered(app)) in (0, len(TABLES)), (point, altered(app))
            related.wait_for(5)
            assert point in MAY_DEADLOCK or not related.deadlocks, point
            related.deadlocks.clear()
        ended = begin(database, tmp_path).finish()
        assert (ended.code, [each["event"] for each in ended.last["tables"]]) == (0, ["complete"] * 2), ended
        related.wait_for(10)
    assert (related.differences(app), related.deadlocks) == ([], [])
    assert altered(app) == set(TABLES)
    assert ours(app) == {names.retired_table(*pair) for pair in zip(TABLES, groups.members(ID, 2), strict=True)}


def begin(database: Database, folder: Path) -> Command:
    return start(database, folder / "state", (*WORDS, "--yes", "--json"))


def is_renaming(database: Database) -> bool:
    found = processes(database.admin).values()
    return any(p.user == database.user and p.statement.startswith("RENAME") for p in found)


def altered(app: Session) -> set[str]:
    return {table for table in TABLES for (name, *_) in app.rows(f"SHOW COLUMNS FROM {table}") if name == "region"}


def ours(app: Session) -> set[str]:
    return {str(name) for (name,) in app.rows("SHOW TABLES") if "__vr_" in str(name)}
