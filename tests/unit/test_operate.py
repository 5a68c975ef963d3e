"""What an operator's act on tables that move leaves open while it goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.workflows import operate

URL: Any = "a server"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Connections that are open as the move goes on, once for each act."""
    is_open, found = [0], list[int]()

    @contextlib.contextmanager
    def connect(_: object) -> Iterator[None]:
        is_open[0] += 1
        yield
        is_open[0] -= 1

    def goes_on(*_: object) -> None:
        found.append(is_open[0])

    row = SimpleNamespace(kind=operate.MOVE, is_in_place=False)
    monkeypatch.setattr(operate, "connect", connect)
    monkeypatch.setattr(operate, "live", lambda *_: row)
    monkeypatch.setattr(operate, "workflows", SimpleNamespace(load=lambda *_: row))
    monkeypatch.setattr(operate.moving, "resume", goes_on)
    monkeypatch.setattr(operate.moving, "verify", goes_on)
    return found


def test_no_connection_is_held_while_a_move_goes_on(opened: list[int]) -> None:
    """For as long as a way back is kept, which may be weeks."""
    operate.resume(URL, "w", "ann", threading.Event(), lambda text: None)
    operate.verify(URL, "w", "local[1]", threading.Event())
    assert opened == [0, 0]
