"""Tables move by commands, there and back, also when the one that drives is killed; and what is refused."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.flow import Ended, paused_at, wait_until
from tests.support.move_cli import Commands, Routed, commands, routed, start
from tests.support.pairs import Pair
from tests.support.run_ddl import Command, wait_gone, wait_reached
from vreplication.mysql.session import SqlError, connect
from vreplication.state import journal, moves, workflows
from vreplication.state.moves import Side

pytestmark = pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)

T = "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40)) COLLATE utf8mb4_general_ci"
U = "CREATE TABLE u (a VARCHAR(20), b INT, PRIMARY KEY (a, b)) COLLATE latin1_swedish_ci"
MOVE = ("move-tables", "--table", "t", "--table", "u", "--cutover", "manual", "--json")


@pytest.fixture
def workflow(pair: Pair) -> str:
    """Tables on the source, and an id of their own."""
    for create in (T, U):
        pair.source.admin.execute_raw(create)
    pair.source.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i},'v{i}')" for i in range(2_000)))
    pair.source.admin.execute_raw("INSERT INTO u VALUES " + ",".join(f"('k{i}',{i})" for i in range(500)))
    return f"m-{secrets.token_hex(4)}"


def status(run: Commands, workflow: str) -> dict[str, Any]:
    return run.at_target("status", workflow, "--json").last


def wait_phase(run: Commands, workflow: str, phase: str, driving: Command | None = None) -> None:
    home = run.pair.target.admin

    def is_there() -> bool:
        assert driving is None or driving.is_going, driving.finish()
        row = workflows.find(home, workflow)
        return (
            row is not None and str(row.phase) == phase and not (phase == "waiting" and not is_at_gate(run, workflow))
        )

    wait_until(is_there, f"{workflow} does not come to {phase}")


def is_at_gate(run: Commands, workflow: str) -> bool:
    waits = run.pair.target.admin.value("SELECT waiting_for FROM _vreplication.progress WHERE workflow=%s", (workflow,))
    return "release" in str(waits)


def serving(run: Commands, workflow: str) -> Side:
    return moves.load(run.pair.target.admin, workflow).serving


def assert_refused(found: Ended, *words: str) -> None:
    """One sentence and nothing else, on standard error or in the last JSON line."""
    assert found.code == 2, found
    sentence = found.err or found.last["reason"]
    assert len(sentence.splitlines()) == 1
    assert found.out == "" or found.last["event"] == "refused"
    for word in words:
        assert word in sentence


def assert_denied(pair: Pair, side: Side) -> None:
    """That side takes no write of the application."""
    database = pair.source if side is Side.SOURCE else pair.target
    with connect(database.app_url) as session, pytest.raises(SqlError) as refusal:
        session.execute_raw("INSERT INTO t VALUES (9999999, 1, 'x')")
    assert refusal.value.code == 1290


def followed(app: Routed, side: Side) -> None:
    """Some writes have been accepted where the hook sent them."""
    wait_until(lambda: app.is_at_target is (side is Side.TARGET), f"the hook does not name the {side}")
    before = app.accepted
    try:
        wait_until(lambda: app.accepted > before + 20, f"the {side} takes no writes")
    except AssertionError:
        raise AssertionError(app.errors[-3:]) from None


def test_a_whole_life_by_commands(pair: Pair, workflow: str, tmp_path: Path) -> None:
    with commands(pair, tmp_path) as run, routed(pair, tmp_path) as (app, hook):
        asked = (*MOVE, "--workflow", workflow, "--on-switch", hook)
        planned = run.call("plan", *asked)
        assert planned.code == 0, planned
        assert [table["table"] for table in planned.last["tables"]] == [f"{pair.source.name}.{n}" for n in "tu"]
        assert pair.target.admin.rows("SHOW TABLES") == []

        driving = run.start(*asked)
        wait_phase(run, workflow, "waiting", driving)
        seen = status(run, workflow)
        assert (seen["phase"], seen["serving"], seen["switches"]) == ("waiting", "source", 0)
        assert [(t["table"], t["target"], t["rows_total"], t["copied"]) for t in seen["tables"]] == [
            (f"{pair.source.name}.{name}", f"{pair.target.name}.{name}", rows, True)
            for name, rows in (("t", seen["tables"][0]["rows_total"]), ("u", 500))
        ]
        leaving = run.at_source("status", "--json")
        assert {"event": "leaving", "workflow": workflow} in leaving.lines
        verified = run.call("verify", workflow, "--json")
        assert (verified.code, verified.last["verdict"]) == (0, "clean"), verified
        assert verified.last["rows_compared"] >= 500

        assert run.at_target("release", workflow).code == 0
        followed(app, Side.TARGET)
        assert_denied(pair, Side.SOURCE)
        wait_phase(run, workflow, "switched", driving)
        seen = status(run, workflow)
        assert (seen["serving"], seen["switches"]) == ("target", 1)
        assert 0 < seen["write_stall_millis"] < 5_000
        text = run.at_target("status", workflow).out
        assert "the target" in text
        assert f"vreplication reverse {workflow}" in text
        for words in (("release", workflow), ("cancel", workflow)):
            assert_refused(run.call(*words, "--json"), "have been switched", f"vreplication reverse {workflow}")

        # One that the log tells of would have ended the workflow before.
        pair.target.admin.execute_raw("SET sql_log_bin=0")
        trigger = f"`{pair.target.name}`.theirs"
        pair.target.admin.execute_raw(f"CREATE TRIGGER {trigger} AFTER DELETE ON u FOR EACH ROW SET @gone = 1")
        assert_refused(run.at_target("reverse", workflow), "has triggers (theirs)", f"vreplication reverse {workflow}")
        assert moves.load(pair.target.admin, workflow).asked is None
        pair.target.admin.execute_raw(f"DROP TRIGGER {trigger}")
        pair.target.admin.execute_raw("SET sql_log_bin=1")
        back = run.at_target("reverse", workflow, "--json")
        assert (back.code, back.last["event"], back.last["resume_command"]) == (0, "reversed", None), back
        followed(app, Side.SOURCE)
        assert_denied(pair, Side.TARGET)
        assert [line["event"] for line in run.at_target("status", "--json").lines] == ["progress"]
        assert_refused(run.at_target("reverse", workflow), "the source serves")
        assert_refused(run.at_target("complete", workflow), "the source serves")

        driving.process.send_signal(signal.SIGINT)
        stopped = driving.finish()
        assert (stopped.code, stopped.last["event"]) == (130, "interrupted"), stopped
        assert stopped.last["resume_command"].startswith("vreplication move-tables --table t")
        driving = run.start("resume", workflow, "--json")
        wait_phase(run, workflow, "waiting", driving)
        assert run.at_target("release", workflow).code == 0
        followed(app, Side.TARGET)
        wait_phase(run, workflow, "switched", driving)
        completed = run.at_target("complete", workflow, "--json")
        assert (completed.code, completed.last["event"]) == (0, "complete"), completed
        assert driving.finish().last["event"] == "complete"
        followed(app, Side.TARGET)
        app.end()
        app.check(pair.target.admin)
    acts = [entry["event"] for entry in journal.read(pair.target.admin, workflow)]
    assert [act for act in acts if act in ("reverse asked", "complete asked")] == ["reverse asked", "complete asked"]
    clean_up(run, workflow, completed)


def clean_up(run: Commands, workflow: str, completed: Ended) -> None:
    """What the source's tables became is named, and goes."""
    source = run.pair.source
    left = sorted(f"{source.name}.{name}" for (name,) in source.admin.rows("SHOW TABLES"))
    assert completed.last["retired_table"] == ", ".join(left)
    assert_refused(run.at_target("cleanup", workflow), "needs both", "--source")
    assert run.call("cleanup", workflow, "--json").last["removed"] == left
    assert source.admin.rows("SHOW TABLES") == []
    assert len(run.pair.target.admin.rows("SELECT * FROM u")) == 500


