"""The watermark, in the shapes in which TiKV tests its resolver, and as a property over all interleavings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.changes.protocol import RULES, BeatWatermark, watermark_of
from vreplication.changes.watermark import Inside, Watermark, WatermarkAdvancer
from vreplication.errors import Refused

SECOND = 1_000_000


def take(mark: Watermark, micros: int, beat: int | None = None) -> int:
    return mark.took(mark.begin(micros), beat)


def test_nothing_is_known_before_the_first_transaction() -> None:
    reading = Watermark().reading(2 * SECOND)
    assert (reading.received_micros, reading.resolved_micros, reading.lag_seconds) == (None, None, None)


def test_resolved_moves_when_what_was_taken_is_written() -> None:
    mark = Watermark()
    first, second = take(mark, 1 * SECOND), take(mark, 5 * SECOND)
    assert mark.reading(6 * SECOND).resolved_micros == first - 1
    mark.resolve(first)
    assert mark.reading(6 * SECOND).resolved_micros in (first, first + 1)
    mark.resolve(second)
    reading = mark.reading(6_500_000)
    assert (reading.lag_seconds, reading.received_micros, reading.resolved_micros) == (1.5, second, second)


def test_a_giant_transaction_holds_resolved_just_below_its_time() -> None:
    mark = Watermark()
    mark.resolve(take(mark, 1 * SECOND))
    giant = mark.begin(3 * SECOND)
    mark.shown(60 * SECOND)
    mark.inside(Inside(done=10, total=5_000_000))
    reading = mark.reading(61 * SECOND)
    assert reading.resolved_micros == 1 * SECOND
    assert reading.received_micros == 60 * SECOND
    assert reading.lag_seconds == 60.0
    assert reading.inside == Inside(done=10, total=5_000_000)
    mark.resolve(mark.took(giant))
    assert mark.reading(61 * SECOND).resolved_micros == giant


class Beating:
    """Beats of 250 ms, by a server whose clock is set meanwhile; the log hands them on in order."""

    def __init__(self) -> None:
        self.mark = Watermark()
        self.now, self.offset = 0.0, 1_000.0
        self._unapplied: list[tuple[int, int]] = []

    @property
    def server(self) -> int:
        return round((self.now + self.offset) * SECOND)

    def lag(self) -> float:
        lag = self.mark.reading(self.server, self.now).lag_seconds
        assert lag is not None
        return lag

    def beat(self, seconds: float) -> None:
        """So long nothing is applied."""
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            self.mark.reading(self.server, self.now)
            self._unapplied.append((self.mark.write_beat(self.now), self.server))

    def apply(self, most: int | None = None) -> None:
        """What has been written, or so many beats of it."""
        for number, micros in self._unapplied[:most]:
            self.mark.resolve(take(self.mark, micros, beat=micros))
            self.mark.beat_applied(number)
        del self._unapplied[:most]


@pytest.mark.parametrize("step", [-600.0, -2.0, 0.0, 600.0])
def test_lag_is_true_when_the_servers_clock_was_set_while_level(step: float) -> None:
    beating = Beating()
    beating.beat(5)
    beating.apply()
    beating.offset += step
    for _ in range(40):
        beating.beat(0.25)
        beating.apply()
        assert beating.lag() == 0.0
    beating.beat(9)
    assert beating.lag() == pytest.approx(9, abs=0.25)
    beating.beat(3600)
    assert beating.lag() == pytest.approx(3609, rel=0.001)
    beating.apply()
    assert beating.lag() == 0.0


@pytest.mark.parametrize("step", [-600.0, 600.0])
def test_lag_is_true_when_the_servers_clock_was_set_while_behind(step: float) -> None:
    """Set forward, what was committed before counts as older by as much: never as younger."""
    beating = Beating()
    beating.beat(5)
    beating.apply()
    beating.beat(60)
    beating.offset += step
    beating.beat(60)
    assert beating.lag() == pytest.approx(119.75 if step < 0 else 720)
    beating.apply(400)
    assert beating.lag() == pytest.approx(19.75 if step < 0 else 20)
    beating.apply()
    assert beating.lag() == 0.0


def test_beats_of_another_process_say_nothing_of_ours() -> None:
    """Read again after a restart: their numbers are others."""
    ours, theirs = Watermark(), Watermark()
    ours.resolve(take(ours, SECOND, beat=SECOND))
    ours.write_beat(0.0)
    ours.beat_applied(max(theirs.write_beat(0.0), 1 << 62) + 5)
    ours.beat_applied(7)
    assert ours.reading(SECOND, 30.0).lag_seconds == 30.0
    ours.forget_queued()
    assert ours.reading(SECOND, 30.0).lag_seconds == 0.0


def test_beats_under_way_are_bounded() -> None:
    mark = Watermark()
    mark.resolve(take(mark, SECOND, beat=SECOND))
    for second in range(100_000):
        mark.write_beat(float(second))
    assert len(mark._beats._under_way) <= 2_000
    assert mark.reading(SECOND, 100_000.0).lag_seconds == 100_000.0


def test_a_prepared_branch_holds_nothing_for_an_hour() -> None:
    """A faked clock: beats of 250 ms while a branch hangs."""
    mark = Watermark()
    mark.track("branch")
    for now in range(SECOND, 3600 * SECOND, 10 * SECOND):
        mark.server_time(now)
        mark.resolve(take(mark, now, beat=now))
        assert mark.reading(now + 250_000).lag_seconds == pytest.approx(0.25)
    mark.settle("branch")


def test_min_commit_is_one_number_strictly_above_resolved() -> None:
    """As test_large_txn_tracking and test_resolved_ts_always_greater_than_following_commit_ts."""
    source = WatermarkAdvancer()
    source.took(source.assign(10))
    source.track("a")
    source.track("b")
    assert source.min_commit == 11
    assert source.resolved() == 10
    source.shown(20)
    assert source.min_commit == 21
    following = source.assign(5)
    assert following > (source.resolved() or 0)


def test_tracking_and_settling_again_changes_nothing() -> None:
    source = WatermarkAdvancer()
    source.settle("never seen")
    source.track("a")
    source.track("a")
    source.settle("a")
    assert source.min_commit is None
    source.settle("a")


def test_times_increase_whatever_the_clock_does() -> None:
    source = WatermarkAdvancer(assigned=100)
    source.server_time(1000)
    assert [source.assign(t) for t in (50, 200, 200, 150, 10**18, 7)] == [101, 200, 201, 202, 1000, 1001]


def test_a_restart_goes_on_above_what_was_stored() -> None:
    mark = Watermark()
    mark.go_on_from(500)
    assert mark.begin(20) == 501
    mark.go_on_from(3)
    assert mark.begin(20) == 502


def test_what_is_read_again_gets_its_times_again() -> None:
    """Two transactions were taken and not applied when the connection was lost; the first is applied now."""
    mark = Watermark()
    mark.resolve(take(mark, 100))
    stored = mark.assigned
    first = [take(mark, 500), take(mark, 600)]
    mark.forget_queued()
    mark.go_on_from(stored)
    assert mark.reading(700).resolved_micros == 499
    mark.resolve(take(mark, 500))
    assert mark.reading(700).resolved_micros == 500
    mark.resolve(take(mark, 600))
    assert mark.reading(700).resolved_micros == 600
    assert first == [500, 600]


@pytest.mark.parametrize("version", RULES)
def test_a_giant_transaction_gets_its_time_again_after_a_restart(version: int) -> None:
    """The checkpoint in the middle of it has the time of the one before."""
    mark = watermark_of(version)
    take(mark, 100)
    giant = mark.begin(500)
    again = watermark_of(version)
    again.go_on_from(mark.assigned)
    assert again.begin(500) == giant
    again.took(giant)
    assert again.assigned == giant


def test_tables_are_held_apart_and_the_source_is_their_least() -> None:
    source = WatermarkAdvancer()
    for time, table in ((10, "a"), (20, "b"), (30, "a")):
        source.begin(source.assign(time), (table,))
        source.took(time)
    assert (source.resolved("a"), source.resolved("b"), source.resolved("c")) == (9, 19, 30)
    assert source.resolved() == 9
    source.applied("a", 10)
    assert (source.resolved("a"), source.resolved()) == (10, 10)
    source.applied("a", 30)
    assert (source.resolved("a"), source.resolved()) == (30, 19)


SEQUENCES: dict[str, str] = {
    "one after the other": "commit a 1, is 0, apply a 1, is 1, commit a 2, is 1, apply a 2, is 2",
    "the older of two tables holds": "commit a 1, commit b 2, is 0, apply b 2, is 0, apply a 1, is 2",
    "applied in another order": "commit a 1, commit b 2, commit c 3, apply c 3, apply b 2, is 0, apply a 1, is 3",
    "one of two of a table": "commit a 1, commit a 4, apply a 1, is 1, apply a 3, is 3, apply a 4, is 4",
    "two at once": "commit a 1, commit a 4, is 0, apply a 4, is 4",
    "a beat moves an idle source": "commit a 1, apply a 1, is 1, beat 9, is 9",
    "a beat passes nothing that is behind": "commit a 5, beat 9, is 4, apply a 5, is 9",
    "what is shown is not applied": "commit a 1, apply a 1, show 50, is 1, commit b 60, is 59, apply b 60, is 60",
    "a branch holds nothing, its commit does": (
        "prepare x, commit a 2, apply a 2, beat 9, is 9, settle x, commit a 10, is 9, apply a 10, is 10"
    ),
    "of two branches one is rolled back": (
        "prepare x, prepare y, beat 5, settle x, beat 6, is 6, settle y, commit b 7, is 6, apply b 7, is 7"
    ),
    "again, and what never was": (
        "apply a 9, settle x, prepare x, prepare x, commit a 1, settle x, settle x, apply a 1, apply a 1, is 1"
    ),
    "a clock that was set back": "commit a 100, apply a 100, commit a 50, is 100, apply a 101, is 101, beat 60, is 101",
}
"""Scripted, as TiKV's test_resolve: what happens at which time, and where `resolved` is then."""


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_resolved_after_each_step(sequence: str) -> None:
    source = WatermarkAdvancer()

    def commit(table: str, time: str) -> None:
        source.begin(source.assign(int(time)), (table,))
        source.took(source.assigned)

    def is_(time: str) -> None:
        assert source.resolved() == int(time)
        assert source.min_commit is None or source.min_commit > int(time)

    acts: dict[str, Callable[..., None]] = {
        "commit": commit,
        "apply": lambda table, time: source.applied(table, int(time)),
        "beat": lambda time: source.took(int(time)),
        "show": lambda time: source.shown(int(time)),
        "prepare": source.track,
        "settle": source.settle,
        "is": is_,
    }
    for step in sequence.split(", "):
        act, *words = step.split()
        acts[act](*words)


