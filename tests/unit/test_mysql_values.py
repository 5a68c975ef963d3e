"""Rows that are text already, cut into statements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vreplication.mysql.values import split_literals, statements
from vreplication.state.keytables import key_predicate

literals = st.sampled_from(
    [
        "1",
        "-2.5e0",
        "NULL",
        "''",
        "_utf8mb4 X'2c28'",
        "'2020-01-01 00:00:00.5'",
        "JSON_OBJECT(_utf8mb4 X'61',CAST(1 AS UNSIGNED))",
    ]
)


@given(st.lists(literals, min_size=1))
def test_literals_are_split_at_their_own_commas(parts: list[str]) -> None:
    assert split_literals(",".join(parts)) == parts


def test_quoted_parentheses_and_commas_do_not_split() -> None:
    assert split_literals("'a,(b',1") == ["'a,(b'", "1"]


@given(st.lists(st.text(alphabet="x", min_size=1, max_size=40)), st.integers(1, 5), st.integers(1, 60))
def test_statements_keep_every_row_and_the_limits(rows: list[str], max_rows: int, max_bytes: int) -> None:
    parts = list(statements(rows, max_rows=max_rows, max_bytes=max_bytes))
    assert [r for p in parts for r in p] == rows
    assert all(len(p) <= max_rows for p in parts)
    assert all(len(p) == 1 or sum(map(len, p)) <= max_bytes for p in parts)


def test_composite_keys_are_spelled_out() -> None:
    assert key_predicate(["`a`", "`b`"], ["1,X'00'", "2,''"]) == "(`a`=1 AND `b`=X'00') OR (`a`=2 AND `b`='')"
    assert key_predicate(["`a`"], ["1", "2"]) == "`a` IN (1,2)"
