"""Triggers that are carried over: what they are called, where their text begins, who would drop one too early."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from vreplication.cutover import carried
from vreplication.errors import Refused
from vreplication.names import MAX_NAME, carried_triggers
from vreplication.planning.spec import make_spec
from vreplication.schema import triggers
from vreplication.schema.triggers import Trigger
from vreplication.workflows.online_ddl import group

TRIGGER = Trigger(
    name="x",
    time="BEFORE",
    event="INSERT",
    order=1,
    definer="a@%",
    sql_mode="",
    client="utf8mb4",
    collation="utf8mb4_bin",
    of_database="utf8mb4_bin",
    body="",
)


def test_a_name_comes_back_with_the_second_change() -> None:
    def first(trigger: str, count: int) -> list[str]:
        return list(islice(carried_triggers(trigger), count))

    assert first("x", 2) == ["x__vr", "x__vr2"]
    assert first("x__vr", 2) == ["x", "x__vr2"]
    assert "X__VR" not in [name.upper() for name in first("x__vr", 20)]
    assert first("x__vr12", 12)[-1] == "x__vr11"
    long = first("n" * MAX_NAME, 120)
    assert len(set(long)) == len(long)
    assert max(map(len, long)) == MAX_NAME


@pytest.mark.parametrize(
    ("head", "mode"),
    [
        ("CREATE DEFINER=`on`@`row` TRIGGER `row` BEFORE INSERT ON `on` FOR EACH ROW", ""),
        ("CREATE DEFINER=`a`@`%` TRIGGER s.x BEFORE INSERT ON s.t FOR EACH ROW\nFOLLOWS s.y", ""),
        ('CREATE DEFINER="a"@"%" TRIGGER "x on" before insert ON "t" FOR EACH ROW PRECEDES "y" ', "ANSI_QUOTES"),
    ],
)
def test_where_its_text_begins(head: str, mode: str) -> None:
    body = "BEGIN SET @a = 1; END -- ON ROW"
    whole = f"{head} {body}"
    assert whole[triggers._begin(whole, replace(TRIGGER, sql_mode=mode)) :] == body


def test_an_event_of_servers_to_come_is_refused() -> None:
    for event in ("INSERT OR DELETE", "INSERT OF a, b"):
        with pytest.raises(Refused, match="Trigger x"):
            triggers._begin(f"CREATE TRIGGER x BEFORE {event} ON t FOR EACH ROW SET @a=1", TRIGGER)


def test_columns_that_it_uses() -> None:
    body = "SET NEW.`a b` = old . C + t.d + 'NEW.e', @NEW = new_.f /* NEW.g */"
    assert triggers.columns_of(replace(TRIGGER, body=body)) == {"a b", "c"}


def test_who_drops_one_of_them() -> None:
    """A dump's own form, and MariaDB's settings of one statement, included."""
    for statement in (
        "drop trigger X",
        "DROP TRIGGER IF EXISTS `s`.`x`",
        "DROP /* c */ TRIGGER x",
        "/*!50032 DROP TRIGGER IF EXISTS x */",
        "-- c\nDROP/**/TRIGGER`x`",
        "SET STATEMENT lock_wait_timeout=9 FOR DROP TRIGGER x",
    ):
        assert carried._drops(statement, {"x"})
    for statement in ("DROP TRIGGER y", "DROP TABLE x", "SELECT 'DROP TRIGGER x'", "UPDATE x SET a=1", ""):
        assert not carried._drops(statement, {"x"})


def test_what_does_not_go_with_it_is_one_sentence() -> None:
    with pytest.raises(Refused, match="triggers: it has to be one of 'refuse' or 'preserve'"):
        make_spec(table="t", alter="ADD x INT", triggers="keep")
    for more in ({"triggers": "preserve"}, {"foreign_keys": "rebuild"}):
        specs = tuple(make_spec(table=name, alter="ADD x INT", **more) for name in ("a", "b"))
        with pytest.raises(Refused, match="--atomic"):
            group.check(group.Tables(id="g", specs=specs, at_once=1, is_atomic=True))
        group.check(group.Tables(id="g", specs=specs, at_once=1))
