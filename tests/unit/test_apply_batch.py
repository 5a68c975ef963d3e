"""Batches: what is collapsed and what keeps its order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vreplication.apply.batch import Batch, Step
from vreplication.binlog.events import Change

changes = st.lists(
    st.builds(Change, key=st.integers(0, 5).map(str), values=st.one_of(st.none(), st.integers(0, 9).map(str)))
)


def apply_steps(steps: list[Step], rows: dict[str, str]) -> None:
    for step in steps:
        for i, key in enumerate(step.keys):
            if step.values is None:
                rows.pop(key, None)
            else:
                rows[key] = step.values[i]


def truth(todo: list[Change]) -> dict[str, str]:
    rows: dict[str, str] = {"0": "old", "1": "old"}
    for change in todo:
        if change.values is None:
            rows.pop(change.key, None)
        else:
            rows[change.key] = change.values
    return rows


@given(changes, st.integers(1, 4))
def test_an_exact_batch_gives_the_same_rows_in_any_share_order(todo: list[Change], wanted: int) -> None:
    batch = Batch(is_exact_key=True)
    for change in todo:
        batch.add(change)
    rows = {"0": "old", "1": "old"}
    for share in reversed(batch.shares(wanted)):
        apply_steps(share, rows)
    assert rows == truth(todo)


@given(changes)
def test_an_ordered_batch_is_one_share_in_log_order(todo: list[Change]) -> None:
    batch = Batch(is_exact_key=False)
    for change in todo:
        batch.add(change)
    [share] = batch.shares(4)
    rows = {"0": "old", "1": "old"}
    apply_steps(share, rows)
    assert rows == truth(todo)
    assert [k for s in share for k in s.keys] == [c.key for c in todo]


def test_the_last_change_of_an_exact_key_wins() -> None:
    batch = Batch(is_exact_key=True)
    for change in (Change("1", "a"), Change("1", None), Change("2", "b"), Change("1", "c")):
        batch.add(change)
    assert batch.shares(1) == [[Step(keys=["1", "2"], values=["c", "b"])]]
    assert batch.has_deletes


of_two = st.lists(
    st.builds(
        Change,
        key=st.tuples(st.integers(0, 3), st.sampled_from(["'a'", "'A'", "'b,b'"])).map(lambda k: f"{k[0]},{k[1]}"),
        values=st.one_of(st.none(), st.integers(0, 9).map(str)),
    )
)


@given(of_two, st.integers(1, 4))
def test_rows_that_differ_in_an_exact_leading_column_may_be_written_apart(todo: list[Change], wanted: int) -> None:
    """'a' and 'A' may be one row, so the changes of each leading value stay together and in order."""
    batch = Batch(is_exact_key=False, exact_leading=1)
    for change in todo:
        batch.add(change)
    shares = batch.shares(wanted)
    assert len(shares) <= wanted
    found = [[key for step in share for key in step.keys] for share in shares]
    for leading in {c.key[0] for c in todo}:
        holders = [[k for k in keys if k[0] == leading] for keys in found]
        assert [c.key for c in todo if c.key[0] == leading] in holders
        assert sum(map(bool, holders)) == 1


def test_no_leading_column_no_sharing() -> None:
    batch = Batch(is_exact_key=False)
    for change in (Change("'a',1", "x"), Change("'b',2", "y")):
        batch.add(change)
    assert len(batch.shares(4)) == 1
