"""A try of `prepare` that stands still between its plan and its lease, and goes on when another one has taken over; and
one that is killed in between.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import local_spark, staged
from tests.support.flow import quick, wait_until
from tests.support.moving import ThreadStream, route_of
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.settings import Tuning
from vreplication.state import gate, lease, moves, tuning, workflows
from vreplication.workflows import operate
from vreplication.workflows.move_tables import run as moving
from vreplication.workflows.move_tables import tasks as move_tasks
from vreplication.workflows.move_tables.spec import make_move_spec
from vreplication.workflows.move_tables.tasks import MoveStage
from vreplication.workflows.online_ddl import run, tasks
from vreplication.workflows.stages import Ended, release

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [pytest.mark.usefixtures("quick")]

WORKFLOW = staged.WORKFLOW


def stands_still(monkeypatch: pytest.MonkeyPatch, of: Any, meanwhile: Callable[[], None]) -> None:
    """The next stage of `of` that takes the lease does so when `meanwhile` is done."""
    known = of.driven

    def late(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(of, "driven", known)
        meanwhile()
        return known(*args, **more)

    monkeypatch.setattr(of, "driven", late)


@contextlib.contextmanager
def beside(catch_up: Callable[[Any], None], stage: Any) -> Iterator[Callable[[], None]]:
    """Catch-up in a thread from the call on; seen to its end."""
    with ThreadPoolExecutor(1) as pool:
        begun = []
        try:
            yield lambda: begun.append(pool.submit(catch_up, stage))
            begun[0].result(60)
        except BaseException:
            stage.stop.set()
            raise


@pytest.mark.either
def test_an_online_ddl_that_is_at_the_gate_by_then(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dropped the complete copy, and forgot the workflow."""
    stage = staged.make(database, monkeypatch)
    with beside(tasks.catch_up, stage) as begin_catch_up:

        def second() -> None:
            tasks.prepare_tables(stage)
            begin_catch_up()
            for act in (tasks.copy, tasks.verify, tasks.enter_gate):
                act(stage)

        stands_still(monkeypatch, tasks, second)
        tasks.prepare_tables(stage)
        with connect(database.url) as session:
            assert workflows.load(session, WORKFLOW).phase is Phase.WAITING
        release(stage, "a test")
    tasks.cut_over(stage)
    assert tasks.clean_up(stage).event == "complete"
    with connect(database.app_url) as app:
        assert app.value("SELECT COUNT(*) FROM t WHERE w = 7") == 5


