"""The matcher: rows of an XA branch wait for their outcome, whatever comes in between."""

from __future__ import annotations

import dataclasses
import json
import os
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.changes import effects, put
from vreplication.binlog import gtids
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes.matcher import Held, Matcher
from vreplication.changes.sorter import DiskSorter
from vreplication.errors import SourceChanged, Terminal
from vreplication.mysql.server import Xid


def position(offset: int) -> Position:
    return Position.of("binlog.000001", offset)


def group(kind: GroupKind, at: int, *, xid: Xid | None = None, rows: int = 0, nbytes: int = 10) -> Group:
    items = [put(str(at), f"{at},{n}") for n in range(rows)]
    return Group(
        kind=kind, start=position(at), end=position(at + 1), time_micros=at, items=items, nbytes=nbytes, xid=xid
    )


def values_of(items: Iterable[RowChange]) -> list[str]:
    return [str(effect.values) for effect in effects(items)]


A, B = Xid(1, b"a", b""), Xid(1, b"b", b"\x00\xff")


def test_ordinary_groups_pass_at_once() -> None:
    one = group(GroupKind.COMMIT, 1, rows=2)
    assert list(Matcher().feed(one)) == [one]


def test_a_committed_branch_leaves_with_the_commits_own_place() -> None:
    matcher = Matcher()
    [prepared] = matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=2))
    assert list(prepared.items) == []
    [out] = matcher.feed(group(GroupKind.XA_COMMIT, 5, xid=A))
    assert values_of(out.items) == ["1,0", "1,1"]
    assert (out.kind, out.end, out.time_micros) == (GroupKind.COMMIT, position(6), 5)


def test_a_rolled_back_branch_is_dropped() -> None:
    matcher = Matcher()
    list(matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=2)))
    [out] = matcher.feed(group(GroupKind.XA_ROLLBACK, 5, xid=A))
    assert list(out.items) == []
    assert matcher.held() == ()


def test_a_restart_reads_from_the_oldest_prepare_whose_rows_are_not_here() -> None:
    """Branches A and B overlap: B's outcome was applied, A is open. B's commit, read again, is no stranger."""
    log = [
        group(GroupKind.XA_PREPARE, 1, xid=B, rows=1),
        group(GroupKind.XA_PREPARE, 3, xid=A, rows=2),
        group(GroupKind.COMMIT, 5, rows=1),
        group(GroupKind.XA_COMMIT, 7, xid=B),
        group(GroupKind.COMMIT, 9, rows=1),
    ]
    first = Matcher(is_strict=True)
    for one in log[:4]:
        list(first.feed(one))
    held = tuple(Held.of(json.loads(json.dumps(branch.fields()))) for branch in first.held())
    assert [(b.xid, b.start, b.rows) for b in held] == [(A, position(3), 2)]
    second = Matcher(is_strict=True)
    assert second.restore(held, log[3].end) == position(3)
    assert [g for one in log[1:4] for g in second.feed(one)] == []
    assert second.not_queued == 3
    assert list(second.feed(log[4])) == [log[4]]
    [out] = second.feed(group(GroupKind.XA_COMMIT, 11, xid=A))
    assert values_of(out.items) == ["3,0", "3,1"]


def test_behind_a_checkpoint_all_that_is_read_is_handed_on() -> None:
    """Also a transaction of another server whose number is lower than the last one's (MariaDB, without strict mode)."""
    place = dataclasses.replace(position(9), gtids=gtids.parse("0-1-100"))
    end = dataclasses.replace(position(10), gtids=gtids.plus(place.gtids, (0, 2, 5)))
    late = replace(group(GroupKind.COMMIT, 9, rows=1), start=place, end=end)
    matcher = Matcher(is_strict=True)
    assert matcher.restore((), place) == place
    assert list(matcher.feed(late)) == [late]


@pytest.mark.parametrize("name_of_the_second", [A, B])
def test_rows_of_a_branch_that_began_before_what_is_read_again_are_lost(name_of_the_second: Xid) -> None:
    """Whatever a later branch is called that the checkpoint holds."""
    log = [
        group(GroupKind.COMMIT, 3, rows=1),
        group(GroupKind.XA_COMMIT, 5, xid=A),
        group(GroupKind.XA_PREPARE, 7, xid=name_of_the_second),
    ]
    before = Matcher()
    list(before.feed(log[2]))
    lost: list[bool] = []
    matcher = Matcher(on_lost=lambda: lost.append(True))
    assert matcher.restore(before.held(), log[2].end, position(3)) == position(3)
    assert [g for one in log for g in matcher.feed(one)] == []
    assert lost == [True]
    assert [branch.xid for branch in matcher.held()] == [name_of_the_second]


