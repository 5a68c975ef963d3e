"""Rows that are committed when their interval is over: a backfill waits for them, and does not begin too early."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from backfill_setup import DAY, Case
from rowcopy_setup import wait_until

from sandbox.databases import Database
from tests.support.local_spark import LocalSpark
from vreplication.backfill import lateness
from vreplication.backfill.run import Result, run
from vreplication.errors import Interrupted, Refused, Transient
from vreplication.mysql.processes import processes
from vreplication.mysql.session import Session, SqlError, connect

LATE = "INSERT INTO s VALUES (2,'late','{}')"


@pytest.fixture
def case(database: Database) -> Iterator[Case]:
    with closing(Case(source=database, target=database)) as made:
        yield made


def copy(case: Case, end: datetime, told: Callable[[str], None] = lambda _: None) -> Result:
    return run(case.job(), case.reader, case.writer, DAY[0], end, spark=LocalSpark(), notify=told)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What the source's clock says, look by look; the last stays. A callable is called, and says what it returns."""

    def moments(*given: datetime | Callable[[], datetime]) -> None:
        left = list(given)

        def now(_: Session) -> datetime:
            found = left.pop(0) if len(left) > 1 else left[0]
            return found if isinstance(found, datetime) else found()

        monkeypatch.setattr(lateness, "_now", now)
        # The servers renew what they show of transactions only when it was not asked for within 0.1 s.
        monkeypatch.setattr(lateness, "POLL_SECONDS", 0.2)

    return moments


def test_a_row_that_is_committed_just_behind_the_interval_is_copied(case: Case, at: Callable[..., None]) -> None:
    """The run of a day starts as soon as the day is over: midnight."""
    told: list[str] = []
    with connect(case.source.app_url) as app:
        app.execute_raw("BEGIN")
        app.execute_raw(LATE.format("2026-03-01 23:59:59"))

        def five_seconds_later() -> datetime:
            app.execute_raw("COMMIT")
            return DAY[1] + timedelta(seconds=5)

        at(DAY[1], DAY[1], five_seconds_later, DAY[1] + timedelta(minutes=15))
        assert copy(case, DAY[1], told.append).verified
    assert [row[0] for row in case.rows()] == [2]
    assert told[0] == "j: waiting until 2026-03-02T00:15:00+00:00 (lateness_minutes), for rows that are committed late"


def test_an_interval_that_is_not_over_is_refused(case: Case, at: Callable[..., None]) -> None:
    at(DAY[1] - timedelta(hours=1))
    case.write(LATE.format("2026-03-01 12:00"))
    with pytest.raises(Refused, match=r"ends at 2026-03-02T00:00:00\+00:00, and on the source it is 2026-03-01T23:00"):
        copy(case, DAY[1])
    assert case.rows() == []
    # What is there now may be wanted.
    assert case.run(lateness_minutes=0).inserted == 1


def test_the_wait_can_be_interrupted(case: Case, at: Callable[..., None]) -> None:
    stop = threading.Event()
    at(DAY[1])
    with pytest.raises(Interrupted):
        run(case.job(), case.reader, case.writer, *DAY, spark=LocalSpark(), stop=stop, notify=lambda _: stop.set())


@pytest.fixture
def seeing(case: Case) -> Case:
    """Its user may see open transactions."""
    case.source.admin.execute_raw(f"GRANT PROCESS ON *.* TO '{case.reader.user}'@'%'")
    return case


def test_an_older_transaction_is_waited_for(seeing: Case, at: Callable[..., None]) -> None:
    """It takes longer than lateness_minutes."""
    told: list[str] = []
    with connect(seeing.source.app_url) as app:
        end = _writing(app)
        at(end + timedelta(minutes=20))

        def commit(text: str) -> None:
            told.append(text)
            if "transaction" in text:
                app.execute_raw("COMMIT")

        assert copy(seeing, end, commit).verified
    assert [row[0] for row in seeing.rows()] == [2]
    assert f"j: waiting for the transaction of connection {app.id} that began at" in told[0]


