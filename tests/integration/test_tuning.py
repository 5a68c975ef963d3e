"""A running copy that is told to work harder or less hard: what it does, at once and without a restart."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from rowcopy_setup import WORKFLOW, Background, CopyCase, Held, make_case

from sandbox.databases import Database
from tests.support import local_spark
from tests.support.flow import begin, let_go, paused_at, wait_reached, wait_until
from tests.support.rows import make_feed
from vreplication import masking
from vreplication.cli import main, options
from vreplication.engine import effort, job
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.rowcopy import spark_job
from vreplication.rowcopy.spark_job import run_copy
from vreplication.settings import SIDECAR, Tuning
from vreplication.state import journal, layout, ledger, tuning, workflows

pytestmark = pytest.mark.either

FILL = (
    "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i, i FROM n",
    *(f"INSERT INTO t SELECT id + {1000 << k}, v FROM t" for k in range(4)),
)


@pytest.fixture
def case(database: Database) -> CopyCase:
    return make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=FILL)


def sizes(case: CopyCase) -> list[int]:
    sql = f"SELECT rows_read FROM {SIDECAR}.chunk WHERE workflow=%s ORDER BY ordinal"
    return [int(rows) for (rows,) in case.session.rows(sql, (WORKFLOW,))]


def test_another_chunk_time_holds_from_the_next_chunk_on(case: CopyCase, held: Held) -> None:
    """With a minute a chunk, each is twice the one before; with 10 ms they come to stand far below that."""
    case.cut()
    held.hold("copy.after_land")
    copying = Background(lambda: case.copy(0, chunk_millis=10))
    held.wait("copy.after_land")
    tuning.ask(case.session, WORKFLOW, Tuning(chunk_millis=60_000))
    held.let_go("copy.after_land")
    assert copying.result().error is None
    first, opened, *rest, _tail = sizes(case)
    assert first == 2_000
    assert rest == [opened << n for n in range(1, len(rest) + 1)]
    assert rest
    case.assert_same()


def test_a_split_that_begins_is_sized_by_what_is_asked_for(case: CopyCase) -> None:
    first, second = case.cut(2)
    assert case.copy(first.number, chunk_millis=60_000).error is None
    tuning.ask(case.session, WORKFLOW, Tuning(chunk_millis=10))
    case.session.execute(f"UPDATE {SIDECAR}.chunk SET millis=60000, rows_read=60000")
    assert case.copy(second.number, chunk_millis=60_000).error is None
    assert case.chunks(second.number)[0].rows_copied == 2_000


@pytest.mark.spark
@pytest.mark.slow
def test_tasks_come_and_go_as_is_asked_for(spark: Any, case: CopyCase) -> None:
    """The gate is shut, so that all stand: one task, then two, then one; then it opens, and nothing is missing."""
    splits = case.cut(4)
    case.is_open = False
    seen: list[int] = []
    steps: Iterator[Callable[[], None]] = iter((
        lambda: tuning.ask(case.session, WORKFLOW, Tuning(copy_parallelism=2)),
        lambda: tuning.ask(case.session, WORKFLOW, Tuning(copy_parallelism=1)),
        lambda: setattr(case, "is_open", True),
    ))  # fmt: skip

    def look() -> None:
        running = len(spark.statusTracker().getActiveJobsIds())
        claimed = case.session.value(f"SELECT COUNT(*) FROM {SIDECAR}.split WHERE attempt > 0")
        if not case.is_open and running and claimed >= running and seen[-1:] != [running]:
            seen.append(running)
            next(steps)()

    with case.gate_kept_open():
        run_copy(
            spark, case.route, case.driver, case.mapping, case.job(copy_parallelism=1), on_tick=look,
            asked=lambda: tuning.read(case.session, WORKFLOW), tick_seconds=0.05,
        )  # fmt: skip
    assert seen == [1, 2, 1]
    assert ledger.totals(case.session, WORKFLOW).splits_done == len(splits)
    assert sorted(s.attempt for s in ledger.splits(case.session, WORKFLOW)) == [1, 1, 1, 2]
    case.assert_same()


def test_what_a_job_has_not_begun_in_its_time_is_given_back(case: CopyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there is work for a task that is added later."""
    monkeypatch.setattr(pyspark, "InheritableThread", threading.Thread)
    monkeypatch.setattr(spark_job, "JOB_SECONDS", -1.0)
    splits, spark = case.cut(8), local_spark.LocalSpark()
    jobs: list[int] = []
    parallelize = spark.parallelize

    def counted(items: Any, count: int = 1) -> Any:
        jobs.append(len(pickle.loads(items[0])[1]))
        return parallelize(items, count)

    monkeypatch.setattr(spark, "parallelize", counted)
    with case.gate_kept_open():
        run_copy(spark, case.route, case.driver, case.mapping, case.job(copy_parallelism=1), on_tick=lambda: None)  # type: ignore[arg-type]
    assert jobs == [4, 4, 3, 3, 2, 2, 1, 1]
    assert [s.attempt for s in ledger.splits(case.session, WORKFLOW)] == [1] * len(splits)
    case.assert_same()


