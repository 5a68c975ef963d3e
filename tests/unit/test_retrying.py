"""The pause between two attempts at the cut-over, by a clock that stands still between two looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.support.rows import workflow_row
from vreplication.cutover.blockers import METADATA_LOCK, Blocker
from vreplication.state import lease
from vreplication.workflows.online_ddl import retrying
from vreplication.workflows.online_ddl.retrying import Failed

ROW = workflow_row("w")
TABLE = f"{ROW.source_schema}.{ROW.source_table}"


@dataclass
class Waiting:
    """A driver and its clock."""

    seconds: float = 0.0
    said: list[str] = field(default_factory=list)
    connections: tuple[int, ...] = ()
    session: Any = None

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def report(self, waiting_for: str) -> None:
        self.said.append(waiting_for)

    def check(self) -> None: ...


def holder(connection: int, table: str = TABLE, age: float = 5.0) -> Blocker:
    return Blocker(
        kind=METADATA_LOCK, connection_id=connection, user="u", host="h", age_seconds=age, statement="", table=table
    )


def waited(monkeypatch: pytest.MonkeyPatch, failed: Failed, gone_at: float = 0.0) -> Waiting:
    """Who held the table is seen until `gone_at`; another one is always there."""
    clock = Waiting()
    monkeypatch.setattr(retrying, "SYSTEM", clock)
    monkeypatch.setattr(lease, "connections", lambda *_: frozenset())
    seen = [holder(2, age=0.0)]
    monkeypatch.setattr(retrying, "blockers", lambda *_, **__: seen + ([holder(1)] if clock.seconds < gone_at else []))
    retrying.pause(cast(Any, clock), cast(Any, None), ROW, failed)
    return clock


@pytest.mark.parametrize(("number", "gone_at", "seconds"), [(2, 0, 2), (3, 7, 7), (4, 0, 4), (30, 0, 10), (4, 99, 30)])
def test_it_ends_when_who_held_the_table_is_gone_and_attempts_become_rarer(
    monkeypatch: pytest.MonkeyPatch, number: int, gone_at: float, seconds: float
) -> None:
    clock = waited(monkeypatch, Failed(number=number, why="held", blocked_by=(holder(1),)), gone_at)
    assert clock.seconds == seconds
    assert len(clock.said) == seconds, "what is not written again is shown no more"


@pytest.mark.parametrize("blocked_by", [(), (holder(1, age=0.5),), (holder(1, table=f"{ROW.source_schema}.another"),)])
def test_of_whom_nothing_is_known_its_whole_time_is_waited(
    monkeypatch: pytest.MonkeyPatch, blocked_by: tuple[Blocker, ...]
) -> None:
    assert waited(monkeypatch, Failed(number=4, blocked_by=blocked_by)).seconds == 30
