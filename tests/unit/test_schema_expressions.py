"""Whether all sessions agree on an expression: TIMEs among themselves, and TIMEs that are taken for dates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.schema.expressions import is_same_everywhere, is_settled


def column(name: str, kind: str, expression: str = "", fraction: int = 0) -> Any:
    generated = "stored" if expression else ""
    return SimpleNamespace(
        name=name, data_type=kind, generated=generated, expression=expression, default=None, fraction=fraction
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
        ("concat(convert(`opens` using utf32),convert(`id` using utf32))", True),
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


MADE = (
    column("n", "int"),
    column("text", "varchar"),
    column("at", "datetime", fraction=3),
    column("whole", "datetime"),
    column("day", "date", "`at`"),
    column("second", "datetime", "`at`"),
    column("exact", "datetime", "(`at`)", fraction=6),
    column("read", "datetime", "`text`"),
    column("active", "date", "if(`text` = _utf8mb4'on',`alone`,NULL)"),
    column("alone", "date"),
    column("ratio", "decimal", "`n` / 3"),
)


@pytest.mark.parametrize(
    ("expression", "is_settled_so"),
    [
        ("`n` DIV 3", True),
        ("concat(`n`,_utf8mb4'/')", True),
        ("if(`at` is null,1,NULL)", True),
        ("`exact`", True),
        ("`n` / 3", False),
        ("`ratio` + 1", False),
        ("`second`", False),
        ("`day`", False),
        ("`read`", False),
        ("cast(`at` as datetime)", False),
        ("cast(`at` as datetime(3))", True),
        ("ifnull(`whole`,cast('1970-01-01' as datetime))", True),
        ("ifnull(`whole`,cast(_utf8mb4'1970-01-01 00:00:00.5' as datetime))", False),
        ("`active`", True),
        ("cast(`whole` as date)", True),
        ("cast(`text` as date)", False),
    ],
)
def test_digits_are_a_matter_of_the_session(expression: str, is_settled_so: bool) -> None:
    assert is_settled(SimpleNamespace(columns=MADE), expression) is is_settled_so  # type: ignore[arg-type]
