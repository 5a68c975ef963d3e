"""A move cut into stages that know nothing of one another but the workflow's id, as a scheduler runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import local_spark
from tests.support.flow import contents, wait_until
from tests.support.moving import ThreadStream, application, quick, route_of
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.errors import Interrupted
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import gate, moves, workflows
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import opening, tasks
from vreplication.workflows.move_tables.spec import make_move_spec
from vreplication.workflows.move_tables.stages import STAGES
from vreplication.workflows.move_tables.steps import Work
from vreplication.workflows.move_tables.tasks import MoveStage
from vreplication.workflows.stages import Ended

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick"), pytest.mark.either]

WORKFLOW = "m-staged"
T = "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40), KEY (n)) COLLATE utf8mb4_general_ci"


@pytest.fixture
def stage(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> MoveStage:
    monkeypatch.setattr(tasks, "SparkStart", local_spark.LocalStart)
    monkeypatch.setattr(tasks, "StreamProcess", ThreadStream)
    pair.source.admin.execute_raw(T)
    pair.source.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i * 7},'v{i}')" for i in range(1_000)))
    return stage_of(pair)


def stage_of(pair: Pair) -> MoveStage:
    """Each task of a scheduler has one of its own."""
    route, spec = route_of(pair), make_move_spec(tables=("t",), workflow=WORKFLOW)
    return MoveStage(url=route.home, route=route, spec=spec, stop=threading.Event(), notify=lambda text: None)


@pytest.fixture
def beside(stage: MoveStage) -> Iterator[Callable[..., Future[Any]]]:
    """Run a stage beside the others; a test that fails leaves none that goes on."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit
        stage.stop.set()


def is_serving(pair: Pair, side: Side, phase: Phase) -> bool:
    with connect(pair.target.url) as home:
        return moves.load(home, WORKFLOW).serving is side and workflows.load(home, WORKFLOW).phase is phase


