"""Which replication filters may have kept a followed table's changes out of a replica."""

from __future__ import annotations

import pytest

from vreplication.workflows.changefeed.left_out import _left_out

TABLES = [("shop", "orders"), ("shop", "lines"), ("arch", "old_rows")]


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("ignore_db", "mysql,other", None),
        ("ignore_db", "mysql, Arch", ("arch", "old_rows")),
        ("do_db", "shop", ("arch", "old_rows")),
        ("do_db", "arch,shop", None),
        ("ignore_table", "shop.lines", ("shop", "lines")),
        ("ignore_table", "shop.line", None),
        ("do_table", "shop.orders,shop.lines", ("arch", "old_rows")),
        ("wild_ignore_table", "shop.tmp%,arch.old\\_%", ("arch", "old_rows")),
        ("wild_ignore_table", "arch.old\\%,sh.%", None),
        ("wild_do_table", "shop.%,arch.old_rows", None),
        ("wild_do_table", "shop.%", ("arch", "old_rows")),
        ("do_db", "Shop,arch", ("shop", "orders")),
        ("do_table", "shop.orders,shop.Lines,arch.old_rows", ("shop", "lines")),
        ("wild_do_table", "Shop.%,arch.%", ("shop", "orders")),
        ("ignore_table", "SHOP.lines", ("shop", "lines")),
        ("wild_ignore_table", "Arch.OLD%", ("arch", "old_rows")),
        ("rewrite_db", "a->b", ("shop", "orders")),
    ],
)
def test_what_a_filter_leaves_out(name: str, value: str, left: tuple[str, str] | None) -> None:
    assert _left_out(f"replicate_{name}", value, TABLES) == left
