"""Transactions that do not fit into memory, and prepared branches across a restart, on real servers."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from race_setup import Race

from tests.support.flow import Run, paused_at, wait_reached, wait_until
from tests.support.small_disk import make_room, small_disk_at
from vreplication.binlog import position
from vreplication.binlog.events import Position
from vreplication.changes import channel
from vreplication.engine import spool
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.state import progress

pytestmark = pytest.mark.either

MANY = (
    "INSERT INTO t SELECT 1000 + a.id * 50 + b.id, 'many', NULL FROM t a, (SELECT id DIV 10 id FROM t) b WHERE a.id<200"
)
READ_AGAIN = "are read again"


@pytest.fixture
def small_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """1 KiB for open transactions; returns the folder for the rest."""
    monkeypatch.setenv(spool.MEMORY, "0.001")
    monkeypatch.setenv(spool.FOLDER, str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def branch(race: Race) -> Iterator[Session]:
    race.make()
    with connect(race.database.app_url) as session:
        yield session


def at_the_gate(race: Race) -> Run:
    """A run that waits for its release."""
    with race.held("copy.after_open", cutover="manual") as run:
        pass
    race.waiting_for(run, "release")
    return run


def prepare(session: Session, name: str, *statements: str) -> None:
    session.execute_raw(f"XA START '{name}'")
    for statement in statements:
        session.execute_raw(statement)
    session.execute_raw(f"XA END '{name}'")
    session.execute_raw(f"XA PREPARE '{name}'")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("disk", ["kept", "lost", "damaged"])
@pytest.mark.in_turn
def test_branches_survive_a_restart(
    race: Race, branch: Session, small_memory: Path, caplog: pytest.LogCaptureFixture, end: str, disk: str
) -> None:
    """Two branches overlap; one is committed before the restart, and its commit, read again, is no stranger. Rows on
    disk are not read again, rows that are lost or damaged are."""
    caplog.set_level(logging.INFO, logger="vreplication")
    run = at_the_gate(race)
    with connect(race.database.app_url) as other:
        prepare(other, "first", "INSERT INTO t VALUES (5,'first',5)")
        prepare(branch, "open", MANY, "UPDATE t SET v='open' WHERE id=150", "DELETE FROM t WHERE id=160")
        other.execute_raw("XA COMMIT 'first'")
    race.applied(run)
    race.write("UPDATE t SET v='between' WHERE id=10")
    race.applied(run)
    run.stop.set()
    assert run.result().event == "interrupted"
    assert list(small_memory.rglob("*.sqlite"))
    if disk == "lost":
        shutil.rmtree(small_memory)
    for file in small_memory.rglob("*.sqlite") if disk == "damaged" else ():
        os.truncate(file, file.stat().st_size // 2)
    again = race.begin(workflow=run.workflow, cutover="manual")
    race.waiting_for(again, "XA COMMIT or XA ROLLBACK")
    # That may be the first run's sentence yet: this is the second's catch-up.
    race.applied(again)
    assert any(READ_AGAIN in message for message in caplog.messages) is (disk != "kept")
    branch.execute_raw(f"XA {end} 'open'")
    with connect(race.database.url) as session:
        progress_of(session, again.workflow, held_branches=0)
        release(session, again.workflow)
    race.complete(again)
    assert len(race.ids()) > 300 if end == "COMMIT" else len(race.ids()) == 21
    assert not list(small_memory.rglob("*.sqlite"))


def progress_of(session: Session, workflow: str, **wanted: object) -> None:
    wait_until(lambda: wanted.items() <= progress.read(session, workflow).items(), f"never {wanted}")


def release(session: Session, workflow: str) -> None:
    from vreplication.state import gate

    gate.release(session, workflow, "test")


@pytest.mark.parametrize("memory", ["0.001", "256"])
def test_a_giant_transaction_comes_out_as_it_was_left(
    race: Race, small_memory: Path, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    """Above and below the budget: rolled back in part; keys inserted, updated and deleted, and deleted and inserted."""
    monkeypatch.setenv(spool.MEMORY, memory)
    race.make()
    with race.held("copy.after_open") as run:
        race.write(MANY, "SAVEPOINT s", "UPDATE t SET v='gone'", "ROLLBACK TO s", "UPDATE t SET u=NULL, v='kept'")
        race.write(
            "INSERT INTO t VALUES (3,'new',3)",
            "DELETE FROM t WHERE id IN (3,10)",
            "UPDATE t SET v='then deleted' WHERE id=20",
            "DELETE FROM t WHERE id=20",
            "DELETE FROM t WHERE id % 3 = 0",
            "INSERT INTO t VALUES (30,'again',30)",
        )
    race.complete(run)
    assert set(race.app.rows("SELECT DISTINCT v FROM t")) == {("kept",), ("again",)}
    assert not {3, 10, 20} & set(race.ids())


def test_a_branch_that_hangs_does_not_hold_the_watermark(race: Race, branch: Session) -> None:
    run = at_the_gate(race)
    prepare(branch, "hangs", "UPDATE t SET v='hangs' WHERE id=150")
    with connect(race.database.url) as session:
        progress_of(session, run.workflow, held_branches=1)
        seen: dict[object, float] = {}
        wait_until(lambda: bool(seen.update([beat(session, run.workflow)])) or len(seen) >= 5, "no progress is written")
        assert max(seen.values()) < 2.0
        branch.execute_raw("XA COMMIT 'hangs'")
        release(session, run.workflow)
    race.complete(run)


def beat(session: Session, workflow: str) -> tuple[object, float]:
    found = progress.read(session, workflow)
    return found["replicate_at"], float(found["lag_seconds"])


def test_reading_goes_on_while_a_giant_transaction_is_applied(
    race: Race, small_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed meanwhile is read within two seconds, past the queue's memory too."""
    monkeypatch.setattr(channel, "_BLOCK_BYTES", 1 << 10)
    race.make()
    run = at_the_gate(race)
    with paused_at(race.pauses, "apply.before_flush"):
        race.write(MANY)
        wait_reached(race.pauses, "apply.before_flush", run)
        for number in range(60):
            race.write(f"UPDATE t SET v='{number}' WHERE id=10")
        with connect(race.database.url) as session:
            server = position.current(session, race.database.server.is_mariadb)
            wait_until(lambda: has_read(session, run.workflow, server), "the reader does not go on")
    with connect(race.database.url) as session:
        release(session, run.workflow)
    race.complete(run)
    assert race.app.value("SELECT v FROM t WHERE id=10") == "59"