def test_killed_in_the_middle_it_goes_on(pair: Pair, workflow: str, tmp_path: Path, pauses: Path) -> None:
    """Nobody drives it when the way back and its end are asked for: the commands drive it themselves."""
    with commands(pair, tmp_path) as run, routed(pair, tmp_path) as (app, hook):
        asked = (*MOVE, "--workflow", workflow, "--on-switch", hook)
        with paused_at(pauses, "copy.before_land"):
            driving = run.start(*asked)
            wait_reached(pauses, "copy.before_land", driving)
            wait_gone(driving.kill())
        driving = run.start(*asked)
        wait_phase(run, workflow, "waiting", driving)
        assert run.at_target("release", workflow).code == 0
        with paused_at(pauses, "switch.decided"):
            wait_reached(pauses, "switch.decided", driving)
            wait_gone(driving.kill())
        driving = run.start("resume", workflow, "--json")
        followed(app, Side.TARGET)
        wait_phase(run, workflow, "switched", driving)
        wait_gone(driving.kill())

        assert_refused(run.at_target("reverse", workflow, "--json"), "needs both", "--source")
        assert moves.load(pair.target.admin, workflow).asked is None
        back = run.call("reverse", workflow, "--json")
        assert (back.code, back.last["event"]) == (0, "reversed"), back
        assert back.last["resume_command"] == f"vreplication resume {workflow}"
        assert serving(run, workflow) is Side.SOURCE
        followed(app, Side.SOURCE)

        driving = run.start("resume", workflow, "--json")
        wait_phase(run, workflow, "waiting", driving)
        assert run.at_target("release", workflow).code == 0
        followed(app, Side.TARGET)
        wait_gone(driving.kill())
        completed = run.call("complete", workflow, "--json")
        assert (completed.code, completed.last["event"]) == (0, "complete"), completed
        app.end()
        app.check(pair.target.admin)


