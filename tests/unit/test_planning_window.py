"""Maintenance windows: days, midnight, zones and the two days a year when the clock is moved."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from vreplication.errors import Refused
from vreplication.planning.window import Window


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "moment", "is_open"),
    [
        ("Sat 02:00-04:00 Europe/Berlin", "2026-11-21T01:00", True),
        ("Sat 02:00-04:00 Europe/Berlin", "2026-11-21T00:59", False),
        ("Sat 02:00-04:00 Europe/Berlin", "2026-11-21T03:00", False),
        ("Sat 02:00-04:00 Europe/Berlin", "2026-11-20T01:30", False),
        # In summer Berlin is two hours ahead; on 29 March the hour from two to three does not exist.
        ("Sat 02:00-04:00 Europe/Berlin", "2026-07-04T00:00", True),
        ("Sun 02:00-04:00 Europe/Berlin", "2026-03-29T00:59", False),
        ("Sun 02:00-04:00 Europe/Berlin", "2026-03-29T01:00", True),
        ("Fri 23:30-00:30 UTC", "2026-11-21T00:29", True),
        ("Fri 23:30-00:30 UTC", "2026-11-20T00:10", False),
        ("Mon-Wed,Sat 10:00-11:00 UTC", "2026-11-21T10:30", True),
        ("Mon-Wed 10:00-11:00 UTC", "2026-11-21T10:30", False),
        ("Sat-Mon 10:00-11:00 UTC", "2026-11-22T10:30", True),
        ("10:00-11:00 UTC", "2026-11-19T10:30", True),
    ],
)
def test_is_open(window: str, moment: str, is_open: bool) -> None:
    assert Window.parse(window).is_open(at(moment)) is is_open


@pytest.mark.parametrize(
    "text",
    ["", "02:00", "Sat 02:00-04:00", "Xyz 02:00-04:00 UTC", "25:00-26:00 UTC", "02:00-02:00 UTC", "02:00-03:00 Mars/X"],
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="cutover_window"):
        Window.parse(text)
