"""What two servers write of one definition: alike where it is, whatever each calls it."""

from __future__ import annotations

import pytest

from vreplication.schema.carried import _default
from vreplication.schema.model import Column
from vreplication.schema.written import read_table

COLUMN = Column(name="c", ordinal=1, data_type="varbinary", column_type="varbinary(4)", is_nullable=True)


def default(clause: str) -> object:
    return _default(read_table(f"CREATE TABLE `t` (\n  `c` varbinary(4) {clause}\n) ENGINE=InnoDB").column("c"), COLUMN)


@pytest.mark.parametrize("text", ["'AB'", "0x4142", "x'4142'", "X'4142'", "(_utf8mb4'AB')"])
def test_bytes_are_the_same_however_they_are_shown(text: str) -> None:
    """By MariaDB 10.11, by MySQL and by MariaDB 11.8, in this order."""
    assert default(f"DEFAULT {text}") == ["AB"]


@pytest.mark.parametrize("text", ["'4142'", "x'4143'", "0x4143"])
def test_other_bytes_are_others(text: str) -> None:
    assert default(f"DEFAULT {text}") != ["AB"]
