"""The queue on real servers: put in, listed, removed, claimed once by schedulers side by side."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.rows import make_feed, make_move, workflow_row
from vreplication import masking
from vreplication.cli import main, options
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.scheduler import due, queueing
from vreplication.settings import SIDECAR
from vreplication.state import journal, layout, lease, queue, workflows

pytestmark = pytest.mark.either

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        yield opened


@pytest.fixture
def command(database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> Iterator[Any]:
    """`vreplication …` in this process: (exit code, JSON lines, standard error)."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def call(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setenv(options.SOURCE, str(database.url))
        monkeypatch.setenv(options.PASSWORD, database.url.password)
        monkeypatch.setenv(options.TARGET, str(database.url))
        monkeypatch.setenv(options.TARGET_PASSWORD, database.url.password)
        code = main.run([*words, "--json"])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    yield call
    masking.forget()


def submit(session: Session, workflow: str, **more: Any) -> None:
    given = {"table": f"t_{workflow}", "alter": "ENGINE=InnoDB", "workflow": workflow, **more}
    queueing.submit(session, queueing.make_entry(session.url.database, given), "ann")


def begin(session: Session, workflow: str, phase: Phase = Phase.COPYING, table: str = "") -> None:
    """A workflow's row, as prepare makes it."""
    layout.install(session)
    table = table or f"t_{workflow}"
    row = workflow_row(workflow, phase=phase, source_schema=session.url.database, source_table=table)
    workflows.create(session, row)


def claim(session: Session, concurrency: int = 1, by: str = "s1", **more: Any) -> list[str]:
    return [e.workflow for e in queueing.claim(session, concurrency, by, **more)]


def listed(session: Session) -> dict[str, str]:
    return {s.entry.workflow: s.state for s in due.standings(queueing.look(session))}


def age(session: Session, **minutes: int) -> None:
    """Make entries look as if they had been started earlier."""
    for workflow, n in minutes.items():
        session.execute(
            f"UPDATE {SIDECAR}.queue SET started_at = started_at - INTERVAL %s MINUTE WHERE workflow=%s", (n, workflow)
        )


def test_submit_list_remove_by_the_command_line(command: Any, session: Session) -> None:
    ddl = ("submit", "--table", "orders", "--alter", "ADD x INT", "--workflow", "w1")
    assert command(*ddl, "--priority", "3", "--not-before", "2999-01-01T00:00:00Z", "--chunk-rows", "7")[:2] == (
        0,
        [{"event": "submitted", "workflow": "w1"}],
    )
    code, _, words = command(*ddl)
    assert (code, words) == (2, "vreplication: Workflow w1 has been submitted before. Choose another id.\n")
    code, lines, _ = command("queue")
    [line] = lines
    assert (code, line.pop("submitted_at") is not None, line.pop("submitted_by") != "") == (0, True, True)
    assert line == {
        "workflow": "w1", "kind": "online_ddl", "table": f"{session.url.database}.orders", "alter": "ADD x INT",
        "state": "waiting", "moved": False,
        "not_before": "2999-01-01T00:00:00Z", "after": None, "priority": 3, "why": "scheduled for 2999-01-01T00:00:00Z",
        "source_conn_id": None, "started_at": None,
    }  # fmt: skip
    assert command("queue", "--remove", "w1")[:2] == (0, [{"event": "removed", "workflow": "w1"}])
    assert listed(session) == {"w1": "cancelled"}
    assert command("queue", "--remove", "w1")[0] == 2
    assert command(*ddl)[0] == 2
    assert [e["event"] for e in journal.read(session, "w1")] == ["submitted", "removed from the queue"]


