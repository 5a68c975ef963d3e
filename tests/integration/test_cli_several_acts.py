"""Acts on several tables that one command changes, by the id of them all: what is said of them is so of each."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.rows import workflow_row
from vreplication import masking
from vreplication.cli import main, options
from vreplication.cutover import sentry
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.state import groups, layout, lease, workflows
from vreplication.state.workflows import CREATING
from vreplication.workflows.online_ddl import group

pytestmark = pytest.mark.either

Call = Callable[..., tuple[int, dict[str, Any], str]]
ID = "both"
FIRST, SECOND = groups.members(ID, 2)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """Of a server with two tables that one command changes, and with which no process is at work."""
    with connect(database.url) as opened:
        layout.install(opened)
        specs = tuple({"table": name, "alter": "ENGINE=InnoDB"} for name in ("a", "b"))
        groups.create(opened, groups.Group(id=ID, specs=specs, at_once=2))
        for each, spec in zip((FIRST, SECOND), specs, strict=True):
            shadow = f"{spec['table']}__vr_new"
            for table in (spec["table"], shadow):
                database.admin.execute_raw(f"CREATE TABLE {database.name}.{table} (id INT PRIMARY KEY)")
            about = {"source_schema": database.name, "source_table": spec["table"], "shadow_table": shadow}
            workflows.create(opened, workflow_row(each, spec=spec, **about))
            workflows.set_fields(opened, each, shadow_identity=CREATING)
        yield opened


@pytest.fixture
def call(database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> Iterator[Call]:
    """`vreplication …` in this process: exit code, the last JSON line, standard error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setenv(options.SOURCE, str(database.url))
        monkeypatch.setenv(options.PASSWORD, database.url.password)
        code = main.run([*words, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    yield run
    masking.forget()


def phases(session: Session) -> list[Phase]:
    return [workflows.load(session, each).phase for each in (FIRST, SECOND)]


def test_a_cancel_that_leaves_one_behind_does_not_say_that_all_are_cancelled(
    call: Call, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentry, "DROP_WAIT_SECONDS", 1)
    with connect(database.app_url) as reader, reader.transaction():
        reader.rows("SELECT * FROM a__vr_new")
        code, last, words = call("cancel", ID, "--yes")
    assert (code, last["event"]) == (1, "failed"), last
    assert f"Workflow {FIRST} is not cancelled: " in words
    assert f"shadow table {database.name}.a__vr_new" in words
    assert phases(session) == [Phase.WAITING, Phase.CANCELLED], "the other one is cancelled all the same"
    assert call("cancel", ID, "--yes")[:2] == (0, {"event": "cancelled", "workflow": ID, "tables": [FIRST]})
    assert phases(session) == [Phase.CANCELLED] * 2


def test_who_blocks_is_told_of_those_that_have_a_cut_over_to_come(call: Call, session: Session) -> None:
    workflows.set_fields(session, FIRST, phase=Phase.COMPLETE)
    code, last, words = call("blockers", ID)
    assert (code, last.get("workflow"), words) == (0, SECOND, "")
    workflows.set_fields(session, SECOND, phase=Phase.CANCELLED)
    code, last, words = call("blockers", ID)
    assert code == 2
    assert f"No table of workflow {ID} waits for a cut-over." in words


def test_a_resume_plans_tables_to_come_by_the_options_that_were_given_last(session: Session) -> None:
    """They were planned by those of the command that began the group, without a word."""
    begun = groups.find(session, ID)
    assert begun is not None
    asked = group.tables_of(begun, session.url.database)
    now = tuple(spec.model_copy(update={"retired": "drop", "max_lag": 5.0}) for spec in asked.specs)
    group.begin(replace(asked, specs=now, at_once=1), session.url, threading.Event())
    noted = groups.find(session, ID)
    assert noted is not None
    assert group.tables_of(noted, session.url.database) == replace(asked, specs=now, at_once=1)


@pytest.mark.usefixtures("call")
@pytest.mark.parametrize(("words", "holds"), [(("tune", ID, "--copy-parallelism", "3"), False), (("pause", ID), True)])
def test_of_those_to_come_is_said_what_holds_for_them(
    session: Session, words: Any, holds: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(options.SOURCE, str(session.url))
    monkeypatch.setenv(options.PASSWORD, session.url.password)
    assert main.run([*words]) == 0
    assert ("those to come" in capsys.readouterr().out) is holds


def test_a_resume_names_those_that_the_living_process_does_not_work_on(call: Call, session: Session) -> None:
    """It may be that of one table alone, or have let go of one that failed."""
    workflows.set_fields(session, SECOND, phase=Phase.FAILED)
    lease.acquire(session, FIRST, lease.DRIVER)
    assert call("resume", ID)[:2] == (0, {"event": "resumed", "workflow": ID, "idle": [SECOND]})
    assert phases(session) == [Phase.WAITING, Phase.FAILED]