@pytest.mark.seldom
def test_what_makes_no_sense_is_one_sentence(pair: Pair, workflow: str, tmp_path: Path) -> None:
    with commands(pair, tmp_path) as run:
        assert_refused(run.at_source(*MOVE), "No target is given.")
        assert_refused(run.at_target(*MOVE), "No source is given.")
        here = ("--target", str(pair.source.url), "--table", "t")
        itself = run.call("plan", "move-tables", *here, "--json")
        assert itself.code in (1, 2), itself
        at = ("--replica", str(pair.source.url), "--replica-file", password_of(pair.source, tmp_path))
        unfit = run.call("plan", *MOVE, *at)
        [check] = [check for check in unfit.last["checks"] if check["name"] == "replica: follows"]
        assert (unfit.code, check["verdict"]) == (2, "refuse"), check
        for words, sentence in (
            (("move-tables", "--json"), "no table is named"),
            (("move-tables", "--table", "t", "--all-tables"), "choose one"),
            (("move-tables", "--table", "t", "--deny", "soon"), "deny"),
            (("move-tables", "--table", "t", "--on-switch", "http://h/x"), "https"),
            (("move-tables", "--table", "t", "--cutover-window", "soon"), "no window"),
            (("move-tables", "--table", "nosuch", "--json"), "nosuch"),
            (("reverse", "nosuch"), "no workflow 'nosuch'"),
            (("complete", "nosuch"), "no workflow 'nosuch'"),
            (("reverse", "../x"), "not valid"),
        ):
            assert_refused(run.call(*words), sentence)
        assert pair.target.admin.rows("SHOW TABLES") == []

        driving = run.start(*MOVE, "--workflow", workflow)
        wait_phase(run, workflow, "waiting", driving)
        assert_refused(run.at_target("reverse", workflow), "have not been switched yet")
        assert_refused(run.at_target("complete", workflow), "have not been switched yet")
        assert_refused(run.at_source("pause", workflow), "its state is on the one they move to", "--target")
        assert run.at_target("pause", workflow).code == 0
        assert run.at_target("resume", workflow).code == 0
        assert run.at_target("tune", workflow, "--copy-parallelism", "1").code == 0
        left = start(tmp_path, "housekeeping", "--json", source=pair.target).finish()
        assert [line["kind"] for line in left.lines if line["event"] == "found"] == [], (
            "a table at work would be dropped"
        )
        driving.process.send_signal(signal.SIGTERM)
        assert driving.finish().code == 130
        assert_refused(run.call("move-tables", "--table", "u", "--workflow", workflow), "exists for other tables: t, u")
        assert_refused(run.at_target("resume", workflow), "needs both")
        assert_refused(run.at_target("cancel", workflow), "needs both")
        swapped = ("--source", str(pair.target.url), "--source-file", password_of(pair.target, tmp_path))
        assert_refused(run.call("resume", workflow, *swapped), "another source server")
        assert not workflows.load(pair.target.admin, workflow).is_cancel_requested
        assert workflows.load(pair.target.admin, workflow).phase == "waiting"

        assert run.call("cancel", workflow, "--json").last["event"] == "cancelled"
        assert pair.target.admin.rows("SHOW TABLES") == []
        assert_refused(run.at_target("reverse", workflow), "has ended (cancelled)")
        assert run.at_source("status", "--json").lines == []


def password_of(database: Database, folder: Path) -> str:
    file = folder / "password"
    file.write_text(database.url.password)
    file.chmod(0o600)
    return str(file)
