"""What is put aside comes back as it was, whatever a row holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vreplication.binlog.events import RowChange
from vreplication.changes.encoding import decode_items, encode_items

cells = st.one_of(st.none(), st.integers(-(2**63), 2**64 - 1), st.text(), st.binary())
texts = st.one_of(st.none(), st.text(), st.tuples(st.text(), st.text()))
plain = st.one_of(st.none(), st.dictionaries(st.text(), cells))
of_tables = st.builds(RowChange, st.integers(0, 2**31), texts, texts)
of_ours = st.builds(RowChange, st.integers(-9, -1), plain, plain)


@given(st.lists(st.one_of(of_tables, of_ours)))
def test_what_is_read_is_what_was_written(items: list[RowChange]) -> None:
    found = decode_items(encode_items(items))
    assert found == items
    assert all(type(item) is RowChange for item in found)
