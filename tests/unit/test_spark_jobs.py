"""What a failure of Spark's is taken for, when the signal that ends its processes is on its way to us, too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from vreplication.errors import Interrupted
from vreplication.spark import jobs
from vreplication.spark.jobs import first_line, heed_signal

STOPPED = "An error occurred while calling z:x.\n: Job 5 cancelled because SparkContext was shut down"


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when it is told to."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SIGNAL_SECONDS", 0.1)


def later(jvm: subprocess.Popen[bytes], looks: int, then: Callable[[], None]) -> Callable[[], None]:
    """A check that ends the process at its so many-th look, waits for it, and does `then` at the next."""
    seen = [0]

    def check() -> None:
        seen[0] += 1
        if seen[0] == looks:
            jvm.communicate(b"\n")
        if seen[0] > looks:
            then()

    return check


def interrupt() -> None:
    raise Interrupted("Interrupted.")


def test_a_jvm_that_takes_its_time_to_end_is_waited_for(jvm: subprocess.Popen[bytes]) -> None:
    with pytest.raises(Interrupted):
        heed_signal(RuntimeError(STOPPED), later(jvm, 20, interrupt), jvm)


def test_a_failure_of_a_job_does_not_wait_for_a_jvm_that_lives(jvm: subprocess.Popen[bytes]) -> None:
    heed_signal(RuntimeError("Job aborted due to stage failure"), later(jvm, 20, interrupt), jvm)
    assert jvm.poll() is None


class FromJava(Exception):
    """As py4j's: its text is asked of the JVM."""

    errmsg = "An error occurred while calling z:x."

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_whose_jvm_has_gone_can_be_told() -> None:
    assert first_line(FromJava()) == "Spark's JVM has gone: An error occurred while calling z:x."
