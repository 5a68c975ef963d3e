"""A run under watch: signals stop it and nothing else, whatever happens it is waited for, children are kept quiet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from vreplication.cli.attend import attend, stopping_on_signals
from vreplication.errors import Refused
from vreplication.phases import Phase
from vreplication.progress.snapshot import Snapshot

SNAPSHOT = Snapshot(workflow="t-1", phase=Phase.COPYING)


class _Watcher:
    latest = SNAPSHOT

    def __enter__(self) -> _Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def settle(self) -> None:
        return None


class _Display:
    """Calls `on_tick` at each tick."""

    def __init__(self, on_tick: Any = lambda: None) -> None:
        self.on_tick = on_tick
        self.stopping: list[bool] = []

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tick(self, snapshot: Snapshot, *, is_stopping: bool) -> None:
        self.stopping.append(is_stopping)
        self.on_tick()

    def note(self, text: str) -> None:
        return None


def _attend(work: Any, stop: threading.Event | None = None, display: Any = None) -> Any:
    return attend(
        work,
        stop=stop or threading.Event(),
        display=display or _Display(),
        watcher=_Watcher(),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_set_stop_however_many_come(number: signal.Signals) -> None:
    stop = threading.Event()

    def work() -> str:
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        os.kill(os.getpid(), number)
        return "stopped"

    before = signal.getsignal(number)
    display = _Display()
    assert _attend(work, stop, display) == "stopped"
    assert display.stopping[-1]
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_on_signals(threading.Event()):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_the_work_raises_is_raised() -> None:
    def work() -> None:
        raise Refused("No.")

    with pytest.raises(Refused, match=r"No\."):
        _attend(work)


def test_the_work_is_off_the_main_thread() -> None:
    assert _attend(lambda: threading.current_thread() is threading.main_thread()) is False


def test_a_display_that_fails_stops_the_work_and_waits_for_it() -> None:
    stop, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert stop.wait(10)
        ended.set()

    def broken() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        _attend(work, stop, _Display(broken))
    assert ended.is_set()


_PROGRAM = """
import subprocess, sys
from pathlib import Path
from vreplication.cli.streams import children_to
with children_to(Path(sys.argv[1])):
    subprocess.run(["sh", "-c", "echo child out; echo child err >&2"], check=True)
    print("our out")
    print("our err", file=sys.stderr)
subprocess.run(["sh", "-c", "echo later out; echo later err >&2"], check=True)
"""


def test_what_children_say_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(log)], capture_output=True, text=True, check=True)
    assert done.stdout == "our out\nlater out\n"
    assert done.stderr == "our err\nlater err\n"
    assert log.read_text() == "child out\nchild err\n"
