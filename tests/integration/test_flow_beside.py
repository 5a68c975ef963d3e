"""Chunks compared beside the copy: they are left out at the end, and nothing that is wrong with them gets through."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import Run, begin, paused_at, wait_reached, wait_until
from tests.support.oracle import wait_at_gate
from vreplication.mysql.session import Session, connect
from vreplication.rowcopy import chunker
from vreplication.rowcopy.chunker import Walk
from vreplication.settings import SIDECAR
from vreplication.state import compared, journal, ledger, verdicts
from vreplication.state.ledger import KeyRange
from vreplication.verify import beside, verify
from vreplication.verify import since as rounds
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick", "_by_keys_alone"), pytest.mark.either]
ROWS = 400


@pytest.fixture
def _by_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples at the cut-over would find what the keys are to find."""
    monkeypatch.setattr(beside, "LEAST_ROWS", 0)
    monkeypatch.setattr(chunker, "COMPARE_ROWS", 1)
    monkeypatch.setattr(rounds, "_SAMPLES", 0)


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9)) ENGINE=InnoDB")
        session.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n},'x')" for n in range(ROWS)))
        # Of a server that has just been started nothing counts yet.
        wait_until(lambda: int(session.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]) > 5, "it does not run")
        yield session


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[KeyRange]]:
    """What each verification left out."""
    found: list[frozenset[KeyRange]] = []
    spans = verify.spans

    def noted(session: Session, workflow: str, mapping: object, done: frozenset[KeyRange]) -> object:
        found.append(done)
        return spans(session, workflow, mapping, done)  # type: ignore[arg-type]

    monkeypatch.setattr(verify, "spans", noted)
    return found


def each_matched(monkeypatch: pytest.MonkeyPatch, first: Callable[[], None] = lambda: None) -> None:
    """Have each chunk matched before the task goes on; before the first comparison do `first`."""
    compare, waiting = Walk._compare, [first]

    def patiently(walk: Walk) -> None:
        wait_until(lambda: not ledger.totals(walk.home, walk.job.table).chunks_landed, "it is not matched")
        if waiting:
            waiting.pop()()
        compare(walk)

    monkeypatch.setattr(Walk, "_compare", patiently)


def copying(database: Database, **more: object) -> Run:
    return begin(
        database, "t", "ADD COLUMN z INT", cutover="manual", verify_every_minutes=0, chunk_rows=20, copy_parallelism=1,
        **more,
    )  # fmt: skip


def damage(database: Database, sql: str) -> None:
    """As a fault of ours would: without a word in the log."""
    database.admin.execute_raw("SET sql_log_bin=0")
    assert database.admin.execute_raw(sql) > 0
    database.admin.execute_raw("SET sql_log_bin=1")


def finished(database: Database, run: Run) -> None:
    """Released, complete, and equal to the original."""
    operate.release(database.url, run.workflow, "test")
    result = run.result()
    assert result.event == "complete", result
    with connect(database.app_url) as app:
        assert app.rows("SELECT id,a,b FROM t ORDER BY id") == app.rows(
            f"SELECT * FROM `{result.retired_table}` ORDER BY id"
        )


def events(database: Database, run: Run) -> list[str]:
    with connect(database.url) as session:
        return [entry["event"] for entry in journal.read(session, run.workflow)]


@pytest.mark.usefixtures("app")
def test_what_was_compared_is_left_out_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, left_out: list[frozenset[KeyRange]]
) -> None:
    each_matched(monkeypatch)
    run = copying(database)
    wait_at_gate(database, run)
    assert len(left_out[0]) >= ROWS // 20 - 2
    with connect(database.url) as session:
        verdict = verdicts.load(session, run.workflow)
        assert verdict is not None
        assert verdict.rows_compared == ROWS
        assert compared.choose(session, run.workflow, 0, 20), "the next verification reads everything"
    finished(database, run)


