"""Whether all sessions agree on an expression: TIMEs among themselves, and TIMEs that are taken for dates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.schema.expressions import is_same_everywhere


def column(name: str, kind: str, expression: str = "") -> Any:
    return SimpleNamespace(
        name=name, data_type=kind, generated="stored" if expression else "", expression=expression, default=None
    )


PLAIN = (column("id", "int"), column("opens", "time"), column("closes", "time"), column("d", "date"))


@pytest.mark.parametrize(
    ("expression", "is_same"),
    [
        ("concat(`opens`,_utf8mb4'-',`id`)", True),
        ("`opens` < `closes`", True),
        ("`opens` between TIME'08:00:00' and '20:00:00'", True),
        ("`opens` < `d`", False),
        ("`opens` < '2026-01-01'", False),
        ("greatest(`opens`,`d`)", False),
        ("cast(`opens` as datetime)", False),
        ("cast(maketime(`id`,0,0) as datetime)", False),
    ],
)
def test_a_time_is_of_the_sessions_day_where_it_is_taken_for_a_date(expression: str, is_same: bool) -> None:
    assert is_same_everywhere(SimpleNamespace(columns=PLAIN), expression) is is_same  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "is_same"), [("time", True), ("datetime", False)])
def test_the_column_that_it_is_written_to_may_take_it_for_one(kind: str, is_same: bool) -> None:
    table: Any = SimpleNamespace(columns=(*PLAIN, column("x", kind, "`opens`")))
    assert is_same_everywhere(table, "`opens`") is is_same
