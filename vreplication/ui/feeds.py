"""A change feed on the page: its words where those of other workflows do not fit, its figures, and who consumes it.

What must stay true: as in `view`: everything is data, and an unknown figure is never shown as 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from vreplication.masking import mask
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.fed import Consumers, Fed
from vreplication.progress.snapshot import STALE_SECONDS, Snapshot

Data = dict[str, Any]
STEPS = {Phase.PREPARING: "prepare", Phase.STREAMING: "stream"}
_SHOWN = 64
"""Partitions, of the first so many."""
_UNKNOWN = "not known"


def title(spec: Data, source_table: str | None) -> str:
    """Which tables."""
    return ", ".join(map(str, spec.get("tables") or ())) or source_table or ""


def change(spec: Data) -> str:
    return f"into {mask(str(spec.get('sink') or ''))}"


# -- words


def throttle(seen: Snapshot) -> str:
    if seen.has_ended:
        return "Nothing: the feed has ended."
    if seen.is_paused:
        return "It is paused: nothing is sent. Resumed it reads the log on from where it stands."
    if seen.is_silent and seen.updated_seconds_ago is not None:
        return f"No sign of life for {numbers.duration(seen.updated_seconds_ago)}: its process is dead or cut off."
    return "It waits." if seen.waiting_for else "Nothing."


def safety(seen: Snapshot) -> str:
    if seen.phase is Phase.CANCELLED:
        return "The source's tables were only read; the topic and what it holds stay."
    return "The source's tables are only read."


def expected(seen: Snapshot) -> str:
    """Of a living one."""
    return "Nothing: it goes on until it is cancelled."


# -- figures


def figures(seen: Snapshot, fed: Fed) -> Data:
    """Of the feed's own card."""
    return {
        "source": _lag(seen, fed),
        "broker": _broker(seen, fed),
        "topic": fed.named,
        "generation": fed.generation,
        "partitions": _partitions(fed),
        "resolved_at": at(fed.resolved),
        "sent": _sent(fed),
        "prepared": f"{fed.open_branches} XA branches whose outcome is open" if fed.open_branches else None,
        "each": [_partition(fed, number) for number in range(min(len(fed.rows), _SHOWN))],
        "more": max(0, len(fed.rows) - _SHOWN),
        "lag_seconds": fed.lag_seconds,
        "rates": list(fed.rates),
        "waiting_for": fed.waiting_for,
    }


def _lag(seen: Snapshot, fed: Fed) -> str:
    if seen.has_ended:
        return "the feed has ended"
    if why := fed.why_no_lag:
        return f"lag {_UNKNOWN}: {why}"
    if fed.lag_seconds is None:
        return f"lag {_UNKNOWN}{' yet' if fed.is_now else ': no sign of life'}"
    return f"lag {numbers.duration(fed.lag_seconds)}: what was committed before that is sent"


def _broker(seen: Snapshot, fed: Fed) -> str:
    if seen.has_ended:
        return "not written to any more"
    if fed.waiting_for:
        return f"waited for: {fed.waiting_for}"
    if seen.is_paused:
        return "not written to: paused"
    if fed.committed_seconds is None:
        return _UNKNOWN
    # An idle feed commits as well, its Resolved: a commit that is old is a broker that has not answered.
    is_late = fed.committed_seconds > STALE_SECONDS
    return f"{'no answer yet' if is_late else 'answers'}: last commit {numbers.duration(fed.committed_seconds)} ago"


def _partitions(fed: Fed) -> str:
    if fed.partitions is None:
        return "not known yet"
    asked = f", {fed.wanted} asked for" if fed.wanted not in (None, fed.partitions) else ""
    return f"{fed.partitions}{asked}"


def _sent(fed: Fed) -> str:
    rate = "" if fed.rows_per_second is None else f", {numbers.fine(fed.rows_per_second)} rows/s"
    return f"{numbers.count(fed.rows_sent)} rows since its process was started{rate}"


def _partition(fed: Fed, number: int) -> Data:
    rate = fed.rates[number] if number < len(fed.rates) else None
    return {
        "number": number,
        "rows": numbers.count(fed.rows[number]),
        "rate": _UNKNOWN if rate is None else f"{numbers.fine(rate)} rows/s",
        "messages": numbers.count(fed.ends[number]) if number < len(fed.ends) else _UNKNOWN,
    }


def at(micros: int | None) -> str | None:
    """1: of a feed from the oldest log on, which has resolved nothing yet."""
    if micros is None or micros <= 1:
        return None
    return f"{datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec='seconds')[:19]}Z"


# -- consumers


def consumers(found: Iterable[tuple[str, Consumers]], known: Iterable[Fed]) -> list[Data]:
    """(connection, group) of each; known: the feeds of which we know, of which one may be theirs."""
    feeds = [fed for fed in known if fed.topic_id]
    return [_group(conn_id, each, next((f for f in feeds if f.is_read_by(each)), None)) for conn_id, each in found]


def _at_work(each: Consumers) -> str:
    if each.at_work:
        return f"{each.at_work} process{'' if each.at_work == 1 else 'es'}"
    if each.seen_seconds is None:
        return "none yet"
    return f"none for {numbers.duration(each.seen_seconds)}"


def _ago(seconds: float) -> str:
    return f"{(datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec='seconds')[:19]}Z"


def _group(conn_id: str, each: Consumers, fed: Fed | None) -> Data:
    behind = None if fed is None else each.behind(fed)
    lag = None if each.lag_seconds is None else numbers.duration(each.lag_seconds)
    return {
        "conn_id": conn_id,
        "group": each.group,
        "topic": each.topic,
        "mode": each.mode,
        "generation": each.generation or "not begun",
        "partitions": each.partitions,
        "members": each.at_work,
        "at_work": _at_work(each),
        "gone_since": None if not each.is_gone or each.seen_seconds is None else _ago(each.seen_seconds),
        "lag_seconds": each.lag_seconds,
        "lag": lag or (f"{_UNKNOWN}: times of the log are ahead of the clock" if each.resolved else "not known yet"),
        "behind": _UNKNOWN if behind is None else f"{numbers.count(behind)} messages",
        "resolved_at": at(each.resolved),
        "stands_at": each.stands_at,
        "offsets": [{"number": o.number, "next": o.next, "n": o.n} for o in each.state.offsets[:_SHOWN]],
    }
