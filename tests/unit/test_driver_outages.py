"""How many outages a driver rides out, by a clock that is set: many at once end the workflow, some in weeks do not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.engine import driver as module
from vreplication.engine.driver import Driver, through_outages
from vreplication.mysql.session import ConnectionLost

MINUTE, WEEK = 60.0, 7 * 24 * 3600.0


class _Waiting(Driver):
    """It waits at the gate: all is copied, and nothing gets further. The server answers again at once."""

    def __init__(self) -> None:
        super().__init__(None, "w", None, lambda _: None, child=object())  # type: ignore[arg-type]

    def check(self) -> None: ...

    def reconnect(self, *_: object) -> None: ...

    def _totals(self, _: object) -> Any:
        return SimpleNamespace(chunks_matched=100)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> _Waiting:
    connection: Any = SimpleNamespace(id=1)
    monkeypatch.setattr(module, "connect", lambda *_, **__: connection)
    monkeypatch.setattr(module.lease, "server_run", lambda _: 1)
    monkeypatch.setattr(module.lease, "fence", lambda *_: None)
    made = _Waiting()
    made.our_lease = module.Lease(workflow="w", role=module.lease.DRIVER, token=1)
    return made


def _lost(monkeypatch: pytest.MonkeyPatch, every: float, times: int) -> Callable[[], str]:
    """Work that loses the server so often, at such a distance, and then is done."""
    now = [0.0]
    monkeypatch.setattr(module, "SYSTEM", SimpleNamespace(monotonic=lambda: now[0]))
    left = iter(range(times))

    def act() -> str:
        now[0] += every
        if next(left, None) is None:
            return "done"
        raise ConnectionLost("The connection was lost.")

    return act


def test_a_wait_of_months_outlasts_every_restart_of_the_server(
    monkeypatch: pytest.MonkeyPatch, waiting: _Waiting
) -> None:
    """At the gate, or in a revert window: the workflow ended at the eleventh restart in all."""
    assert through_outages(waiting, _lost(monkeypatch, WEEK, 5 * module._OUTAGES)) == "done"


def test_outages_one_after_the_other_end_it(monkeypatch: pytest.MonkeyPatch, waiting: _Waiting) -> None:
    with pytest.raises(ConnectionLost):
        through_outages(waiting, _lost(monkeypatch, MINUTE, 5 * module._OUTAGES))
