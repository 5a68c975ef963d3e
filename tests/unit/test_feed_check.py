"""What feed-check says of Aligns, on messages that are made here."""

from __future__ import annotations

import pytest

from tests.support.feed_messages import Message, Partition
from vreplication.feed.check import Broken, Checker
from vreplication.feed.messages import Kind, Place, headers


def checked(*partitions: Partition) -> Checker:
    checker = Checker(has_keys=False)
    for number, each in enumerate(partitions):
        checker.partition(number, each.messages)
    return checker


def test_aligns_are_counted_and_may_come_again_or_lower() -> None:
    one = Partition().add(Kind.ROW, 1).add(Kind.ALIGN, 3, 2).add(Kind.ROW, 3, 1).add(Kind.ALIGN, 2, 1)
    two = Partition().add(Kind.ALIGN, 3, 2).add(Kind.ALIGN, 3, 2)
    for each in (one, two):
        each.add(Kind.RESOLVED, 9)
    report = checked(one, two).end()
    assert (report.aligns, report.rows, report.resolved) == (4, 2, 9)


@pytest.mark.parametrize(("t", "seq", "is_right"), [(3, 0, False), (3, 1, True), (2, 5, False), (4, 0, True)])
def test_a_row_that_belongs_before_an_align_may_not_stand_behind_it(t: int, seq: int, is_right: bool) -> None:
    """The Align stands before the INSERT 1 of transaction 3."""
    partition = Partition().add(Kind.ALIGN, 3, 3).add(Kind.ROW, t, seq)
    if is_right:
        checked(partition)
        return
    with pytest.raises(Broken, match=r"Partition 0, offset 2: rule 2\.5: its place is"):
        checked(partition)


def test_an_align_may_not_be_missing_in_a_partition() -> None:
    one, two = (Partition().add(Kind.ALIGN, 3, 2) for _ in range(2))
    one.add(Kind.ALIGN, 5, 0).add(Kind.RESOLVED, 9)
    two.add(Kind.RESOLVED, 4)
    assert checked(one, two).end().aligns == 3, "it may come yet"
    two.add(Kind.RESOLVED, 9)
    with pytest.raises(Broken, match=r"Partition 1, offset -1: rule 2\.5: Align\(5, 0\) of generation 1 is missing"):
        checked(one, two).end()


def test_what_retention_has_cut_off_is_not_missing() -> None:
    one = Partition().add(Kind.ALIGN, 3, 2).add(Kind.RESOLVED, 9)
    two = Partition(n=7).add(Kind.ROW, 6).add(Kind.RESOLVED, 9)
    assert checked(one, two).end().begins == [(1, 0, 8)]


def test_an_align_carries_the_last_number() -> None:
    one = Partition().add(Kind.ROW, 1)
    one.messages.append(Message(at=9, tags=headers(Kind.ALIGN, Place(3, 2), one.n + 1, 1)))
    with pytest.raises(Broken, match="offset 9: a message is missing"):
        checked(one)
