"""XA branches that are prepared when the workflow begins, while it copies, and when it wants to switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from race_setup import Race

from vreplication.mysql.session import Session, connect
from vreplication.state import workflows
from vreplication.workflows.online_ddl import prepare

pytestmark = pytest.mark.either

BRANCH = "'branch','b',1"
NAMED = "X'6272616e6368'"
"""'branch', as the reasons of the workflow name it."""


@pytest.fixture
def branch(race: Race) -> Iterator[Session]:
    """The connection that a branch belongs to."""
    race.make()
    with connect(race.database.app_url) as session:
        yield session


def prepare_branch(session: Session) -> None:
    """One row more, and one changed."""
    session.execute_raw(f"XA START {BRANCH}")
    session.execute_raw("INSERT INTO t VALUES (55,'of the branch',0)")
    session.execute_raw("UPDATE t SET v='of the branch' WHERE id=150")
    session.execute_raw(f"XA END {BRANCH}")
    session.execute_raw(f"XA PREPARE {BRANCH}")


def outcome(race: Race) -> list[object]:
    return [row[0] for row in race.app.rows("SELECT v FROM t WHERE id IN (55,150) ORDER BY id")]


COMMITTED: list[object] = ["of the branch", "of the branch"]
ROLLED_BACK: list[object] = ["v15"]
ENDS = {"COMMIT": COMMITTED, "ROLLBACK": ROLLED_BACK}


def test_prepared_before_the_start_is_refused_by_name(race: Race, branch: Session) -> None:
    prepare_branch(branch)
    run = race.begin(xa_wait_seconds=0.5)
    result = run.result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    assert NAMED in (result.reason or "")
    assert race.ours() == []
    with connect(race.database.url) as session:
        assert workflows.find(session, run.workflow) is None
    branch.execute_raw(f"XA ROLLBACK {BRANCH}")


@pytest.mark.parametrize("end", ENDS)
def test_prepared_before_the_start_and_ended_meanwhile(race: Race, branch: Session, end: str) -> None:
    prepare_branch(branch)
    with race.held("prepare.tables_made") as run:
        pass
    race.said(run, f"waiting for XA branch {NAMED}")
    branch.execute_raw(f"XA {end} {BRANCH}")
    race.complete(run)
    assert outcome(race) == ENDS[end]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("point", ["prepare.done", "copy.after_select", "workflow.copied"])
@pytest.mark.in_turn
def test_prepared_during_the_workflow_and_ended_after_the_copy(
    race: Race, branch: Session, end: str, point: str
) -> None:
    """The headline: of a branch that is rolled back neither the inserted row nor the changed value stays."""
    with race.held(point, copy_path="rows") as run:
        prepare_branch(branch)
    said = race.waiting_for(run, "XA COMMIT or XA ROLLBACK")
    assert NAMED in said or "'branch'" in said
    branch.execute_raw(f"XA {end} {BRANCH}")
    race.complete(run)
    assert outcome(race) == ENDS[end]


@pytest.mark.parametrize("end", ENDS)
def test_prepared_and_ended_while_a_chunk_is_open(race: Race, branch: Session, end: str) -> None:
    with race.held("copy.after_select", copy_path="rows") as run:
        prepare_branch(branch)
        race.applied(run)
        branch.execute_raw(f"XA {end} {BRANCH}")
        race.applied(run)
    race.complete(run)
    assert outcome(race) == ENDS[end]


@pytest.mark.parametrize("end", ENDS)
def test_a_branch_without_its_connection_ends_behind_the_gate(race: Race, branch: Session, end: str) -> None:
    """MariaDB lets LOCK TABLES through then; its rows must not get lost in the retired table."""
    with race.held("copy.after_open") as run:
        prepare_branch(branch)
        branch.close()
    race.waiting_for(run, "XA")
    race.end_branch(f"XA {end} {BRANCH}")
    race.complete(run)
    assert outcome(race) == ENDS[end]


@pytest.mark.parametrize("end", ENDS)
def test_a_branch_that_is_prepared_when_the_gate_has_opened(race: Race, branch: Session, end: str) -> None:
    """LOCK TABLES waits for it, or the barrier finds it: no cut-over before its outcome is applied."""
    with race.held("workflow.gate_open") as run:
        prepare_branch(branch)
    race.said(run, "cut-over not done")
    assert not [line for line in run.said if "Traceback" in line]
    branch.execute_raw(f"XA {end} {BRANCH}")
    race.complete(run)
    assert outcome(race) == ENDS[end]


def test_the_commit_of_an_unknown_branch_ends_the_workflow(
    race: Race, branch: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19: prepared before the start, and XA RECOVER did not list it."""
    prepare_branch(branch)
    monkeypatch.setattr(prepare, "prepared_branches", lambda *_, **__: [])
    with race.held("copy.after_open") as run:
        branch.execute_raw(f"XA COMMIT {BRANCH}")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert NAMED in (result.reason or "")
    assert outcome(race) == COMMITTED
