"""The history on real servers: who writes it, what it holds, how it is put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import begin, let_go, paused_at, wait_reached, wait_until
from vreplication.mysql.session import connect
from vreplication.progress import snapshot
from vreplication.settings import SIDECAR
from vreplication.state import history, layout
from vreplication.state.history import DAY, HOUR, MINUTE, TEN_MINUTES

W = "w"


@pytest.mark.either
@pytest.mark.usefixtures("quick")
def test_a_run_leaves_its_history(database: Database, pauses: Path) -> None:
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        app.execute_raw("INSERT INTO t VALUES " + ",".join(f"({n},{n})" for n in range(1, 1001)))
    with connect(database.url) as session, paused_at(pauses, "copy.after_land"):
        run = begin(database, "t", "ADD COLUMN z INT", chunk_rows=100, copy_parallelism=1)
        wait_reached(pauses, "copy.after_land", run)
        wait_until(lambda: snapshot.read(session, run.workflow).chunk_rows == 100, "the chunks' size is not known")
        wait_until(lambda: [p.rows_copied for p in history.read(session, run.workflow)][-1:] == [100], "no point")
        found = history.read(session, run.workflow)[-1]
        assert (found.phase, found.chunk_rows, found.throttled) == ("copying", 100, None)
        assert found.lag_seconds is not None
        let_go(pauses, "copy.after_land")
        assert run.result().event == "complete"
        last = history.read(session, run.workflow)[-1]
        # On a busy machine one may come to nothing in its three seconds.
        attempts = 1 + sum("cut-over not done" in line for line in run.said)
        assert (last.phase, last.rows_copied, last.cutover_attempts) == ("cutting_over", 1_000, attempts), run.said
        assert history.last_hour(session, run.workflow)[-1] == last


def test_older_points_are_put_together_in_the_table(database: Database) -> None:
    with connect(database.url) as session:
        layout.install(session)
        now = history.slot_now(session)
        early, late = ((now - ago) // TEN_MINUTES * TEN_MINUTES for ago in (3 * DAY, 2 * HOUR))
        for n, slot in enumerate((early, early + 1, late, late + 1, now - MINUTE, now)):
            history.add(session, W, eta_seconds=90.0, phase="copying", rows_copied=n, lag_seconds=10.0 - n)
            newest = f"UPDATE {SIDECAR}.history SET slot = %s ORDER BY slot DESC LIMIT 1"
            session.execute(newest, (slot,))
        history.add(session, "other", eta_seconds=None, phase="copying", rows_copied=0)
        for _ in range(2):
            history.thin(session, W)
            found = history.read(session, W)
            assert [p.rows_copied for p in found] == [1, 3, 4, 5]
            assert [p.lag_seconds for p in found] == [10.0, 8.0, 6.0, 5.0]
        assert list(history.recent(session, [W, "other"], 30)) == ["other", W]
        assert found[-1].eta_at is not None
        assert len(history.read(session, W, after=now - HOUR)) == 2
