"""What feed-check says of Aligns and DDL, on messages that are made here."""

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


# DDL, which is in all partitions (2.4).


def test_a_ddl_that_retention_has_cut_off_is_not_missing() -> None:
    one = Partition().add(Kind.DDL, 3).add(Kind.RESOLVED, 9)
    two = Partition(n=7).add(Kind.ROW, 6).add(Kind.RESOLVED, 9)
    assert checked(one, two).end().ddl == 1


def test_a_ddl_is_missing_behind_what_retention_has_left() -> None:
    one = Partition().add(Kind.DDL, 7).add(Kind.RESOLVED, 9)
    two = Partition(n=7).add(Kind.ROW, 6).add(Kind.RESOLVED, 9)
    with pytest.raises(Broken, match=r"Partition 1, offset -1: rule 2\.4: DDL\(7\) of generation 1 is missing there"):
        checked(one, two).end()


@pytest.mark.parametrize("t", [3, 7])
def test_a_partition_that_is_used_no_more_hides_no_missing_ddl(t: int) -> None:
    """Of three two are left from time 5 on; the third has a Resolved of before, and no other comes."""
    made = [Partition(partitions=3) for _ in range(3)]
    for number, each in enumerate(made):
        if t < 5 and number != 1:
            each.add(Kind.DDL, t)
        each.add(Kind.RESOLVED, 2).scale(5, 2)
    made[0] = made[0].add(Kind.DDL, t, generation=2) if t > 5 else made[0]
    for each in made[:2]:
        each.add(Kind.RESOLVED, 9, generation=2)
    with pytest.raises(Broken, match=rf"Partition 1, offset -1: rule 2\.4: DDL\({t}\) of generation"):
        checked(*made).end()


def test_a_ddl_in_parts_is_one_and_is_whole() -> None:
    one, two = (Partition().add(Kind.DDL, 3, part="0/2").add(Kind.DDL, 3, part="1/2") for _ in range(2))
    assert checked(one, two).end().ddl == 2
    with pytest.raises(Broken, match=r"Partition 0, offset 3: part 1 of 2 is missing"):
        checked(Partition().add(Kind.ROW, 2).add(Kind.DDL, 3, part="0/2").add(Kind.ROW, 4))
