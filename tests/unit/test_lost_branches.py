"""When an XA branch is taken for lost in a crash, and when it must not be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.changes import put
from vreplication.binlog.events import Group, GroupKind, Position
from vreplication.changes import lost_branches
from vreplication.changes.lost_branches import LostBranches
from vreplication.changes.matcher import Held, Matcher
from vreplication.errors import SourceChanged
from vreplication.mysql.server import Xid

A = Xid(1, b"a", b"")


@dataclass
class Source:
    """A MariaDB, and the markers that are written there. started: second."""

    started: int = 10
    listed: list[Xid] = field(default_factory=list)
    markers: list[str] = field(default_factory=list)

    def write(self) -> str:
        self.markers.append(f"m{len(self.markers)}")
        return self.markers[-1]

    def remove(self, marker: str) -> None:
        assert marker in self.markers


@dataclass
class Setup:
    source: Source
    matcher: Matcher
    lost: LostBranches
    dropped: list[Xid]

    def prepare(self, second: float, rows: int = 1, at: int = 1) -> None:
        list(self.matcher.feed(group(GroupKind.XA_PREPARE, at, second, rows)))

    def held(self) -> list[Xid]:
        return [branch.xid for branch in self.matcher.held()]


def group(kind: GroupKind, at: int, second: float = 20, rows: int = 0) -> Group:
    start, end = (Position.of("binlog.000001", place) for place in (at, at + 1))
    items = [put(str(n), f"{n}") for n in range(rows)]
    return Group(kind=kind, start=start, end=end, time_micros=round(second * 1_000_000), items=items, nbytes=1, xid=A)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    source: Any = Source()
    monkeypatch.setattr(lost_branches, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lost_branches, "started_at", lambda session: session.started)
    monkeypatch.setattr(lost_branches, "prepared_branches", lambda session, is_mariadb: session.listed)
    matcher, dropped = Matcher(), list[Xid]()
    return Setup(source, matcher, LostBranches(source, source, matcher, dropped.append, is_mariadb=True), dropped)


def test_given_up_behind_two_looks_and_a_marker(setup: Setup) -> None:
    setup.prepare(second=9)
    setup.lost.look()
    assert setup.source.markers == []
    setup.lost.look()
    setup.lost.passed("another's")
    assert setup.held() == [A]
    setup.lost.passed("m0")
    assert (setup.held(), setup.dropped) == ([], [A])


def test_one_that_is_prepared_in_the_second_of_the_restart_is_given_up(setup: Setup) -> None:
    """MySQL tells it to the microsecond, and its own start to the second."""
    setup.prepare(second=10.9)
    setup.lost.look()
    setup.lost.look()
    setup.lost.passed("m0")
    assert (setup.held(), setup.dropped) == ([], [A])


def test_one_that_is_prepared_in_this_run_of_the_server_is_kept(setup: Setup) -> None:
    """It may wait for a semi-synchronous replica: in the log, and not listed yet."""
    setup.prepare(second=11)
    for _ in range(3):
        setup.lost.look()
    assert (setup.source.markers, setup.held()) == ([], [A])


def test_one_that_is_listed_by_then_is_kept(setup: Setup) -> None:
    setup.prepare(second=9)
    setup.lost.look()
    setup.lost.look()
    setup.source.listed = [A]
    setup.lost.passed("m0")
    assert (setup.held(), setup.dropped) == ([A], [])


def test_one_of_the_same_name_that_comes_behind_it_is_kept(setup: Setup) -> None:
    setup.prepare(second=9)
    setup.lost.look()
    setup.lost.look()
    setup.prepare(second=9, at=5)
    setup.lost.passed("m0")
    assert setup.held() == [A]


def test_one_without_rows_of_ours_is_no_matter(setup: Setup) -> None:
    setup.prepare(second=9, rows=0)
    for _ in range(3):
        setup.lost.look()
    assert setup.source.markers == []


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_commit_of_one_that_was_given_up_ends_the_workflow(setup: Setup, is_strict: bool) -> None:
    """Also where nothing is copied, so that an unknown branch's commit would be no matter."""
    if is_strict:
        setup.matcher.be_strict()
    setup.prepare(second=9)
    setup.matcher.give_up(A)
    with pytest.raises(SourceChanged, match="taken for lost"):
        list(setup.matcher.feed(group(GroupKind.XA_COMMIT, 7)))
    setup.prepare(second=30, at=8)
    assert [len(g.items) for g in setup.matcher.feed(group(GroupKind.XA_COMMIT, 9))] == [1]


def test_a_checkpoint_remembers_when_a_branch_was_prepared(setup: Setup) -> None:
    setup.prepare(second=9)
    [held] = setup.matcher.held()
    assert Held.of(held.fields()).prepared == 9_000_000
    assert Held.of({k: v for k, v in held.fields().items() if k != "prepared"}).prepared == 0
