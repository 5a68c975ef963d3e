"""Spark's jobs of a command that is told to end while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from vreplication.errors import Interrupted, Refused
from vreplication.spark import jobs
from vreplication.spark.sql import cut


class Session:
    """With a context that is told to cancel its jobs."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    @property
    def sparkContext(self) -> Session:
        return self

    def cancelAllJobs(self) -> None:
        self.cancelled.set()


def run(stop: threading.Event, session: Session, body: Callable[[], None]) -> None:
    with cut(stop, lambda: session) as start:
        start()
        body()


def test_a_job_that_runs_ends_and_the_command_is_interrupted() -> None:
    """Before, `lake-compact` went on for as long as its jobs took, and called what it met a fault."""
    stop, session = threading.Event(), Session()

    def told_to_end() -> None:
        stop.set()
        assert session.cancelled.wait(30)
        raise RuntimeError("Job 0 cancelled as part of cancellation of all jobs")

    with pytest.raises(Interrupted):
        run(stop, session, told_to_end)


@pytest.mark.parametrize("error", [RuntimeError("x"), Refused("x"), BrokenPipeError()])
def test_an_error_without_a_signal_stays_what_it_is(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SIGNAL_SECONDS", 0.0)
    session = Session()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        run(threading.Event(), session, fail)
    assert not session.cancelled.is_set()
