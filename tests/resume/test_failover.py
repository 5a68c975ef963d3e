"""The source dies and a replica of it takes its place: the same command goes on there, by GTID.

What must stay true: the truth is the retired table on the promoted server, byte by byte, and what the application
wrote before and after; verification must have nothing to repair.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandbox import replicas
from sandbox.databases import Database, create_database
from tests.support import run_ddl
from tests.support.flow import Run, contents, let_go, paused_at, wait_until
from tests.support.promoted import Promoting
from tests.support.run_ddl import Command
from vreplication.engine.result import Result
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import identity, inspect
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.planning.spec import Spec
from vreplication.settings import SIDECAR
from vreplication.state import progress, verdicts
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]

ALTER = "ADD COLUMN added INT NOT NULL DEFAULT 7"
KEPT, DROPPED = "X'6b00ff',X'01',7", "X'64',X'',1"
BEFORE = (
    "INSERT INTO t VALUES (15,'before',1)",
    "DELETE FROM t WHERE id=20",
    "UPDATE t SET id=33 WHERE id=30",
)
AFTER = (
    "INSERT INTO t VALUES (45,'after',1)",
    "DELETE FROM t WHERE id=50",
    "UPDATE t SET v='after' WHERE id IN (33,4000)",
)


@dataclass(slots=True, kw_only=True)
class Scene:
    """A table of 500 rows and the workflow that alters it. `database` is where the application is at home now."""

    pair: Promoting
    database: Database
    logs: Path
    pauses: Path
    workflow: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")

    def begin(self, alter: str = ALTER, **more: str) -> Run:
        """The command, in this process; the same each time."""
        given = {"table": "t", "alter": alter, "workflow": self.workflow, "copy_parallelism": 1, "chunk_rows": 100}
        return Run(Spec(**given, **more)).start(self.database.url)

    def killed_at(self, point: str, *, prepare: bool = False) -> None:
        """The command as a process of its own, killed at a point, where the application writes."""
        with paused_at(self.pauses, point):
            command = self.command()
            try:
                run_ddl.wait_reached(self.pauses, point, command)
                if prepare:
                    self.write(*BEFORE)
                    self._prepare(KEPT, "INSERT INTO t VALUES (25,'kept',1)", "UPDATE t SET v='kept' WHERE id=4990")
                    self._prepare(DROPPED, "INSERT INTO t VALUES (35,'dropped',1)", "DELETE FROM t WHERE id=40")
            finally:
                run_ddl.wait_gone(command.kill())
        (self.pauses / f"{point}.reached").unlink()

    def command(self) -> Command:
        words = ("--table", "t", "--alter", ALTER, "--workflow", self.workflow, "--chunk-rows", "100")
        return run_ddl.start(self.database, self.logs, ("online-ddl", *words, "--yes", "--json"))

    def fail_over(self) -> None:
        self.database.close()
        self.pair.fail_over()
        self.database = dataclasses.replace(self.database, server=self.pair.source, _admin=None)

    def write(self, *statements: str) -> None:
        with connect(self.database.app_url) as app, app.transaction():
            for statement in statements:
                app.execute_raw(statement)

    def _prepare(self, xid: str, *statements: str) -> None:
        """A branch that outlives its connection."""
        with connect(self.database.app_url) as app:
            for statement in (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}"):
                app.execute_raw(statement)

    def end(self, statement: str) -> None:
        """End a branch; the server takes a moment to see that its connection has gone."""
        wait_until(lambda: self._takes(statement), f"{statement} is not taken")

    def _takes(self, statement: str) -> bool:
        try:
            self.database.admin.execute_raw(statement)
        except SqlError:
            return False
        return True

    def waits_for(self, words: str) -> bool:
        with connect(self.database.url) as session:
            return words in str(progress.read(session, self.workflow).get("waiting_for"))

    def moves(self) -> list[Any]:
        sql = f"SELECT details FROM {SIDECAR}.journal WHERE workflow=%s AND event='moved'"
        return self.database.admin.rows(sql, (self.workflow,))

    @property
    def position(self) -> str:
        sql = f"SELECT position FROM {SIDECAR}.checkpoint WHERE workflow=%s"
        return str(self.database.admin.value(sql, (self.workflow,)))

    def set_position(self, text: str) -> None:
        sql = f"UPDATE {SIDECAR}.checkpoint SET position=%s WHERE workflow=%s"
        self.database.admin.execute(sql, (text, self.workflow))

    def complete(self, run: Run) -> Result:
        """The new table holds what the old one held."""
        result = run.result()
        assert result.event == "complete", (result, run.said)
        with connect(self.database.url) as session:
            verdict = verdicts.load(session, self.workflow)
        assert verdict is not None
        assert (verdict.verdict, verdict.mismatches) == (verdicts.CLEAN, 0)
        assert result.retired_table
        with connect(self.database.app_url) as app:
            app.execute_raw(f"ALTER TABLE {ident(result.retired_table)} {ALTER}")
            assert contents(app, "t") == contents(app, result.retired_table)
        return result


@pytest.fixture
def scene(promoting: Promoting, tmp_path: Path, pauses: Path) -> Iterator[Scene]:
    database = create_database(promoting.source)
    with connect(database.app_url) as app:
        _fill(app)
    made = Scene(pair=promoting, database=database, logs=tmp_path / "state", pauses=pauses)
    try:
        yield made
    finally:
        made.database.drop()


def _fill(app: Session) -> None:
    app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), u INT) CHARACTER SET utf8mb4")
    app.execute_raw(f"INSERT INTO t VALUES {','.join(f'({i * 10},{i},{i})' for i in range(1, 501))}")


@pytest.mark.in_turn("mariadb")
def test_a_copy_goes_on_on_a_promoted_replica(scene: Scene) -> None:
    """Two XA branches are prepared on the one server, and have their outcome on the other."""
    scene.killed_at("copy.after_open", prepare=True)
    scene.fail_over()
    scene.write(*AFTER)
    run = scene.begin()
    wait_until(lambda: scene.waits_for("XA COMMIT"), "it does not wait for the branches")
    scene.end(f"XA COMMIT {KEPT}")
    scene.end(f"XA ROLLBACK {DROPPED}")
    scene.complete(run)
    with connect(scene.database.app_url) as app:
        found = dict(app.rows("SELECT id, v FROM t WHERE id IN (15,20,25,30,33,35,40,45,50,4000,4990)"))
    assert found == {15: "before", 25: "kept", 33: "after", 40: "4", 45: "after", 4000: "after", 4990: "kept"}


@pytest.mark.in_turn("mysql")
def test_one_workflow_through_three_failovers(scene: Scene) -> None:
    """Whether the tables have been switched is told by what the new server holds."""
    scene.killed_at("workflow.gate_open")
    scene.fail_over()
    scene.write(*AFTER)
    scene.killed_at("cutover.locked")
    scene.fail_over()
    scene.write("DELETE FROM t WHERE id=45", "UPDATE t SET v='again' WHERE id=4000")
    scene.killed_at("cutover.after_rename")
    scene.fail_over()
    result = scene.complete(scene.begin())
    assert len(scene.moves()) == 3
    assert operate.cleanup(scene.database.url, scene.workflow, "test") == [
        f"{scene.database.name}.{result.retired_table}"
    ]


def test_a_way_back_that_was_closed_before_goes_all_the_same(scene: Scene) -> None:
    """Its original was being emptied when the command died, and then the server."""
    result = scene.begin(revert_window="24h").result()
    assert result.event == "complete", result
    cleanup = ("cleanup", scene.workflow, "--yes", "--json")
    with paused_at(scene.pauses, "revert.closed"):
        command = run_ddl.start(scene.database, scene.logs, cleanup)
        run_ddl.wait_reached(scene.pauses, "revert.closed", command)
        run_ddl.wait_gone(command.kill())
    scene.fail_over()
    place = f"{scene.database.name}.{result.retired_table}"
    assert operate.cleanup(scene.database.url, scene.workflow, "test") == [place]
    with connect(scene.database.app_url) as app:
        assert [name for (name,) in app.rows("SHOW TABLES")] == ["t"]
    assert operate.cleanup(scene.database.url, scene.workflow, "test") == []


def test_a_snapshot_of_a_replica_that_lagged_holds_the_gate(scene: Scene) -> None:
    """The copy was complete on the source before it began; there it was not."""
    replica = dataclasses.replace(scene.database, server=scene.pair.replica, _admin=None)
    word = "SLAVE" if replica.server.is_mariadb else "REPLICA"
    with paused_at(scene.pauses, "copy.after_open", "workflow.gate_open"):
        command = scene.command()
        try:
            run_ddl.wait_reached(scene.pauses, "copy.after_open", command)
            replicas.wait_level(scene.pair.source, scene.pair.replica)
            replica.admin.execute_raw(f"STOP {word} SQL_THREAD")
            let_go(scene.pauses, "copy.after_open")
            run_ddl.wait_reached(scene.pauses, "workflow.gate_open", command)
        finally:
            run_ddl.wait_gone(command.kill())
    matched = scene.database.admin.value(f"SELECT MAX(matched_at) FROM {SIDECAR}.chunk")
    later = "SELECT NOW() > %s + INTERVAL 1 SECOND"
    with connect(replica.url) as session:
        wait_until(lambda: session.value(later, (matched,)), "no second passes")
    with connect(replica.app_url) as reader:
        reader.execute_raw("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        replica.admin.execute_raw(f"START {word} SQL_THREAD")
        replica.close()
        scene.fail_over()
        run = scene.begin()
        wait_until(lambda: not run.is_going or scene.waits_for(f"onnection {reader.id} "), "it does not wait for it")
        assert reader.value("SELECT COUNT(*) FROM t") == 500
    scene.complete(run)


def test_what_cannot_go_on_is_refused(scene: Scene) -> None:
    scene.killed_at("workflow.copied")
    former = identity(inspect(scene.database.admin))
    scene.fail_over()
    saved = scene.position
    place, _, gtids = saved.partition(" ")
    assert gtids

    def refusal(alter: str = ALTER) -> str:
        result = scene.begin(alter).result()
        assert result.event in ("failed", "refused"), result
        assert scene.moves() == []
        return str(result.reason)

    scene.set_position(place)
    words = refusal()
    assert former in words
    assert identity(inspect(scene.database.admin)) in words
    assert "by file and position" in words
    scene.set_position(f"{place} {_one_more(gtids)}")
    assert "has not got all transactions" in refusal()
    scene.set_position(saved)
    scene.database.admin.execute_raw("SET GLOBAL read_only=1")
    assert "The server is read-only" in refusal()
    scene.database.admin.execute_raw("SET GLOBAL read_only=0")
    assert "for another table or ALTER" in refusal("ENGINE=InnoDB")
    scene.write(*AFTER)
    for _ in range(2):
        scene.database.admin.execute_raw("FLUSH BINARY LOGS")
    purge(scene.database)
    assert "has been purged" in refusal()
    assert operate.cancel(scene.database.url, scene.workflow, "test").event == "cancelled"
    with connect(scene.database.app_url) as app:
        assert [name for (name,) in app.rows("SHOW TABLES")] == ["t"]


def _one_more(gtids: str) -> str:
    """A transaction more than anybody has."""
    if ":" in gtids:
        return f"{gtids},{gtids[:36]}:999999"
    domain, server, _ = gtids.split("-")
    return f"{domain}-{server}-999999"


def purge(database: Database) -> None:
    """All files but the last; the replica may still hold one for a moment."""
    last = str(database.admin.rows("SHOW BINARY LOGS")[-1][0])

    def is_gone() -> bool:
        database.admin.execute_raw(f"PURGE BINARY LOGS TO '{last}'")
        return len(database.admin.rows("SHOW BINARY LOGS")) == 1

    wait_until(is_gone, "the binary logs stay")
