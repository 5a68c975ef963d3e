"""Catch-up goes before the copy: a real backlog closes the gate, and its end opens it again.

The applier is held, so that the backlog is as large as it is meant to be. What happened is told by the ledger and by
the gate's own rows, which pass through the binary log in order with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support import tailing
from tests.support.flow import Run, begin, let_go, paused_at, wait_reached, wait_until
from vreplication.binlog.events import Position
from vreplication.changes import stream
from vreplication.engine.beater import COPY_BACKLOG_CHANGES
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.progress.snapshot import APPLY
from vreplication.settings import SIDECAR
from vreplication.state import gate, workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]
ROWS, CHUNK_ROWS, UPDATES = 3_000, 100, 4
BURST = ROWS * UPDATES
BEATS = 8
"""So often the gate is written while the copy asks in vain."""


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT) ENGINE=InnoDB")
        session.execute_raw("CREATE TABLE quiet (id INT PRIMARY KEY) ENGINE=InnoDB")
        session.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n})" for n in range(ROWS)))
        yield session


def test_a_backlog_stops_the_copy_and_its_end_lets_it_go_on(
    database: Database, app: Session, pauses: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = tailing.here(database)
    with connect(database.url) as session:
        with paused_at(pauses, "copy.after_open"):
            run = begin(database, "t", "ADD COLUMN z INT", cutover="manual", copy_parallelism=1, chunk_rows=CHUNK_ROWS)
            wait_reached(pauses, "copy.after_open", run)
            with paused_at(pauses, "apply.before_flush", "copy.before_open"):
                closed = _fall_behind(session, app, pauses, run)
                let_go(pauses, "copy.after_open")
                _ask_in_vain(session, pauses, run)
                freed = session.value("SELECT NOW(6)")
        wait_until(lambda: _phase(session, run) is Phase.WAITING, f"it does not get to the gate: {run.said}")
        stood = _check_ledger(session, run, closed, freed)
        with capsys.disabled():
            print(f" [copying stood still for {stood:.2f} s after {BURST:,} changes were let go]", end="")
        operate.release(database.url, run.workflow, "ann")
    assert run.result().event == "complete"
    _check_log(database, start, run)
    assert app.row(f"SELECT COUNT(*), SUM(a = id + {UPDATES}) FROM t") == (ROWS, ROWS)


def _fall_behind(session: Session, app: Session, pauses: Path, run: Run) -> Any:
    """Hold the applier, write more than it may be behind, and return when the gate was seen closed for it."""
    app.execute_raw("UPDATE t SET a=a+1 WHERE id < 1")
    wait_reached(pauses, "apply.before_flush", run)
    app.execute_raw("UPDATE t SET a=a+1 WHERE id >= 1")
    for _ in range(UPDATES - 1):
        app.execute_raw("UPDATE t SET a=a+1")
    wait_until(lambda: _behind(gate.read(session, run.workflow).reason) >= BURST - 1, "the gate is not closed")
    assert not gate.read(session, run.workflow).is_open
    return session.value("SELECT NOW(6)")


def _behind(reason: str) -> int:
    """Changes, as the gate's reason has them."""
    found = re.match(rf"{APPLY}backlog ([\d,]+) changes", reason)
    return int(found[1].replace(",", "")) if found else 0


def _ask_in_vain(session: Session, pauses: Path, run: Run) -> None:
    """The copy has landed its chunk and asks for the next one; the gate is written many times meanwhile."""
    wait_reached(pauses, "copy.before_open", run)
    before, beat = _chunks(session, run), _beat(session, run)
    let_go(pauses, "copy.before_open")
    wait_until(lambda: _beat(session, run) >= beat + BEATS, "the gate is not written any more")
    assert _chunks(session, run) == before
    assert all(landed is not None for _, landed in before)
    assert 0 < len(before) < ROWS // CHUNK_ROWS
    assert _behind(gate.read(session, run.workflow).reason) >= BURST - 1


def _check_ledger(session: Session, run: Run, closed: Any, freed: Any) -> float:
    """No chunk was opened while the gate was closed. Returns for how long none was, once the applier was let go."""
    opened = [at for at, _ in _chunks(session, run)]
    later = [at for at in opened if at >= closed]
    assert len(opened) >= ROWS // CHUNK_ROWS
    assert later[0] > freed
    assert all(landed is not None for _, landed in _chunks(session, run))
    return float((later[0] - freed).total_seconds())


def _check_log(database: Database, start: Position, run: Run) -> None:
    """In the log's order: no chunk between the row that closed the gate for the backlog and the one that opened it."""
    reasons = _told(database, start, run)
    first = next(i for i, reason in enumerate(reasons) if _behind(reason) >= BURST - 1)
    last = next(i for i in range(first, len(reasons)) if reasons[i] == "open")
    assert "chunk" not in reasons[first:last]
    assert last - first >= BEATS
    assert all(reason.startswith(APPLY) for reason in reasons[first:last])
    assert "chunk" in reasons[last:]
    assert _behind(reasons[first]) >= COPY_BACKLOG_CHANGES


def _told(database: Database, start: Position, run: Run) -> list[str]:
    """The gate's reasons, "open" where it was open, and "chunk" where one was opened."""
    found = []
    for row in tailing.rows(tailing.groups(database, start, tailing.watch(database, "quiet"), tailing.ours(database))):
        if row.after is None or row.after["workflow"] != run.workflow or row.table == stream.MARKER:
            continue
        if row.table == stream.GATE:
            found.append("open" if int(row.after["is_open"]) else str(row.after["reason"]))
        elif row.before is None:
            found.append("chunk")
    return found


def _chunks(session: Session, run: Run) -> list[tuple[Any, Any]]:
    sql = f"SELECT opened_at, landed_at FROM {SIDECAR}.chunk WHERE workflow=%s ORDER BY opened_at"
    return [(opened, landed) for opened, landed in session.rows(sql, (run.workflow,))]


def _beat(session: Session, run: Run) -> int:
    return int(session.value(f"SELECT beat FROM {SIDECAR}.gate WHERE workflow=%s", (run.workflow,)))


def _phase(session: Session, run: Run) -> Phase | None:
    row = workflows.find(session, run.workflow)
    return row.phase if row else None
