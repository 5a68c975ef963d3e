"""What holds a copy back, as values: how limits are written, and which of several is named."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.engine import throttling
from vreplication.errors import Refused, Terminal
from vreplication.mysql.session import ConnectionLost, SqlError
from vreplication.planning.spec import Spec, make_spec
from vreplication.progress import metrics
from vreplication.throttle.reasons import below, beyond, over_load, parse_load, parse_places, parse_size, strictest


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_load": "25"}, "write it as Threads_running=25"),
        ({"max_load": "Threads_running=many"}, "write it as"),
        ({"max_load": "Threads_running=-1"}, "write it as"),
        ({"max_load": "Threads_running=nan"}, "write it as"),
        ({"max_load": "a=1,A=2"}, "limited twice"),
        ({"critical_load": "x;=1"}, "write it as"),
        ({"max_lag": 0}, "more than 0"),
        ({"min_disk_free": "20"}, "write it as 20G"),
        ({"min_disk_free": "0G"}, "write it as 20G"),
        ({"throttle_query": "DELETE FROM t"}, "it is no query"),
        ({"lag_replicas": "host:0"}, "write it as host:3306"),
        ({"lag_replicas": "a,,b"}, "write it as host:3306"),
        ({"lag_replicas": "2001:db8::10"}, "an IPv6 address as"),
        ({"lag_replicas": "mysql://ann:secret@a"}, "it holds a login, which would be stored and shown"),
        ({"throttle_http": "ftp://host/x"}, "no http:// or https://"),
        ({"throttle_http": "http://ann:secret@host/x"}, "user or a password"),
        ({"nice_ratio": -1}, "at least 0"),
        ({"least_copy_share": 2}, "at most 1"),
    ],
)
def test_a_limit_that_is_none_is_one_sentence(given: dict[str, object], words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        make_spec(table="t", alter="ADD x INT", **given)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_limits_and_places_are_read() -> None:
    assert parse_load("Threads_running=25, Uptime=1e9") == {"Threads_running": 25, "Uptime": 1e9}
    assert [parse_size(text) for text in ("512M", "20g", "1.5TiB")] == [512 << 20, 20 << 30, 3 << 39]
    assert parse_places("a, b:3307,[::1]:3308,[::2]") == [("a", 3306), ("b", 3307), ("::1", 3308), ("::2", 3306)]


def test_two_servers_over_one_limit_are_one_series() -> None:
    """A series may have one sample only; of a move both servers may be over --max-load."""
    found = over_load("max-load", {"A": 10}, {"a": 30}) + over_load("max-load", {"A": 10}, {"a": 20})
    seen: Any = SimpleNamespace(throttle_reasons=[each.as_json() for each in found])
    assert [sample.value for sample in metrics._figures({}, seen)] == [30, 10]


def test_the_one_that_is_furthest_beyond_its_limit_is_named() -> None:
    found = over_load("max-load", {"A": 10, "B": 100, "C": 5}, {"a": 11, "b": 300, "c": 5})
    assert str(strictest(over_load("max-load", {"D": 9}, {}))) == "by --max-load: the server does not tell D"
    lag = beyond("max-lag", "the lag of replica r:1", 4.25, 2, "seconds")
    assert lag is not None
    assert str(strictest([*found, lag])) == "by --max-load: B is 300, more than 100"
    assert str(strictest([lag])) == "by --max-lag: the lag of replica r:1 is 4.2 s, more than 2 s"
    room = below("min-disk-free", "what is free on the disk of /data", 3 << 29, 20 << 30)
    assert room is not None
    assert str(strictest([lag, room])) == (
        "by --min-disk-free: what is free on the disk of /data is 1.5 GiB, less than 20 GiB"
    )
    assert strictest([]) is None


def test_a_look_that_hangs_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before says nothing of now."""
    monkeypatch.setattr(throttling, "_SILENT_SECONDS", 0.0)
    hangs: Any = _Hanging()
    found = throttling.Throttling(hangs, "w")
    found.ask(make_spec(table="t", alter="ADD x INT", max_load="A=1"))
    assert hangs.is_asked.wait(60)
    assert found.reason.startswith("by --max-load: no answer for ")
    hangs.let_go.set()
    found.stop()


class _Hanging:
    """A route whose server does not answer."""

    def __init__(self) -> None:
        self.is_asked, self.let_go = threading.Event(), threading.Event()

    def open(self, **_: object) -> Any:
        self.is_asked.set()
        self.let_go.wait(60)
        raise Refused("gone")


Answer = dict[str, float]
Step = Callable[[], Answer]
"""What the server answers to a look, and what else happens within it."""