def test_a_task_too_many_leaves_no_chunk_open(case: CopyCase, held: Held) -> None:
    case.cut()
    held.hold("copy.after_open")
    copying = Background(lambda: copy_as_second(case))
    held.wait("copy.after_open")
    tuning.ask(case.session, WORKFLOW, Tuning(copy_parallelism=1))
    held.let_go("copy.after_open")
    assert not copying.result().is_done
    assert [c.state for c in case.chunks()] == ["landed"]
    assert not ledger.splits(case.session, WORKFLOW)[0].is_done
    assert case.copy(0).error is None
    case.assert_same()


def copy_as_second(case: CopyCase) -> Any:
    from vreplication.rowcopy.chunker import Terms, copy_split

    given = (case.route, case.driver, case.mapping, case.job(chunk_rows=500), 0)
    with case.gate_kept_open():
        return copy_split(*given, Terms(seat=2))


# -- the whole flow, and the acts


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        for statement in FILL:
            session.execute_raw(statement)
        yield session


@pytest.mark.usefixtures("quick")
def test_a_running_workflow_takes_on_more_tasks(app: Session, database: Database, pauses: Path) -> None:
    with paused_at(pauses, "copy.before_open"), connect(database.url) as session:
        run = begin(database, "t", "ADD COLUMN z INT", copy_parallelism=1)
        wait_reached(pauses, "copy.before_open", run)
        # A single task cuts the table into eight.
        assert claimed(session) == 1
        said = effort.tune(database.url, run.workflow, "ann", {"copy_parallelism": 3, "chunk_millis": 200})
        assert said.startswith("Set: 3 copying tasks at a time, 200 ms a chunk. ")
        assert "starts within seconds" in said
        wait_until(lambda: claimed(session) == 3, "no more tasks begin")
        assert job.load(session, run.workflow).limits.chunk_millis == 200
        assert tuning.room(session, run.workflow).slots == 64
        entry = next(e for e in journal.read(session, run.workflow) if e["event"] == "tuned")
        assert (entry["actor"], entry["details"]) == (
            "ann", "copying tasks at a time: 3 (was 1), time of a chunk: 200 ms (was 500 ms)",
        )  # fmt: skip
        let_go(pauses, "copy.before_open")
    assert run.result().event == "complete"
    with pytest.raises(Refused, match=r"copies no more \(complete\)"):
        effort.tune(database.url, run.workflow, "ann", {"copy_parallelism": 2})


def claimed(session: Session) -> int:
    return int(session.value(f"SELECT COUNT(*) FROM {SIDECAR}.split WHERE attempt > 0"))


def cli(database: Database, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setenv(options.SOURCE, str(database.url))
    monkeypatch.setenv(options.PASSWORD, database.url.password)
    try:
        return main.run(["tune", WORKFLOW, *words])
    finally:
        masking.forget()


def test_the_command(
    case: CopyCase, database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case.session.execute(f"UPDATE {SIDECAR}.workflow SET spec=%s", (json.dumps({"table": "t", "alter": "x"}),))
    assert cli(database, monkeypatch, "--copy-parallelism", "4") == 0
    assert "Set: 4 copying tasks at a time." in capsys.readouterr().out
    assert cli(database, monkeypatch, "--chunk-millis", "50", "--json") == 0
    told = {"event": "tuned", "workflow": WORKFLOW, "copy_parallelism": None, "chunk_millis": 50}
    assert json.loads(capsys.readouterr().out) == told
    assert tuning.read(case.session, WORKFLOW) == Tuning(copy_parallelism=4, chunk_millis=50)
    assert {e["event"] for e in journal.read(case.session, WORKFLOW)} == {"tuned"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Nothing to set is given."),
        (["--copy-parallelism", "0"], "copy_parallelism: it has to be at least 1."),
        (["--copy-parallelism", "65"], "copy_parallelism: it has to be at most 64."),
        (["--chunk-millis", "9"], "chunk_millis: it has to be at least 10."),
        (["--chunk-millis", "x"], "has to be a whole number"),
        (["--chunk-millis", "100"], "fixed at 700 rows"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_changes_nothing(
    words: list[str],
    sentence: str,
    case: CopyCase,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = {"table": "t", "alter": "x", "chunk_rows": 700}
    case.session.execute(f"UPDATE {SIDECAR}.workflow SET spec=%s", (json.dumps(spec),))
    assert cli(database, monkeypatch, *words) == 2
    assert sentence in capsys.readouterr().err
    assert tuning.read(case.session, WORKFLOW) == Tuning()
    assert journal.read(case.session, WORKFLOW) == []


def test_a_feed_has_nothing_to_tune(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(database.url) as session:
        layout.install(session)
        make_feed(session, WORKFLOW, database.name)
        assert cli(database, monkeypatch, "--chunk-millis", "100") == 2
        assert f"{WORKFLOW} is a change feed, and copies nothing that could be tuned." in capsys.readouterr().err
        assert journal.read(session, WORKFLOW) == []


def test_a_sidecar_of_an_earlier_release_gets_the_table(case: CopyCase, database: Database) -> None:
    case.session.execute(f"UPDATE {SIDECAR}.workflow SET spec=%s", (json.dumps({"table": "t", "alter": "x"}),))
    for table in ("tuning", "history"):
        case.session.execute_raw(f"DROP TABLE {SIDECAR}.{table}")
    said = effort.tune(database.url, WORKFLOW, "ann", {"copy_parallelism": 3})
    assert said.startswith("Set: 3 copying tasks")
    layout.complete(case.session)
    assert workflows.load(case.session, WORKFLOW).phase is Phase.COPYING
