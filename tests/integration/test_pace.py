"""Beside an application that writes: who is seen, and who heeds what was decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rowcopy_setup import WORKFLOW, CopyCase, make_case

from sandbox.databases import Database
from tests.support.flow import begin, let_go, paused_at, wait_reached, wait_until
from vreplication.engine import effort
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR, Pace, Tuning
from vreplication.state import journal, rows, sidecar, throttle
from vreplication.state.standing import check_standing
from vreplication.throttle.pace import Pacer

ROWS = 2_000


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT) ENGINE=InnoDB")
        session.execute_raw("CREATE TABLE elsewhere (id INT PRIMARY KEY AUTO_INCREMENT) ENGINE=InnoDB")
        session.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n})" for n in range(ROWS)))
        yield session


@pytest.mark.usefixtures("quick")
def test_others_are_seen_and_we_are_not(database: Database, app: Session, pauses: Path) -> None:
    """Chunks, batches, beats and markers are ours; any transaction on any other table is not."""
    with connect(database.url) as session, paused_at(pauses, "copy.before_open"):
        run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", chunk_rows=10)
        wait_reached(pauses, "copy.before_open", run)

        def others() -> float | None:
            row = rows.find(session, sidecar.traffic, workflow=run.workflow)
            return None if row is None else float(row["others_per_second"])

        def write_elsewhere() -> bool:
            app.execute_raw("INSERT INTO elsewhere VALUES ()")
            return bool(others())

        wait_until(lambda: others() is not None, "nobody looks at the traffic")
        wait_until(write_elsewhere, "writes to another table are not seen")
        wait_until(lambda: others() == 0, "what has ended is still counted")

        def pace() -> tuple[float, int]:
            row = rows.find(session, sidecar.throttle, workflow=run.workflow) or {}
            return row.get("effort", 0.0), row.get("chunk_millis", 0)

        wait_until(lambda: pace() == (run.spec.tasks, run.spec.chunk_millis), "it is held back beside nobody")
        assert (throttle.base(session, run.workflow) or 0) > 0
        let_go(pauses, "copy.before_open")
        seen: list[float | None] = []

        def is_copied() -> bool:
            seen.append(others())
            chunks = f"SELECT COUNT(*) FROM {SIDECAR}.chunk WHERE workflow=%s AND state='matched'"
            return int(session.value(chunks, (run.workflow,))) >= ROWS // 10

        wait_until(is_copied, "the rows are not copied")
        assert set(seen) == {0.0}
        run.stop.set()
        run.result()


@pytest.mark.usefixtures("quick")
@pytest.mark.either
def test_regard_for_the_latency_is_asked_for_under_way(
    database: Database, app: Session, pauses: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What commits took before the copy is known then, too; later our own work would be in it, and nothing too slow."""
    took = Pacer.took

    def slower_by_us(pacer: Pacer, now: float, _: float, *, is_working: bool) -> None:
        took(pacer, now, 0.1 if is_working else 0.01, is_working=is_working)

    monkeypatch.setattr(Pacer, "took", slower_by_us)
    monkeypatch.setattr(throttle, "others_per_second", lambda *_: 100.0)
    with connect(database.url) as session, paused_at(pauses, "copy.before_open"):
        run = begin(database, "t", "ADD COLUMN z INT", latency_factor=0, chunk_rows=10, copy_parallelism=2)
        wait_reached(pauses, "copy.before_open", run)

        def share() -> float:
            return (rows.find(session, sidecar.throttle, workflow=run.workflow) or {}).get("effort", 0.0) / 2

        wait_until(lambda: share() == 1, "it is held back although the latency does not count")
        effort.tune(database.url, run.workflow, "dba", {"latency_factor": "1.5"})
        wait_until(lambda: share() < Pacer(factor=0).share, "it is not held back")
        effort.tune(database.url, run.workflow, "dba", {"latency_factor": "off"})
        wait_until(lambda: share() == 1, "it is held back as before")
        told = [(e["actor"], e["details"]) for e in journal.read(session, run.workflow) if e["event"] == "tuned"]
        let_go(pauses, "copy.before_open")
    assert told == [("dba", "latency-factor: 1.5 (was 0.0)"), ("dba", "latency-factor: 0.0 (was 1.5)")]
    assert run.result().event == "complete"


def test_a_copying_task_heeds_a_pace_while_it_is_fresh(database: Database) -> None:
    case: CopyCase = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", fill=())
    gentle = Pace(effort=0.5, tasks=1, chunk_millis=33)
    assert check_standing(case.session, case.driver, WORKFLOW, 0, 0) == (Tuning(), None)
    throttle.write(case.session, WORKFLOW, gentle, base=0.001, latency=0.01, is_first=True)
    assert check_standing(case.session, case.driver, WORKFLOW, 0, 0) == (Tuning(), gentle)
    limits = case.job(copy_parallelism=4).limits.paced(gentle)
    assert (limits.copy_parallelism, limits.chunk_millis, limits.rest) == (1, 33, 1.0)
    case.session.execute(f"UPDATE {SIDECAR}.throttle SET written_at=NOW(6) - INTERVAL 1 MINUTE")
    assert check_standing(case.session, case.driver, WORKFLOW, 0, 0) == (Tuning(), None)
    assert throttle.base(case.session, WORKFLOW) == 0.001
