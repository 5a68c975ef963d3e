"""One workflow as plain data: all that its page shows, and its past for the charts.

What must stay true: as in `view`, which has what a list's row shows, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from vreplication.engine.effort import Effort
from vreplication.phases import ENDED, Phase
from vreplication.planning.explain import stays
from vreplication.progress import numbers
from vreplication.progress.moved import Moved
from vreplication.progress.snapshot import Snapshot
from vreplication.schema.difference import GONE, NEW, SAME, Definitions
from vreplication.state.history import SLOT_SECONDS, Point
from vreplication.state.workflows import WorkflowRow, strategy_of
from vreplication.ui import FEEDS, Run, feeds, pulse, words
from vreplication.ui.asking import Answer
from vreplication.ui.buttons import Button, of_kept, of_left_out
from vreplication.ui.reading import About, Detail, Kept, LeftOut, Past
from vreplication.ui.view import Data, button_of, item, masked_for, utc
from vreplication.workflows.registry import KINDS

_TASKS = {
    Phase.PLANNING: "plan",
    Phase.PREPARING: "prepare",
    Phase.COPYING: "copy",
    Phase.CATCHING_UP: "copy",
    Phase.VERIFYING: "verify",
    Phase.WAITING: "gate",
    Phase.CUTTING_OVER: "cut_over",
    Phase.COMPLETE: "clean_up",
}
"""The task of the DAG that works on a phase."""
_TASKS_OF_MOVE = {Phase.CUTTING_OVER: "switch", Phase.SWITCHED: "reverse_stream"}
_PAST = (
    "rows_copied", "rows_per_second", "applied_per_second", "lag_seconds", "backlog", "chunk_millis", "chunk_rows",
    "throttled", "cutover_attempts", "eta_at",
)  # fmt: skip
_TASKS_OF_FEED = {Phase.PREPARING: "prepare", Phase.STREAMING: "stream", Phase.FAILED: "stream"}
_NOTHING_ASKED = About(alter="", cutover="auto")


def detail(answer: Answer, run: Run | None = None, consumers: Sequence[Answer] = ()) -> Data:
    """One workflow, with all that its page shows. `run`: the one that works on it. consumers: of every server."""
    found: Detail = answer.value
    seen, about = found.item.snapshot, found.item.about
    data = item(found.item, answer.source.conn_id, found.effort, found.limits) | {
        "steps": _steps(seen, about, found),
        "is_driven": found.is_driven,
        "unheeded": pulse.unheeded(found.unheeded_seconds, about.released_by),
        "verification": _verification(found),
        "bars": [] if about.fed else [_copy_bar(seen, found.effort), _catch_up_bar(seen), _verify_bar(found)],
        "consumers": _consumers(about, consumers),
        "effort": _effort(seen, found.effort),
        "journal": [_entry(e) for e in reversed(found.journal)],
        "definition": changes(found.definitions) if found.definitions else None,
        "plan": _plan(found),
        "options": _options(found.row),
        "spec": found.row.spec,
        "run": _run(run, seen.phase, about),
        "servers": _servers(about.moved) if about.moved else None,
        "kept": _kept(about, found.kept, None if _is_at_hand(about, run) else seen.workflow),
        "left_out": _left_out(found.row, found.left_out),
        "outcome": _outcome(found) if seen.phase is Phase.COMPLETE else [],
    }
    if not (found.is_driven or _is_at_hand(about, run)):
        # Without a process to ask it is done here, which takes the source, too.
        data["buttons"] = [each for each in data["buttons"] if each["act"] != "cancel"]
    # `item` has made none for what is over.
    if made := _behind_the_end(found, run):
        data["buttons"] = [button_of(each, seen.workflow, answer.source.conn_id) for each in made]
    return masked_for(data, answer)


def _is_at_hand(about: About, run: Run | None) -> bool:
    """Both servers are: what is kept can be dropped from here. Of a move the source is known by its run alone."""
    return about.moved is None or run is not None


def _behind_the_end(found: Detail, run: Run | None) -> list[Button]:
    about, seen = found.item.about, found.item.snapshot
    made = of_kept(about, seen, found.kept) if found.kept and _is_at_hand(about, run) else []
    return made + (of_left_out(about, seen, found.left_out) if found.left_out else [])


def changes(found: Definitions) -> Data:
    """As `plan` tells it; what is far from a change is left out. words: how much differs, or why nothing is shown."""
    marks = [line.mark for line in found.lines if line.mark != SAME]
    gone, new = marks.count(GONE), marks.count(NEW)
    words = f"{_count(gone)} {'goes' if gone == 1 else 'go'}, {_count(new)} {'comes' if new == 1 else 'come'}"
    lines = [{"mark": line.mark, "text": line.text} for line in found.changes]
    return {"lines": lines, "words": words if marks else stays(found), "has_foreign": found.has_foreign}


def _count(lines: int) -> str:
    return f"{lines} line{'' if lines == 1 else 's'}"


def _kept(about: About, kept: Kept | None, workflow: str | None) -> Data | None:
    """workflow: where a command is named, for no button drops it."""
    if kept is None:
        return None
    size = None if kept.nbytes is None else numbers.size(kept.nbytes)
    name = "New table" if about.reverts else "Originals" if about.moved else "Original"
    drop = f"vreplication cleanup {workflow}" if workflow else None
    return {
        "name": name, "table": kept.table, "nbytes": kept.nbytes, "size": size, "is_open": kept.is_open, "drop": drop,
    }  # fmt: skip


def _left_out(row: WorkflowRow, found: LeftOut | None) -> Data | None:
    if found is None:
        return None
    command = f"vreplication cleanup {row.id} --duplicates"
    rows = f"{found.rows:,} row{'' if found.rows == 1 else 's'}"
    told = f"{rows} that gave way to others: {found.table}, {numbers.size(found.nbytes)}; `{command}` drops it."
    return {"table": found.table, "rows": found.rows, "nbytes": found.nbytes, "command": command, "words": told}


def _outcome(found: Detail) -> list[str]:
    """What it came to, in figures; those of the copy from the journal, which says when it began and ended."""
    seen = found.item.snapshot
    # Backwards, so that of an event that came several times, as after a resume, the first is what stays.
    at = {entry["event"]: entry["at"] for entry in reversed(found.journal)}
    copied = f"{seen.rows_copied:,} rows copied" if seen.rows_copied else ""
    if copied and "prepared" in at and "copied" in at:
        seconds = (at["copied"] - at["prepared"]).total_seconds()
        copied += f" in {numbers.duration(seconds)}"
        copied += f" ({numbers.fine(seen.rows_copied / seconds)} rows/s)" if seconds >= 1 else ""
    verified = "" if found.verdict is None else found.verdict.counts
    stall = "" if seen.write_stall_millis is None else f"writers waited at most {seen.write_stall_millis:,.0f} ms"
    tries = f"{seen.cutover_attempts} attempts at the cut-over" if (seen.cutover_attempts or 0) > 1 else ""
    applied = f"{seen.events_applied:,} changes applied" if seen.events_applied else ""
    return [text for text in (copied, applied, verified, stall, tries) if text]


def _consumers(about: About, answers: Sequence[Answer]) -> list[Data]:
    if about.fed is None:
        return []
    well = [answer for answer in answers if answer.problem is None]
    found = ((a.source.conn_id, each) for a in well for each in a.value if about.fed.is_read_by(each))
    return feeds.consumers(found, [about.fed])


def _servers(move: Moved) -> Data:
    """Both ends of a move, and each table's way."""
    tables = [{"source": t.source, "target": t.target, "words": words.moved_rows(t)} for t in move.tables]
    return {"source": move.source_at, "target": move.target_at, "serves": words.serves(move), "tables": tables}


