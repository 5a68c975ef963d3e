"""What holds a copy back, as values: how limits are written, and which of several is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from vreplication.engine import throttling
from vreplication.errors import Refused
from vreplication.planning.spec import make_spec
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