def test_read_again_up_to_a_checkpoint_and_not_behind_it() -> None:
    """The same, when a branch has to be read again: the late transaction stands behind the checkpoint."""

    def at(offset: int, name: str) -> Position:
        return dataclasses.replace(position(offset), gtids=gtids.parse(name))

    prepared = replace(group(GroupKind.XA_PREPARE, 1, xid=A, rows=1), start=at(1, "0-1-98"), end=at(2, "0-1-99"))
    applied = replace(group(GroupKind.COMMIT, 3, rows=1), start=at(3, "0-1-99"), end=at(4, "0-1-100"))
    late = replace(group(GroupKind.COMMIT, 5, rows=1), start=at(5, "0-1-100"), end=at(6, "0-2-5"))
    first = Matcher()
    list(first.feed(prepared))
    matcher = Matcher(is_strict=True)
    assert matcher.restore(first.held(), applied.end) == prepared.start
    assert [g for one in (prepared, applied, late) for g in matcher.feed(one)] == [late]


def test_read_again_from_a_log_of_another_order() -> None:
    """A promoted replica has committed 4 before 3, and the checkpoint, of the former source, has 1 to 3."""
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

    def at(offset: int, *numbers: int) -> Position:
        return dataclasses.replace(
            position(offset), gtids=gtids.parse(",".join(f"{uuid}:{each}" for each in (1, *numbers)))
        )

    def named(kind: GroupKind, number: int, start: Position, end: Position) -> Group:
        return replace(group(kind, number, xid=A, rows=1), start=start, end=end, gtid=(uuid, number))

    prepared = named(GroupKind.XA_PREPARE, 2, at(1), at(2, 2))
    further = named(GroupKind.COMMIT, 4, at(2, 2), at(3, 2, 4))
    applied = named(GroupKind.COMMIT, 3, at(3, 2, 4), at(4, 2, 4, 3))
    first = Matcher()
    list(first.feed(prepared))
    matcher = Matcher(is_strict=True)
    assert matcher.restore(first.held(), at(9, 2, 3)) == prepared.start
    assert [g for one in (prepared, further, applied) for g in matcher.feed(one)] == [further]


def test_a_branch_without_rows_of_ours_costs_a_restart_nothing() -> None:
    first = Matcher()
    list(first.feed(group(GroupKind.XA_PREPARE, 1, xid=A)))
    second = Matcher(is_strict=True)
    assert second.restore(first.held(), position(9)) == position(9)
    assert second.held_with_rows() == ()
    [out] = second.feed(group(GroupKind.XA_COMMIT, 11, xid=A))
    assert list(out.items) == []


def test_rows_on_disk_need_not_be_read_again(tmp_path: Path) -> None:
    first = Matcher(budget_bytes=100, sorter=DiskSorter(tmp_path))
    list(first.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=9000, nbytes=101)))
    list(first.feed(group(GroupKind.XA_PREPARE, 3, xid=B, rows=1, nbytes=1)))
    held = first.held()
    assert [b.fragments for b in held] == [(4000, 4000, 1000), ()]
    second = Matcher(is_strict=True, sorter=DiskSorter(tmp_path))
    assert second.restore(held, position(9)) == position(3)
    list(second.feed(group(GroupKind.XA_PREPARE, 3, xid=B, rows=1, nbytes=1)))
    out = [c for g in second.feed(group(GroupKind.XA_COMMIT, 11, xid=A)) for c in g.items]
    assert values_of(out) == [f"1,{n}" for n in range(9000)]
    assert second.not_queued == 1 - 9000


def test_rows_on_disk_are_there_until_a_checkpoint_names_their_copy(tmp_path: Path) -> None:
    """A restart that is killed before its first checkpoint leaves them to the next one."""
    first = Matcher(budget_bytes=100, sorter=DiskSorter(tmp_path))
    list(first.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=3, nbytes=101)))
    held = first.held()
    for _ in range(3):
        killed = Matcher(is_strict=True, sorter=DiskSorter(tmp_path))
        assert killed.restore(held, position(9)) == position(9)
    # The one that the checkpoint names, and the last that copied it.
    assert len(list(tmp_path.iterdir())) == 2
    [out] = killed.feed(group(GroupKind.XA_COMMIT, 11, xid=A))
    assert values_of(out.items) == ["1,0", "1,1", "1,2"]


