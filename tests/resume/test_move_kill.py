"""kill -9 of a move of tables wherever it stands, on the way there and back: the same call goes on, and no write that
was accepted is missing on the side that serves in the end.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.flow import paused_at, pauses, wait_until
from tests.support.moving import ALL, Application, application, route_of
from tests.support.pairs import Pair, _pair_servers, pair
from tests.support.run_ddl import children
from tests.support.run_move import start
from vreplication.phases import Phase
from vreplication.state import moves, workflows
from vreplication.state.moves import Decision, Side

pytestmark = pytest.mark.either

__all__ = ["_pair_servers", "pair", "pauses"]

PREPARING = ("prepare.tables_made", "prepare.done", "copy.after_open", "copy.before_land", "workflow.verified")
SWITCHING = (
    "switch.denying", "deny.locked", "deny.table_denied", "switch.denied", "switch.released", "switch.marked",
    "switch.applied", "switch.fenced", "switch.compared", "switch.before_decided", "switch.deciding", "switch.decided",
    "switch.before_opened", "switch.opened", "switch.told", "switch.done",
)  # fmt: skip
IN_CATCH_UP = ("apply.before_flush", "replicate.holding")
DIRECTIONS = ("mysql-mariadb", "mariadb-mysql")
MOST_THERE = {"prepare.tables_made", "copy.after_open", "deny.table_denied", "switch.marked", "switch.decided"}
MOST_BACK = {"switch.applied", "switch.before_decided", "switch.before_opened", "switch.told", "complete.retired"}


def cases(points: Sequence[str], most: set[str], turn: int) -> list[ParameterSet]:
    """Each point in one direction, in turns."""
    chosen = [point for point in points if point in most or os.environ.get(ALL)]
    return [
        pytest.param(direction, point, id=f"{direction}-{point}")
        for i, point in enumerate(chosen)
        for direction in [DIRECTIONS[(i + turn) % 2]]
    ]


THERE = cases((*PREPARING, *SWITCHING, *IN_CATCH_UP), MOST_THERE, 0)
BACK = cases((*SWITCHING, *IN_CATCH_UP, "complete.retired"), MOST_BACK, 1)


def given(**more: object) -> dict[str, object]:
    return {"tables": ["t"], "workflow": f"k-{secrets.token_hex(4)}", **more}


def fill(pair: Pair) -> None:
    pair.source.admin.execute_raw(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40)) COLLATE utf8mb4_general_ci"
    )
    pair.source.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i},'v{i}')" for i in range(1_000)))


def kill(pair: Pair, spec: dict[str, object], folder: Path, point: str, ask: str | None = None) -> None:
    """Begin, or go on; kill -9 whoever reaches the point, the driver with it, and see that both are gone."""
    with paused_at(folder, point):
        process = start(route_of(pair), spec, folder)
        if ask:
            wait_until(lambda: moves.find(pair.target.admin, str(spec["workflow"])), "it does not begin")
            moves.ask(pair.target.admin, str(spec["workflow"]), ask, "a test")
        wait_at(process, folder, point)
        process.kill()
        process.communicate()


def wait_at(process: subprocess.Popen[str], folder: Path, point: str) -> int:
    """Until somebody stands at the point; returns which process."""
    mark = folder / f"{point}.reached"

    def is_there() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return mark.exists() and mark.read_text() != ""

    wait_until(is_there, f"nobody reached {point}")
    return int(mark.read_text())


def to_serving(pair: Pair, spec: dict[str, object], folder: Path, side: Side, app: Application) -> None:
    """The same call, until that side serves and takes the application's writes."""
    process = start(route_of(pair), spec, folder)
    try:
        wait_serving(pair, spec, process, side, app)
    finally:
        process.kill()
        process.communicate()


def wait_serving(
    pair: Pair, spec: dict[str, object], process: subprocess.Popen[str], side: Side, app: Application
) -> None:
    def serves() -> bool:
        assert process.poll() is None, process.communicate()[0]
        found = moves.find(pair.target.admin, str(spec["workflow"]))
        return found is not None and found.serving is side and found.decision is Decision.RUNNING

    wait_until(serves, f"{side} does not serve")
    before = app.accepted[side is Side.TARGET]
    wait_until(lambda: app.accepted[side is Side.TARGET] > before + 20, f"the application is stuck: {app.words}")


