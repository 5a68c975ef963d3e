"""A maintenance window: `Sat 02:00-04:00 Europe/Berlin`, `Mon,Wed 23:30-00:30 UTC`, `02:00-04:00 Asia/Tokyo`.

What must stay true: times are the wall clock of the named zone on that day, also on the two days a year when the clock
is moved; a window that passes midnight belongs to the day on which it begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from vreplication.errors import Refused

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FORM = re.compile(r"(?:(?P<days>[A-Za-z, -]+?)\s+)?(?P<begin>\d\d?:\d\d)-(?P<end>\d\d?:\d\d)\s+(?P<zone>\S+)")
_CURE = "Write it as Sat 02:00-04:00 Europe/Berlin."
CUTOVERS = ("auto", "manual", "window")
"""When to switch, as a form, a file or the queue may ask: at once, when somebody releases it, or in a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """days: of the week on which it begins, 0 is Monday."""

    days: frozenset[int]
    begin: time
    end: time
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str) -> Window:
        """Raises Refused."""
        found = _FORM.fullmatch(text.strip())
        if not found:
            raise Refused(f"cutover_window: {text!r} is no window.", cure=_CURE)
        begin, end = _time(found["begin"]), _time(found["end"])
        if begin == end:
            raise Refused(f"cutover_window: {text!r} has no length.", cure=_CURE)
        return cls(days=_days(found["days"]), begin=begin, end=end, zone=_zone(found["zone"]))

    def is_open(self, moment: datetime) -> bool:
        """`moment` with a zone of its own."""
        local = moment.astimezone(self.zone)
        clock = local.time().replace(tzinfo=None)
        if self.begin < self.end:
            return local.weekday() in self.days and self.begin <= clock < self.end
        yesterday = (local - timedelta(days=1)).weekday()
        return (local.weekday() in self.days and clock >= self.begin) or (yesterday in self.days and clock < self.end)


def window_of(cutover: str, text: object) -> Window | None:
    """The window that a request names. Raises Refused where cutover and window do not go together."""
    if cutover not in CUTOVERS:
        raise Refused(f"cutover: {cutover!r} is none of auto, manual and window.")
    if cutover == "window":
        return Window.parse(str(text or ""))
    if text not in (None, ""):
        raise Refused("cutover_window: it is read with `cutover: window` only.")
    return None


def _time(text: str) -> time:
    hour, minute = map(int, text.split(":"))
    if hour > 23 or minute > 59:
        raise Refused(f"cutover_window: {text} is no time of day.", cure=_CURE)
    return time(hour, minute)


def _days(text: str | None) -> frozenset[int]:
    if not text or not text.strip():
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        i, j = _day(first), _day(last or first)
        # Sat-Mon goes over the end of the week.
        found |= {(i + n) % 7 for n in range((j - i) % 7 + 1)}
    return frozenset(found)


def _day(text: str) -> int:
    if text[:3].lower() not in _DAYS:
        raise Refused(f"cutover_window: {text!r} is no day of the week.", cure=_CURE)
    return _DAYS.index(text[:3].lower())


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # A path is a ValueError; a folder of zones (Europe) is an OSError where the package tzdata is asked.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Refused(f"cutover_window: there is no time zone {name!r}.", cure=_CURE) from None
