"""How fast, how far, how long: estimates from counters and lag samples, each figure None until it has a basis.

What must stay true: pure (the clock is handed in); `percent` never falls and stays below 100 until the last chunk is
matched; an ETA is a finite number of seconds >= 0 or None, never "due".
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from vreplication.settings import GATE_BACKLOG_CHANGES, GATE_LAG_SECONDS

HALF_LIFE_SECONDS = 120.0
"""Weight of an observation halves in this time: long enough to look through the sawtooth of chunks."""
BASIS_SECONDS = 2.0
"""Counted time before a rate is given."""
TREND_SECONDS = 30.0
TREND_BASIS_SECONDS = 5.0
# Percentages are shown with one decimal: this is the most that does not read as done.
UNMATCHED_PERCENT = 99.9
_ESTIMATE_SHARE = 0.1
"""The server's estimate of a table's rows counts as much as so great a share of the table that has been walked."""
_LEAST_LAG_SHRINK = 0.01
_LEAST_BACKLOG_SHRINK = 1.0


class Rate:
    """Rate of a growing counter: both rows and time decay by the counted time, so the first minutes are not biased."""

    def __init__(self, *, half_life_seconds: float = HALF_LIFE_SECONDS) -> None:
        self._half_life = half_life_seconds
        self._amount = 0.0
        self._seconds = 0.0
        self._last: tuple[float, float] | None = None

    def observe(self, now: float, total: float, *, is_throttled: bool = False) -> None:
        """Count what came since the last call. Throttled time in which nothing came is left out."""
        before, self._last = self._last, (now, total)
        # What an earlier run has copied is no speed of this one.
        if before is None:
            return
        seconds, amount = now - before[0], max(0.0, total - before[1])
        if seconds <= 0:
            # Two looks in one instant: what came is counted with the next one's time.
            self._last = before
        elif amount or not is_throttled:
            self._add(amount, seconds)

    def _add(self, amount: float, seconds: float) -> None:
        keep = 0.5 ** (seconds / self._half_life)
        self._amount = self._amount * keep + amount
        self._seconds = self._seconds * keep + seconds

    @property
    def per_second(self) -> float | None:
        return self._amount / self._seconds if self._seconds >= BASIS_SECONDS else None


def total_rows(estimate: int | None, walked_rows: int, walked_share: float) -> int | None:
    """A better guess of the table's rows from what the walked share of it held; at first the estimate counts more."""
    if not estimate or walked_share <= 0:
        return estimate
    ratio = walked_rows / (estimate * walked_share)
    leaning = (walked_share * ratio + _ESTIMATE_SHARE) / (walked_share + _ESTIMATE_SHARE)
    return round(walked_rows + (1.0 - walked_share) * estimate * leaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """Columns of the progress row that are the copy's."""

    rows_copied: int
    rows_total: int | None
    percent: float | None
    rows_per_second: float | None
    copy_eta_seconds: float | None

    def columns(self) -> dict[str, Any]:
        return asdict(self)


class CopyEstimate:
    """Row copy: to be told once a second how many rows have landed, and of how many (a better guess may come later)."""

    def __init__(self, *, half_life_seconds: float = HALF_LIFE_SECONDS) -> None:
        self._rate = Rate(half_life_seconds=half_life_seconds)
        self._percent = 0.0

    def observe(
        self,
        now: float,
        *,
        rows_copied: int,
        rows_total: int | None,
        is_throttled: bool = False,
        is_matched: bool = False,
    ) -> CopyFigures:
        """`is_matched`: every chunk of the copy is matched, so 100 percent may be said."""
        self._rate.observe(now, rows_copied, is_throttled=is_throttled)
        return CopyFigures(
            rows_copied=rows_copied,
            rows_total=rows_total,
            percent=self._percent_of(rows_copied, rows_total, is_matched),
            rows_per_second=self._rate.per_second,
            copy_eta_seconds=self._eta(rows_copied, rows_total, is_matched),
        )

    def _percent_of(self, rows: int, total: int | None, is_matched: bool) -> float | None:
        if is_matched:
            return 100.0
        if total is None:
            return None
        # In an empty table there is nothing to copy, and yet it is not done before it is matched.
        share = 100.0 * rows / total if total > 0 else UNMATCHED_PERCENT
        # The total grows where there are more rows than were estimated; what was said once is not taken back.
        self._percent = max(self._percent, min(share, UNMATCHED_PERCENT))
        return self._percent

    def _eta(self, rows: int, total: int | None, is_matched: bool) -> float | None:
        if is_matched:
            return 0.0
        rate = self._rate.per_second
        # More rows than were estimated: how many are still to come is not known.
        if not rate or total is None or rows >= total:
            return None
        return _finite((total - rows) / rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyFigures:
    """Columns of the progress row that say whether catch-up gains on the writes, and when it will be level."""

    converging: bool | None
    apply_eta_seconds: float | None

    def columns(self) -> dict[str, Any]:
        return asdict(self)


class ApplyEstimate:
    """Catch-up: to be told lag and backlog once a second.

    Inside of a giant transaction time stands still, so its lag grows by a second a second up to its last row, and then
    falls at once: there the backlog, of which its rows are a part, is what tells; up to when its end has been read,
    nothing does.
    """

    def __init__(self) -> None:
        self._lag = _Trend(_LEAST_LAG_SHRINK)
        self._backlog = _Trend(_LEAST_BACKLOG_SHRINK)

    def observe(
        self,
        now: float,
        *,
        lag_seconds: float | None,
        backlog: int | None,
        is_inside: bool = False,
        is_reading: bool = False,
    ) -> ApplyFigures:
        """is_inside: a transaction of many parts is being applied; is_reading: another's end has not been read."""
        self._lag.observe(now, None if is_inside or is_reading else lag_seconds)
        self._backlog.observe(now, None if is_reading else backlog)
        if lag_seconds is None:
            return ApplyFigures(converging=None, apply_eta_seconds=None)
        # What the gate takes for level is not behind, whatever its trend: it swings by tenths of a second all the time.
        is_late = lag_seconds >= GATE_LAG_SECONDS
        if is_late and is_reading:
            # Nobody knows yet how many rows there are to apply, so it is not said that writes are faster.
            return ApplyFigures(converging=None, apply_eta_seconds=None)
        behind = [self._lag] if is_late and not is_inside else []
        if (is_late and is_inside) or (backlog is not None and backlog >= GATE_BACKLOG_CHANGES):
            behind.append(self._backlog)
        return _figures(behind)


def _figures(behind: list[_Trend]) -> ApplyFigures:
    """The slowest of those that are not level decides; none of them: level."""
    verdicts = [trend.is_shrinking for trend in behind]
    if False in verdicts:
        return ApplyFigures(converging=False, apply_eta_seconds=None)
    if None in verdicts:
        return ApplyFigures(converging=None, apply_eta_seconds=None)
    eta = max((trend.seconds_to_zero for trend in behind), default=0.0)
    return ApplyFigures(converging=True, apply_eta_seconds=_finite(eta))


class _Trend:
    """Slope of the last half minute by least squares; a fall slower than `least` a second counts as none."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._samples: deque[tuple[float, float]] = deque()

    def observe(self, now: float, value: float | None) -> None:
        if value is None:
            # Within a giant transaction the lag grows by a second a second, whatever is written: such a slope is not to
            # outlive it.
            self._samples.clear()
            return
        if not self._samples or now > self._samples[-1][0]:
            self._samples.append((now, float(value)))
        while now - self._samples[0][0] > TREND_SECONDS:
            self._samples.popleft()

    @property
    def is_shrinking(self) -> bool | None:
        slope = self._slope()
        return None if slope is None else -slope >= self._least

    @property
    def seconds_to_zero(self) -> float:
        """To be asked only while shrinking."""
        slope = self._slope()
        assert slope is not None
        return max(0.0, self._samples[-1][1] / -slope)

    def _slope(self) -> float | None:
        if not self._samples or self._samples[-1][0] - self._samples[0][0] < TREND_BASIS_SECONDS:
            return None
        # Relative to the first sample: times since boot are large, their squares would eat the digits.
        start = self._samples[0][0]
        times = [t - start for t, _ in self._samples]
        mean_time = sum(times) / len(times)
        mean_value = sum(v for _, v in self._samples) / len(times)
        spread = sum((t - mean_time) ** 2 for t in times)
        return sum((t - mean_time) * (v - mean_value) for t, (_, v) in zip(times, self._samples, strict=True)) / spread


def _finite(seconds: float) -> float | None:
    """None for a time that nobody would wait for (and for inf): 10 years."""
    return seconds if 0 <= seconds < 3.2e8 else None
