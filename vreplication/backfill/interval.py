"""An interval of time, and which values of a time column are in it.

What must stay true: an interval is half open, [start, end), and intervals side by side share no value and leave none
out, also when clocks change: a wall time that comes twice counts as its first coming, and one that is skipped belongs
to the interval that holds the last instant before the gap. A bound is rounded up to what the column can hold, so no
server is asked to compare a fraction with a column that has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from vreplication.errors import Refused
from vreplication.mysql.quoting import ident
from vreplication.schema.model import Column

TIME_TYPES = ("datetime", "timestamp", "date")
_SECOND = timedelta(seconds=1)
# A day inside of what DATETIME holds: a zone may move a bound by nearly one.
_EARLIEST, _LATEST = datetime(1000, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """[low, high) in the time that the column's values are written in."""

    low: datetime
    high: datetime

    @property
    def is_empty(self) -> bool:
        return self.low >= self.high


def walls(start: datetime, end: datetime, zone: str) -> Walls:
    """The interval in a zone's wall time. Raises Refused when it is none."""
    for word, moment in (("start", start), ("end", end)):
        if moment.tzinfo is None:
            raise Refused(
                f"The interval's {word} {moment.isoformat()} has no time zone.", cure="Write 2026-01-31T00:00Z."
            )
        if not _EARLIEST <= moment <= _LATEST:
            raise Refused(f"The interval's {word} {moment.isoformat()} is not in the years 1000 to 9999.")
    if start >= end:
        raise Refused(f"The interval's start {start.isoformat()} is not before its end {end.isoformat()}.")
    return Walls(low=wall(start, zone), high=wall(end, zone))


def wall(moment: datetime, zone: str) -> datetime:
    """The lowest wall time whose first coming is not before `moment`."""
    # Reduced to UTC first: two datetimes of one zone would be subtracted by their wall times.
    moment = in_utc(moment)
    local = moment.astimezone(ZoneInfo(zone))
    if not local.fold:
        return local.replace(tzinfo=None)
    before = local.replace(fold=0).utcoffset() or timedelta()
    return (_change(moment, zone, before) + before).replace(tzinfo=None)


def in_utc(moment: datetime) -> datetime:
    """Of Python's own class: Airflow hands down one that counts in another way."""
    moment = moment.astimezone(UTC)
    return datetime.combine(
        date(moment.year, moment.month, moment.day),
        time(moment.hour, moment.minute, moment.second, moment.microsecond),
        tzinfo=UTC,
    )


def _change(moment: datetime, zone: str, before: timedelta) -> datetime:
    """When the clocks were set back: the last change of the offset from `before`, not after `moment`."""
    # Clocks are changed on whole seconds.
    late = moment.replace(microsecond=0)
    # The second coming lasts for as long as the clocks were set back, so the change is no further behind than that.
    early = late - (before - (moment.astimezone(ZoneInfo(zone)).utcoffset() or timedelta())) - _SECOND
    while late - early > _SECOND:
        middle = (early + (late - early) / 2).replace(microsecond=0)
        if middle.astimezone(ZoneInfo(zone)).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late


def within_sql(column: Column, span: Walls) -> str:
    """Predicate for the column's values in the span. Safe behind AND as it is."""
    name = ident(column.name)
    return f"{name}>='{_bound(span.low, column)}' AND {name}<'{_bound(span.high, column)}'"


def _bound(moment: datetime, column: Column) -> str:
    """The lowest value of the column's type that is not below `moment`."""
    if column.data_type == "date":
        return _raised(moment, timedelta(days=1)).date().isoformat()
    rounded = _raised(moment, timedelta(microseconds=10 ** (6 - column.fraction)))
    text = rounded.isoformat(sep=" ", timespec="microseconds")
    return text[: 20 + column.fraction] if column.fraction else text[:19]


def _raised(moment: datetime, unit: timedelta) -> datetime:
    beyond = (moment - datetime.min) % unit
    return moment + (unit - beyond) if beyond else moment


def parts(span: Walls, count: int) -> list[Walls]:
    """The span cut into at most `count` spans of the same length, which tile it."""
    whole = span.high - span.low
    # A set, for of a very short span some of the marks are the same microsecond.
    marks = sorted({span.low, *(span.low + whole * i / count for i in range(1, count)), span.high})
    return [Walls(low=a, high=b) for a, b in pairwise(marks)]