def test_a_branch_that_another_one_pushes_to_disk_is_there_at_once(tmp_path: Path) -> None:
    """It was prepared in memory; a checkpoint lists it as being on disk from then on."""
    first = Matcher(budget_bytes=100, sorter=DiskSorter(tmp_path))
    list(first.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=1, nbytes=60)))
    list(first.feed(group(GroupKind.XA_PREPARE, 3, xid=B, rows=1, nbytes=50)))
    held = first.held()
    assert [b.fragments for b in held] == [(1,), ()]
    assert Matcher(sorter=DiskSorter(tmp_path)).restore(held, position(9)) == position(3)


def test_rows_that_are_gone_from_disk_are_read_again(tmp_path: Path) -> None:
    first = Matcher(budget_bytes=100, sorter=DiskSorter(tmp_path / "a"))
    list(first.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=3, nbytes=101)))
    second = Matcher(sorter=DiskSorter(tmp_path / "b"))
    assert second.restore(first.held(), position(9)) == position(1)


def test_rows_that_are_damaged_on_disk_are_read_again(tmp_path: Path) -> None:
    """Of a branch of which a part can still be read nothing is taken over."""
    sorter = DiskSorter(tmp_path)
    first = Matcher(budget_bytes=100, sorter=sorter)
    prepared = group(GroupKind.XA_PREPARE, 1, xid=A, rows=90_000, nbytes=101)
    list(first.feed(prepared))
    sorter.close()
    os.truncate(sorter._file, sorter._file.stat().st_size // 2)
    second = Matcher(is_strict=True, sorter=DiskSorter(tmp_path))
    assert second.restore(first.held(), position(9)) == position(1)
    assert second.held_bytes == 0
    list(second.feed(prepared))
    out = [c for g in second.feed(group(GroupKind.XA_COMMIT, 11, xid=A)) for c in g.items]
    assert out == list(prepared.items)


def test_a_committed_branch_counts_as_held_until_its_last_part() -> None:
    """A checkpoint in between must not take its rows for applied."""
    matcher = Matcher()
    list(matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=9000)))
    seen = [
        (g.is_last, len(g.items), g.end.offset, [b.xid for b in matcher.held()])
        for g in matcher.feed(group(GroupKind.XA_COMMIT, 5, xid=A))
    ]
    assert seen == [(False, 4000, 5, [A]), (False, 4000, 5, [A]), (True, 1000, 6, [])]


def test_an_unknown_commit_matters_only_after_the_first_chunk() -> None:
    matcher = Matcher()
    list(matcher.feed(group(GroupKind.XA_COMMIT, 1, xid=A)))
    matcher.be_strict()
    with pytest.raises(SourceChanged, match="prepared before this workflow"):
        list(matcher.feed(group(GroupKind.XA_COMMIT, 2, xid=B)))


def test_too_much_held_is_a_clear_error() -> None:
    matcher = Matcher(budget_bytes=100)
    with pytest.raises(Terminal, match="MiB of changes"):
        list(matcher.feed(group(GroupKind.XA_PREPARE, 1, xid=A, rows=1, nbytes=101)))


@given(data=st.data())
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
        assert {branch.xid for branch in matcher.held()} == set(held)
    assert [v for g in out for v in values_of(g.items)] == expected


def parts(of: Group, sizes: list[int], keeps: dict[int, int]) -> list[Group]:
    """A transaction as the reader hands on a large one: rows numbered through, `keep` in front of some parts."""
    made, number = [], 0
    for i, size in enumerate(sizes):
        items = [put("k", str(number + n)) for n in range(size)]
        number += size
        is_last = i == len(sizes) - 1
        made.append(replace(of, items=items, is_last=is_last, end=of.end if is_last else of.start, keep=keeps.get(i)))
    return made


