"""Small chunks land by the hundred a second: they are matched and compared together, without a commit each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from rowcopy_setup import WORKFLOW, CopyCase, make_case

from sandbox.databases import Database
from vreplication.apply import applier
from vreplication.apply.applier import LINGER_SECONDS, Applier
from vreplication.apply.writer import Target
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes.stream import CHUNK
from vreplication.changes.watermark import Watermark
from vreplication.mysql.session import connect
from vreplication.state import compared

SIX = "INSERT INTO t VALUES (1),(2),(3),(4),(5),(6)"
AT_ONCE = applier.MATCHES_AT_ONCE


@dataclass(slots=True)
class Clock:
    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def case(database: Database) -> CopyCase:
    """Six chunks that have landed, of a row each."""
    made = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY)", fill=(SIX,))
    made.copy_all(chunk_rows=1)
    return made


def group(ordinal: int, state: str) -> Group:
    row: dict[str, Any] = {"workflow": WORKFLOW, "split": 0, "ordinal": ordinal, "state": state}
    at = Position.of("binlog.000001", 100 * ordinal + 400)
    items = [RowChange(CHUNK, None, row)]
    return Group(kind=GroupKind.COMMIT, start=at, end=at, time_micros=1, items=items, nbytes=1, is_last=True, changes=0)


def states(case: CopyCase) -> list[str]:
    return [chunk.state for chunk in case.chunks()]


def test_chunks_that_land_one_behind_the_other_are_matched_together(
    case: CopyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(applier, "SYSTEM", clock)
    with connect(case.database.url) as session:
        target = Target(mapping=case.mapping, lease=case.replicate, packet=16 << 20)
        applying = Applier([session], [target], Watermark(), held=lambda: (), on_first_open=lambda: None)
        for ordinal in range(6):
            applying.take(group(ordinal, "landed"))
            applying.flush_if_due()
            matched = min(ordinal + 1, AT_ONCE)
            assert states(case) == ["matched"] * matched + ["landed"] * (6 - matched)
        clock.now += LINGER_SECONDS
        applying.flush_if_due()
        assert states(case) == ["matched"] * 6
        applying.close()


def test_neighbors_are_compared_together(case: CopyCase) -> None:
    case.database.admin.execute_raw("UPDATE _vreplication.chunk SET state='matched' WHERE ordinal<>2")

    def chosen(split: int, most_rows: int) -> list[int]:
        return [chunk.ordinal for chunk in compared.choose(case.session, WORKFLOW, split, most_rows)]

    assert chosen(0, 10) == [0, 1]
    assert chosen(0, 1) == chosen(0, 0) == [0]
    compared.note(case.session, WORKFLOW, case.chunks()[:2], 1, 2)
    assert chosen(0, 2) == [3, 4]
    assert chosen(7, 10)[0] in (3, 4, 5), "a task with nothing to compare of its own takes another's"
    assert compared.rows_seen(case.session, WORKFLOW) == 2
    compared.note(case.session, WORKFLOW, case.chunks()[3:], 1, 3)
    assert chosen(0, 10) == chosen(7, 10) == []
