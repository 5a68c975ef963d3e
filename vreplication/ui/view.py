"""Answers as plain data, for the JSON and for the templates alike: figures, and the words about them.

What must stay true: everything here is data (text, numbers, None), so that it can be masked and escaped as a whole; a
template decides nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from vreplication.cutover.blockers import METADATA_LOCK, OLD_SNAPSHOT, OPEN_TRANSACTION, PREPARED_BRANCH, Blocker
from vreplication.phases import ENDED, Phase
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot
from vreplication.ui import words
from vreplication.ui.acts import buttons
from vreplication.ui.asking import Answer
from vreplication.ui.masking import masked
from vreplication.ui.reading import About, Detail, Gate, Item

STATES = {
    "running": "running",
    "waiting": "waiting for you",
    "failed": "failed",
    "done": "done",
    "cancelled": "cancelled",
}
_RANK = {"waiting": 0, "failed": 2, "done": 3, "cancelled": 3}
_NOTHING_ASKED = About(alter="", cutover="auto")
_WHY = {
    METADATA_LOCK: "holds a lock on {table}",
    OPEN_TRANSACTION: "may: its open transaction may have used {table}",
    OLD_SNAPSHOT: "reads a snapshot from before the copy was complete",
    PREPARED_BRANCH: "is prepared and holds a lock on {table}",
}
Data = dict[str, Any]


def listing(answers: list[Answer]) -> Data:
    """Every workflow of every source, those that wait for somebody first; and how each source answered."""
    found = [row for answer in answers if answer.problem is None for row in _rows(answer)]
    found.sort(key=lambda row: _RANK.get(row["state"], 1))
    counts = Counter(row["state"] for row in found)
    return {
        "sources": [_source(answer) for answer in answers],
        "workflows": found,
        "counts": [{"state": s, "label": label, "count": counts[s]} for s, label in STATES.items()],
    }


def _rows(answer: Answer) -> list[Data]:
    return [_masked(item(each, answer.source.conn_id), answer) for each in answer.value]


def _masked(data: Data, *answers: Answer) -> Data:
    done: Data = masked(data, tuple(a.source.url for a in answers if a.source.url))
    return done


def _source(answer: Answer) -> Data:
    data = {"conn_id": answer.source.conn_id, "reachable": answer.problem is None, "problem": answer.problem}
    return _masked(data | {"workflows": len(answer.value) if answer.problem is None else None}, answer)


def problems(answers: list[Answer]) -> list[Data]:
    return [_source(a) for a in answers if a.problem is not None]


def item(found: Item, conn_id: str) -> Data:
    seen, about = found.snapshot, found.about
    data = seen.as_status_json()
    del data["event"]
    return data | {
        "conn_id": conn_id,
        "alter": about.alter,
        "cutover": about.cutover,
        "released_by": about.released_by,
        "cancel_requested": seen.is_cancel_requested,
        "state": words.state(seen, about),
        "unknown": _unknown(seen, data),
        "words": _words(seen, about),
        "buttons": [asdict(b) | {"url": _act_url(seen.workflow, b.act, conn_id)} for b in buttons(seen, about)],
        "url": workflow_url(seen.workflow, conn_id),
    }


def workflow_url(workflow: str, conn_id: str | None) -> str:
    """From the app's root."""
    where = f"workflows/{quote(workflow, safe='')}"
    return where if conn_id is None else f"{where}?conn_id={quote(conn_id, safe='')}"


def _act_url(workflow: str, act: str, conn_id: str) -> str:
    return f"api/workflows/{quote(workflow)}/{act}?conn_id={quote(conn_id, safe='')}"


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
        "percent_unknown": words.percent_unknown(seen),
        "rows": words.rows(seen),
        "rate": words.rate(seen.rows_per_second, "rows"),
        "rate_unknown": words.unknown(seen, "copy"),
        "applied": words.rate(seen.applied_per_second, "changes"),
        "lag": words.lag(seen),
        "backlog": words.backlog(seen),
        "unknown": words.unknown(seen),
        "converging": words.converging(seen),
        "eta": _eta(seen),
        "throttle": words.throttle(seen),
        "notes": words.notes(seen),
        "safety": words.safety(seen, about),
        "expected": words.expected(seen, about),
    }


