"""What tests of a lake share that is made message by message: layouts of its tables, and what readers see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.lakes import LakeServer
from vreplication.feed.layout import Layout
from vreplication.schema.model import Column


def column(name: str, type: str = "int", at: int = 1) -> Column:
    return Column(name=name, ordinal=at, data_type=type, column_type=type, is_nullable=True)


def layout(table: str, *columns: tuple[str, str], key: tuple[str, ...] = ("id",)) -> Layout:
    made = tuple(column(name, type, at) for at, (name, type) in enumerate(columns, 1))
    names = tuple(each.name for each in made)
    return Layout(number=1, schema="shop", table=table, columns=made, key=key or names, has_key=bool(key))


T = layout("t", ("id", "int"), ("a", "int"))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def pairs(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    found = [tuple(row[name] for name in names or ("id", "a")) for row in rows]
    return sorted(found, key=lambda row: [(value is None, value) for value in row])


def read(lakes: LakeServer, lake: Path, *names: str, table: str = "shop.t", at: int | None = None) -> Any:
    return pairs(lakes.rows(lake, table, at), *names)
