"""A webhook out of a worker's environment: checked before a workflow begins, and in nobody's way later."""

from __future__ import annotations

from typing import Any

import pytest

from vreplication.airflow.telling import events_sent
from vreplication.engine import webhooks
from vreplication.errors import Refused
from vreplication.mysql.url import parse

URL = parse("mysql://u@127.0.0.1:1/d")


def test_a_bad_one_is_refused_at_first_and_a_good_one_sends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []

    class Made:
        def __init__(self, *_: Any) -> None: ...

        def start(self) -> None:
            acts.append("start")

        def end(self, _: float) -> None:
            acts.append("end")

    monkeypatch.setattr(webhooks, "Deliverer", Made)
    monkeypatch.setenv(webhooks.URL, "ftp://h/x")
    monkeypatch.setenv(webhooks.SECRET, "0123456789abcdef-secret")
    with pytest.raises(Refused, match="no http or https URL"), events_sent(URL, is_checked=True):
        pass
    with events_sent(URL):
        acts.append("work")
    monkeypatch.setenv(webhooks.URL, "https://h/x")
    with events_sent(URL, is_checked=True):
        acts.append("plan")
    with events_sent(URL):
        acts.append("work")
    assert acts == ["work", "plan", "start", "work", "end"]
