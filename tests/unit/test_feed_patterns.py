"""What a plan says of patterns and columns that name nothing: a feed would send what somebody has left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.feed.catalog import Filter, parse_columns
from vreplication.planning.facts import Check, Verdict
from vreplication.workflows.changefeed.patterns import Here, judged

THERE = {
    ("shop", "orders"): ("id", "total", "note"),
    ("shop", "users"): ("id", "Name", "secret"),
    ("arch", "old"): ("id",),
}


def verdict(*columns: str, tables: Any = ("shop.*",), exclude: Any = (), is_folded: bool = False) -> Check:
    found = Filter(tables=tables, exclude=exclude, columns=parse_columns(columns))
    here = Here(
        filter=found,
        tables=frozenset(THERE),
        followed={table: there for table, there in THERE.items() if found.has(*table)},
        is_folded=is_folded,
    )
    return judged(SimpleNamespace(tables=tables, exclude=exclude), [here])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("shop.orders:id,totl",), "--columns shop.orders: shop.orders has no column totl. Write total"),
        (("shop.*:id,mail",), "--columns shop.*: none of its tables has a column mail. Leave it out"),
        (("shop.*:id,note", "shop.users:id"), "--columns shop.users never counts: shop.* stands before it"),
        (("shop.users:id", "shop.users:name"), "--columns shop.users never counts: shop.users stands before it"),
        # Of its tables the first pattern takes the one that has it.
        (("shop.orders:id", "shop.*:id,note"), "--columns shop.*: shop.users has no column note. Leave it out"),
    ],
)
def test_columns_that_would_not_be_what_was_asked_for_are_refused(columns: tuple[str, ...], said: str) -> None:
    found = verdict(*columns)
    assert found.verdict is Verdict.REFUSE
    assert said in f"{found.sentence} {found.cure}"


@pytest.mark.parametrize("columns", [("shop.users:ID,NAME",), ("shop.*:note",), ("shop.users:id", "shop.*:total")])
def test_columns_are_told_apart_as_by_the_servers(columns: tuple[str, ...]) -> None:
    assert verdict(*columns).verdict is Verdict.OK


def test_a_pattern_without_a_table_is_told_with_what_is_near() -> None:
    found = verdict("shop.user:id", tables=("shop.*", "new.*"), exclude=("shop.order", "arch.old"))
    assert found.verdict is Verdict.WARN
    assert found.sentence == (
        "No table is there that matches --tables new.*, --exclude shop.order (near it is shop.orders),"
        " --columns shop.user (near it is shop.users)."
    )


@pytest.mark.parametrize(
    "given",
    [{"tables": ("Shop.*",)}, {"exclude": ("shop.Users",)}, {"exclude": ("shop.Tmp_*",)}, {"columns": "shop.Users:id"}],
)
def test_capitals_match_nothing_where_names_are_kept_in_lower_case(given: dict[str, Any]) -> None:
    columns = [given.pop("columns")] if "columns" in given else []
    assert "can match no table" in verdict(*columns, **given, is_folded=True).sentence
    assert verdict(*columns, **given).verdict is Verdict.WARN


def test_one_of_several_sources_may_have_it() -> None:
    """A pattern counts for each, and so does a column that one of two namesakes has."""
    found = Filter(tables=("shop.*", "arch.*"), columns=parse_columns(["shop.orders:id,total"]))
    first = Here(filter=found, tables=frozenset({("shop", "orders")}), followed={("shop", "orders"): ("id",)})
    second = Here(
        filter=found,
        tables=frozenset({("shop", "orders"), ("arch", "old")}),
        followed={("shop", "orders"): ("id", "total"), ("arch", "old"): ("id",)},
    )
    asked = SimpleNamespace(tables=found.tables, exclude=())
    assert judged(asked, [first, second]).verdict is Verdict.OK
    assert judged(asked, [second, first]).verdict is Verdict.OK
    assert "has no column total" in judged(asked, [first]).sentence


@pytest.mark.parametrize("written", ["note", "NOTE", "Note"])
def test_a_column_is_sent_however_it_is_spelled(written: str) -> None:
    columns: Any = [SimpleNamespace(name=name) for name in ("id", "Note", "secret")]
    sent = Filter(columns=(("shop.*", (written,)),)).sent("shop.orders", columns, ("id",))
    assert [column.name for column in sent] == ["id", "Note"]