def _eta(seen: Snapshot) -> Data:
    """`at`: when it is copied and level, for the browser to show in its own zone."""
    seconds = None if seen.has_ended else seen.eta_seconds
    if seconds is None:
        return {"at": None, "in": None, "why": words.eta_unknown(seen)}
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return {"at": at.isoformat(timespec="seconds"), "in": numbers.duration(seconds), "why": ""}


def detail(answer: Answer) -> Data:
    """One workflow, with all that its page shows."""
    found: Detail = answer.value
    seen, about = found.item.snapshot, found.item.about
    data = item(found.item, answer.source.conn_id) | {
        "steps": _steps(seen, about, found),
        "chunk_rows": found.figures.get("chunk_rows"),
        "chunk_millis": found.figures.get("chunk_millis"),
        "is_driven": found.is_driven,
        "verification": _verification(found),
        "bars": [_copy_bar(seen), _catch_up_bar(seen), _verify_bar(found)],
        "gate": _gate(found.gate),
        "journal": [_entry(e) for e in reversed(found.journal)],
        "plan": _plan(found),
        "spec": found.row.spec,
    }
    return _masked(data | {"sample": _sample(data)}, answer)


def _sample(data: Data) -> Data:
    """What the browser keeps of each look, for the charts; None makes a gap in the line."""
    names = ("rows_per_second", "applied_per_second", "lag_seconds", "backlog", "cutover_attempts")
    is_moving = data["phase"] == Phase.COPYING and data["rows_per_second"] is not None
    return {
        **{name: data[name] for name in names},
        **{name: data[name] if is_moving else None for name in ("chunk_millis", "chunk_rows")},
        "throttled": bool(data["throttled"]) or data["paused"],
        "why": data["unknown"]
        | {"chunk_millis": data["words"]["rate_unknown"], "chunk_rows": data["words"]["rate_unknown"]},
        "eta": data["words"]["eta"]["at"],
    }


def _steps(seen: Snapshot, about: About, found: Detail) -> list[Data]:
    """Where we are on the line; after an end, how far it came as far as the sidecar tells."""
    phases = list(numbers.STEPS)
    if seen.phase is Phase.COMPLETE:
        at = len(phases)
    elif seen.phase in ENDED:
        at = _reached(seen, about, found)
    else:
        at = phases.index(seen.phase)
    now = "stopped" if seen.phase in ENDED else "now"
    states = ["done" if n < at else now if n == at else "to come" for n in range(len(phases))]
    return [{"name": numbers.STEPS[p], "state": state} for p, state in zip(phases, states, strict=True)]


def _reached(seen: Snapshot, about: About, found: Detail) -> int:
    phases = list(numbers.STEPS)
    if about.is_cut:
        return phases.index(Phase.CUTTING_OVER)
    if found.verdict is not None:
        return phases.index(Phase.VERIFYING if found.verdict.verdict == "bad" else Phase.WAITING)
    copied = Phase.CATCHING_UP if seen.percent == 100 else Phase.COPYING
    return phases.index(copied if seen.percent is not None else Phase.PREPARING)


def _copy_bar(seen: Snapshot) -> Data:
    rate = words.rate(seen.rows_per_second, "rows") or f"rows/s: {words.unknown(seen, 'copy')}"
    share, word = seen.percent, "–" if seen.percent is None else numbers.percent(seen.percent)
    tone = "" if share is None else ("proven" if share == 100 else words.tone(seen, _NOTHING_ASKED))
    return {"name": "Copy", "percent": share, "word": word, "tone": tone, "figures": [words.rows(seen), rate]}


def _catch_up_bar(seen: Snapshot) -> Data:
    """Full when level. There is no share of it otherwise: the bar only says that it is moving."""
    is_level = seen.phase is Phase.COMPLETE or seen.is_level
    tone, word = {True: ("proven", "level"), False: ("moving", "behind"), None: ("", "–")}[is_level]
    share = 100.0 if is_level else None
    return {"name": "Catch-up", "percent": share, "word": word, "tone": tone, "figures": _catch_up_figures(seen)}


def _catch_up_figures(seen: Snapshot) -> list[str]:
    if seen.lag_seconds is None and seen.backlog is None:
        return [words.unknown(seen)]
    applied = words.rate(seen.applied_per_second, "changes") or "changes/s: not known yet"
    lag, backlog = words.lag(seen) or "lag: not known yet", words.backlog(seen) or "backlog: not known yet"
    return [text for text in (applied, lag, backlog, words.converging(seen)) if text]


