"""Several tables changed by one command: one reader of the log, each table as safe as alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sandbox import orders
from sandbox.databases import Database
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from tests.support.flow import Ended, call, finish, paused_at, pauses, wait_until
from tests.support.forked import Forked
from tests.support.run_ddl import replicates, start
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import groups, workflows

__all__ = ["pauses"]
ROWS = 3_000
TABLES = ("orders", "items", "stock")
ALTER = "ADD COLUMN region VARCHAR(16) NOT NULL DEFAULT 'eu', ADD INDEX by_customer (customer)"
ID = "several"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.either]


@pytest.fixture
def tables(database: Database) -> Database:
    with connect(database.app_url) as app:
        for name in TABLES:
            orders.create(app, name)
            orders.fill(app, name, ROWS)
            keep_copy(app, name, f"{name}_at_start")
    return database


@contextmanager
def written_to(database: Database) -> Iterator[dict[str, Workload]]:
    """All of the tables, by writers of their own."""
    found = {
        name: Workload(database.app_url, name, rows=ROWS, writers=1, readers=1, seed=seed, rate=40, read_every=0.05)
        for seed, name in enumerate(TABLES, start=1)
    }
    with ExitStack() as stack:
        for each in found.values():
            stack.enter_context(each)
        yield found


def is_proved(database: Database, name: str, workload: Workload, alter: str = ALTER) -> None:
    workload.wait_for(20)
    assert workload.stop().errors == ()
    with connect(database.app_url) as app:
        assert prove(app, name, f"{name}_at_start", alter, workload.expected).differences == ()


def words(*more: str) -> list[str]:
    named = [word for name in TABLES for word in ("--table", name)]
    return ["online-ddl", *named, "--alter", ALTER, "--workflow", ID, "--yes", "--json", *more]


def phases(database: Database) -> list[Phase | None]:
    with connect(database.url) as session:
        rows = [workflows.find(session, each) for each in groups.members(ID, len(TABLES))]
    return [row.phase if row else None for row in rows]


def wait_at_gates(database: Database, running: subprocess.Popen[str] | Forked) -> None:
    """Until all of them wait for their release."""

    def is_there() -> bool:
        assert running.poll() is None, finish(running)
        return phases(database) == [Phase.WAITING] * len(TABLES)

    wait_until(is_there, f"they do not come to their gates: {phases(database)}")


def dumps(database: Database) -> int:
    found = database.admin.rows("SELECT command FROM information_schema.processlist")
    return sum("Binlog Dump" in str(command) for (command,) in found)


def ends(ended: Ended) -> dict[str, str]:
    return {str(each["table"]): str(each["event"]) for each in ended.last["tables"]}


def test_all_are_changed_with_one_reader_and_nothing_is_lost(tables: Database, tmp_path: Path) -> None:
    """Held at their gates they are released together; what was asked of all holds for those that have not begun."""
    with written_to(tables) as workloads:
        running = start(tables, tmp_path, words("--cutover", "manual", "--tables-at-once", "1")).process
        wait_at_gates(tables, running)
        wait_until(lambda: dumps(tables) == 1, "each table has a reader of its own")
        (process,) = replicates(running.pid)
        os.kill(process, signal.SIGKILL)
        for workload in workloads.values():
            workload.wait_for(20)
        assert call(tables, "tune", ID, "--chunk-millis", "300").code == 0
        shown = call(tables, "status", ID, "--json")
        assert [line["workflow"] for line in shown.lines] == list(groups.members(ID, len(TABLES)))
        assert call(tables, "release", ID).code == 0
        ended = finish(running)
        assert (ended.code, ended.last["event"], ends(ended)) == (0, "complete", dict.fromkeys(TABLES, "complete"))
        for name, workload in workloads.items():
            is_proved(tables, name, workload)
    assert dumps(tables) == 0


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
def test_one_that_fails_leaves_the_others_alone(tables: Database, tmp_path: Path) -> None:
    with written_to(tables) as workloads:
        running = start(tables, tmp_path, words("--cutover", "manual")).process
        wait_at_gates(tables, running)
        workloads["items"].stop()
        tables.admin.execute_raw(f"ALTER TABLE {tables.name}.items ADD COLUMN odd INT")
        wait_until(lambda: Phase.FAILED in phases(tables), "a changed definition is not seen")
        assert call(tables, "release", ID).code == 0
        ended = finish(running)
        assert (ended.code, ended.last["event"]) == (1, "failed")
        assert ends(ended) == {"orders": "complete", "items": "failed", "stock": "complete"}
        for name in ("orders", "stock"):
            is_proved(tables, name, workloads[name])


@pytest.mark.only_on("mariadb")
def test_killed_it_goes_on_with_those_that_are_left(tables: Database, tmp_path: Path) -> None:
    """By a URL whose default schema is another one, too: names without one are of that with which it was begun."""
    with written_to(tables) as workloads:
        running = start(tables, tmp_path, words("--cutover", "manual")).process
        wait_at_gates(tables, running)
        assert call(tables, "release", f"{ID}.1").code == 0
        wait_until(lambda: phases(tables)[0] is Phase.COMPLETE, "the released one does not switch")
        running.kill()
        running.communicate()
        for workload in workloads.values():
            workload.wait_for(20)
        assert call(tables, "release", ID).code == 0
        wait_until(lambda: dumps(tables) == 0, "catch-up outlives its parent")
        elsewhere = str(tables.url).replace(f"/{tables.name}", "/information_schema")
        ended = start(tables, tmp_path, ("resume", ID, "--json"), source=elsewhere).finish()
        assert (ended.code, list(ends(ended).values())) == (0, ["complete"] * len(TABLES)), ended
        for name, workload in workloads.items():
            is_proved(tables, name, workload)


def test_cancelled_while_one_of_them_is_planned(tables: Database, tmp_path: Path, pauses: Path) -> None:
    """It has been asked for already what was wanted of all, and has no row yet to which that could be written."""
    with paused_at(pauses, "workflow.planned"):
        running = start(tables, tmp_path, words("--tables-at-once", "1")).process
        wait_until(lambda: (pauses / "workflow.planned.reached").exists(), "nothing is planned")
        cancelled = call(tables, "cancel", ID, "--yes")
        assert cancelled.code == 0, cancelled
    ended = finish(running)
    assert (ended.code, ends(ended)) == (3, dict.fromkeys(TABLES, "cancelled"))
    assert call(tables, "status", ID, "--watch").code == 0
    with connect(tables.app_url) as app:
        assert [name for (name,) in app.rows("SHOW TABLES") if "__vr_" in str(name)] == []


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
def test_cancelled_together(tables: Database, tmp_path: Path) -> None:
    with written_to(tables) as workloads:
        running = start(tables, tmp_path, words("--cutover", "manual")).process
        wait_at_gates(tables, running)
        assert call(tables, "cancel", ID, "--yes").code == 0
        ended = finish(running)
        assert (ended.code, ends(ended)) == (3, dict.fromkeys(TABLES, "cancelled"))
        for workload in workloads.values():
            assert workload.stop().errors == ()
    with connect(tables.app_url) as app:
        assert [name for (name,) in app.rows("SHOW TABLES") if "__vr_" in str(name)] == []


def ddl(*names: str) -> list[str]:
    return ["online-ddl", *(w for n in names for w in ("--table", n)), "--alter", "ADD COLUMN z INT", "--yes"]


def test_one_refusal_refuses_all_and_touches_nothing(tables: Database) -> None:
    with connect(tables.app_url) as app:
        app.execute_raw("CREATE TABLE keyless (n INT) ENGINE=InnoDB")
    refused = call(tables, *ddl("orders", "keyless"))
    assert refused.code == 2
    assert "keyless" in refused.err
    twice = call(tables, *ddl("orders", "orders"))
    assert (twice.code, "named twice" in twice.err) == (2, True)
    alike = call(tables, *ddl("orders", "Orders"))
    assert (alike.code, "differ in case alone" in alike.err) == (2, True)
    with connect(tables.app_url) as app:
        assert [name for (name,) in app.rows("SHOW TABLES") if "__vr_" in str(name)] == []
    with connect(tables.url) as session:
        assert [w for w in workflows.load_all(session) if w.source_schema == tables.name] == []
