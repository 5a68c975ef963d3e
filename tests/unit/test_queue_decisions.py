"""What is due and what is started: pure decisions, tried on drawn queues."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.errors import Refused
from vreplication.phases import ENDED, Phase
from vreplication.scheduler import due, queueing
from vreplication.scheduler.due import Scene
from vreplication.state import queue
from vreplication.state.queue import Entry, Known

NOW = datetime(2026, 12, 1, 12, 0)
IDS = [f"w{i}" for i in range(8)]


def entry(workflow: str, number: int = 1, **more: object) -> Entry:
    return replace(Entry(workflow=workflow, schema="shop", table=workflow, spec={"alter": "x"}, number=number), **more)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(-1, 1), st.none() | st.integers(-1, 2)), min_size=1, max_size=7),
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from([due.EARLIER, due.LATER, due.FIRST])), max_size=5),
)
def test_what_was_moved_goes_where_it_was_moved_to(
    ranks: list[tuple[int, int | None]], moves: list[tuple[int, str]]
) -> None:
    """Whatever was asked for and moved before; the others stay in their order."""
    waiting = [entry(f"w{n}", n, priority=priority, place=place) for n, (priority, place) in enumerate(ranks)]
    for at, where in moves:
        name = f"w{at % len(waiting)}"
        before = [e.workflow for e in sorted(waiting, key=due.order)]
        changed = due.places(due.moved(waiting, name, where))
        waiting = [replace(e, place=changed.get(e.workflow, e.place)) for e in waiting]
        after = [e.workflow for e in sorted(waiting, key=due.order)]
        step = {due.EARLIER: -1, due.LATER: 1, due.FIRST: -len(before)}[where]
        assert after.index(name) == min(max(0, before.index(name) + step), len(before) - 1)
        assert [w for w in after if w != name] == [w for w in before if w != name]
        assert bool(changed) == (after != before)


def known(workflow: str, phase: Phase, *, table: str = "", other: str = "", seen_at: datetime = NOW) -> Known:
    tables = frozenset(("shop", name) for name in {table or workflow, other or table or workflow})
    return Known(workflow=workflow, tables=tables, phase=phase, reason="why", seen_at=seen_at)


def scene(*entries: Entry, of: tuple[Known, ...] = (), held: tuple[str, ...] = (), **runs: str) -> Scene:
    return Scene(now=NOW, entries=entries, known={k.workflow: k for k in of}, held=frozenset(held), runs=runs)


def state(one: Entry, at: Scene) -> tuple[str, str]:
    found = due.standing(one, at)
    return found.state, found.why


moments = st.none() | st.integers(-10, 10).map(lambda n: NOW + timedelta(minutes=n))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    ids = draw(st.lists(st.sampled_from(IDS), unique=True))
    entries = tuple(
        Entry(
            workflow=name,
            schema="shop",
            table=draw(st.sampled_from(["a", "A", "b", "c", "d"])),
            spec={},
            number=number,
            priority=draw(st.integers(-1, 1)),
            not_before=draw(moments),
            after=draw(st.none() | st.sampled_from(IDS)),
            state=draw(st.sampled_from([queue.QUEUED] * 4 + [queue.STARTED, queue.FAILED, queue.REMOVED])),
            started_at=draw(moments),
        )
        for number, name in enumerate(ids, 1)
    )
    found = draw(st.dictionaries(st.sampled_from([*IDS, "other"]), st.sampled_from(list(Phase)), max_size=4))
    table = {e.workflow: e.table for e in entries}
    workflows = {name: known(name, phase, table=table.get(name, "z")) for name, phase in found.items()}
    held = frozenset(name for name in workflows if draw(st.booleans()))
    runs = draw(st.dictionaries(st.sampled_from(IDS), st.sampled_from(["running", "failed", "absent", "ended"])))
    return Scene(now=NOW, entries=entries, known=workflows, held=held, runs=runs)


def started(at: Scene, chosen: list[Entry]) -> Scene:
    """The scene after what was chosen has been started."""
    names = {e.workflow for e in chosen}
    begun = [replace(e, state=queue.STARTED, started_at=NOW) if e.workflow in names else e for e in at.entries]
    return replace(at, entries=tuple(begun))


@given(scenes(), st.integers(1, 4))
def test_never_more_than_the_concurrency_and_never_one_twice(at: Scene, concurrency: int) -> None:
    chosen = due.choose(at, concurrency)
    before, after = due.working(at), due.working(started(at, chosen))
    assert not chosen or len(after) <= concurrency
    assert after == before | {e.workflow for e in chosen}
    # Asked again at once there is either no place or nothing that is due.
    again = due.choose(started(at, chosen), concurrency)
    assert again == []


@given(scenes(), st.integers(1, 4))
def test_only_what_is_due_and_in_order(at: Scene, concurrency: int) -> None:
    chosen = due.choose(at, concurrency)
    for one in chosen:
        assert one.state == queue.QUEUED
        assert one.workflow not in at.known
        assert one.not_before is None or one.not_before <= NOW
        assert one.after is None or at.known[one.after].phase is Phase.COMPLETE
    assert [(-e.priority, e.number) for e in chosen] == sorted((-e.priority, e.number) for e in chosen)
    places = [(e.schema, e.table.casefold()) for e in chosen]
    assert len(places) == len(set(places))


@given(scenes(), st.integers(1, 4))
def test_a_due_one_is_left_only_for_one_before_it_or_for_its_table(at: Scene, concurrency: int) -> None:
    """No place stays empty while something is due, and nobody of lesser rank goes before."""
    chosen = due.choose(at, concurrency)
    names, tables = {e.workflow for e in chosen}, {e.table.casefold() for e in chosen}
    left = [s.entry for s in due.standings(at) if s.state == due.DUE and s.entry.workflow not in names]
    is_full = len(due.working(at)) + len(chosen) >= concurrency
    for one in left:
        if not is_full:
            assert one.table.casefold() in tables
        same = [e for e in chosen if e.table.casefold() == one.table.casefold()]
        before = same or chosen
        assert all((-e.priority, e.number) < (-one.priority, one.number) for e in before)


@given(scenes(), st.integers(1, 4), st.sampled_from([Phase.FAILED, Phase.CANCELLED]))
def test_a_failed_predecessor_starves_nobody_else(at: Scene, concurrency: int, phase: Phase) -> None:
    """A held chain ahead of all others changes nothing for them."""
    failed = known("gone", phase, table="gone")
    held = tuple(entry(f"held{i}", -9 + i, priority=9, after="gone" if i == 0 else f"held{i - 1}") for i in range(3))
    more = replace(at, entries=held + at.entries, known={**at.known, "gone": failed})
    assert due.choose(more, concurrency) == due.choose(at, concurrency)
    assert due.standing(held[0], more).state == due.WAITING


@given(scenes())
def test_what_is_started_is_worth_its_place(at: Scene) -> None:
    """A workflow that has ended, or one that was never started, takes no place unless somebody holds its lease."""
    for name in due.working(at) - at.held:
        one = at.entry(name)
        assert one is not None
        assert one.state == queue.STARTED
        assert name not in at.known or at.known[name].phase not in ENDED


def test_the_list_says_why() -> None:
    early = entry("a", not_before=NOW + timedelta(hours=1))
    assert state(early, scene(early)) == ("waiting", "scheduled for 2026-12-01T13:00:00Z")
    late = entry("b", after="a")
    assert state(late, scene(early, late)) == ("waiting", "waiting for a, which is not complete")
    assert state(late, scene(late)) == ("waiting", "waiting for a, which has not been submitted yet")
    at = scene(late, of=(known("a", Phase.FAILED),))
    assert state(late, at) == ("waiting", "it is held: a, which comes before it, has failed")
    removed = entry("a", state=queue.REMOVED)
    assert state(late, scene(removed, late))[1] == "it is held: a, which comes before it, was cancelled"
    assert state(late, scene(late, of=(known("a", Phase.COMPLETE),))) == ("due", "")


def test_a_table_is_had_by_one_workflow() -> None:
    one = entry("a", table="Orders")
    for phase, words in ((Phase.COPYING, "is under way"), (Phase.FAILED, "has failed")):
        at = scene(one, of=(known("x", phase, table="orders"),))
        assert state(one, at) == ("waiting", f"workflow x {words} on the same table")
    assert state(one, scene(one, of=(known("x", Phase.COMPLETE, table="orders"),)))[0] == "due"


def test_every_table_of_a_move_counts() -> None:
    move = entry("m", table="a", spec={"kind": "move_tables", "tables": ["a", "b"]}, number=1)
    second, third = entry("b", table="B", number=2), entry("c", number=3)
    at = scene(second, third, of=(known("x", Phase.COPYING, table="a", other="b"),))
    assert state(second, at) == ("waiting", "workflow x is under way on the same table")
    begun = replace(move, state=queue.STARTED, started_at=NOW)
    assert state(second, scene(begun, second)) == ("waiting", "workflow m is under way on the same table")
    assert due.choose(scene(move, second, third), 9) == [move, third]
    assert due.choose(scene(replace(second, number=0), move, third), 9) == [replace(second, number=0), third]


@pytest.mark.parametrize(
    ("phase", "shown"),
    [(Phase.COPYING, "started"), (Phase.COMPLETE, "done"), (Phase.FAILED, "failed"), (Phase.CANCELLED, "cancelled")],
)
def test_a_workflow_says_how_its_entry_stands(phase: Phase, shown: str) -> None:
    """Whatever the queue's own row says: somebody may have started it by hand."""
    for stored in (queue.QUEUED, queue.STARTED):
        one = entry("a", state=stored, started_at=NOW)
        assert state(one, scene(one, of=(known("a", phase),)))[0] == shown