def test_memory_is_a_few_numbers_for_each_table_that_is_behind() -> None:
    source = WatermarkAdvancer()
    for time in range(1, 10_000):
        source.begin(source.assign(time), (time % 7,))
    assert len(source._behind) == 7
    for table in range(7):
        source.applied(table, 10_000)
    assert not source._behind


def test_backlog_is_what_was_read_and_not_applied() -> None:
    mark = Watermark()
    mark.received_changes(10)
    mark.applied_changes(4)
    assert mark.reading(0).backlog == 6
    mark.forget_queued()
    assert mark.reading(0).backlog == 0


def test_a_workflow_goes_on_under_the_rules_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 moves with beats only; a version of the future is refused; a fake one is used where a row names it."""
    old, new = watermark_of(1), watermark_of(2)
    for mark in (old, new):
        mark.resolve(take(mark, 5 * SECOND))
    assert (old.reading(9 * SECOND).resolved_micros, new.reading(9 * SECOND).resolved_micros) == (None, 5 * SECOND)
    old.resolve(take(old, 6 * SECOND, beat=7 * SECOND))
    assert old.reading(9 * SECOND).resolved_micros == 7 * SECOND
    with pytest.raises(Refused, match="version 3"):
        watermark_of(3)

    class Fake(BeatWatermark):
        pass

    monkeypatch.setitem(RULES, 0, Fake)
    assert isinstance(watermark_of(0), Fake)


@given(st.data())
def test_no_interleaving_breaks_the_rules(data: st.DataObject) -> None:
    """Transactions, branches, beats, forged clocks and restarts: nothing at or below `resolved` is unapplied, no number
    goes backwards, and `resolved` stays below the next commit of any branch."""
    mark, unwritten = Watermark(), list[int]()
    branches: set[int] = set()
    before = (0, 0)
    now = 1_000
    for step in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.integers(0, 300))
        act = data.draw(st.sampled_from(["commit", "write", "prepare", "settle", "beat", "restart"]))
        if act == "commit":
            unwritten.append(take(mark, data.draw(st.integers(0, 2 * now))))
        elif act == "beat":
            mark.server_time(now)
            unwritten.append(take(mark, now, beat=now))
        elif act == "write" and unwritten:
            count = data.draw(st.integers(1, len(unwritten)))
            mark.resolve(unwritten[count - 1])
            del unwritten[:count]
        elif act == "prepare":
            branches.add(step)
            mark.track(step)
        elif act == "settle" and branches:
            mark.settle(branches.pop())
        elif act == "restart":
            stored = mark.assigned
            mark = Watermark()
            mark.go_on_from(stored)
            for branch in branches:
                mark.track(branch)
            before, unwritten = (0, 0), []
        reading = mark.reading(now)
        received, resolved = reading.received_micros or 0, reading.resolved_micros or 0
        assert resolved <= received
        assert (received, resolved) >= before
        assert resolved >= before[1]
        assert all(resolved < time for time in unwritten)
        assert mark._source.min_commit is None or resolved < mark._source.min_commit
        assert mark.assigned + 1 > resolved
        before = (received, resolved)
