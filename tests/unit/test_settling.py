"""When the new table of --on-duplicate follows, and when it does not."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.errors import Transient
from vreplication.workflows.online_ddl import dedup


class Followed:
    """Notes that wait, and a clock on which settling some of them takes a while."""

    def __init__(self, waiting: int, settled: int) -> None:
        self.waiting, self.settled, self.seconds = waiting, settled, 0.0

    def monotonic(self) -> float:
        return self.seconds

    def settle(self, *_: object) -> None:
        self.waiting, self.seconds = self.waiting - self.settled, self.seconds + 11


@pytest.mark.parametrize(("settled", "follows"), [(200_000, True), (0, False)])
def test_it_follows_as_long_as_fewer_rows_wait_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch, settled: int, follows: bool
) -> None:
    """Filled and verified for hours a busy table leaves millions."""
    those = Followed(4_000_000, settled)
    monkeypatch.setattr(dedup, "SYSTEM", those)
    monkeypatch.setattr(dedup, "settle_some", those.settle)
    monkeypatch.setattr(dedup.touched, "count", lambda session, workflow, most: min(those.waiting, most))
    session = SimpleNamespace(patient=lambda seconds: contextlib.nullcontext())
    driver: Any = SimpleNamespace(session=session, workflow="w", report=lambda **_: None, check=lambda: None)
    lowest: Any = None
    with contextlib.nullcontext() if follows else pytest.raises(Transient, match="4,000,000 wait"):
        dedup.until_few(driver, lowest)