class _Told:
    """A server that answers by a list; the first look behind it waits, and then finds nothing."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.is_done, self._steps = threading.Event(), list(steps)

    @contextlib.contextmanager
    def open(self, **_: object) -> Iterator[Any]:
        yield SimpleNamespace(is_across=False, home=None)

    def status(self, *_: object) -> Answer:
        if self._steps:
            return self._steps.pop(0)()
        self.is_done.set()
        return {"a": 0, "b": 0}


@contextlib.contextmanager
def looking(monkeypatch: pytest.MonkeyPatch, *steps: Step) -> Iterator[tuple[throttling.Throttling, threading.Event]]:
    told: Any = _Told(steps)
    monkeypatch.setattr(throttling, "_PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(throttling, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(throttling.load, "status", told.status)
    found = throttling.Throttling(told, "w")
    try:
        yield found, told.is_done
    finally:
        found.stop()


def asked(**given: object) -> Spec:
    return make_spec(table="t", alter="ADD x INT", **given)


@pytest.mark.parametrize(
    ("between", "ends"), [("", True), ("fails", False), ("lost", False), ("mute", False), ("off", False)]
)
def test_a_critical_load_is_one_at_two_looks_in_a_row(
    monkeypatch: pytest.MonkeyPatch, between: str, ends: bool
) -> None:
    critical, other = asked(critical_load="A=1"), asked(max_load="B=1")

    def high() -> Answer:
        return {"a": 2}

    def high_and_off() -> Answer:
        found.ask(other)
        return high()

    def on_again() -> Answer:
        found.ask(critical)
        return {"b": 0}

    def fails() -> Answer:
        raise SqlError("it is refused")

    def lost() -> Answer:
        raise ConnectionLost("it has gone")

    steps: dict[str, tuple[Step, ...]] = {
        "": (high, high),
        "fails": (high, fails, high),
        "lost": (high, lost, high),
        "mute": (high, lambda: {}, high),
        "off": (high_and_off, on_again, high),
    }
    with looking(monkeypatch, *steps[between]) as (found, is_done):
        found.ask(critical)
        assert is_done.wait(60)
        with pytest.raises(Terminal) if ends else contextlib.nullcontext():
            found.check()


def test_what_nobody_has_looked_for_yet_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for while another look is under way, or where nothing was asked for before."""
    is_at_it, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def waits() -> Answer:
        is_at_it.set()
        assert go_on.wait(60)
        return {"a": 0}

    def looks() -> Answer:
        seen.append(found.reason)
        return {"b": 0}

    with looking(monkeypatch, waits, looks) as (found, is_done):
        found.ask(asked(max_load="A=1"))
        assert is_at_it.wait(60)
        found.ask(asked())
        assert found.reason == ""
        found.ask(asked(max_load="B=1"))
        seen.append(found.reason)
        go_on.set()
        assert is_done.wait(60)
    assert seen == ["what is to hold it back is looked at"] * 2


def test_an_outage_is_logged_once_and_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The looks go on each second; a mistake of ours is logged beside it, for it shows nowhere else."""
    caplog.set_level("INFO", throttling.__name__)

    def lost() -> Answer:
        raise ConnectionLost("it has gone")

    def mistaken() -> Answer:
        raise KeyError("what")

    with looking(monkeypatch, lost, lost, dict, lost, mistaken, mistaken, dict) as (found, is_done):
        found.ask(asked(max_load="B=1"))
        assert is_done.wait(60)
    away, again = "the server cannot be asked: it has gone", "what is to hold it back is looked at again"
    told = [(record.getMessage().partition(": ")[2], bool(record.exc_info)) for record in caplog.records]
    failed = "it failed: KeyError: 'what'"
    assert told == [(away, False), (again, False), (away, False), (failed, True), (again, False)]


def test_a_lost_server_is_not_taken_for_a_lost_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is opened anew; before, the replica was said to be away for as long as the workflow lasted."""
    opened: list[Any] = []

    @contextlib.contextmanager
    def open_ends(**_: object) -> Iterator[Any]:
        opened.append(None)
        home = _Home(is_lost=len(opened) == 1)
        yield SimpleNamespace(is_across=False, home=home, source=home, target=home)

    is_looked_at = threading.Event()

    def lag(*_: object) -> float:
        is_looked_at.set()
        return 0

    monkeypatch.setattr(throttling, "_PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(throttling, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(throttling.Throttling, "_replica", lambda *_: None)
    monkeypatch.setattr(throttling.throttling, "lag_micros", lag)
    route: Any = SimpleNamespace(open=open_ends)
    found = throttling.Throttling(route, "w")
    try:
        found.ask(asked(max_lag=2.0, lag_replicas="r1:3306"))
        assert is_looked_at.wait(5), f"it is held back for good {found.reason}"
    finally:
        found.stop()


class _Home:
    """A server whose connection is lost, or is not."""

    def __init__(self, *, is_lost: bool) -> None:
        self._is_lost = is_lost

    def value(self, *_: object) -> str:
        if self._is_lost:
            raise ConnectionLost("it has gone")
        return "2026-01-01 00:00:00"