@pytest.mark.usefixtures("app")
def test_few_rows_that_take_much_room_are_compared_beside_the_copy(
    database: Database, monkeypatch: pytest.MonkeyPatch, left_out: list[frozenset[KeyRange]]
) -> None:
    monkeypatch.setattr(beside, "LEAST_ROWS", 10 * ROWS)
    monkeypatch.setattr(beside, "LEAST_BYTES", 1 << 14)
    each_matched(monkeypatch)
    run = copying(database)
    wait_at_gate(database, run)
    assert len(left_out[0]) >= ROWS // 20 - 2
    finished(database, run)


@pytest.mark.usefixtures("app")
def test_a_fault_that_the_comparison_sees_is_mended(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    each_matched(monkeypatch, lambda: damage(database, "UPDATE t__vr_new SET a=-5 WHERE id=7"))
    run = copying(database)
    wait_at_gate(database, run)
    finished(database, run)
    assert "mismatch" in events(database, run)


def test_a_fault_of_catch_up_behind_the_comparison_is_found(
    database: Database,
    app: Session,
    monkeypatch: pytest.MonkeyPatch,
    left_out: list[frozenset[KeyRange]],
    pauses: Path,
) -> None:
    """The chunk has been compared, and the copy has gone on; then a change to it is applied wrongly."""
    each_matched(monkeypatch)
    with paused_at(pauses, "verify.began"):
        run = copying(database)
        wait_reached(pauses, "verify.began", run)
        app.execute_raw("UPDATE t SET a=-1 WHERE id=7")
        wait_until(lambda: app.value("SELECT a FROM t__vr_new WHERE id=7") == -1, "it is not applied")
        damage(database, "UPDATE t__vr_new SET a=7 WHERE id=7")
    wait_at_gate(database, run)
    assert any(keys.has_lower for keys in left_out[0]), "the table's first chunk, which holds the row"
    finished(database, run)
    assert "mismatch" in events(database, run)


@pytest.mark.usefixtures("app")
def test_who_goes_on_compares_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another driver's tasks have seen equal may be gone since, with a server that lost its end."""
    each_matched(monkeypatch)
    run = copying(database)
    wait_at_gate(database, run)
    with connect(database.url) as session:
        chunks = compared.choose(session, run.workflow, 0, 20)
        assert chunks
        compared.note(session, run.workflow, chunks, 1, 20)
        run.stop.set()
        assert run.result().event == "interrupted"
        again = Run(run.spec).start(database.url)
        wait_at_gate(database, again)
        wait_until(lambda: not compared.ranges(session, run.workflow, 1), "it still counts")
    finished(database, again)


@pytest.mark.usefixtures("app")
def test_what_was_compared_before_the_server_was_started_does_not_count(
    database: Database, monkeypatch: pytest.MonkeyPatch, left_out: list[frozenset[KeyRange]], pauses: Path
) -> None:
    """It may have come back without the end of its log, and every task, and the driver, on with a new connection."""
    each_matched(monkeypatch)
    with paused_at(pauses, "verify.began"):
        run = copying(database)
        wait_reached(pauses, "verify.began", run)
        # As if the server, which runs for minutes, had been started a moment ago.
        database.admin.execute_raw(f"UPDATE {SIDECAR}.compared SET noted_at = noted_at - INTERVAL 1 YEAR")
    wait_at_gate(database, run)
    assert left_out == [frozenset()]
    finished(database, run)


@pytest.mark.usefixtures("app")
def test_beside_an_application_that_writes_everywhere(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys pile up from the first chunk on, and are compared in rounds during the copy, too."""
    monkeypatch.setattr(beside, "MANY_KEYS", 3)
    stop = threading.Event()

    def write() -> None:
        chance = random.Random(7)
        with connect(database.app_url) as session:
            while not stop.is_set():
                number = chance.randrange(ROWS)
                session.execute_raw(
                    chance.choice(
                        (
                            f"UPDATE t SET a=a+1 WHERE id={number}",
                            f"DELETE FROM t WHERE id={number}",
                            f"REPLACE INTO t VALUES ({number},{number},'y')",
                        )
                    )
                )

    each_matched(monkeypatch)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        run = copying(database)
        wait_at_gate(database, run)
    finally:
        stop.set()
        writer.join()
    finished(database, run)
    assert "mismatch" not in events(database, run)