def _run(run: Run | None, phase: Phase, about: About) -> Data | None:
    """Where Airflow shows the run, and the log of the task that is at work or was the last; from Airflow's root."""
    if run is None:
        return None
    # What has been switched back is at work there until it is completed.
    is_back = about.moved is not None and about.moved.switches > 0 and phase is not Phase.COMPLETE
    tasks = _TASKS | _TASKS_OF_MOVE if about.moved else _TASKS_OF_FEED if about.kind == FEEDS else _TASKS
    task = "reverse_stream" if is_back else tasks.get(phase)
    return {"run_id": run.run_id, "url": run_path(run), "log_url": task_path(run, task) if task else None}


def run_path(run: Run) -> str:
    """From Airflow's root."""
    return f"dags/{run.dag_id}/runs/{quote(run.run_id, safe='')}"


def task_path(run: Run, task: str) -> str:
    """Where Airflow shows the log of a task."""
    return f"{run_path(run)}/tasks/{run.group + '.' if run.group else ''}{task}"


def past(answer: Answer) -> Data:
    """The history in columns: `at` in seconds since 1970; rates: of a feed, by partition."""
    found: Past = answer.value or Past(points=[], rates={})
    points = found.points
    rows = [
        [_at(p), *(_plain(getattr(p, name)) for name in _PAST), _resolved(p), found.rates.get(p.slot)] for p in points
    ]
    columns = ["at", *_PAST, "resolved_at", "rates"]
    return masked_for({"columns": columns, "points": rows, "last": points[-1].slot if points else None}, answer)


