"""The matcher: rows of an XA branch wait for their outcome, whatever comes in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.binlog.events import Change, Group, GroupKind, Position, Xid
from vreplication.changes.matcher import Matcher
from vreplication.errors import SourceChanged, Terminal


def position(offset: int) -> Position:
    return Position.of("binlog.000001", offset)


def group(kind: GroupKind, at: int, *, xid: Xid | None = None, rows: int = 0, nbytes: int = 10) -> Group:
    items = [Change(key=str(at), values=f"{at},{n}") for n in range(rows)]
    return Group(
        kind=kind, start=position(at), end=position(at + 1), time_micros=at, items=items, nbytes=nbytes, xid=xid
    )


A, B = Xid(1, b"a", b""), Xid(1, b"b", b"\x00\xff")


def test_ordinary_groups_pass_at_once() -> None:
    one = group(GroupKind.COMMIT, 1, rows=2)
    assert list(Matcher().feed(one)) == [one]


def test_a_committed_branch_leaves_with_the_commits_own_place() -> None:
    matcher = Matcher()
    [prepared] = matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=2))
    assert list(prepared.items) == []
    [out] = matcher.feed(group(GroupKind.XA_COMMIT, 5, xid=A))
    assert [c.values for c in out.items] == ["1,0", "1,1"]
    assert (out.kind, out.end, out.time_micros) == (GroupKind.COMMIT, position(6), 5)


def test_a_rolled_back_branch_is_dropped() -> None:
    matcher = Matcher()
    list(matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=2)))
    [out] = matcher.feed(group(GroupKind.XA_ROLLBACK, 5, xid=A))
    assert list(out.items) == []
    assert matcher.held() == ()


def test_the_checkpoint_is_held_at_the_oldest_prepare() -> None:
    matcher = Matcher()
    list(matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=1)))
    list(matcher.feed(group(GroupKind.XA_PREPARE, 3, xid=B, rows=1)))
    assert matcher.hold_position() == position(1)
    list(matcher.feed(group(GroupKind.XA_COMMIT, 5, xid=A)))
    assert matcher.hold_position() == position(3)


def test_an_unknown_commit_matters_only_after_the_first_chunk() -> None:
    matcher = Matcher()
    list(matcher.feed(group(GroupKind.XA_COMMIT, 1, xid=A)))
    matcher.be_strict()
    with pytest.raises(SourceChanged, match="prepared before this workflow"):
        list(matcher.feed(group(GroupKind.XA_COMMIT, 2, xid=B)))


def test_too_much_held_is_a_clear_error() -> None:
    matcher = Matcher(budget_bytes=100)
    with pytest.raises(Terminal, match="Commit or roll back"):
        list(matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=1, nbytes=101)))


@given(st.data())
def test_every_row_leaves_exactly_with_its_commit(data: st.DataObject) -> None:
    """Any interleaving of branches and ordinary groups: rows out = rows committed, in commit order."""
    matcher, expected, out = Matcher(is_strict=True), [], []
    held: dict[Xid, list[str]] = {}
    for at in range(1, data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["plain", "prepare", *(["commit", "rollback"] if held else [])]))
        if act == "plain":
            expected.append(f"{at},0")
            out += matcher.feed(group(GroupKind.COMMIT, at, rows=1))
        elif act == "prepare":
            xid = Xid(1, str(at).encode(), b"")
            held[xid] = [f"{at},0", f"{at},1"]
            out += matcher.feed(group(GroupKind.XA_PREPARE, at, xid=xid, rows=2))
        else:
            xid = data.draw(st.sampled_from(sorted(held)))
            rows = held.pop(xid)
            expected += rows if act == "commit" else []
            kind = GroupKind.XA_COMMIT if act == "commit" else GroupKind.XA_ROLLBACK
            out += matcher.feed(group(kind, at, xid=xid))
        assert set(matcher.held()) == set(held)
    assert [c.values for g in out for c in g.items] == expected
