"""When a feed sends an Align, and that whoever dies when, no row is lost in a target with several unique keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dispatched import Folding, History, Sender, Target, ended, histories, layout, rows
from tests.support.every_case import examples
from vreplication.feed.conflicts import NOWHERE, Conflicts, always, is_checked
from vreplication.feed.layout import Layout, distinct_of
from vreplication.feed.messages import Place, Row
from vreplication.schema.model import Column, Key, KeyPart

T = layout("t")


def row(t: int, after: Any, before: Any = None, *, of: Layout = T, seq: int = 0) -> Row:
    return Row(layout=of, place=Place(t, seq), before=before, after=after)


def begun(*, of: Layout = T, **more: Any) -> Conflicts:
    """The Align that each run begins with is past."""
    found = Conflicts(Folding(), **more)
    found.pass_barrier()
    found.meet(0, row(1, (100, 0, "first"), of=of))
    return found


@settings(deadline=None, max_examples=examples(100, 500))
@given(history=histories(most=10), data=st.data())
def test_whoever_dies_when_the_target_becomes_the_source(history: History, data: st.DataObject) -> None:
    """Twice: behind the progress each partition has a beginning of what was sent, and the next run goes on there."""
    whole, partitions = rows(history), 3
    sender, known, at = Sender("conflict", partitions), [0] * partitions, 0
    for _ in range(2):
        to = data.draw(st.integers(at, len(whole)), label="progress")
        sender.send(whole[at:to])
        committed = list(map(len, sender.logs))
        if to and whole[to - 1].place >= sender.latest:
            known = committed
        sender.send(whole[to:])
        ends = zip(committed, sender.logs, strict=True)
        there = [data.draw(st.integers(least, len(log)), label="there") for least, log in ends]
        kept = [log[:end] for log, end in zip(sender.logs, there, strict=True)]
        sender, at = Sender("conflict", partitions, kept, known), to
    logs = sender.send(whole[at:])
    draw = data.draw(st.randoms(use_true_random=False), label="listeners")
    assert Target(logs).read(draw.choice) == ended(history)


def test_a_value_that_moves_to_another_partition_comes_behind_an_align() -> None:
    meet = begun().meet
    assert meet(0, row(2, (1, 0, "x"))) is None
    assert meet(0, row(3, (3, 0, "y"), seq=1)) is None
    assert meet(0, row(4, (3, 0, "x"), (3, 0, "y"))) is None, "in one partition there is an order"
    assert meet(1, row(5, (2, 0, "X"), seq=4)) == Place(5, 9)
    assert meet(1, row(6, (2, 0, "q"), (2, 0, "X"))) is None
    assert meet(0, row(7, (1, 0, "z"), (1, 0, "q"), seq=2)) == Place(7, 4), "the image before counts, too"


def test_null_is_no_value() -> None:
    meet = begun().meet
    assert meet(0, row(2, (1, 0, None))) is None
    assert meet(1, row(3, (2, 0, None))) is None


def test_each_run_begins_with_one_before_the_first_row_that_may_conflict() -> None:
    plain = layout("plain", 1, distinct=((("id", None),),))
    meet = Conflicts(Folding()).meet
    assert meet(0, row(1, (1, 0, "x"), of=plain)) is None
    assert meet(0, row(2, (1, 0, None))) is None
    assert meet(0, row(3, (1, 0, "x"))) == Place(3, 1)
    assert meet(1, row(4, (2, 0, "y"))) is None


def test_a_ddl_holds_rows_back_as_well() -> None:
    conflicts = begun()
    conflicts.meet(0, row(2, (1, 0, "x")))
    conflicts.pass_barrier()
    assert conflicts.meet(1, row(4, (2, 0, "x"))) is None


def test_an_align_that_a_dead_run_left_is_followed_by_one() -> None:
    """At the row that it stands before, and only there; by then no value may be known."""
    conflicts = begun(found=Place(5, 4))
    assert conflicts.meet(0, row(5, (1, 0, "x"), seq=1)) is None
    assert conflicts.meet(0, row(5, None, (1, 0, None), seq=2)) == Place(5, 4)
    assert conflicts.meet(0, row(5, None, (1, 0, None), seq=3)) is None


def test_what_is_remembered_has_an_end() -> None:
    conflicts = begun(most=10)
    numbers = [conflicts.meet(0, row(t, (t, 0, f"v{t}"))) for t in range(2, 42)]
    assert sum(number is not None for number in numbers) == 4
    assert len(conflicts._where) <= 10


def test_keys_that_change_without_a_ddl_of_ours_forget_what_they_were() -> None:
    conflicts = begun()
    conflicts.meet(0, row(2, (1, 7, "x")))
    other = replace(T, number=5, distinct=((("id", None),), (("a", None),), (("u", None),)))
    assert conflicts.meet(1, row(3, (2, 7, "y"), of=other)) == Place(3, 1)
    assert conflicts.meet(1, row(4, (3, 8, "z"), of=other)) is None


def _with(*keys: Any, **more: Any) -> Layout:
    return replace(T, number=9, distinct=keys if keys else None, **more)


@pytest.mark.parametrize(
    ("keys", "one", "other", "is_met"),
    [
        ([(("u", 2),)], (1, 0, "abc"), (2, 0, "abd"), True),
        ([(("u", 3),)], (1, 0, "abc"), (2, 0, "abd"), False),
        ([(("a", None), ("u", None))], (1, 0, "x"), (2, 0, "x"), True),
        ([(("a", None), ("u", None))], (1, 0, "x"), (2, 1, "x"), False),
        ([(("a", None), ("u", None))], (1, 0, None), (2, 0, None), False),
        ([()], (1, 0, "x"), (2, 1, "y"), True),
        ([], (1, 0, "x"), (2, 1, "y"), True),
        ([(("id", 1),)], (1, 0, "x"), (2, 0, "x"), False),
        ([(("left_out", None),)], (1, 0, "x"), (1, 0, "x"), False),
    ],
    ids=[
        "prefix",
        "longer prefix",
        "both",
        "one of both",
        "NULL",
        "expression",
        "unknown",
        "prefix of key",
        "not sent",
    ],
)
def test_keys_of_each_kind(keys: Any, one: Any, other: Any, is_met: bool) -> None:
    of = _with(*keys)
    if keys == [(("id", 1),)]:
        of = replace(of, columns=(_text("id"), *T.columns[1:]))
        one, other = (str(one[0]), *one[1:]), (str(other[0]), *other[1:])
    conflicts = Conflicts(Folding())
    conflicts.pass_barrier()
    assert conflicts.meet(0, row(2, one, of=of)) is None
    assert (conflicts.meet(1, row(3, other, of=of)) is not None) == is_met


def _text(name: str) -> Column:
    return replace(T.columns[2], name=name)


def test_which_tables_need_it() -> None:
    odd = replace(T.columns[2], collation="utf8mb4_uca1400_as_cs")
    assert [is_checked(each) for each in (T, _with((("id", None),)), _with())] == [True, False, True]
    assert [always(each) for each in (T, _with(), _with(()))] == [False, True, True]
    assert always(replace(T, columns=(*T.columns[:2], odd)))


def test_keys_of_a_definition() -> None:
    keys = [
        Key(name="b", parts=(KeyPart(column="u", prefix=3),), is_unique=True),
        Key(name="c", parts=(KeyPart(column="a"),), is_unique=False),
        Key(name="d", parts=(KeyPart(column="", expression="lower(u)"),), is_unique=True, has_expression=True),
        Key(name="PRIMARY", parts=(KeyPart(column="id"),), is_unique=True, is_primary=True),
    ]
    assert distinct_of(keys) == ((("id", None),), (("u", 3),), ())


def test_nowhere_is_before_all() -> None:
    assert Place(0, 1) > NOWHERE