def _at(point: Point) -> int:
    return point.slot * SLOT_SECONDS


def _resolved(point: Point) -> float | None:
    """What a feed's watermark was."""
    return None if point.lag_seconds is None else round(_at(point) - point.lag_seconds, 3)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc(value)
    return round(value, 3) if isinstance(value, float) else value


def _effort(seen: Snapshot, found: Effort | None) -> Data | None:
    if found is None:
        return None
    limits = found.limits
    return {
        "copy_parallelism": limits.copy_parallelism,
        "chunk_millis": limits.chunk_millis,
        "chunk_rows": limits.chunk_rows,
        "tasks": found.tasks,
        "slots": found.slots,
        "shortfall": found.shortfall,
        "words": words.effort(seen, found),
    }


def _steps(seen: Snapshot, about: About, found: Detail) -> list[Data]:
    """Where we are on the line; after an end, how far it came as far as the sidecar tells."""
    line = feeds.STEPS if about.kind == FEEDS else numbers.steps(seen.phase, is_move=about.moved is not None)
    phases = list(line)
    if seen.phase is Phase.COMPLETE:
        at = len(phases)
    elif seen.phase in ENDED:
        at = _reached(seen, about, found)
    else:
        at = phases.index(seen.phase)
    now = "stopped" if seen.phase in ENDED else "now"
    states = ["done" if n < at else now if n == at else "to come" for n in range(len(phases))]
    return [{"name": line[p], "state": state} for p, state in zip(phases, states, strict=True)]


def _reached(seen: Snapshot, about: About, found: Detail) -> int:
    if about.kind == FEEDS:
        return int(bool(about.fed and about.fed.topic))
    # A phase that has ended does not say where it was, for `failed` has taken its place in the row.
    phases = list(numbers.STEPS)
    if about.moved is not None and about.moved.switches:
        return len(phases)
    if about.is_cut:
        return phases.index(Phase.CUTTING_OVER)
    if found.verdict is not None:
        return phases.index(Phase.VERIFYING if found.verdict.verdict == "bad" else Phase.WAITING)
    copied = Phase.CATCHING_UP if seen.percent == 100 else Phase.COPYING
    return phases.index(copied if seen.percent is not None else Phase.PREPARING)


def _copy_bar(seen: Snapshot, effort: Effort | None) -> Data:
    unknown = "" if seen.has_ended else f"rate: {words.unknown(seen, 'copy')}"
    rate = words.rate(seen.rows_per_second, "rows") or unknown
    tasks = words.tasks(effort.tasks) if effort and seen.phase is Phase.COPYING else ""
    share, word = seen.percent, "–" if seen.percent is None else numbers.percent(seen.percent)
    # A bar waits for no release: where that is what is waited for, the phase says so, and the copy is not held up.
    tone = "" if share is None else ("proven" if share == 100 else words.tone(seen, _NOTHING_ASKED))
    return {"name": "Copy", "percent": share, "word": word, "tone": tone, "figures": [words.rows(seen), rate, tasks]}


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
        # 100 is for a verdict: the total is an estimate.
        share = min(99.9, 100 * seen.verify_rows / seen.verify_total)
    if verdict is None:
        return {"verdict": None, "percent": share, "words": _verifying(seen), "details": ""}
    hot = f", {len(verdict.hot_keys):,} compared again at the cut-over" if verdict.hot_keys else ""
    told = verdict.counts + hot + _when(seen)
    return {"verdict": verdict.verdict, "percent": 100.0, "words": told, "details": verdict.details}


