"""Answers as plain data, for the JSON and for the templates alike: figures, and the words about them.

What must stay true: everything here is data (text, numbers, None), so that it can be masked and escaped as a whole; a
template decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from vreplication.cutover.blockers import METADATA_LOCK, OLD_SNAPSHOT, OPEN_TRANSACTION, PREPARED_BRANCH, Blocker
from vreplication.engine.effort import Effort
from vreplication.masking import masked
from vreplication.progress import numbers
from vreplication.progress.outlook import said_before
from vreplication.progress.snapshot import Snapshot
from vreplication.state.history import Point
from vreplication.state.verdicts import CLEAN
from vreplication.ui import FEEDS, feeds, pending, words
from vreplication.ui.asking import Answer
from vreplication.ui.buttons import Button, buttons
from vreplication.ui.pending import AskedRun
from vreplication.ui.reading import AT_THE_GATE, About, Gate, Item, Overview

STATES = {
    "running": "running",
    "waiting": "waiting for you",
    "queued": "queued",
    "refused": "refused",
    "failed": "failed",
    "done": "done",
    "cancelled": "cancelled",
}
_RANK = {"waiting": 0, "failed": 2, "done": 3, "cancelled": 3}
_WHY = {
    METADATA_LOCK: "holds a lock on {table}",
    OPEN_TRANSACTION: "may: its open transaction may have used {table}",
    OLD_SNAPSHOT: "reads a snapshot from before the copy was complete",
    PREPARED_BRANCH: "is prepared and holds a lock on {table}",
}
_LISTED_ELSEWHERE = frozenset({"blocked", "old_snapshot"})
"""Reasons that are sessions, each with its own line."""
_MINUTE = 60
Data = dict[str, Any]


def listing(
    answers: list[Answer], runs: Sequence[AskedRun] = (), *, kinds: Collection[str], is_final: bool = True
) -> Data:
    """Every workflow of every source, those that wait for somebody first; what has none; how each source answered.

    `is_final`: False while sources that have not answered may still do so. runs: of Airflow, that are not begun.
    kinds: of these alone; places in a queue are those among all.
    """
    # Before the kinds are left out: whether a run has begun its workflow, and which place an entry has, all of them
    # tell.
    waiting = [row for row in pending.rows(answers, runs) if row["kind"] in kinds]
    answers = [_of_kinds(answer, kinds) for answer in answers]
    well = [answer for answer in answers if answer.problem is None]
    found = [row for answer in well for row in _rows(answer)]
    known = [each.about.fed for answer in well for each in answer.value.items if each.about.fed]
    groups = [(answer.source.conn_id, group) for answer in well for group in answer.value.consumers]
    # Stable: within a rank they stay in the order of their source, the newest first.
    found.sort(key=lambda row: _RANK.get(row["state"], 1))
    counts = Counter(row["state"] for row in (*found, *waiting))
    # A first look is short, and a source that is late for it is no problem yet: the next request waits for it.
    asking = [] if is_final else [answer for answer in answers if answer.is_late]
    return {
        "sources": [_source(answer) for answer in answers if answer not in asking],
        "asking": [answer.source.conn_id for answer in asking],
        "workflows": found,
        "pending": waiting,
        "consumers": feeds.consumers(groups, known),
        "counts": _counted(counts),
    }


def _of_kinds(answer: Answer, kinds: Collection[str]) -> Answer:
    """Without what somebody may not look at."""
    if answer.problem is not None:
        return answer
    found: Overview = answer.value
    items = [each for each in found.items if each.about.kind in kinds]
    left = [each for each in found.pending if each.entry.kind in kinds]
    consumers = found.consumers if FEEDS in kinds else []
    return replace(answer, value=replace(found, items=items, pending=left, consumers=consumers))


def _counted(counts: Counter[str]) -> list[Data]:
    return [{"state": state, "label": label, "count": counts[state]} for state, label in STATES.items()]


def only(listed: Data, places: Collection[tuple[str, str]]) -> Data:
    """Of a list, the workflows at these places."""
    found = [row for row in listed["workflows"] if (row["conn_id"], row["workflow"]) in places]
    counts = _counted(Counter(row["state"] for row in found))
    return {**listed, "workflows": found, "pending": [], "consumers": [], "counts": counts}


def _rows(answer: Answer) -> list[Data]:
    conn_id, found = answer.source.conn_id, answer.value
    behind = pending.followers(found.pending)
    told = [
        item(each, conn_id) | {"owner": found.owners.get(name), "followers": behind.get(name, [])}
        for each in found.items
        if (name := each.snapshot.workflow)
    ]
    # With the secrets of its own source: a password of one may be an ordinary word in what another one tells.
    return [masked_for(row, answer) for row in told]


def masked_for(data: Data, *answers: Answer) -> Data:
    done: Data = masked(data, [secret for a in answers if a.source.url for secret in a.source.url.secrets])
    return done


def _source(answer: Answer) -> Data:
    data = {"conn_id": answer.source.conn_id, "reachable": answer.problem is None, "problem": answer.problem}
    return masked_for(data | {"workflows": len(answer.value.items) if answer.problem is None else None}, answer)


def problems(answers: list[Answer]) -> list[Data]:
    return [_source(a) for a in answers if a.problem is not None]


def item(
    found: Item, conn_id: str, effort: Effort | None = None, limits: Mapping[str, Any] = MappingProxyType({})
) -> Data:
    seen, about = found.snapshot, found.about
    data = seen.as_status_json()
    del data["event"]
    return data | {
        "conn_id": conn_id,
        "kind": about.kind,
        "title": about.title(seen),
        "change": about.change,
        "move": about.moved.as_json() if about.moved else None,
        "feed": feeds.figures(seen, about.fed) if about.fed else None,
        "alter": about.alter,
        "cutover": "window" if about.window else about.cutover,
        "cutover_window": about.window,
        "released_by": about.released_by,
        "cancel_requested": seen.is_cancel_requested,
        "state": words.state(seen, about),
        "unknown": _unknown(seen, data),
        "words": _words(seen, about) | {"eta": _eta(seen, about, found.points)},
        "gate": _gate(found.gate),
        "checks": _checks(seen),
        "buttons": [button_of(b, seen.workflow, conn_id) for b in buttons(seen, about, effort, limits)],
        "lasted": _lasted(seen),
        "url": workflow_url(seen.workflow, conn_id),
        "past_url": f"api/workflows/{quote(seen.workflow, safe='')}/history?conn_id={quote(conn_id, safe='')}",
    }


def _lasted(seen: Snapshot) -> str | None:
    """From its begin until now, or its end."""
    if seen.created_at is None:
        return None
    until = seen.ended_at.replace(tzinfo=UTC) if seen.ended_at else datetime.now(UTC)
    return numbers.duration(max(0.0, (until - seen.created_at.replace(tzinfo=UTC)).total_seconds()))


def _checks(seen: Snapshot) -> list[Data]:
    """What is proven of one that stands at the gate."""
    if seen.phase not in AT_THE_GATE:
        return []
    return [{"name": "verified", "is_so": seen.verdict == CLEAN}, {"name": "caught up", "is_so": bool(seen.is_level)}]


def workflow_url(workflow: str, conn_id: str | None) -> str:
    """From the app's root."""
    where = f"workflows/{quote(workflow, safe='')}"
    return where if conn_id is None else f"{where}?conn_id={quote(conn_id, safe='')}"