def _verify_bar(found: Detail) -> Data:
    made = _verification(found)
    share, verdict = made["percent"], made["verdict"]
    tone = "" if share is None else {None: "moving", "bad": "failed"}.get(verdict, "proven")
    figures = [text for text in (made["words"], made["details"]) if text]
    return {"name": "Verify", "percent": share, "word": verdict or "–", "tone": tone, "figures": figures}


def _verification(found: Detail) -> Data:
    seen, verdict = found.item.snapshot, found.verdict
    share = None
    if verdict is None and seen.verify_rows is not None and seen.verify_total:
        share = min(99.9, 100 * seen.verify_rows / seen.verify_total)
    if verdict is None:
        return {"verdict": None, "percent": share, "words": _verifying(seen), "details": ""}
    rows = f"{verdict.rows_compared:,} rows compared, {verdict.mismatches:,} differ, {verdict.repaired:,} repaired"
    hot = f", {len(verdict.hot_keys):,} compared again at the switch" if verdict.hot_keys else ""
    return {"verdict": verdict.verdict, "percent": 100.0, "words": rows + hot + _when(seen), "details": verdict.details}


def _when(seen: Snapshot) -> str:
    """While it waits at the gate verification is repeated."""
    ago = "" if seen.verified_seconds_ago is None else f", {numbers.duration(seen.verified_seconds_ago)} ago"
    return f"{ago}; now again: {_verifying(seen)}" if seen.phase is Phase.VERIFYING else ago


def _verifying(seen: Snapshot) -> str:
    if seen.verify_rows is None:
        return "was not reached" if seen.has_ended else "after copy and catch-up"
    total = f" of about {numbers.fine(seen.verify_total)}" if seen.verify_total else ""
    return f"{numbers.fine(seen.verify_rows)}{total} rows compared"


def _gate(found: Gate | None) -> Data | None:
    if found is None:
        return None
    return {
        "reasons": found.reasons,
        "blockers": [_blocker(b) for b in found.blockers],
        "problem": found.problem,
    }


def _blocker(found: Blocker) -> Data:
    return {
        "connection": found.connection_id,
        "user": f"{found.user}@{found.host}" if found.user else "",
        "age_seconds": found.age_seconds if found.connection_id is not None else None,
        "age": numbers.duration(found.age_seconds) if found.connection_id is not None else "not known: no connection",
        "statement": found.statement,
        "kind": found.kind,
        "certain": found.is_certain,
        "why": _WHY[found.kind].format(table=found.table) if found.kind in _WHY else str(found),
    }


def _entry(entry: Data) -> Data:
    at: datetime = entry["at"]
    return {
        "at": f"{at.isoformat(timespec='seconds')}Z",
        "actor": entry["actor"],
        "event": entry["event"],
        "details": entry["details"] or "",
    }


def _plan(found: Detail) -> list[Data]:
    row, seen = found.row, found.item.snapshot
    facts = {
        "Workflow": row.id,
        "Table": f"{row.source_schema}.{row.source_table}",
        "Change": f"ALTER TABLE {row.source_table} {row.spec.get('alter') or ''}",
        "Shadow table": row.shadow_table,
        "Original afterwards": f"renamed to {row.retired_table}" if row.retired_table else None,
        "Rows travel": {"server": "inside the server", "rows": "through Spark"}.get(row.copy_path, row.copy_path),
        "Cut-over": _cutover(found),
        "Chunks": _chunks(found),
        "Writers waited": None if seen.write_stall_millis is None else f"at most {seen.write_stall_millis:,.0f} ms",
    }
    settings = {f"{name} (asked)": value for name, value in row.spec.items() if name not in ("table", "alter")}
    return [{"name": name, "value": str(v)} for name, v in {**facts, **settings}.items() if v not in (None, "")]


def _cutover(found: Detail) -> str:
    about, tries = found.item.about, found.item.snapshot.cutover_attempts
    how = "by itself" if about.cutover == "auto" else "when it is released"
    by = f", released by {about.released_by}" if about.released_by else ""
    return f"{how}{by}{f', {tries} tried' if tries else ''}"


def _chunks(found: Detail) -> str | None:
    rows, millis = found.figures.get("chunk_rows"), found.figures.get("chunk_millis")
    if rows is None or millis is None:
        return None
    return f"{rows:,} rows in {millis:,.0f} ms, lately"
