"""Names of a lake's tables that differ in case, as the source of each statement tells them apart or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from vreplication.errors import Terminal
from vreplication.feed.lake.ddl import Catalog, Statement
from vreplication.feed.lake.manifest import FOREVER, Manifest, Store


def catalog() -> Catalog:
    return Catalog(Manifest(topic="t", topic_id="x", number=1))


def said(sql: str, t: int, *, is_folded: bool) -> Statement:
    return Statement(t=t, schema="s", sql=sql, is_folded=is_folded)


def rows_of(catalog: Catalog, name: str, t: int = 0) -> int:
    """As rows that come find their table, or begin it."""
    found = catalog.of_rows("s", name)
    return catalog.begin("s", name, t, rows=("s", name)) if found is None else found


def names(catalog: Catalog) -> dict[str, int]:
    return {each.name: each.table for each in catalog.names if each.until == FOREVER}


def test_rows_are_not_of_a_new_table_whose_name_differs_in_case() -> None:
    """They were there before the feed, and went with that table when it was dropped."""
    found = catalog()
    found.run(said("CREATE TABLE Orders (id INT)", 5, is_folded=False))
    number = rows_of(found, "orders")
    assert names(found) == {"Orders": 1, "orders": number}
    found.run(said("RENAME TABLE Orders TO Bills", 6, is_folded=False))
    assert rows_of(found, "bills") != found.find("s", "Bills")
    found.run(said("DROP TABLE Bills", 7, is_folded=False))
    assert names(found)["orders"] == number


def test_sources_that_keep_names_in_lower_case_have_one_table() -> None:
    """Each says the CREATE as its client has written it; the second name would be of an empty table."""
    found = catalog()
    found.run(said("CREATE TABLE Orders (id INT)", 5, is_folded=True))
    number = rows_of(found, "orders")
    found.run(said("CREATE TABLE orders (id INT)", 6, is_folded=True))
    assert names(found) == {"Orders": number}


@pytest.mark.parametrize("is_folded", [True, False])
def test_an_alter_is_judged_of_the_table_that_it_is_run_on(is_folded: bool) -> None:
    """An ALTER of `Orders`, which the lake does not have, ended it for what it would have done to `orders`."""
    found = catalog()
    number = rows_of(found, "orders")
    alter = said("ALTER TABLE Orders MODIFY id VARCHAR(9)", 5, is_folded=is_folded)
    assert found.altered(alter) == ((("s", "Orders"), number) if is_folded else None)


def test_a_connection_that_breaks_is_not_called_a_lake_that_cannot_be_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    store.create()
    with pytest.raises(ConnectionRefusedError), store.alone("writer", "Another process fills"):
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_lake_that_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share that is away; there is no traceback, whoever reads."""

    def fail(self: Store) -> list[int]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Store, "_numbers", fail)
    with pytest.raises(Terminal, match=r"The lake cannot be read at .*: Stale file handle"):
        Store(tmp_path / "lake").open()