def test_a_waiting_one_is_moved_and_started_at_its_new_place(command: Any, session: Session) -> None:
    """Also over one of a greater priority, which stays what it was: files are compared with it."""
    for name, priority in (("w1", 0), ("w2", 0), ("w3", 5)):
        submit(session, name, priority=priority)
    assert list(listed(session)) == ["w3", "w1", "w2"]
    assert command("queue", "--first", "w2")[:2] == (0, [{"event": "moved", "workflow": "w2"}])
    assert command("queue", "--later", "w3")[0] == 0
    code, lines, _ = command("queue")
    assert [(line["workflow"], line["priority"], line["moved"]) for line in lines] == [
        ("w2", 0, True), ("w1", 0, True), ("w3", 5, False),
    ]  # fmt: skip
    code, _, words = command("queue", "--earlier", "w2")
    assert (code, words) == (2, "vreplication: Workflow w2 is the first one that waits already.\n")
    code, _, words = command("queue", "--earlier", "w1", "--remove", "w1")
    assert (code, words) == (2, "vreplication: --remove and --earlier are two acts. Give one of them at a time.\n")
    assert claim(session) == ["w2"]
    assert command("queue", "--earlier", "w2")[0] == 2
    told = [(e["event"], e["details"]) for e in journal.read(session, "w2")]
    assert ("moved in the queue", "first: place 1 of 3") in told
    # What somebody has begun by hand is no place of the queue any more.
    begin(session, "w3")
    submit(session, "w4")
    assert command("queue", "--earlier", "w4")[0] == 0
    assert [name for name in listed(session) if name in ("w1", "w4")] == ["w4", "w1"]


def test_a_queue_of_an_earlier_release_is_read_and_moved_in(session: Session) -> None:
    for name in ("w1", "w2"):
        submit(session, name)
    session.execute_raw(f"DROP TABLE {SIDECAR}.queue_place")
    assert list(listed(session)) == ["w1", "w2"]
    queueing.move(session, "w2", "ann", due.EARLIER)
    assert list(listed(session)) == ["w2", "w1"]


def test_submit_with_a_window_and_everything_that_a_run_may_be_told(command: Any, session: Session) -> None:
    window = "Sat 02:00-04:00 Europe/Berlin"
    ddl = ("submit", "--table", "orders", "--alter", "ADD x INT", "--workflow", "w1", "--cutover", "window")
    more = ("--apply-parallelism", "3", "--spark-master", "spark://h:7077", "--xa-wait", "5", "--ignore-old-snapshots")
    assert command(*ddl)[0] == 2
    assert command(*ddl, "--cutover-window", window, *more)[0] == 0
    entry = queue.find(session, "w1")
    assert entry is not None
    assert entry.spec == {
        "table": f"{session.url.database}.orders", "alter": "ADD x INT", "cutover": "window", "cutover_window": window,
        "apply_parallelism": 3, "spark_master": "spark://h:7077", "xa_wait_seconds": 5.0, "ignore_old_snapshots": True,
    }  # fmt: skip


def test_a_move_is_submitted_to_its_target(command: Any, session: Session) -> None:
    move = ("submit", "move-tables", "--table", "orders", "--table", "items", "--workflow", "w1", "--no-reverse")
    code, _, words = command(*move)
    assert (code, "source_conn_id: it is missing" in words) == (2, True), words
    assert command(*move, "--source-conn-id", "old", "--priority", "2")[:2] == (
        0,
        [{"event": "submitted", "workflow": "w1"}],
    )
    entry = queue.find(session, "w1")
    assert entry is not None
    assert (entry.kind, entry.table, entry.priority) == ("move_tables", "orders", 2)
    assert entry.spec == {
        "kind": "move_tables", "source_conn_id": "old", "tables": ["orders", "items"], "reverse": False,
    }  # fmt: skip


def test_a_wrong_request_exits_with_2_and_leaves_no_trace(command: Any, database: Database, session: Session) -> None:
    database.drop_sidecar()
    for words in (("--chunk-rows", "0"), ("--not-before", "soon"), ("--workflow", "a b"), ("--cutover", "later"),
                  ("--cutover-window", "Sat 02:00-04:00 UTC")):  # fmt: skip
        assert command("submit", "--table", "orders", "--alter", "ADD x INT", *words)[0] == 2
    assert command("submit", "--table", "orders", "--table", "items", "--alter", "ADD x INT")[0] == 2
    assert command("queue") == (0, [], "")
    assert command("queue", "--remove", "w1")[0] == 2
    assert not layout.exists(session)


def test_a_list_for_people(
    database: Database, monkeypatch: pytest.MonkeyPatch, session: Session, capsys: Capture
) -> None:
    submit(session, "one")
    submit(session, "two", after="one", alter="ADD a INT,\n  ADD b INT")
    monkeypatch.setenv(options.SOURCE, str(database.url))
    monkeypatch.setenv(options.PASSWORD, database.url.password)
    assert main.run(["queue"]) == 0
    words = capsys.readouterr().out.splitlines()
    assert words[0].split() == ["Workflow", "Table", "State", "Not", "before", "After", "Priority"]
    assert [line.split()[0] for line in words if not line.startswith(" ")] == ["Workflow", "one", "two"]
    assert words[-2:] == ["  ADD a INT, ADD b INT", "  waiting for one, which is not complete"]