def test_a_started_one_keeps_its_place_between_two_stages() -> None:
    old = NOW - timedelta(minutes=6)
    one = entry("a", state=queue.STARTED, started_at=old)
    assert due.working(scene(one)) == frozenset()
    assert due.working(scene(replace(one, started_at=NOW))) == {"a"}
    assert due.working(scene(one, of=(known("a", Phase.COPYING),))) == {"a"}
    assert due.working(scene(one, of=(known("a", Phase.COPYING, seen_at=old),))) == frozenset()
    assert due.working(scene(one, of=(known("a", Phase.WAITING, seen_at=old),), held=("a",))) == {"a"}
    assert due.working(scene(one, a=due.RUNNING)) == {"a"}
    assert due.working(scene(one, of=(known("a", Phase.FAILED),), a=due.RUNNING)) == frozenset()


def test_a_start_that_came_to_nothing() -> None:
    young, old = (entry("a", state=queue.STARTED, started_at=NOW - timedelta(minutes=m)) for m in (1, 6))
    for one, run, result in (
        (young, due.RUN_FAILED, queue.FAILED),
        (young, due.ABSENT, ""),
        (old, due.ABSENT, queue.QUEUED),
        (old, due.RUNNING, ""),
        (old, "ended", ""),
        (young, due.ELSEWHERE, queue.FAILED),
        (entry("a"), due.ELSEWHERE, queue.FAILED),
        (entry("a"), due.RUN_FAILED, ""),
        (entry("a", state=queue.REMOVED), due.ELSEWHERE, ""),
    ):
        assert due.came_to_nothing(one, scene(one, a=run)) == result
        assert due.came_to_nothing(one, scene(one, of=(known("a", Phase.COPYING),), a=run)) == ""


