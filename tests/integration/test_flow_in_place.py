"""ALTERs that the server does in the table itself: chosen where it proves them, once, and nobody queues behind them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import local_spark
from tests.support.flow import begin, call, command, definition, finish, let_go, paused_at, wait_reached, wait_until
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.planning import strategy
from vreplication.planning.plan import Plan, make_plan
from vreplication.planning.spec import Spec
from vreplication.progress import snapshot
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout, workflows
from vreplication.workflows import operate, stages
from vreplication.workflows.online_ddl import tasks
from vreplication.workflows.online_ddl.tasks import Stage

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
ADD = "ADD COLUMN z VARCHAR(9) NOT NULL DEFAULT 'x'"


@pytest.fixture
def app(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Beside a table that the online way refuses: it has a foreign key and a trigger."""
    monkeypatch.setenv("VREPLICATION_AUTO_STRATEGY", "instant")
    database.admin.execute_raw("CREATE TABLE p (id INT PRIMARY KEY) ENGINE=InnoDB")
    database.admin.execute_raw(
        "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a INT, CHECK (a < 99), CONSTRAINT own CHECK (a > -9),"
        " FOREIGN KEY (a) REFERENCES p (id)) ENGINE=InnoDB"
    )
    database.admin.execute_raw("CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = NEW.a")
    database.admin.execute_raw("INSERT INTO p VALUES (1)")
    database.admin.execute_raw("INSERT INTO t (a) VALUES (1),(1),(1)")
    with connect(database.app_url) as session:
        yield session


def plan_of(database: Database, alter: str, **more: str) -> Plan:
    with connect(database.url) as session:
        return make_plan(session, Spec(table="t", alter=alter, **more))  # type: ignore[arg-type]


def _is_waited_for(database: Database, workflow: str, words: str) -> bool:
    with connect(database.url) as session:
        found = snapshot.find(session, workflow)
    return found is not None and words in (found.waiting_for or "")


def test_a_plan_alone_makes_nothing_where_our_schema_is_missing(
    app: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "exists", lambda session: False)
    monkeypatch.setattr(strategy, "empty_copy", None)
    with connect(database.url) as session:
        made = make_plan(session, Spec(table="t", alter=ADD), is_dry=True)
    assert "tried when the run begins" in next(check.sentence for check in made.checks if check.name == "strategy")