@settings(deadline=None)
@given(data=st.data())
def test_a_transaction_in_parts_comes_out_as_it_was_left(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In memory or on disk, cut anywhere, of every kind: exactly the rows that were not rolled back, in order."""
    sorter = DiskSorter(tmp_path_factory.mktemp("spool"))
    matcher = Matcher(budget_bytes=data.draw(st.sampled_from([10, 10_000, 10**9])), sorter=sorter)
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 7, 4001, 9000]), min_size=1, max_size=5))
    keeps: dict[int, int] = {}
    left: list[str] = []
    number = 0
    for i, size in enumerate(sizes):
        if i and data.draw(st.booleans()):
            keeps[i] = data.draw(st.integers(0, len(left)))
            left = left[: keeps[i]]
        left += [str(number + n) for n in range(size)]
        number += size
    kind = data.draw(st.sampled_from([GroupKind.COMMIT, GroupKind.XA_PREPARE, GroupKind.UNFINISHED]))
    whole = group(kind, 3, xid=A if kind is GroupKind.XA_PREPARE else None, nbytes=1000)
    out = [g for part in parts(whole, sizes, keeps) for g in matcher.feed(part)]
    if kind is GroupKind.XA_PREPARE:
        assert [len(g.items) for g in out] == [0]
        out = list(matcher.feed(group(GroupKind.XA_COMMIT, 9, xid=A)))
    assert [v for g in out for v in values_of(g.items)] == ([] if kind is GroupKind.UNFINISHED else left)
    assert [g.is_last for g in out] == [False] * (len(out) - 1) + [True] * bool(out)
    assert matcher.held_bytes == 0
    assert number - matcher.not_queued == (0 if kind is GroupKind.UNFINISHED else len(left))
    sorter.remove()


def wide(at: int, first: int, count: int, row_bytes: int, *, is_last: bool) -> Group:
    """A part of a branch whose rows are wide: as a binary column of half the size becomes hex."""
    items = [put(str(n), f"{n}," + "a" * row_bytes) for n in range(first, first + count)]
    whole = group(GroupKind.XA_PREPARE, at, xid=A, nbytes=count * row_bytes)
    return replace(whole, items=items, is_last=is_last)


@pytest.mark.parametrize(("row_bytes", "rows"), [(40 << 10, 4_000), (6 << 20, 20)])
def test_wide_rows_are_bounded_by_their_bytes(tmp_path: Path, row_bytes: int, rows: int) -> None:
    """160 MB in rows of 20 KB, and rows of which each is larger than a part: put aside, taken back and handed on."""
    matcher = Matcher(budget_bytes=8 << 20, sorter=DiskSorter(tmp_path))
    together = max(1, (4 << 20) // row_bytes)
    tracemalloc.start()
    try:
        for first in range(0, rows, together):
            is_last = first + together >= rows
            list(matcher.feed(wide(1, first, min(together, rows - first), row_bytes, is_last=is_last)))
        count = 0
        for out in matcher.feed(group(GroupKind.XA_COMMIT, 9, xid=A)):
            assert len(out.items) == 1 or sum(map(len, values_of(out.items))) <= 4 << 20
            assert [int(e.key) for e in effects(out.items)] == list(range(count, count + len(out.items)))
            count += len(out.items)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == rows
    assert peak < 64 << 20, f"{peak >> 20} MiB"


def test_rows_that_come_back_from_disk_are_weighed(tmp_path: Path) -> None:
    """A rollback to a savepoint cuts into a fragment: what stays of it is in memory again."""
    matcher = Matcher(budget_bytes=3 << 20, sorter=DiskSorter(tmp_path))
    list(matcher.feed(wide(1, 0, 90, 40 << 10, is_last=False)))
    assert matcher.held_bytes == 0
    list(matcher.feed(replace(wide(1, 90, 0, 0, is_last=False), keep=60)))
    assert 60 * (40 << 10) <= matcher.held_bytes <= 3 << 20


def test_ten_thousand_branches_are_ten_thousand_small_entries(tmp_path: Path) -> None:
    """Of 4 KB of rows each, with a budget of 4 MiB: what stays in memory of a branch is its name and its place."""
    count, sorter = 10_000, DiskSorter(tmp_path)
    matcher = Matcher(budget_bytes=4 << 20, sorter=sorter)
    rows = "a" * (4 << 10)
    names = [Xid(1, b"%d" % n, b"") for n in range(count)]
    tracemalloc.start()
    try:
        for at, xid in enumerate(names):
            one = group(GroupKind.XA_PREPARE, at, xid=xid, nbytes=len(rows))
            list(matcher.feed(replace(one, items=[put(str(at), f"{at},{rows}"[: len(rows)])])))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(matcher.held()) == count
    assert peak < (4 << 20) + (12 << 20) + count * 2_000, f"{held >> 20} MiB held, {peak >> 20} MiB at most"
    for at, xid in reversed(list(enumerate(names))):
        [out] = matcher.feed(group(GroupKind.XA_COMMIT, count + at, xid=xid))
        assert [e.key for e in effects(out.items)] == [str(at)]
    assert (matcher.held(), matcher.held_bytes) == ((), 0)


def test_a_part_that_was_rolled_back_whole_gives_its_room_back(tmp_path: Path) -> None:
    """Rows on disk, all of them taken back, more rows, the end: nothing is left of it, in memory or on disk."""
    sorter = DiskSorter(tmp_path)
    matcher = Matcher(budget_bytes=10, sorter=sorter)
    for part in parts(group(GroupKind.COMMIT, 3, nbytes=100), [5, 0, 3], {1: 0}):
        list(matcher.feed(part))
    sorter._delete()
    assert sorter.stats().entries == 0
    assert len(matcher._budget._users) == 0