def test_circles() -> None:
    entries = [entry("a", after="b"), entry("b", after="c"), entry("x", after="y"), entry("y", after="x")]
    assert due.circle(entries, "c", "a")
    assert due.circle(entries, "d", "d")
    assert not due.circle(entries, "d", "a")
    assert not due.circle(entries, "d", "x")


def test_an_entry_is_checked_as_a_spec_is() -> None:
    made = queueing.make_entry(
        "shop", {"table": " orders ", "alter": "ADD x INT", "chunk_rows": 5, "not_before": "2026-12-24T02:00:00+01:00"}
    )
    assert made.spec == {"table": "shop.orders", "alter": "ADD x INT", "chunk_rows": 5}
    assert made.not_before == datetime(2026, 12, 24, 1, 0)
    assert made.workflow.startswith("orders-")
    odd = queueing.make_entry("shop", {"table": "`a.b`", "alter": "x"})
    assert (odd.schema, odd.table, odd.spec["table"]) == ("shop", "a.b", "`shop`.`a.b`")
    assert queueing.make_entry("s", {"table": odd.spec["table"], "alter": "x"}).table == "a.b"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"alter": " "}, "alter: "),
        ({"chunk_rows": 0}, "chunk_rows: "),
        ({"cutover": "soon"}, "cutover: "),
        ({"workflow": "a b"}, "Workflow id 'a b' is not valid"),
        ({"after": "a b"}, "Workflow id 'a b' is not valid"),
        ({"not_before": "soon"}, "not_before: 'soon' is not a time. Write it as"),
        ({"not_before": "2026-12-24T02:00:00"}, "not_before: '2026-12-24T02:00:00' does not say in which time zone"),
        ({"not_before": "2026-12-24"}, "does not say in which time zone"),
        (
            {"not_before": "9999-12-31T23:00:00-14:00"},
            "not_before: '9999-12-31T23:00:00-14:00' is before the first day",
        ),
        ({"priority": "high"}, "priority: 'high' is not a whole number"),
        ({"priority": True}, "priority: True is not"),
    ],
)
def test_a_wrong_value_is_one_sentence(given: dict[str, object], words: str) -> None:
    with pytest.raises(Refused) as refused:
        queueing.make_entry("shop", {"table": "orders", "alter": "x", **given})
    assert words in str(refused.value)