def test_an_old_sidecar_has_no_queue_until_the_next_install(session: Session) -> None:
    layout.install(session)
    session.execute_raw(f"DROP TABLE {SIDECAR}.queue")
    assert queueing.look(session).entries == ()
    assert claim(session) == []
    submit(session, "one")
    assert claim(session) == ["one"]


def test_priority_then_submission_and_one_at_a_time(session: Session) -> None:
    for workflow, priority in (("one", 0), ("two", 5), ("three", 5)):
        submit(session, workflow, priority=priority)
    assert claim(session, by="s1") == ["two"]
    assert claim(session, by="s2") == []
    begin(session, "two")
    workflows.move(session, "two", Phase.COMPLETE)
    assert claim(session, by="s3") == ["three"]
    assert listed(session) == {"two": "done", "three": "started", "one": "due"}
    with pytest.raises(Refused, match="does not wait any more: it is started"):
        queueing.remove(session, "three", "ann")


def test_a_claim_that_was_cut_short_is_told_again_to_the_same_one_only(session: Session) -> None:
    submit(session, "one")
    assert claim(session, by="s1") == ["one"]
    assert claim(session, by="s1") == ["one"]
    assert claim(session, by="s2") == []
    begin(session, "one")
    assert claim(session, by="s1") == []


def test_living_leases_count_whoever_started_the_workflow(session: Session, database: Database) -> None:
    submit(session, "one")
    begin(session, "by_hand")
    assert claim(session, by="s0", may_start=lambda _: False) == []
    with connect(database.url) as other:
        mine = lease.acquire(other, "by_hand", lease.DRIVER)
        assert claim(session) == []
        lease.release(other, mine)
        lease.acquire(other, "by_hand", lease.REPLICATE)
        assert claim(session) == []
        assert claim(session, 2) == ["one"]


def test_a_start_is_waited_for_five_minutes(session: Session) -> None:
    submit(session, "one")
    submit(session, "two")
    assert claim(session, by="s1") == ["one"]
    assert claim(session, by="s2") == []
    age(session, one=6)
    assert claim(session, by="s2", look_up=lambda _: due.RUNNING) == []
    assert claim(session, by="s3", look_up=lambda _: due.ABSENT) == ["one"]
    assert claim(session, by="s4", look_up=lambda _: due.RUN_FAILED) == ["two"]
    assert listed(session) == {"one": "failed", "two": "started"}
    failed = queue.find(session, "one")
    assert failed is not None
    assert "Its run one failed" in str(failed.reason)


def test_one_whose_run_does_not_begin_it_is_removed(command: Any, session: Session) -> None:
    """Its run may have been marked as success: nothing else would end the entry, and its table was held for ever."""
    submit(session, "one", table="orders")
    submit(session, "two", table="orders")
    assert claim(session) == ["one"]
    code, _, words = command("queue", "--remove", "one")
    assert (code, "after 5 minutes" in words) == (2, True)
    age(session, one=6)
    assert claim(session, by="s2", look_up=lambda _: "ended") == []
    assert command("queue", "--remove", "one")[0] == 0
    assert claim(session, by="s3") == ["two"]
    begin(session, "two", table="orders")
    age(session, two=6)
    code, _, words = command("queue", "--remove", "two")
    assert (code, "`vreplication cancel two` ends it" in words) == (2, True)


def test_a_failed_predecessor_holds_its_successors_only(session: Session) -> None:
    begin(session, "first")
    for workflow, after in (("second", "first"), ("third", "second"), ("else", None)):
        submit(session, workflow, after=after, priority=9 if after else 0)
    workflows.move(session, "first", Phase.FAILED, "why")
    assert claim(session) == ["else"]
    assert listed(session) == {"second": "waiting", "third": "waiting", "else": "started"}
    workflows.reopen(session, "first")
    workflows.move(session, "first", Phase.COMPLETE)
    begin(session, "else")
    workflows.move(session, "else", Phase.CANCELLED)
    assert claim(session, 9, "s2") == ["second"]


