"""Whether all sessions agree on an expression: TIMEs among themselves, and TIMEs that are taken for dates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.schema.expressions import is_same_everywhere, is_settled, odd_days_of


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
    column("price", "decimal"),
    column("whole_number", "bigint", "((`at`))"),
    column("number", "bigint", "(`whole`)"),
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
        ("`whole_number`", False),
        ("`number`", True),
        ("hour(maketime(`n`,`n`,`n`))", True),
        ("hour(maketime(`n`,`n`,`price`))", False),
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


KINDS = (
    *(column("id", "int"), column("s", "varchar"), column("d", "date"), column("e", "date"), column("dt", "datetime")),
    *(column("doc", "json"), column("state", "varchar"), column("opens", "time")),
    column("stamp", "timestamp", "(`dt`)"),
    column("same", "datetime", "if(`state` = _utf8mb4'on',`dt`,NULL)"),
    column("other", "datetime", "(`d`)"),
    column("born", "date", "`s`"),
    column("chosen", "date", "case `state` when _utf8mb4'a' then `d` end"),
    column("if_on", "date", "if(`id`,`d`,NULL)"),
    column("put", "datetime", "concat(`dt`,_utf8mb4'+00:00')"),
)


@pytest.mark.parametrize(
    ("expression", "is_same", "is_settled_so"),
    [
        ("year(`d`)", True, True),
        ("year(`s`)", False, False),
        ("concat(`s`,year(`d`))", True, True),
        ("datediff(`d`,`e`)", True, True),
        ("datediff(`d`,`s`)", False, False),
        ("year(cast(`dt` as date))", True, True),
        ("year(ifnull(`d`,`e`))", True, True),
        ("cast(`id` as date)", False, False),
        ("cast(_utf8mb4'2024-01-01' as date)", True, True),
        ("cast(_utf8mb4'2024-02-30' as date)", False, False),
        ("json_value(`doc`, _utf8mb4'$.born' returning date)", False, False),
        ("json_value(`doc`, _utf8mb4'$.n' returning signed)", True, True),
        ("cast(json_unquote(json_extract(`doc`,_utf8mb4'$.at')) as datetime)", False, False),
        ("(`d` + interval 1 day)", True, True),
        ("(`s` + interval 1 day)", False, False),
        ("(`d` > `s`)", False, False),
        ("(`d` > `e`)", True, True),
        ("(`d` > _utf8mb4'2024-01-01')", True, True),
        ("(`d` > _utf8mb4'2024-02-30')", False, False),
        ("(`d` > _utf8mb4'2024-01-01 00:00:00+05:00')", False, False),
        ("if((`state` = _utf8mb4'on'),`d`,NULL)", True, True),
        ("(`d` between _utf8mb4'2024-01-01' and _utf8mb4'2024-12-31')", True, True),
        ("(`d` between _utf8mb4'2024-02-30' and _utf8mb4'2024-12-31')", False, False),
        ("(`s` in (_utf8mb4'a',_utf8mb4'b'))", True, True),
        ("(case `d` when _utf8mb4'2024-02-30' then 1 end)", False, False),
        ("(case when (`s` = _utf8mb4'a') then `d` end)", True, True),
        # What stands before the sign is what matters; an operand that is a call of another function is no date.
        ("(`dt` + interval `id` second)", True, True),
        ("(`s` + interval (`id` + 1) day)", False, False),
        ("if(((lower(`state`) = _utf8mb4'open') and (`d` > _utf8mb4'2020-01-01')),1,NULL)", True, True),
        ("((char_length(`s`) > 0) and (`d` > _utf8mb4'2020-01-01'))", True, True),
        ("(year(`d`) = `id`)", True, True),
        ("year((year((`d` + interval 1 day)) + 1))", False, False),
        ("year(cast(cast(`dt` as date) as char))", False, False),
        ("((`state` = _utf8mb4'done') = (`dt` is not null))", True, True),
        ("(datediff(`d`,`e`) <= `id`)", True, True),
        ("greatest(`d`,ifnull(`e`,_utf8mb4'9999-12-31'))", True, True),
        ("year(if((`id` = 1),`d`,`e`))", True, True),
        (
            "((`d` between _utf8mb4'1900-01-01' and _utf8mb4'2100-12-31') and (`state` in (_utf8mb4'a',_utf8mb4'b')))",
            True,
            True,
        ),
        ("if((`s` >= DATE'2024-01-01'),left(`s`,4),NULL)", False, False),
        ("(`s` in (DATE'2024-01-01',DATE'2024-01-02'))", False, False),
        ("(`s` between `d` and _utf8mb4'2030-01-01')", False, False),
        ("(_utf8mb4'2024-02-30' between `d` and `e`)", False, False),
        ("greatest(`s`,DATE'2024-01-01')", False, False),
        ("if((`opens` = `s`),NULL,1)", False, False),
        ("(case `d` when `s` then 1 end)", False, False),
        ("(case `state` when _utf8mb4'a' then `d` end)", True, True),
        ("`chosen`", True, True),
        ("`if_on`", True, True),
        ("`put`", False, False),
        ("greatest(`d`,`s`)", False, False),
        ("greatest(`d`,`e`)", True, True),
        ("from_days(`id`)", False, False),
        ("last_day(`d`)", True, True),
        ("`stamp`", False, False),
        ("`same`", True, True),
        ("`other`", True, True),
        ("`born`", False, False),
        ("regexp_like(`s`,_utf8mb4'^a')", True, False),
        ("(`s` like _utf8mb4'a%')", True, True),
        ("(`s` like _utf8mb4'a\\\\%')", True, False),
        ("(`s` like `state`)", True, False),
    ],
)
def test_what_is_taken_for_a_date_is_so_by_the_session(expression: str, is_same: bool, is_settled_so: bool) -> None:
    table: Any = SimpleNamespace(columns=KINDS)
    assert (is_same_everywhere(table, expression), is_settled(table, expression)) == (is_same, is_settled_so)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("year(`d`)", set()),
        ("cast(`dt` as date)", {"dt"}),
        ("(`d` + interval 1 day)", {"d"}),
        ("last_day(greatest(`d`,`e`))", {"d", "e"}),
        ("`other`", {"other", "d"}),
        ("`same`", {"same", "dt"}),
        ("coalesce(`d`,`e`)", {"d", "e"}),
        ("`id`", set()),
    ],
)
def test_of_which_days_of_zero_other_dates_are_made(expression: str, names: set[str]) -> None:
    assert odd_days_of(SimpleNamespace(columns=KINDS), expression) == names  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("default", "is_same"),
    [
        ("2024-01-01 00:00:00", True),
        ("'2024-01-01 00:00:00'", True),
        ("_utf8mb4'2024-01-01 00:00:00'", False),
        ("`dt`", False),
    ],
)
def test_a_default_that_is_a_literal_is_the_same_for_all(default: str, is_same: bool) -> None:
    stamp = column("t", "timestamp")
    stamp.default = default
    assert is_same_everywhere(SimpleNamespace(columns=(*KINDS, stamp)), default) is is_same  # type: ignore[arg-type]
