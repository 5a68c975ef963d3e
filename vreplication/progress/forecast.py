"""When a workflow will end, or reach the gate where somebody has to release it: the time of all that is still to come.

The parts before that end are taken one by one: the one under way by its own pace, at first leaning on what is expected
of it; those to come by what is expected of them (paces.py).

What must stay true: pure (the clock is handed in, what is seen is a Snapshot); an ETA is finite and not negative, lies
within its range, and is None only with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vreplication.phases import ENDED, Phase
from vreplication.progress.paces import LINEAR, Case, Guess, Part, expected, part_of, units
from vreplication.progress.snapshot import Snapshot
from vreplication.progress.walk import SHORT_STALL_SECONDS, Walk
from vreplication.settings import AHEAD_ROWS, GATE_LAG_SECONDS
from vreplication.state.forecasts import Pace

_LONG_STALL_SECONDS = 10.0
_LOSING_SECONDS = 30.0
_HELD_SECONDS = 5.0
_HALF_LIFE_SECONDS = (15.0, 120.0)
_RATE_HALF_LIFE_SECONDS = 8.0
_ALL_COMPARED = 0.98
_VERIFIED_TO_COPIED = 0.25
_LEFT_TO_COMPARE = 0.3
"""Of a table whose chunks are compared beside the copy: what was copied before Spark came, and the last chunks."""
_STARTED_AHEAD = Guess(seconds=1.0, spread=0.7)
"""Where the first rows do not wait for Spark."""
_MOST_PRESSURE, _FELT = 4.0, 0.7
_NOTED_SECONDS, _NOTED_ROWS = 2.0, 10_000
_LONGEST_SECONDS = 3.2e8
"""Ten years: nobody would wait for it."""
_ORDER = tuple(Part)
_BEFORE_COPIED = frozenset({Part.PREPARING, Part.STARTING, Part.COPYING})
_BEFORE_GATE = _ORDER[: _ORDER.index(Part.GATE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is known of the source before anything is copied."""

    name: str
    rows: float = 0.0
    row_bytes: float = 0.0
    is_compared_beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """of: until what. reason: why there is no ETA."""

    of: Phase
    eta_seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Seconds, between two others."""

    eta: float
    low: float
    high: float

    @classmethod
    def of(cls, eta: float, spread: float) -> Span:
        return cls(eta=eta, low=eta * math.exp(-spread), high=eta * math.exp(spread))


class Forecast:
    """Of one run of a driver. `observe` it each second; `finished` gets what later workflows can go by."""

    def __init__(self, past: Sequence[Pace], table: Table) -> None:
        self._past, self.table = past, table
        self._part: Part | None = None
        self._since = self._at = 0.0
        self._walks = {part: _fresh(part) for part in LINEAR}
        self._rows = 0.0
        self._compared = 0
        self._rate: float | None = None
        self._rates: list[float] = []
        self._is_spoilt = False
        self._held_since: float | None = None
        self.finished: list[Pace] = []

    def enter(self, phase: Phase, now: float) -> None:
        """To the moment: a phase begins."""
        if (part := part_of(phase)) is not None:
            self._begin(part, now)
        elif phase is Phase.COMPLETE:
            self._end(now)

    def observe(self, now: float, seen: Snapshot, of: Phase, compared: int | None = None) -> Outlook:
        """of: COMPLETE, or WAITING where somebody has to release it. compared: rows, beside the copy."""
        before, self._at = self._at or now, now
        self._compared = self._compared if compared is None else compared
        self._learn(seen, now - before)
        self._take(seen, now, now - before)
        if seen.phase is Phase.SWITCHED:
            return Outlook(of=of, reason="switched; the way back is kept until it is completed")
        if seen.phase is Phase.STREAMING:
            return Outlook(of=of, reason="a change feed goes on until it is told to end")
        if seen.phase in ENDED or self._part is None:
            return Outlook(of=of, eta_seconds=0.0 if seen.phase is Phase.COMPLETE else None)
        if of is Phase.WAITING and self._part not in _BEFORE_GATE:
            return Outlook(of=of, eta_seconds=0.0, low_seconds=0.0, high_seconds=0.0)
        if reason := self._why_unknown(seen, now):
            return Outlook(of=of, reason=reason)
        return _summed([self._left(seen, now), *self._to_come(of)], of)

    def _learn(self, seen: Snapshot, seconds: float) -> None:
        """How many rows there are, and how much is written."""
        # The total is an estimate, and more rows than that may have been copied.
        self._rows = max(float(seen.rows_total or self.table.rows), float(seen.rows_copied))
        if seen.applied_per_second is None:
            return
        keep = math.exp2(-seconds / _RATE_HALF_LIFE_SECONDS)
        before = seen.applied_per_second if self._rate is None else self._rate
        self._rate = before * keep + seen.applied_per_second * (1 - keep)
        self._rates.append(seen.applied_per_second)

    def _take(self, seen: Snapshot, now: float, seconds: float) -> None:
        """Where it is, and how far."""
        part = part_of(seen.phase)
        if part is None:
            self._end(now)
            return
        # A pause belongs to no part, and a part with one in it is no measure for later workflows.
        if seen.is_paused:
            self._since += seconds
            self._is_spoilt = True
            for walk in self._walks.values():
                walk.skip(seconds)
        if part is Part.STARTING:
            self._walk(Part.COPYING, now, seen.rows_copied, seconds if seen.throttled else 0.0)
            part = Part.COPYING if self._walks[Part.COPYING].has_begun else part
        elif part is Part.VERIFYING:
            self._walk(part, now, seen.verify_rows or 0, 0.0)
            # Both parts are one phase. Rows that are deleted meanwhile are never compared, so not all have to be.
            is_all = (seen.verify_rows or 0) >= _ALL_COMPARED * self._rows
            part = Part.EXAMINING if is_all and self._walks[part].has_begun else part
        self._begin(part, now)

    def _walk(self, part: Part, now: float, done: float, throttled: float) -> None:
        # A verification that counts for nothing any more (a restart of the server, a lost collection of keys) begins
        # again at 0.
        if done < self._walks[part].done:
            self._walks[part] = _fresh(part)
        self._walks[part].observe(now, done, half_life=self._half_life(part), throttled=throttled)

    def _begin(self, part: Part, now: float) -> None:
        # The phase is called copying from Spark's start on; a copy whose first rows have come does not start again.
        if part is self._part or (part is Part.STARTING and self._part is Part.COPYING):
            return
        self._end(now)
        self._part, self._since, self._rates, self._is_spoilt, self._held_since = part, now, [], False, None
        if part is Part.VERIFYING:
            self._walks[part] = _fresh(part)

    def _end(self, now: float) -> None:
        """Note how long the part took, where that says something about others."""
        part, self._part = self._part, None
        if part is None or self._is_spoilt or not self._rows:
            return
        walk = self._walks.get(part)
        if walk is None:
            # By the rows of the table also where rows do not count: histograms, which make the gate long, read it.
            self._note(part, self._rows, now - self._since)
        elif walk.seconds >= _NOTED_SECONDS and walk.rows >= _NOTED_ROWS:
            self._note(part, walk.rows, walk.seconds)

    def _note(self, part: Part, rows: float, seconds: float) -> None:
        pace = Pace(
            part=str(part),
            source_name=self.table.name,
            units=units(rows, self.table.row_bytes),
            seconds=seconds,
            write_rate=sum(self._rates) / len(self._rates) if self._rates else self._rate,
        )
        self.finished.append(pace)

    def _why_unknown(self, seen: Snapshot, now: float) -> str | None:
        if seen.is_paused:
            return "paused"
        if seen.is_cancel_requested:
            return "being cancelled"
        return self._why_held(seen, now) or self._why_behind(seen, now)

    def _why_held(self, seen: Snapshot, now: float) -> str | None:
        """Something holds the gate for longer than a reading or two."""
        if self._part not in (Part.GATE, Part.SWITCHING) or not seen.waiting_for:
            self._held_since = None
            return None
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since < _HELD_SECONDS:
            return None
        # How long somebody's lock was waited for says nothing about another run.
        self._is_spoilt = True
        return f"waiting: {seen.waiting_for}"[:255]

    def _why_behind(self, seen: Snapshot, now: float) -> str | None:
        """Nothing gets on because catch-up is behind, and nobody knows for how long."""
        stood = self._stood(seen, now)
        if stood >= _LOSING_SECONDS and seen.converging is False:
            return "writes come faster than they are applied"
        if stood >= _LONG_STALL_SECONDS and seen.converging is None and seen.apply_eta_seconds is None:
            return "how much there is to apply is not known yet"
        return None

    def _stood(self, seen: Snapshot, now: float) -> float:
        """For how long it has waited for catch-up."""
        if self._part is Part.COPYING and seen.throttled:
            return self._walks[Part.COPYING].waited(now)
        is_late = seen.lag_seconds is not None and seen.lag_seconds >= GATE_LAG_SECONDS
        return now - self._since if self._part is Part.CATCHING_UP and is_late else 0.0

    def _left(self, seen: Snapshot, now: float) -> Span:
        """Of the part under way."""
        part = self._part
        assert part is not None
        if part in LINEAR:
            left = self._left_of_walk(part, now)
            behind = self._behind(seen) if self._stood(seen, now) > SHORT_STALL_SECONDS else 0.0
            return Span(eta=left.eta + behind, low=left.low + behind / 2, high=left.high + 2 * behind)
        found, spent = self._guess(part), now - self._since
        # A part that is overdue is said to last a fifth of its time so far, at most what was expected of it: not 0,
        # look by look.
        eta = max(found.seconds - spent, 0.2 * min(spent, 5 * found.seconds))
        if part is Part.CATCHING_UP:
            eta = max(eta, self._behind(seen))
        return Span.of(eta, found.spread)

    def _left_of_walk(self, part: Part, now: float) -> Span:
        walk, guess = self._walks[part], self._row_guess(part)
        # The total may have been too low; as long as the part is not over something is left of it.
        rows = max(self._rows - walk.done, 0.005 * self._rows)
        cost = walk.cost(guess, self._half_life(part), guess.seconds * self._rows)
        # Rows come in lumps, a chunk at a time: what has passed since the last one is work on the next, up to a usual
        # lump's time.
        waited, lump = walk.waited(now), walk.lump()
        begun = max(rows * cost - min(waited, rows * cost if lump is None else lump), 0.1 * rows * cost)
        eta = max(begun, 0.2 * waited) if lump is None else begun
        others = [rows * other for other in walk.costs(now)]
        spread = walk.trust(guess)
        low, high = eta * math.exp(-spread), eta * math.exp(spread)
        return Span(eta=eta, low=min(low, eta, *others), high=max(high, eta, *others))

    def _behind(self, seen: Snapshot) -> float:
        """Seconds until catch-up is level."""
        if seen.apply_eta_seconds is not None:
            return seen.apply_eta_seconds
        lag = seen.lag_seconds or 0.0
        return lag if lag >= GATE_LAG_SECONDS else 0.0

    def _to_come(self, of: Phase) -> Iterator[Span]:
        assert self._part is not None
        ends = len(_BEFORE_GATE) if of is Phase.WAITING else len(_ORDER)
        for part in _ORDER[_ORDER.index(self._part) + 1 : ends]:
            guess = self._row_guess(part) if part in LINEAR else self._guess(part)
            yield Span.of(guess.seconds * (self._rows_to_come(part) if part in LINEAR else 1), guess.spread)

    def _rows_to_come(self, part: Part) -> float:
        """A copy that goes on has copied some; and what is compared beside it need not be compared behind it."""
        copied = self._walks[Part.COPYING].done
        if part is Part.COPYING:
            return max(0.0, self._rows - copied)
        if self._compared:
            return max(0.0, copied - self._compared)
        return self._rows * (_LEFT_TO_COMPARE if self.table.is_compared_beside else 1.0)

    def _guess(self, part: Part, first: Guess | None = None) -> Guess:
        """Of a part that is not the copy: as slow, or as fast, as the copy is beside what was expected of it."""
        if part is Part.STARTING and self._rows >= AHEAD_ROWS:
            first = _STARTED_AHEAD
        found = expected(self._past, part, self._case(), first)
        return found if part in _BEFORE_COPIED else Guess(seconds=found.seconds * self._pressure(), spread=found.spread)

    def _case(self) -> Case:
        return Case(source_name=self.table.name, units=units(self._rows, self.table.row_bytes), write_rate=self._rate)

    def _pressure(self) -> float:
        """More than 1 where the server is slower today than it was."""
        # No endless recursion: the copy is in _BEFORE_COPIED, so its guess does not ask for the pressure.
        then = self._row_guess(Part.COPYING)
        now = self._walks[Part.COPYING].cost(then, self._half_life(Part.COPYING), then.seconds * self._rows)
        return float(min(max(now / then.seconds, 1 / _MOST_PRESSURE), _MOST_PRESSURE) ** _FELT)

    def _row_guess(self, part: Part) -> Guess:
        """Seconds a row. Where no verification was seen before, it goes by the copy's pace."""
        width, first = units(1.0, self.table.row_bytes), None
        if part is Part.VERIFYING:
            copy = self._row_guess(Part.COPYING)
            first = Guess(seconds=_VERIFIED_TO_COPIED * copy.seconds / width, spread=0.5)
        found = self._guess(part, first)
        return Guess(seconds=found.seconds * width, spread=found.spread)

    def _half_life(self, part: Part) -> float:
        """A third of what the part will take: long enough to be steady, and short enough to follow it."""
        shortest, longest = _HALF_LIFE_SECONDS
        case = self._case()
        whole = expected(self._past, part, case).seconds * case.units
        return min(max(whole / 3, shortest), longest)


def _fresh(part: Part) -> Walk:
    """Before the copy's first rows Spark and catch-up start, which is a part of its own."""
    return Walk(is_cold=part is Part.COPYING)


def _summed(spans: list[Span], of: Phase) -> Outlook:
    """What makes one part slow makes the others slow as well, so their errors add up."""
    eta = sum(span.eta for span in spans)
    if not eta < _LONGEST_SECONDS:
        return Outlook(of=of, reason="it would take years")
    return Outlook(
        of=of,
        eta_seconds=eta,
        low_seconds=min(sum(span.low for span in spans), eta),
        high_seconds=min(max(sum(span.high for span in spans), eta), _LONGEST_SECONDS),
    )