def _when(seen: Snapshot) -> str:
    """While it waits at the gate verification is repeated."""
    ago = "" if seen.verified_seconds_ago is None else f", {numbers.duration(seen.verified_seconds_ago)} ago"
    ago += "" if seen.keys_since is None else f", {seen.keys_since:,} keys since"
    return f"{ago}; now again: {_verifying(seen)}" if seen.phase is Phase.VERIFYING else ago


def _verifying(seen: Snapshot) -> str:
    if seen.verify_rows is None:
        return "was not reached" if seen.has_ended else "after copy and catch-up"
    total = f" of about {numbers.fine(seen.verify_total)}" if seen.verify_total else ""
    return f"{numbers.fine(seen.verify_rows)}{total} rows compared"


def _entry(entry: Data) -> Data:
    at: datetime = entry["at"]
    return {
        "at": utc(at),
        "actor": entry["actor"],
        "event": entry["event"],
        "details": entry["details"] or "",
    }


_ROWS_TRAVEL = {"server": "inside the server", "rows": "through Spark"}
_IN_PLACE = "not at all: the server alters the table itself"


def _what_changes(row: WorkflowRow, reason: str | None) -> dict[str, str | None]:
    return {
        "Table": f"{row.source_schema}.{row.source_table}",
        **_change(row),
        "Original afterwards": f"renamed to {row.retired_table}" if row.retired_table else None,
        "Rows that the new key does not allow": f"go into {row.side_table}" if row.keeps_one else None,
        "Rows travel": _IN_PLACE if row.is_in_place else _ROWS_TRAVEL.get(row.copy_path, row.copy_path),
        "Strategy": f"{strategy_of(row.copy_path)}: {reason}" if reason else strategy_of(row.copy_path),
    }


def _change(row: WorkflowRow) -> dict[str, str | None]:
    alter = row.spec.get("alter") or ""
    if "reverts" in row.spec:
        return {"Takes back": f"ALTER TABLE {row.source_table} {alter}", "Switches back to": row.shadow_table}
    return {"Change": f"ALTER TABLE {row.source_table} {alter}", "Shadow table": row.shadow_table}


def _plan(found: Detail) -> list[Data]:
    row, seen = found.row, found.item.snapshot
    facts = {
        "Workflow": row.id,
        **_facts(found),
        "Writers waited": None if seen.write_stall_millis is None else f"at most {seen.write_stall_millis:,.0f} ms",
    }
    return [{"name": name, "value": _said(v)} for name, v in facts.items() if v not in (None, "", [])]


def _options(row: WorkflowRow) -> list[Data]:
    """All that was asked for, by the labels of Airflow's form, which have the units."""
    fields = KINDS[row.kind].spec.model_fields if row.kind in KINDS else {}
    labels = {name: (fields[name].title if name in fields else None) or name for name in row.spec}
    given = {labels[name]: value for name, value in row.spec.items() if name not in ("table", "alter", "workflow")}
    return [{"name": name, "value": _said(value)} for name, value in given.items() if value not in (None, "", [])]


def _facts(found: Detail) -> dict[str, str | None]:
    if found.item.about.kind == FEEDS:
        return {}
    is_move = found.item.about.moved is not None
    why = found.item.snapshot.strategy_reason
    facts = {"Rows travel": _ROWS_TRAVEL["rows"]} if is_move else _what_changes(found.row, why)
    return {**facts, "Cut-over": _cutover(found)}


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cutover(found: Detail) -> str:
    about, tries = found.item.about, found.item.snapshot.cutover_attempts
    by = f", released by {about.released_by}" if about.released_by else ""
    return f"{words.cutover(about)}{by}{f', {tries} tried' if tries else ''}"
