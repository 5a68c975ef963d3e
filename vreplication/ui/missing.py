"""A workflow, or a run, that is not there: why, and the page that says so.

What must stay true: what may yet come is told apart from what is missing, and from what cannot be asked.
"""

from __future__ import annotations

from typing import Any

from vreplication.ui import DAGS, Run, detail, view
from vreplication.ui.asking import Answer
from vreplication.ui.live import Shown

SOON = 50
"""Milliseconds after which a page that could not be complete asks again; that question waits for the answers."""
LOOKING, HIDDEN = 202, 403


class NotFound(Exception):
    """`status` 404: it does not exist; 403: it is of a kind that is not shown; 409: in several places; 503: a source
    that may have it does not answer.

    202: it has not answered so far, or its run has not begun it, and the page asks again. run: the one that is to make
    it, or was.
    """

    def __init__(self, status: int, title: str, problems: list[dict[str, Any]], run: Run | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.problems, self.run = status, title, problems, run


def message(error: NotFound) -> Shown:
    log = detail.task_path(error.run, "plan") if error.run and error.run.dag_id in DAGS else None
    is_coming = error.run is not None and error.status == LOOKING
    data = {"title": error.title, "problems": error.problems, "log": log, "is_coming": is_coming}
    data["is_hidden"] = error.status == HIDDEN
    # A run needs seconds to plan; a source that was only late answers in the next request.
    poll = 1000 if is_coming else SOON if error.status == LOOKING else 3000
    return Shown("message.html", {**data, "editor": (), "starter": False}, poll=poll, status=error.status)


def hidden(workflow: str, kind: str) -> NotFound:
    """Of a kind that this person may not look at."""
    return NotFound(HIDDEN, f"Looking at {workflow} takes the right to read the DAG {kind}.", [])


def not_found(workflow: str, answers: list[Answer], places: list[str]) -> NotFound:
    if places:
        return NotFound(409, f"Workflow {workflow} exists on {', '.join(places)}: say ?conn_id=.", [])
    # Before it is said to be missing: a source that cannot be asked may have it.
    silent = view.problems(answers)
    if silent:
        return NotFound(503, f"Workflow {workflow} cannot be read now.", silent)
    if not answers:
        return NotFound(404, f'There is no workflow {workflow}: no connection is marked {{"vreplication": true}}.', [])
    return NotFound(404, f"There is no workflow {workflow} (yet).", [])