GIANT = (
    "INSERT INTO t SELECT 1000 + a.id * 40 + b.id * 2 + c.id DIV 10, 'giant', NULL FROM t a, t b, t c "
    "WHERE a.id<=200 AND b.id<=200 AND c.id<=200"
)


def test_progress_inside_a_giant_transaction_is_shown_while_waiting(race: Race, small_memory: Path) -> None:
    """The copy is done, so nothing is throttled, but catch-up is held in the middle of one transaction."""
    race.make()
    run = at_the_gate(race)
    with paused_at(race.pauses, "apply.before_flush"), connect(race.database.url) as session:
        race.write(GIANT)
        wait_reached(race.pauses, "apply.before_flush", run)
        total = race.app.value("SELECT COUNT(*) FROM t WHERE v='giant'")
        assert total > 4_000

        def shows() -> bool:
            found = snapshot.read(session, run.workflow)
            words = f" of {total:,} of one transaction applied"
            return found.phase is Phase.WAITING and found.throttled is None and words in (found.behind or "")

        wait_until(shows, "no progress inside of the transaction is shown")
    with connect(race.database.url) as session:
        release(session, run.workflow)
    race.complete(run)


def has_read(session: Session, workflow: str, place: Position) -> bool:
    """The last word of catch-up may be from before it had read anything."""
    said = progress.read(session, workflow)["read_position"]
    return said is not None and Position.parse(said) >= place


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "small", 1) as place:
        yield place


def test_a_full_disk_stops_the_workflow_and_it_goes_on_when_there_is_room(
    race: Race, small_memory: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same folder: what the run before has left there is not in the way."""
    race.make()
    monkeypatch.setenv(spool.FOLDER, str(small_disk))
    with race.held("copy.after_open") as run:
        race.write(MANY, *["UPDATE t SET v=LEFT(RAND(), 20)"] * 60)
        before = source(race)
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1)
    assert "cannot be put aside" in (result.reason or "")
    assert "disk is full" in (result.reason or "")
    assert source(race) == before
    make_room(small_disk, 64)
    again = race.begin(workflow=run.workflow)
    race.complete(again)
    assert not list(small_disk.rglob("*.sqlite"))


def test_an_error_of_the_disk_stops_the_workflow_and_it_goes_on(race: Race, small_memory: Path) -> None:
    """A write to the file on disk fails, and not for want of room."""
    race.make()
    with race.held("copy.after_open") as run, files_of_at_most(256 << 10):
        race.write(MANY, *["UPDATE t SET v=LEFT(RAND(), 20)"] * 60)
        before = source(race)
        with connect(race.database.url) as session:
            wait_until(lambda: snapshot.read(session, run.workflow).phase is Phase.FAILED, "nothing fails")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1)
    assert "cannot be put aside" in (result.reason or "")
    assert "disk I/O error" in (result.reason or "")
    assert source(race) == before
    race.complete(race.begin(workflow=run.workflow))
    assert not list(small_memory.rglob("*.sqlite"))


@contextlib.contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """For this process, which catch-up is a thread of: EFBIG for what a file would grow beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def source(race: Race) -> tuple[object, object]:
    """Definition and contents of the application's table."""
    return race.app.rows("SHOW CREATE TABLE t"), race.app.rows("SELECT * FROM t ORDER BY id")
