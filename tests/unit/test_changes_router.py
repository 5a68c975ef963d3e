"""What one of several consumers sees of a group is what it would see if its tables were the only ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes.router import View
from vreplication.changes.stream import CHUNK

PLACE = Position.of("binlog.000001", 4)
MINE, OTHERS = 3, 4
ROWS = st.lists(
    st.one_of(
        st.builds(RowChange, st.sampled_from([MINE, OTHERS]), st.none(), st.integers()),
        st.builds(
            RowChange, st.just(CHUNK), st.none(), st.fixed_dictionaries({"workflow": st.sampled_from(["w", "other"])})
        ),
    ),
    max_size=6,
)


def is_mine(item: RowChange) -> bool:
    return item.table == MINE if item.table >= 0 else bool(item.after["workflow"] == "w")


@st.composite
def transactions(draw: st.DrawFn) -> tuple[list[Group], list[RowChange]]:
    """Parts as the reader hands them on, some of which take rows of those before back; and what is left of them all."""
    parts = draw(st.lists(ROWS, min_size=1, max_size=5))
    left: list[RowChange] = []
    groups = []
    for number, items in enumerate(parts):
        keep = draw(st.none() | st.integers(0, len(left))) if number else None
        left = [*(left if keep is None else left[:keep]), *items]
        groups.append(
            Group(
                kind=GroupKind.COMMIT,
                start=PLACE,
                end=PLACE,
                time_micros=1,
                items=items,
                nbytes=100 * len(items),
                is_last=number == len(parts) - 1,
                keep=keep,
            )
        )
    return groups, left


@given(st.lists(transactions(), min_size=1, max_size=3))
def test_rows_that_were_rolled_back_are_counted_in_its_own(given_: list[tuple[list[Group], list[RowChange]]]) -> None:
    view = View("w", frozenset({MINE}))
    for groups, left in given_:
        seen: list[RowChange] = []
        for group in groups:
            found = view.of(group)
            assert (found.start, found.end, found.is_last) == (group.start, group.end, group.is_last)
            if found.keep is not None:
                del seen[found.keep :]
            seen += found.items
        assert seen == [item for item in left if is_mine(item)]