def test_one_table_one_workflow(session: Session) -> None:
    submit(session, "one", table="orders")
    submit(session, "two", table=f"`{session.url.database}`.orders")
    assert claim(session, 9) == ["one"]
    begin(session, "one", table="orders")
    assert claim(session, 9, "s2") == []
    assert listed(session)["two"] == "waiting"


def test_not_before_is_by_the_servers_clock(session: Session) -> None:
    submit(session, "one", not_before="2999-01-01T00:00:00Z")
    assert claim(session) == []
    session.execute(f"UPDATE {SIDECAR}.queue SET not_before = NOW(6) - INTERVAL 1 SECOND")
    assert claim(session) == ["one"]


def test_ids_are_taken_once_and_nothing_waits_for_itself(session: Session) -> None:
    submit(session, "a", after="b")
    with pytest.raises(Refused, match="b and a would wait for each other"):
        submit(session, "b", after="a")
    begin(session, "c")
    with pytest.raises(Refused, match="There is a workflow c"):
        submit(session, "c")
    assert listed(session) == {"a": "waiting"}


def test_schedulers_side_by_side_start_each_entry_once_and_never_too_many(session: Session, database: Database) -> None:
    """Eight at once, three times over: with 3 places, 3 are started in all, and each by one of them."""
    for n in range(9):
        submit(session, f"w{n}")
    for n in range(3):
        told = _at_once(database, f"round{n}")
        assert sorted(told) == [f"w{3 * n + i}" for i in range(3)]
        for workflow in told:
            begin(session, workflow, Phase.COMPLETE)


def _at_once(database: Database, name: str, many: int = 8) -> list[str]:
    ready, told = threading.Barrier(many), []

    def run(number: int) -> None:
        with connect(database.url) as mine:
            ready.wait(30)
            told.extend(claim(mine, 3, f"{name}-{number}"))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return told


def test_two_of_the_same_id_at_once(session: Session, database: Database) -> None:
    layout.install(session)
    refused: list[Refused] = []

    def run() -> None:
        with connect(database.url) as mine:
            try:
                submit(mine, "same")
            except Refused as error:
                refused.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(refused), len(queue.entries(session))) == (3, 1)


def test_times_survive_the_way_through_the_server(session: Session) -> None:
    submit(session, "one", not_before="2026-12-24T02:00:00.250000+02:00")
    found = queue.find(session, "one")
    assert found is not None
    assert found.not_before is not None
    assert found.not_before.isoformat() == "2026-12-24T00:00:00.250000"
    assert abs(queue.server_now(session) - found.submitted_at) < timedelta(minutes=1)  # type: ignore[operator]


def test_a_feed_that_runs_keeps_no_place_of_the_queue(session: Session) -> None:
    """It has no end: with a concurrency of 1 nothing would ever be started beside it."""
    submit(session, "one")
    make_feed(session, "feed", "shop")
    assert lease.is_alive(session, "feed", lease.DRIVER)
    assert claim(session) == ["one"]


def test_a_table_that_moves_here_is_had_by_its_move(session: Session) -> None:
    """Whichever of its tables it is, and however its schema was called on the source."""
    layout.install(session)
    make_move(session, "move", session.url.database)
    submit(session, "one", table="items")
    assert claim(session) == []
    assert listed(session) == {"one": "waiting"}
    workflows.move(session, "move", Phase.CANCELLED)
    assert claim(session) == ["one"]


def test_a_feed_holds_no_move_of_all_tables(session: Session) -> None:
    """It follows all tables, too, and has no end."""
    given = {"kind": "move_tables", "all_tables": True, "source_conn_id": "old", "workflow": "move"}
    queueing.submit(session, queueing.make_entry(session.url.database, given), "ann")
    make_feed(session, "feed", session.url.database)
    assert claim(session) == ["move"]


def test_a_move_takes_one_place_on_its_way_back_too(session: Session, database: Database) -> None:
    """Its catch-up has a lease under the id of its stream."""
    submit(session, "one")
    make_move(session, "move", session.url.database, number=2)
    with connect(database.url) as other:
        lease.acquire(other, "move", lease.DRIVER)
        lease.acquire(other, "move.s2", lease.REPLICATE)
        assert claim(session, 1) == []
        assert claim(session, 2) == ["one"]
