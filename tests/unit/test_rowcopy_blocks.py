"""Which columns may travel as parameters of a bulk statement, and how they are packed."""

from __future__ import annotations

from typing import Any

import pytest

from vreplication.mysql.bulk import BYTES, TEXT, _greeting, value_sql
from vreplication.rowcopy.blocks import make_block
from vreplication.schema.model import Column, ColumnPair


def column(data_type: str, name: str = "c", **facts: Any) -> Column:
    facts = {"column_type": data_type, "is_nullable": False, **facts}
    return Column(name=name, ordinal=1, data_type=data_type, **facts)


def pair(source: Column, target: Column | None = None, convert: str = "{}") -> ColumnPair:
    return ColumnPair(source=source, target=target or source, convert=convert)


@pytest.mark.parametrize(
    ("source", "placeholder", "kind"),
    [
        (column("int"), "?", BYTES),
        (column("datetime"), "?", BYTES),
        (column("varchar", charset="utf8mb4", length=40), "?", BYTES),
        (column("varchar", charset="gbk", length=40), "?", BYTES),
        (column("blob", length=65535), "?", BYTES),
        (column("enum", charset="latin1"), "?", TEXT),
        (column("bit"), "CAST(? AS UNSIGNED)", TEXT),
        (column("year"), "CAST(? AS UNSIGNED)", TEXT),
    ],
)
def test_placeholder(source: Column, placeholder: str, kind: int) -> None:
    block = make_block([pair(source)])
    assert block is not None
    assert (block.values, block.types) == (placeholder, (kind,))


@pytest.mark.parametrize(
    ("source", "target", "placeholder", "kind"),
    [
        ("utf8mb3", "utf8mb4", "?", TEXT),
        ("utf8mb4", "latin1", "?", TEXT),
        ("gbk", "utf8mb4", "CONVERT(? USING gbk)", BYTES),
        ("utf16", "latin1", "CONVERT(? USING utf16)", BYTES),
    ],
)
def test_text_that_changes_its_character_set(source: str, target: str, placeholder: str, kind: int) -> None:
    block = make_block([pair(column("varchar", charset=source), column("varchar", charset=target))])
    assert block is not None
    assert (block.values, block.types) == (placeholder, (kind,))


@pytest.mark.parametrize(
    "unsure",
    [
        pair(column("float"), column("varchar", charset="utf8mb4")),  # '1e0' is not what 1e0 is as text
        pair(column("int"), column("enum", charset="utf8mb4")),  # a number is an index, a string a label
        pair(column("int"), column("bit")),
        pair(column("year"), column("int")),
        pair(column("varbinary"), column("int")),  # X'31' is a number here, '1' is not
        pair(column("decimal"), column("int")),
        pair(column("point")),
        pair(column("int"), convert="{} + 1"),
    ],
)
def test_what_is_not_certain_goes_as_text(unsure: ColumnPair) -> None:
    assert make_block([pair(column("int")), unsure]) is None


def test_constant_takes_no_parameter() -> None:
    block = make_block([pair(column("int")), pair(column("int"), convert="7")])
    assert block is not None
    assert block.values == "?,7"
    assert len(block.types) == 1
    assert make_block([pair(column("int"), convert="7")]) is None


def test_length_takes_one_byte_only_where_it_always_fits() -> None:
    assert value_sql("v", "c", is_nullable=False, longest=250) == "CONCAT(CHAR(0,LENGTH(v) USING binary),v)"
    assert "CHAR(0,253," in value_sql("v", "c", is_nullable=False, longest=251)
    assert "CHAR(0,253," in value_sql("v", "c", is_nullable=False, longest=None)
    assert value_sql("v", "c", is_nullable=True, longest=1).startswith("IF(c IS NULL,X'01',")


def test_greeting_sets_the_extended_bit_and_nothing_else() -> None:
    plain = bytes([0x0F, 0xA2, 0x3A, 0x01]) + b"\xff\xff\xff\x00" + b"\x2d" + bytes(23) + b"user\0"
    changed = _greeting(plain)
    assert changed == bytes([0x0E]) + plain[1:28] + b"\x04\0\0\0" + plain[32:]
