"""A backfill on real Spark: locally with several tasks, by the command, and an error that keeps its class."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backfill_setup import Case
from rowcopy_setup import wait_until

from sandbox.databases import Database
from sandbox.deployment import descendants
from tests.support.flow import finish
from vreplication.backfill import run, slices
from vreplication.errors import BadValue
from vreplication.mysql.url import SourceUrl

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.either]

FILL = (
    "INSERT INTO s WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
    "SELECT i, i, '2026-03-01' + INTERVAL i MINUTE FROM n",
    *(f"INSERT INTO s SELECT id + {1000 << k}, v, at FROM s" for k in range(4)),
)


@pytest.fixture
def case(database: Database) -> Iterator[Case]:
    made = Case(source=database, target=database)
    made.write(*FILL)
    yield made
    made.close()


@pytest.mark.seldom
@pytest.mark.in_turn("mariadb")
def test_slices_side_by_side(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "cut", lambda *a: slices.cut(*a, slice_rows=3_000))
    first = case.run(spark=spark, mirror=True)
    assert (first.rows_read, first.inserted, first.verified) == (16_000, 16_000, True)
    assert case.rows() == case.rows("s")
    case.write("UPDATE s SET v='x' WHERE id % 100 = 0", "DELETE FROM s WHERE id % 1000 = 1")
    second = case.run(spark=spark, mirror=True)
    assert (second.updated, second.deleted, second.verified) == (160, 16, True)
    assert case.rows() == case.rows("s")
    assert case.writer.password not in repr(spark.getConf().getAll())


def test_an_error_keeps_its_class(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    check = run.check
    monkeypatch.setattr(run, "check", lambda *a: replace(check(*a), packet=1024))
    case.write("UPDATE s SET v=REPEAT('x',50)")
    case.write(
        "ALTER TABLE s MODIFY v VARCHAR(5000)",
        "ALTER TABLE t MODIFY v VARCHAR(5000)",
        "UPDATE s SET v=REPEAT('x',5000) WHERE id=7",
    )
    with pytest.raises(BadValue, match="max_allowed_packet"):
        case.run(spark=spark)
    # Told by a listener, which hears of the end a little later.
    wait_until(lambda: not spark.statusTracker().getActiveJobsIds())


JOBS = "jobs: [{name: j, source: a, target: b, table: s, target_table: t, time_column: at}]"


@pytest.mark.timeout(280)
def test_the_command(case: Case, tmp_path: Path) -> None:
    (tmp_path / "backfills.yaml").write_text(JOBS)
    done = finish(_start(case, tmp_path))
    assert done.code == 0, done.err
    line = done.last
    assert (line["event"], line["rows_read"], line["inserted"]) == ("complete", 16_000, 16_000)
    assert case.rows() == case.rows("s")
    assert done.err == ""
    for secret in (case.reader.password, case.writer.password):
        assert secret not in done.out + "".join(path.read_text() for path in tmp_path.rglob("*.log"))


@pytest.mark.parametrize("is_to_all", [False, True], ids=["SIGINT", "SIGTERM to all"])
@pytest.mark.in_turn
def test_the_command_is_interrupted_and_done_again(spark: Any, case: Case, tmp_path: Path, is_to_all: bool) -> None:
    """By a person, or as a service manager does it: Spark's JVM goes first."""
    (tmp_path / "backfills.yaml").write_text(JOBS)
    # Somebody holds a row that the copy needs, so it is certainly under way when the signal comes.
    case.write("INSERT INTO t SELECT * FROM s WHERE id=500")
    with case.target.server.admin(case.target.name) as holder, holder.transaction():
        holder.execute_raw("UPDATE t SET v='held' WHERE id=500")
        process = _start(case, tmp_path)
        # The servers refresh what they show only when nobody has asked for 0.1 s.
        wait_until(lambda: case.target.admin.value(_WAITING) > 0, 60, poll_seconds=0.3)
        for pid in descendants(process.pid) if is_to_all else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        process.send_signal(signal.SIGTERM if is_to_all else signal.SIGINT)
        assert process.wait(60) == 130
        assert "Interrupted" in process.communicate()[1]
    # By whom does not matter: nothing is kept of a backfill but the rows in its target.
    assert case.run(spark=spark).verified
    assert case.rows() == case.rows("s")


_WAITING = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"


def _start(case: Case, folder: Path) -> subprocess.Popen[str]:
    environment = {
        "VREPLICATION_MIGRATIONS": str(folder), "XDG_STATE_HOME": str(folder),
        "VREPLICATION_SOURCE": _bare(case.reader), "VREPLICATION_PASSWORD": case.reader.password,
        "VREPLICATION_TARGET": _bare(case.writer), "VREPLICATION_TARGET_PASSWORD": case.writer.password,
    }  # fmt: skip
    words = ["backfill", "j", "--from", "2026-03-01", "--to", "2026-03-02", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "vreplication", *words],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _bare(url: SourceUrl) -> str:
    return f"mysql://{url.user}@{url.host}:{url.port}/{url.database}"