def button_of(button: Button, workflow: str, conn_id: str) -> Data:
    where = f"api/workflows/{quote(workflow)}/{button.act}?conn_id={quote(conn_id, safe='')}"
    return asdict(button) | {"url": where}


def _unknown(seen: Snapshot, data: Data) -> dict[str, str]:
    """Why each figure that is None is not known."""
    of_copy = ("rows_per_second", "copy_eta_seconds")
    others = ("percent", "rows_total", "lag_seconds", "backlog", "applied_per_second", "eta_seconds", "converging")
    names = [name for name in (*of_copy, *others) if data[name] is None]
    return {name: words.unknown(seen, "copy" if name in of_copy else "") for name in names}


def _words(seen: Snapshot, about: About) -> Data:
    return {
        "phase": words.phase(seen, about),
        "tone": words.tone(seen, about),
        "percent": None if seen.percent is None else numbers.percent(seen.percent),
        "percent_unknown": words.percent_unknown(seen, about),
        "rows": words.rows(seen),
        "rate": words.rate(seen.rows_per_second, "rows"),
        "rate_unknown": words.unknown(seen, "copy"),
        "applied": words.rate(seen.applied_per_second, "changes"),
        "lag": words.lag(seen),
        "backlog": words.backlog(seen),
        "unknown": words.unknown(seen),
        "converging": words.converging(seen),
        "throttle": words.throttle(seen, about),
        "notes": words.notes(seen, about),
        "safety": words.safety(seen, about),
        "expected": words.expected(seen, about),
    }


def _eta(seen: Snapshot, about: About, points: Sequence[Point]) -> Data:
    """`at`, between `low_at` and `high_at`: when it has ended or waits; the browser shows them in its own zone."""
    seconds = None if seen.has_ended or seen.has_come_to_the_gate else seen.eta_seconds
    if seconds is None:
        return dict.fromkeys(("at", "low_at", "high_at", "in", "of", "said_at", "said_ago")) | {
            "why": words.eta_unknown(seen, about)
        }
    low, high = numbers.eta_range(seen) or (seconds, seconds)
    said = said_before(points)
    return {
        "at": _in(seconds),
        "low_at": _in(low) if high - low >= _MINUTE else None,
        "high_at": _in(high) if high - low >= _MINUTE else None,
        "in": numbers.between(low, high),
        "of": numbers.eta_of(seen),
        "said_at": utc(said.at) if said else None,
        "said_ago": numbers.duration(said.seconds_ago) if said else None,
        "why": "",
    }


def _in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def utc(moment: datetime) -> str:
    """Of the sidecar's times, which name no zone."""
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def _gate(found: Gate | None) -> Data | None:
    if found is None:
        return None
    return {
        "reasons": [reason.sentence for reason in found.reasons if reason.code not in _LISTED_ELSEWHERE],
        "held_by": [reason.as_json() for reason in found.reasons],
        "blockers": [_blocker(b) for b in found.blockers],
        "problem": found.problem,
        "since": utc(found.since) if found.since else None,
    }


def _blocker(found: Blocker) -> Data:
    return {
        "connection": found.connection_id,
        "user": f"{found.user}@{found.host}" if found.user else "",
        "age_seconds": found.age_seconds if found.connection_id is not None else None,
        "age": numbers.duration(found.age_seconds) if found.connection_id is not None else "not known: no connection",
        "statement": found.statement,
        "words": words.blocker(found),
        "kind": found.kind,
        "certain": found.is_certain,
        "why": _WHY[found.kind].format(table=found.table) if found.kind in _WHY else str(found),
    }