def test_there_and_back_and_there_again_in_stages(
    stage: MoveStage, pair: Pair, beside: Callable[..., Future[Any]]
) -> None:
    """Each stage is called twice, as by somebody who clears its task; that of the way back is interrupted, too."""
    assert list(tasks.TASKS) == [one.name for one in STAGES]
    with application(pair) as app:
        assert tasks.plan(stage) is not None
        tasks.prepare_tables(stage)
        assert tasks.plan(stage) is None
        tasks.prepare_tables(stage)
        catch_up = beside(tasks.catch_up, stage)
        for _ in range(2):
            tasks.copy(stage)
            tasks.verify(stage)
            tasks.enter_gate(stage)
        tasks.verify_again(stage, lambda: False)
        assert is_serving(pair, Side.SOURCE, Phase.WAITING)
        tasks.release(stage, "a test")
        catch_up.result(60)
        tasks.switch(stage)
        tasks.switch(stage)
        tasks.catch_up(stage)
        assert is_serving(pair, Side.TARGET, Phase.SWITCHED)
        interrupted = stage_of(pair)
        level = beside(tasks.reverse_stream, interrupted)
        moves.ask(pair.target.admin, WORKFLOW, moves.REVERSE, "a test")
        wait_until(lambda: is_serving(pair, Side.SOURCE, Phase.WAITING), "it is not switched back")
        interrupted.stop.set()
        with pytest.raises(Ended) as ended:
            level.result(60)
        assert ended.value.may_retry
        # A task that is cleared now must not send the application to the target again.
        tasks.enter_gate(stage)
        tasks.release(stage, "auto")
        assert gate.released_by(pair.target.admin, WORKFLOW) is None
        tasks.switch(stage)
        assert is_serving(pair, Side.SOURCE, Phase.WAITING)
        level = beside(tasks.reverse_stream, stage)
        gate.release(pair.target.admin, WORKFLOW, "a test")
        wait_until(lambda: is_serving(pair, Side.TARGET, Phase.SWITCHED), "it is not switched again")
        moves.ask(pair.target.admin, WORKFLOW, moves.COMPLETE, "a test")
        level.result(60)
    result = tasks.clean_up(stage)
    assert result.event == "complete"
    assert tasks.clean_up(stage) == result
    app.check(pair.target.admin)
    assert len(contents(pair.source.admin, str(result.retired_table).rpartition(".")[2])) > 900


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_a_switch_that_is_cut_off_behind_its_decision_is_ended_by_the_task_called_again(
    stage: MoveStage, pair: Pair, beside: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is open, and nobody has told the application: there is no way but forward."""
    genuine = opening.tell

    def cut_off(work: Work) -> None:
        monkeypatch.setattr(opening, "tell", genuine)
        raise Interrupted("Interrupted.")

    monkeypatch.setattr(opening, "tell", cut_off)
    with application(pair) as app:
        tasks.prepare_tables(stage)
        catch_up = beside(tasks.catch_up, stage)
        tasks.copy(stage)
        tasks.verify(stage)
        tasks.enter_gate(stage)
        tasks.release(stage, "a test")
        catch_up.result(60)
        with pytest.raises(Ended) as ended:
            tasks.switch(stage)
        assert (ended.value.may_retry, moves.load(pair.target.admin, WORKFLOW).number) == (True, 1)
        tasks.switch(stage_of(pair))
        assert is_serving(pair, Side.TARGET, Phase.SWITCHED)
    app.check(pair.target.admin)


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_what_the_source_serves_is_not_completed(
    stage: MoveStage, pair: Pair, beside: Callable[..., Future[Any]]
) -> None:
    """By a scheduler in which somebody marks the task before as success: at the gate, switched, and switched back."""
    tasks.plan(stage)
    tasks.prepare_tables(stage)
    up = beside(tasks.catch_up, stage)
    for act in (tasks.copy, tasks.verify, tasks.enter_gate):
        act(stage)
    refuse_to_complete(pair, "source serves")
    tasks.release(stage, "a test")
    up.result(timeout=120)
    tasks.switch(stage)
    refuse_to_complete(pair, "Nobody has asked")
    back = stage_of(pair)
    level = beside(tasks.reverse_stream, back)
    moves.ask(pair.target.admin, WORKFLOW, moves.REVERSE, "a test")
    wait_until(lambda: is_serving(pair, Side.SOURCE, Phase.WAITING), "it is not switched back")
    back.stop.set()
    with pytest.raises(Ended):
        level.result(timeout=120)
    refuse_to_complete(pair, "source serves")
    with connect(pair.source.app_url) as app:
        app.execute_raw("INSERT INTO t VALUES (5001,1,'x')")


def refuse_to_complete(pair: Pair, words: str) -> None:
    before = workflows.load(pair.target.admin, WORKFLOW).phase
    with pytest.raises(Ended, match=words) as ended:
        tasks.clean_up(stage_of(pair))
    assert (ended.value.result.event, ended.value.may_retry) == ("refused", False)
    assert workflows.load(pair.target.admin, WORKFLOW).phase is before


def test_a_copy_without_catch_up_says_so_and_goes_on_later(
    stage: MoveStage, pair: Pair, beside: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.prepare_tables(stage)
    # For the first alone: the second waits for a catch-up that has just been begun.
    with monkeypatch.context() as patched:
        patched.setattr(tasks, "COPY_PATIENCE_SECONDS", 1.0)
        with pytest.raises(Ended) as ended:
            tasks.copy(stage)
    assert ended.value.lacks_catch_up
    catch_up = beside(tasks.catch_up, stage)
    tasks.copy(stage)
    tasks.verify(stage)
    stage.stop.set()
    with pytest.raises(Ended, match="stopped"):
        catch_up.result(60)
    with connect(pair.target.url) as home:
        assert workflows.load(home, WORKFLOW).phase is Phase.VERIFYING