def test_what_the_server_can_do_in_an_instant_it_does(
    app: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Watched(local_spark.LocalStart):
        def __init__(self, *_: Any, at_once: bool = True) -> None:
            started.extend(["at once"] * at_once)

        def is_starting(self) -> bool:
            started.append("asked for")
            return False

    monkeypatch.setattr("vreplication.workflows.online_ddl.run.SparkStart", Watched)
    made = plan_of(database, ADD)
    assert (made.strategy.name, made.refusals) == ("instant", ())
    assert "z" not in definition(app, "t")
    run = begin(database, "t", ADD)
    result = run.result()
    assert (result.event, result.strategy) == ("complete", "instant"), result
    assert started == []
    assert app.rows("SELECT id, a, z FROM t ORDER BY id") == [(1, 1, "x"), (2, 1, "x"), (3, 1, "x")]
    with connect(database.url) as session:
        assert "FOREIGN KEY" in definition(session, "t")
        assert [e["event"] for e in journal.read(session, run.workflow)] == [
            "strategy", "prepared", "gate reached", "switched", "complete",
        ]  # fmt: skip
        assert snapshot.read(session, run.workflow).strategy == "instant"
        sql = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME LIKE 'tried%%'"
        assert session.value(sql, (SIDECAR,)) == 0


def test_a_pause_that_comes_behind_the_gate_holds_the_alter(app: Session, database: Database, pauses: Path) -> None:
    """It was answered, and the table was altered all the same."""
    with paused_at(pauses, "workflow.gate_open"):
        run = begin(database, "t", ADD)
        wait_reached(pauses, "workflow.gate_open", run)
        operate.pause(database.url, run.workflow, "ann")
        let_go(pauses, "workflow.gate_open")
        wait_until(
            lambda: _is_waited_for(database, run.workflow, "paused") or not run.is_going,
            "it does not say that it waits",
        )
    assert "z" not in definition(app, "t")
    with connect(database.url) as session:
        workflows.set_paused(session, run.workflow, False)
    assert run.result().event == "complete"


@pytest.mark.parametrize(
    ("alter", "asked", "found"),
    [
        ("MODIFY a BIGINT", "auto", "online"),
        ("ADD INDEX i (a)", "auto", "online"),
        ("ADD INDEX i (a)", "inplace", "inplace"),
        ("ALTER a SET DEFAULT 3", "auto", "instant"),
        (f"{ADD}, ALGORITHM=COPY", "auto", "online"),
        ("COMMENT=''", "auto", "online"),
        ("DROP COLUMN z, ADD COLUMN z INT", "auto", "online"),
    ],
)
def test_what_is_chosen(app: Session, database: Database, alter: str, asked: str, found: str) -> None:
    """What leaves the definition as it was a resume could do twice, and lose what was written in between."""
    if "DROP" in alter:
        database.admin.execute_raw("ALTER TABLE t ADD COLUMN z INT")
    made = plan_of(database, alter, strategy=asked)
    assert made.strategy.name == found, made.strategy


def test_what_was_asked_for_and_cannot_be_is_refused_in_the_servers_words(app: Session, database: Database) -> None:
    result = begin(database, "t", "MODIFY a BIGINT", strategy="instant").result()
    assert (result.event, result.exit_code) == ("refused", 2)
    assert "ALGORITHM=INSTANT" in (result.reason or "")


@pytest.mark.only_on("mysql")
def test_a_table_that_bears_no_more_versions_is_told_by_the_plan(
    app: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        database.admin.execute_raw(f"ALTER TABLE t ADD COLUMN v{number} INT, ALGORITHM=INSTANT")
    from vreplication.planning import strategy

    assert plan_of(database, ADD).strategy.name == "instant"
    monkeypatch.setattr(strategy, "most_versions", lambda server: 3)
    assert plan_of(database, ADD).strategy.name == "online"


def test_who_blocks_is_named_and_nobody_queues_behind_us(app: Session, database: Database) -> None:
    with connect(database.app_url) as blocker, connect(database.app_url, read_timeout=30) as other:
        blocker.execute_raw("BEGIN")
        blocker.rows("SELECT * FROM t")
        run = begin(database, "t", ADD)
        wait_until(lambda: any(str(blocker.id) in word for word in run.said), "nobody is named")
        other.execute_raw("SET SESSION lock_wait_timeout=4")
        other.execute_raw("INSERT INTO t (a) VALUES (1)")
        blocker.execute_raw("COMMIT")
        assert run.result().event == "complete"


def test_a_manual_cut_over_holds_and_a_cancel_leaves_the_table(app: Session, database: Database) -> None:
    before = definition(app, "t")
    run = begin(database, "t", ADD, cutover="manual")
    wait_until(lambda: _is_waited_for(database, run.workflow, "release"), "it does not wait")
    assert definition(app, "t") == before
    operate.cancel(database.url, run.workflow, "ann")
    assert run.result().event == "cancelled"
    assert definition(app, "t") == before


def test_a_schedulers_stages(app: Session, database: Database) -> None:
    spec = Spec(table="t", alter=ADD, workflow="w", cutover="manual")
    stage = Stage(url=database.url, spec=spec, stop=threading.Event(), notify=lambda words: None)
    for _ in range(2):
        tasks.plan(stage)
        for name in ("prepare", "replicate", "copy", "verify", "gate"):
            tasks.TASKS[name](stage)
    tasks.verify_again(stage, lambda: True)
    assert "`z`" not in definition(app, "t")
    stages.release(stage, "ann")
    for _ in range(2):
        tasks.cut_over(stage)
    assert tasks.clean_up(stage).event == "complete"
    assert "`z`" in definition(app, "t")


@pytest.fixture
def hidden(database: Database, app: Session) -> Session:
    """Table u has a column that nothing shows and no copy has: an index for full text was there once."""
    database.admin.execute_raw("CREATE TABLE u (id INT PRIMARY KEY, a VARCHAR(30)) ENGINE=InnoDB")
    database.admin.execute_raw("INSERT INTO u VALUES (1,'a'),(2,'b')")
    database.admin.execute_raw("ALTER TABLE u ADD FULLTEXT INDEX f (a)")
    database.admin.execute_raw("ALTER TABLE u DROP INDEX f")
    return app


def _events(database: Database, workflow: str) -> dict[str, str]:
    with connect(database.url) as session:
        return {str(e["event"]): str(e["details"]) for e in journal.read(session, workflow)}


def test_what_the_table_refuses_goes_on_online_and_holds_again(
    hidden: Session, database: Database, pauses: Path
) -> None:
    """Ended twice meanwhile. It was released for an ALTER of a moment, and the cut-over is another thing."""
    spec = {"strategy": "auto", "cutover": "manual", "workflow": "w"}
    assert plan_of(database, ADD).strategy.name == "instant"
    with paused_at(pauses, "fallback.noted", "prepare.tables_made"):
        run = begin(database, "u", ADD, **spec)
        wait_until(lambda: _is_waited_for(database, "w", "release"), "it does not wait")
        operate.release(database.url, "w", "ann")
        for point in ("fallback.noted", "prepare.tables_made"):
            wait_reached(pauses, point, run)
            run.stop.set()
            let_go(pauses, point)
            assert run.result().event == "interrupted"
            run = begin(database, "u", ADD, **spec)
    wait_until(lambda: _is_waited_for(database, "w", "release"), "it does not wait again")
    assert "`z`" not in definition(hidden, "u")
    seen = call(database, "status", "w", "--json").last
    hidden.execute_raw("INSERT INTO u VALUES (3,'c')")
    operate.release(database.url, "w", "ann")
    result = run.result()
    assert (result.event, result.strategy, result.is_fallback) == ("complete", "online", True), result
    assert hidden.rows("SELECT id, a, z FROM u ORDER BY id") == [(1, "a", "x"), (2, "b", "x"), (3, "c", "x")]
    for words in (result.strategy_reason, seen["strategy_reason"], _events(database, "w")["fallback"]):
        assert "ALGORITHM=INSTANT is not supported" in str(words)


def test_what_the_table_refuses_and_was_asked_for_by_name_fails(hidden: Session, database: Database) -> None:
    result = begin(database, "u", ADD, strategy="instant").result()
    assert (result.event, result.strategy) == ("failed", "instant")
    assert "ALGORITHM=INSTANT is not supported" in (result.reason or "")
    assert "`z`" not in definition(hidden, "u")


def test_what_the_table_refuses_and_cannot_be_copied_says_both(hidden: Session, database: Database) -> None:
    database.admin.execute_raw("CREATE TRIGGER tu BEFORE INSERT ON u FOR EACH ROW SET NEW.a = NEW.a")
    result = begin(database, "u", ADD).result()
    assert result.event == "failed"
    assert "ALGORITHM=INSTANT is not supported" in (result.reason or "")
    assert "triggers" in (result.reason or "")


def test_a_schedulers_stages_where_the_table_refuses(
    hidden: Session, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SparkStart", local_spark.LocalStart)
    spec = Spec(table="u", alter=ADD, workflow="w")
    stage = Stage(url=database.url, spec=spec, stop=threading.Event(), notify=lambda words: None)
    tasks.plan(stage)
    for name in ("prepare", "replicate", "copy", "verify", "gate", "cut_over"):
        tasks.TASKS[name](stage)
    assert (tasks.clean_up(stage).event, definition(hidden, "u").count("`z`")) == ("complete", 1)


@pytest.mark.parametrize("point", ["in_place.before_alter", "in_place.sent", "in_place.altered"])
def test_a_kill_at_the_worst_moment_leaves_it_done_once(
    app: Session, database: Database, pauses: Path, point: str
) -> None:
    words = ("online-ddl", "--table", "t", "--alter", ADD, "--workflow", "w", "--json")
    held = "in_place.altered" if point == "in_place.altered" else "in_place.before_alter"
    with connect(database.app_url) as blocker, paused_at(pauses, held):
        process = command(database, *words)
        wait_reached(pauses, held)
        if point == "in_place.sent":
            # It is killed while its statement waits for the lock.
            blocker.execute_raw("BEGIN")
            blocker.rows("SELECT * FROM t")
            let_go(pauses, "in_place.before_alter")
            wait_until(lambda: _is_sent(database), "it is not sent")
        process.send_signal(signal.SIGKILL)
        process.wait()
        blocker.rollback()
    if point != "in_place.sent":
        assert ("`z`" in definition(app, "t")) == (point == "in_place.altered")
    if point == "in_place.altered":
        with pytest.raises(Refused, match=r"altered its table in place .* resume w"):
            operate.cancel(database.url, "w", "ann")
    app.execute_raw("UPDATE t SET a=NULL WHERE id=1")
    ended = finish(command(database, "resume", "w", "--json"))
    assert (ended.code, ended.last["strategy"]) == (0, "instant"), ended
    assert definition(app, "t").count("`z`") == 1
    with connect(database.url) as session:
        events = [e["event"] for e in journal.read(session, "w")]
    assert (events.count("switched"), events[-1]) == (1, "complete")


def _is_sent(database: Database) -> bool:
    return any("ALGORITHM=INSTANT" in str(row[7] or "") for row in database.admin.rows("SHOW FULL PROCESSLIST"))


def test_an_alter_of_somebody_elses_ends_it(app: Session, database: Database) -> None:
    run = begin(database, "t", ADD, cutover="manual")
    wait_until(lambda: _is_waited_for(database, run.workflow, "release"), "it does not wait")
    database.admin.execute_raw("ALTER TABLE t ADD COLUMN other INT")
    operate.release(database.url, run.workflow, "ann")
    result = run.result()
    assert result.event == "failed"
    assert "`z`" not in definition(app, "t")
