"""What has not begun, as rows of the list: what waits in a queue, runs that Airflow has not started, refused runs.

What must stay true: as in `view`; what has a workflow is none of these, and is shown as that; a run that the queue has
started is shown once, as Airflow tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from vreplication.masking import masked
from vreplication.scheduler import due
from vreplication.scheduler.due import Standing
from vreplication.ui import DAG, FEEDS, MOVES, Run
from vreplication.ui.asking import Answer
from vreplication.ui.buttons import Button, of_queue

QUEUED, RUNNING, FAILED = "queued", "running", "failed"
_WAITS = (due.WAITING, due.DUE)
Data = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """A run of one of our DAGs. state: Airflow's. place: connection and workflow. by: who triggered it, where known.

    not_before: Airflow starts it then. limit: so many runs of its DAG at a time, of which `busy` run now, whatever
    they are for. refused: the sentence, of `task`.
    """

    run: Run
    place: tuple[str, str]
    state: str
    conf: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    at: datetime | None = None
    not_before: datetime | None = None
    is_paused: bool = False
    limit: int | None = None
    busy: int = 0
    refused: str = ""
    task: str = "plan"


def rows(answers: Sequence[Answer], runs: Sequence[AskedRun]) -> list[Data]:
    """What waits in the order of its start, then what was refused. Of a source that may yet answer nothing is said."""
    well = [answer for answer in answers if answer.problem is None]
    late = {answer.source.conn_id for answer in answers if answer.is_late}
    begun = {(a.source.conn_id, each.snapshot.workflow) for a in well for each in a.value.items}
    # Of a source that may yet answer it is not known whether the run has begun its workflow.
    asked = [run for run in runs if run.place not in begun and run.place[0] not in late]
    found = [row for answer in well for row in _of_queue(answer, {run.place for run in asked})]
    # A claimed entry is a run already: `told` has left it out above, for Airflow knows more of it.
    found += _of_airflow(asked, {answer.source.conn_id for answer in well})
    return sorted(found, key=lambda row: row["state"] != QUEUED)


def _of_queue(answer: Answer, told: set[tuple[str, str]]) -> list[Data]:
    """told: what Airflow's runs tell."""
    conn_id = answer.source.conn_id
    waiting = [s.entry.workflow for s in answer.value.pending if s.state in _WAITS]
    found = [
        _entry(standing, conn_id, waiting)
        for standing in answer.value.pending
        if (conn_id, standing.entry.workflow) not in told
    ]
    secrets = answer.source.url.secrets if answer.source.url else ()
    return list(masked(found, secrets))


def _entry(standing: Standing, conn_id: str, waiting: Sequence[str]) -> Data:
    entry = standing.entry
    place = waiting.index(entry.workflow) + 1 if standing.state in _WAITS else None
    title, change = _asked(entry.kind, entry.spec, f"{entry.schema}.{entry.table}")
    made = of_queue(title, place, len(waiting)) if place else []
    # Somebody has to do something about what comes before it.
    is_held = standing.why.startswith("it is held")
    return _row(conn_id, entry.workflow, entry.kind, title, change) | {
        "state": "refused" if standing.state == due.FAILED else QUEUED,
        "tone": "failed" if standing.state == due.FAILED else "held" if is_held else "ended",
        "phase": {due.FAILED: "refused", due.STARTED: "starting"}.get(standing.state, "queued"),
        "why": _why_queued(standing),
        "place": f"{place} of {len(waiting)}" if place else None,
        "after": entry.after,
        "not_before": due.iso(entry.not_before),
        "by": entry.submitted_by,
        "at": due.iso(entry.submitted_at),
        "buttons": [_button(each, entry.workflow, conn_id) for each in made],
    }


def _why_queued(standing: Standing) -> str:
    if standing.why.startswith("scheduled for"):
        # The time stands beside it, in the reader's zone.
        return "its time has not come"
    return standing.why or "next, as soon as there is a free place"


def _of_airflow(runs: Sequence[AskedRun], answered: set[str]) -> list[Data]:
    """One that runs has no workflow yet, as far as its source has told; one that has failed was refused."""
    # Of a source that does not answer nothing says whether a run that is under way has begun its workflow long ago.
    shown = (run for run in runs if run.state != RUNNING or run.place[0] in answered)
    return list(masked(list(map(_run, shown))))


def _run(asked: AskedRun) -> Data:
    # Here, for `detail` needs `view`, and that this module.
    from vreplication.ui.detail import run_path, task_path

    conn_id, workflow = asked.place
    title, change = _asked(asked.run.dag_id, asked.conf, "")
    is_refused = asked.state == FAILED
    log = task_path(asked.run, asked.task) if is_refused else None
    return _row(conn_id, workflow, asked.run.dag_id, title, change) | {
        "state": "refused" if is_refused else QUEUED,
        "tone": "failed" if is_refused else "held" if asked.is_paused else "ended",
        "phase": {FAILED: "refused", RUNNING: "starting"}.get(asked.state, "queued"),
        "why": asked.refused if is_refused else _why(asked),
        "not_before": _iso(asked.not_before),
        "by": asked.by,
        "at": _iso(asked.at),
        "run": {"run_id": asked.run.run_id, "url": run_path(asked.run), "log_url": log},
    }


def _why(asked: AskedRun) -> str:
    dag = asked.run.dag_id
    if asked.state == RUNNING:
        return "its checks are not done yet"
    if asked.is_paused:
        return f"the DAG {dag} is paused: unpause it in Airflow"
    if asked.not_before is not None and asked.not_before > datetime.now(UTC):
        return "its time has not come"
    if asked.limit is not None and asked.busy >= asked.limit:
        return f"Airflow runs {asked.busy} of {dag} already, and {asked.limit} at most"
    return "Airflow's scheduler has not come to it yet"


def _row(conn_id: str, workflow: str, kind: str, title: str, change: str) -> Data:
    known = {"conn_id": conn_id, "workflow": workflow, "kind": kind, "title": title, "change": change}
    return known | {"place": None, "after": None, "not_before": None, "run": None, "buttons": []}


def _asked(kind: str, spec: Mapping[str, Any], table: str) -> tuple[str, str]:
    """What it is about, and what is to be done, as the list's other rows say it."""
    if kind == DAG:
        return table or str(spec.get("table") or ""), str(spec.get("alter") or "")
    title = ", ".join(map(str, spec.get("tables") or ())) or table or "all tables"
    if kind == MOVES:
        return title, f"move from {spec.get('source_conn_id') or 'the source'}"
    return title, f"into {spec.get('sink') or 'Kafka'}" if kind == FEEDS else ""


def _button(button: Button, workflow: str, conn_id: str) -> Data:
    where = f"api/queue/{quote(workflow, safe='')}/{button.act}?conn_id={quote(conn_id, safe='')}"
    return asdict(button) | {"url": where}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def followers(pending: Iterable[Standing]) -> dict[str, list[str]]:
    """What waits for each workflow to be complete."""
    found: dict[str, list[str]] = {}
    for standing in pending:
        if standing.entry.after and standing.state in _WAITS:
            found.setdefault(standing.entry.after, []).append(standing.entry.workflow)
    return found
