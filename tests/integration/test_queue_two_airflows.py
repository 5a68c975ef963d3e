"""Two Airflows that look at one queue: of each entry one of them begins the workflow, whatever the other one believes.

What must stay true: each of them knows its own runs only; what it has started, and not begun, the other one may take.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.rows import workflow_row
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.planning.spec import Spec
from vreplication.scheduler import due, queueing
from vreplication.settings import SIDECAR
from vreplication.state import queue, workflows
from vreplication.workflows.online_ddl import tasks
from vreplication.workflows.stages import Ended

pytestmark = pytest.mark.either
SAME_RUN = "airflow manual on shop"


class Airflow:
    """Its runs, by the ids of workflows, each as its records tell it."""

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name = session, name
        self.runs: dict[str, str] = {}

    def look(self) -> list[str]:
        """What it claims; each gets a run, which waits for a slot."""
        found = queueing.claim(
            self.session, 1, SAME_RUN, claimant=self.name, look_up=lambda e: self.runs.get(e.workflow, due.ABSENT)
        )
        for entry in found:
            self.runs.setdefault(entry.workflow, due.RUNNING)
        return [entry.workflow for entry in found]

    def begin(self, workflow: str) -> bool:
        """The run comes to its slot. False: it is refused."""
        row = workflow_row(workflow, phase=Phase.COPYING, source_schema=self.session.url.database, source_table="t")
        try:
            workflows.create(self.session, row, self.name)
        except Refused:
            self.runs[workflow] = due.RUN_FAILED
            return False
        return True


@pytest.fixture
def sessions(database: Database) -> Iterator[tuple[Session, Session]]:
    with connect(database.url) as one, connect(database.url) as two:
        yield one, two


@pytest.fixture
def airflows(sessions: tuple[Session, Session]) -> tuple[Airflow, Airflow]:
    one, two = sessions
    submit(one, "w1")
    return Airflow(one, "a"), Airflow(two, "b")


def submit(session: Session, workflow: str) -> None:
    given = {"table": "t", "alter": "ENGINE=InnoDB", "workflow": workflow}
    queueing.submit(session, queueing.make_entry(session.url.database, given), "ann")


def age(session: Session) -> None:
    session.execute(f"UPDATE {SIDECAR}.queue SET started_at = started_at - INTERVAL 6 MINUTE")


def entry(session: Session, workflow: str = "w1") -> tuple[str, str]:
    found = queue.find(session, workflow)
    assert found is not None
    return found.state, found.claimant


def test_runs_of_one_name_claim_an_entry_once(airflows: tuple[Airflow, Airflow]) -> None:
    """A claim that was cut short is told again to the same Airflow alone."""
    a, b = airflows
    assert (a.look(), b.look(), a.look()) == (["w1"], [], ["w1"])


def test_two_that_race_have_every_entry_once(session_pool: list[Airflow], database: Database) -> None:
    ready, claimed = threading.Barrier(len(session_pool)), []

    def look(one: Airflow) -> None:
        ready.wait(30)
        claimed.extend(one.look())

    with connect(database.url) as app:
        submit(app, "w1")
        threads = [threading.Thread(target=look, args=(one,)) for one in session_pool]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert claimed == ["w1"]
        assert [one.begin("w1") for one in session_pool].count(True) == 1


@pytest.fixture
def session_pool(database: Database) -> Iterator[list[Airflow]]:
    with contextlib.ExitStack() as opened:
        yield [Airflow(opened.enter_context(connect(database.url)), name) for name in "abcdefgh"]


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_stale_claim_is_taken_over_and_begun_once(airflows: tuple[Airflow, Airflow], first: str) -> None:
    """Whichever of the two runs comes to its slot first."""
    a, b = airflows
    assert a.look() == ["w1"]
    age(a.session)
    assert b.look() == ["w1"]
    order = (a, b) if first == "a" else (b, a)
    assert {one.name: one.begin("w1") for one in order} == {"a": False, "b": True}


def test_who_has_lost_it_fails_nothing_of_the_others(airflows: tuple[Airflow, Airflow]) -> None:
    """Its run was refused, which says nothing of the other one's, which waits for a slot still."""
    a, b = airflows
    a.look()
    age(a.session)
    b.look()
    assert not a.begin("w1")
    age(a.session)
    assert a.look() == []
    assert entry(a.session) == ("started", "b")
    assert b.begin("w1")


def test_what_was_put_back_is_begun_by_a_run_that_was_late(airflows: tuple[Airflow, Airflow]) -> None:
    """Unless somebody has claimed it meanwhile: then it is refused above."""
    a, _ = airflows
    a.look()
    queue.put_back(a.session, "w1")
    assert a.begin("w1")
    assert a.look() == []


def test_what_was_removed_is_not_begun(airflows: tuple[Airflow, Airflow]) -> None:
    a, _ = airflows
    a.look()
    age(a.session)
    queueing.remove(a.session, "w1", "ann")
    assert not a.begin("w1")


def test_the_stages_of_a_run_that_has_lost_it_are_refused(
    airflows: tuple[Airflow, Airflow], database: Database
) -> None:
    """Also once the workflow is under way: they would drive it beside the other one's."""
    a, b = airflows
    a.look()
    age(a.session)
    b.look()
    assert b.begin("w1")
    spec = Spec(table="t", alter="ENGINE=InnoDB", workflow="w1")
    stage = tasks.Stage(
        url=database.url, spec=spec, stop=threading.Event(), notify=lambda _: None, claimant="a"
    )  # fmt: skip
    for act in (tasks.plan, tasks.prepare_tables):
        with pytest.raises(Ended, match="Another Airflow has taken workflow w1") as ended:
            act(stage)
        assert (ended.value.result.event, ended.value.may_retry) == ("refused", False)