def to_the_end(pair: Pair, spec: dict[str, object], folder: Path) -> None:
    moves.ask(pair.target.admin, str(spec["workflow"]), moves.COMPLETE, "a test")
    out = start(route_of(pair), spec, folder).communicate(timeout=180)[0]
    assert workflows.load(pair.target.admin, str(spec["workflow"])).phase is Phase.COMPLETE, out


@pytest.mark.parametrize(("pair", "point"), THERE, indirect=["pair"])
def test_killed_on_the_way_there(pair: Pair, point: str, pauses: Path) -> None:
    fill(pair)
    spec = given()
    with application(pair) as app:
        kill(pair, spec, pauses, point)
        to_serving(pair, spec, pauses, Side.TARGET, app)
        app.end()
        app.check(pair.target.admin)
        to_the_end(pair, spec, pauses)
    app.check(pair.target.admin)


@pytest.mark.parametrize(("pair", "point"), BACK, indirect=["pair"])
def test_killed_on_the_way_back(pair: Pair, point: str, pauses: Path) -> None:
    fill(pair)
    spec = given()
    with application(pair) as app:
        to_serving(pair, spec, pauses, Side.TARGET, app)
        if point == "complete.retired":
            kill(pair, spec, pauses, point, moves.COMPLETE)
            app.end()
        else:
            kill(pair, spec, pauses, point, moves.REVERSE)
            moves.ask(pair.target.admin, str(spec["workflow"]), moves.REVERSE, "a test")
            to_serving(pair, spec, pauses, Side.SOURCE, app)
            app.end()
            app.check(pair.source.admin)
            return
        to_the_end(pair, spec, pauses)
    app.check(pair.target.admin)


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_spark_workers_killed(pair: Pair, pauses: Path) -> None:
    """One with rows written and not committed, one that compares: Spark starts others, and the command goes on."""
    fill(pair)
    spec = given(chunk_rows=300)
    with application(pair) as app:
        with paused_at(pauses, "verify.comparing"):
            with paused_at(pauses, "copy.before_land"):
                process = start(route_of(pair), spec, pauses, is_spark=True)
                kill_worker(process, pauses, "copy.before_land", app)
            kill_worker(process, pauses, "verify.comparing", app)
        wait_serving(pair, spec, process, Side.TARGET, app)
        app.end()
        app.check(pair.target.admin)
        moves.ask(pair.target.admin, str(spec["workflow"]), moves.COMPLETE, "a test")
        out = process.communicate(timeout=180)[0]
    assert process.returncode == 0, out
    assert "differ" not in out, out


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
@pytest.mark.parametrize("point", ["copy.before_land", *["verify.comparing"] * bool(os.environ.get(ALL))])
def test_sparks_jvm_killed(pair: Pair, pauses: Path, point: str) -> None:
    """The command ends, the source serves, and the same command goes on."""
    fill(pair)
    spec = given(chunk_rows=300)
    with application(pair) as app:
        with paused_at(pauses, point):
            process = start(route_of(pair), spec, pauses, is_spark=True)
            wait_at(process, pauses, point)
            for jvm in (child for child in children(process.pid) if is_java(child)):
                os.kill(jvm, signal.SIGKILL)
            out = process.communicate(timeout=180)[0]
        assert process.returncode == 1, out
        assert "resume" in out, out
        to_serving(pair, spec, pauses, Side.TARGET, app)
        app.end()
        app.check(pair.target.admin)
        to_the_end(pair, spec, pauses)
    app.check(pair.target.admin)


def kill_worker(process: subprocess.Popen[str], folder: Path, point: str, app: Application) -> None:
    """Behind more writes of the application, which whoever comes in its place has to find."""
    worker = wait_at(process, folder, point)
    assert worker != process.pid
    before = app.accepted[False]
    wait_until(lambda: app.accepted[False] > before + 20, f"the application is stuck: {app.words}")
    os.kill(worker, signal.SIGKILL)


def is_java(pid: int) -> bool:
    return "java" in Path(f"/proc/{pid}/exe").resolve().name
