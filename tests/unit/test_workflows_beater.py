"""What is said of a copy that catch-up holds back."""

from __future__ import annotations

import pytest

from vreplication.binlog.events import Extent
from vreplication.changes.watermark import Inside, Reading
from vreplication.engine.beater import why_closed
from vreplication.settings import MIB
from vreplication.throttle.reasons import Reason

LEVEL = {"is_holding": False, "is_fresh": True}


def reading(
    backlog: int, lag: float | None = 0.1, inside: Inside | None = None, unread: Extent | None = None
) -> Reading:
    return Reading(received_micros=2, resolved_micros=1, backlog=backlog, lag_seconds=lag, inside=inside, unread=unread)


def said(reasons: tuple[Reason, ...]) -> str:
    return "; ".join(map(str, reasons))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (reading(0), ""),
        (reading(4_210), "apply backlog 4,210 changes"),
        (reading(0, lag=70.25), "apply lag 70.2 s"),
        (reading(0, lag=None), "catch-up has just started"),
        (
            reading(3_000, lag=60.0, inside=Inside(done=4_000, total=7_000)),
            "apply lag 60.0 s, 4,000 of 7,000 of one transaction applied",
        ),
        (
            reading(9_000_000, inside=Inside(done=4_000, total=5_000_000), unread=Extent(done=1_500 * MIB, total=None)),
            "apply backlog 9,000,000 changes, 4,000 of 5,000,000 of one transaction applied, 1,500 MiB of another read",
        ),
        (
            reading(5_000, unread=Extent(done=MIB, total=2_048 * MIB)),
            "apply backlog 5,000 changes, 1 of 2,048 MiB of one transaction read",
        ),
        (
            reading(5_000, unread=Extent(done=MIB, total=None)),
            "apply backlog 5,000 changes, 1 MiB of one transaction read",
        ),
    ],
)
def test_why_no_chunk_may_start(found: Reading, words: str) -> None:
    assert said(why_closed(found, dict(LEVEL))) == words


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"is_holding": True}, "the tables are being switched"),
        ({"is_fresh": False}, "catch-up has just started"),
    ],
)
def test_whose_turn_it_is(state: dict[str, bool], words: str) -> None:
    assert said(why_closed(reading(0), LEVEL | state)) == words