@pytest.mark.either
def test_an_online_ddl_that_was_only_begun_anew_by_then(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have written the row: it is the second's, whose plan the first has not seen."""
    stage = staged.make(database, monkeypatch)
    plans: list[Any] = []
    stands_still(monkeypatch, tasks, lambda: plans.append(run.plan_or_resume(stage.spec, stage.url, stage.stop)))
    with pytest.raises(Ended, match="begun anew by another process") as ended:
        tasks.prepare_tables(stage)
    assert ended.value.may_retry
    with connect(database.url) as session:
        row = workflows.load(session, WORKFLOW)
        assert (row.created_at, row.phase, row.shadow_identity) == (plans[0].begun_at, Phase.PREPARING, None)
    tasks.prepare_tables(stage)
    with connect(database.url) as session:
        assert workflows.load(session, WORKFLOW).rows_total == 5


@pytest.fixture
def move(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> MoveStage:
    monkeypatch.setattr(move_tasks, "SparkStart", local_spark.LocalStart)
    monkeypatch.setattr(move_tasks, "StreamProcess", ThreadStream)
    pair.source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB")
    pair.source.admin.execute_raw("INSERT INTO t VALUES (1),(2),(3)")
    route, spec = route_of(pair), make_move_spec(tables=("t",), workflow=WORKFLOW)
    return MoveStage(url=route.home, route=route, spec=spec, stop=threading.Event(), notify=lambda text: None)


BOTH = pytest.mark.parametrize("pair", ["mariadb-mariadb", "mysql-mysql"], indirect=True)


@BOTH
def test_a_move_that_is_at_the_gate_by_then(move: MoveStage, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pair.target.admin
    with beside(move_tasks.catch_up, move) as begin_catch_up:

        def second() -> None:
            move_tasks.prepare_tables(move)
            begin_catch_up()
            for act in (move_tasks.copy, move_tasks.verify, move_tasks.enter_gate):
                act(move)

        stands_still(monkeypatch, move_tasks, second)
        move_tasks.prepare_tables(move)
        assert workflows.load(home, WORKFLOW).phase is Phase.WAITING
        move_tasks.release(move, "a test")
    move_tasks.switch(move)
    assert moves.load(home, WORKFLOW).serving is moves.Side.TARGET
    assert home.value("SELECT COUNT(*) FROM t") == 3


@BOTH
def test_a_move_that_was_only_begun_anew_by_then(move: MoveStage, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    stands_still(monkeypatch, move_tasks, lambda: plans.append(moving.plan_or_resume(move.spec, move.route)))
    with pytest.raises(Ended, match="begun anew by another process") as ended:
        move_tasks.prepare_tables(move)
    assert ended.value.may_retry
    row = workflows.load(pair.target.admin, WORKFLOW)
    assert (row.created_at, row.phase, row.shadow_identity) == (plans[0].begun_at, Phase.PREPARING, None)
    move_tasks.prepare_tables(move)
    assert workflows.load(pair.target.admin, WORKFLOW).rows_total == 3


class Killed(BaseException):
    """Nothing is done about it."""


@contextlib.contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> Iterator[None]:
    """Inside the block whoever calls this function of `of` is killed there."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(of, name, killed)
        with pytest.raises(Killed):
            yield


def ask(session: Session) -> None:
    """What operators may ask before anything is copied."""
    operate.release(session.url, WORKFLOW, "ann")
    operate.pause(session.url, WORKFLOW, "ann")
    tuning.ask(session, WORKFLOW, Tuning(chunk_millis=77))


def check_asked(session: Session) -> None:
    row = workflows.load(session, WORKFLOW)
    asked = gate.released_by(session, WORKFLOW), row.is_paused, tuning.read(session, WORKFLOW).chunk_millis
    assert asked == ("ann", True, 77)


def wait_dead(session: Session) -> None:
    wait_until(lambda: not lease.is_alive(session, WORKFLOW, lease.DRIVER), "its connections stay")


@pytest.mark.either
def test_what_was_asked_of_an_online_ddl_outlives_kills(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while its preparation was begun again, it had forgotten its row, and with it a release and a pause."""
    stage = staged.make(database, monkeypatch)
    run.plan_or_resume(stage.spec, stage.url, stage.stop)
    with connect(database.url) as session:
        ask(session)
        with dying(monkeypatch, run, "make_plan"):
            run.plan_or_resume(stage.spec, stage.url, stage.stop)
        wait_dead(session)
        tasks.prepare_tables(stage)
        check_asked(session)


@BOTH
def test_what_was_asked_of_a_move_outlives_kills(move: MoveStage, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a move it was lost as soon as its preparation was begun again."""
    moving.plan_or_resume(move.spec, move.route)
    with connect(move.url) as home:
        ask(home)
        with dying(monkeypatch, moving, "checked_plan"):
            moving.plan_or_resume(move.spec, move.route)
        wait_dead(home)
        move_tasks.prepare_tables(move)
        check_asked(home)
        assert workflows.load(home, WORKFLOW).phase is Phase.PREPARING


@BOTH
def test_a_move_that_was_killed_while_its_rows_were_written(
    move: MoveStage, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own command, resume and cancel said from then on that it moves no tables to this server."""
    with dying(monkeypatch, moves, "create"):
        moving.plan_or_resume(move.spec, move.route)
    move_tasks.prepare_tables(move)
    assert workflows.load(pair.target.admin, WORKFLOW).rows_total == 3