def test_a_transaction_that_stays_open_fails_by_name(
    seeing: Case, at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lateness, "_PATIENCE", 0)
    with connect(seeing.source.app_url) as app:
        end = _writing(app)
        at(end + timedelta(minutes=20))
        with pytest.raises(Transient, match=f"Still open is the transaction of connection {app.id} that began"):
            copy(seeing, end)
    assert seeing.rows() == []


def test_a_prepared_branch_stays_open_without_a_connection(
    seeing: Case, at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lateness, "_PATIENCE", 0)
    branch = f"'{seeing.source.name}'"
    with connect(seeing.source.app_url) as app:
        end = _writing(app, f"XA START {branch}")
        app.execute_raw(f"XA END {branch}")
        app.execute_raw(f"XA PREPARE {branch}")
    at(end + timedelta(minutes=20))
    wait_until(lambda: app.id not in processes(seeing.source.admin))
    with pytest.raises(Transient, match="Still open is a prepared XA transaction that began"):
        copy(seeing, end)
    wait_until(lambda: _is_done(seeing.source.admin, f"XA COMMIT {branch}"))
    assert copy(seeing, end).inserted == 1


def test_a_branch_that_a_restarted_server_has_found_prepared_is_waited_for(
    seeing: Case, at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be years old: the server says that it began when the server was started. Those that come later are not."""
    branch, later = f"'{seeing.source.name}'", f"'{seeing.source.name} later'"
    end = _prepare(seeing, branch, 2) - timedelta(hours=1)
    at(end + timedelta(minutes=20))
    monkeypatch.setattr(lateness, "_started", lambda _: end - timedelta(hours=2))
    assert copy(seeing, end).inserted == 0
    monkeypatch.setattr(lateness, "_started", lambda _: end + timedelta(minutes=1))
    told: list[str] = []

    def commit(text: str) -> None:
        told.append(text)
        if "may be older than the server's start" in text:
            _prepare(seeing, later, 3)
            wait_until(lambda: _is_done(seeing.source.admin, f"XA COMMIT {branch}"))

    assert copy(seeing, end, commit).verified
    assert "said to have begun at" in told[0]
    assert [row[0] for row in seeing.rows()] == [2]
    wait_until(lambda: _is_done(seeing.source.admin, f"XA ROLLBACK {later}"))


def test_one_that_only_reads_or_began_later_is_not_waited_for(
    seeing: Case, at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lateness, "_PATIENCE", 0)
    with connect(seeing.source.app_url) as dump, connect(seeing.source.app_url) as app:
        dump.execute_raw("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        dump.rows("SELECT * FROM s")
        end = _writing(app) - timedelta(days=1)
        at(end + timedelta(minutes=20))
        assert copy(seeing, end).verified


def _writing(app: Session, begin: str = "BEGIN") -> datetime:
    """Begins a transaction with a row of now; returns an end behind both, as the server's own clock counts."""
    app.execute_raw(begin)
    app.execute_raw("INSERT INTO s VALUES (2,'long',UTC_TIMESTAMP(6))")
    moment: datetime = app.value("SELECT UTC_TIMESTAMP() + INTERVAL 2 SECOND")
    return moment.replace(tzinfo=UTC)


def _prepare(case: Case, branch: str, number: int) -> datetime:
    """Leaves a branch with a row behind; returns when it began."""
    with connect(case.source.app_url) as app:
        moment: datetime = app.value("SELECT UTC_TIMESTAMP()")
        row = f"INSERT INTO s VALUES ({number},'branch',UTC_TIMESTAMP(6) - INTERVAL 2 HOUR)"
        for each in (f"XA START {branch}", row, f"XA END {branch}", f"XA PREPARE {branch}"):
            app.execute_raw(each)
        gone = app.id
    wait_until(lambda: gone not in processes(case.source.admin))
    return moment.replace(tzinfo=UTC)


def _is_done(session: Session, sql: str) -> bool:
    """A prepared branch can be ended a moment after its connection is gone."""
    with contextlib.suppress(SqlError):
        session.execute_raw(sql)
        return True
    return False
