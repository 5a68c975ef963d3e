"""Several tables changed by one command, on the command line: their state in one table, their ends in a few lines.

What must stay true: each table's end is said in its own words, and the exit code is that of the worst; the last JSON
line is of them all, and those before it are each table's own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from vreplication.cli import logs, outcome, show
from vreplication.cli.attend import attend
from vreplication.cli.bars import QUIET, WAITING
from vreplication.cli.operate import by
from vreplication.cli.say import json_line, say
from vreplication.cli.status import table
from vreplication.cli.watcher import Watcher
from vreplication.errors import Refused
from vreplication.masking import mask
from vreplication.mysql.session import Session
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress import snapshot as snapshots
from vreplication.progress.snapshot import Snapshot
from vreplication.state import workflows

if TYPE_CHECKING:
    from vreplication.cli.online_ddl import Request
    from vreplication.engine.result import Result
    from vreplication.workflows.online_ddl.group import Tables


@dataclass(frozen=True, slots=True)
class Overview:
    """The newest snapshots of several workflows, in order."""

    each: tuple[Snapshot, ...]

    def aged(self, seconds: float) -> Overview:
        return Overview(tuple(snapshot.aged(seconds) for snapshot in self.each))


def tables(request: Request) -> Tables:
    from vreplication.workflows.online_ddl.group import Tables

    return Tables(id=request.group or "", specs=request.specs, at_once=request.at_once, is_atomic=request.is_atomic)


def run(asked: Tables, url: SourceUrl, args: Sequence[str], *, is_json: bool, is_resumed: bool = False) -> int:
    """Change them, or go on with it; returns the exit code."""
    from vreplication.workflows.online_ddl import ending, group

    logs.start(asked.id)
    stop, display = threading.Event(), choose(is_json=is_json)
    results = attend(
        lambda: group.run(asked, url, stop=stop, notify=display.note, by=by()),
        stop=stop,
        display=display,
        watcher=_watcher(url, asked),
    )
    again = outcome.bare_command(args) if is_resumed else outcome.same_command(args, asked.id)
    code = finish(asked, results, is_json=is_json, again=again)
    # Behind the last lines: killed before them, the same command finds that nobody was told, and tells it.
    for result in results:
        ending.note_told(url, result)
    return code


def finish(asked: Tables, results: Sequence[Result], *, is_json: bool, again: str) -> int:
    """Each table's end, then that of all; returns the exit code."""
    from vreplication.workflows.online_ddl.group import summed_up

    for result in results:
        outcome.finish(result, is_json=is_json)
    found = summed_up(asked, results)
    if is_json:
        ends = [
            {"workflow": result.workflow, "table": spec.table, "event": result.event, "reason": result.reason}
            for spec, result in zip(asked.specs, results, strict=True)
        ]
        json_line(outcome.fields(found, again) | {"tables": ends})
    elif found.event == "complete":
        say(f"Complete: workflow {asked.id}, {len(results)} tables.")
    else:
        outcome.finish(found, is_json=False, again=again)
    return found.exit_code


def plan(asked: Tables, url: SourceUrl, *, is_json: bool) -> int:
    """Print each table's plan; returns 2 when a check of any refuses."""
    from vreplication.planning.explain import explain, plan_json
    from vreplication.workflows.online_ddl import group

    made = group.plan(asked, url)
    for each in made:
        if is_json:
            json_line({"event": "plan", **plan_json(each)})
        else:
            say(explain(each) + "\n")
    return Refused.exit_code if any(each.refusals for each in made) else 0


def _watcher(url: SourceUrl, asked: Tables) -> Watcher[Overview]:
    looked = _Looked(asked)
    return Watcher(url, asked.id, first=looked.overview(), find=looked.look)


class _Looked:
    """What was seen of each table. One that has ended is not asked for again, nor one that has not begun."""

    def __init__(self, asked: Tables) -> None:
        self._seen = {
            each.workflow or "": Snapshot(workflow=each.workflow or "", phase=Phase.PLANNING, source_table=each.table)
            for each in asked.named
        }

    def overview(self) -> Overview:
        return Overview(tuple(self._seen.values()))

    def look(self, session: Session, _group: str) -> Overview:
        at_work = [each for each, seen in self._seen.items() if not seen.has_ended]
        # It is asked twice a second: one question for all, then one each for those that have begun.
        for each in workflows.existing(session, at_work):
            self._seen[each] = snapshots.find(session, each) or self._seen[each]
        return self.overview()


# Shown while it lasts.


class Rows:
    """A line a table, drawn in place; notes scroll above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Drawn by `tick` alone: in Rich's own thread a closed pipe would raise where nobody hears of it.
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Rows:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tick(self, snapshot: Overview, *, is_stopping: bool) -> None:
        lines: list[RenderableType] = [table(list(snapshot.each)), Text(_summary(snapshot), style=QUIET)]
        if is_stopping:
            lines.append(Text("stopping: what is done stays done; the same workflow goes on later", style=WAITING))
        self._live.update(Group(*lines), refresh=True)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(mask(text), markup=False, highlight=False, style=QUIET)


class Lines(show.LineDisplay):
    """A line every few seconds, and one at once when a table comes to another phase."""

    def tick(self, snapshot: Overview, *, is_stopping: bool) -> None:
        at_work = [each for each in snapshot.each if each.phase is not Phase.PLANNING and not each.has_ended]
        where = f"{[str(each.phase) for each in snapshot.each]}{is_stopping}"
        told = [f"{each.source_table}: {show.line(each)}" for each in at_work]
        self.say_if_due(where, [_summary(snapshot) + (" · stopping" if is_stopping else ""), *told])


class JsonLines(show.JsonDisplay):
    """JSON lines at least every second: one a table that has begun."""

    def tick(self, snapshot: Overview, *, is_stopping: bool) -> None:
        if self.is_due():
            for each in snapshot.each:
                json_line(each.as_json() | {"source_table": each.source_table})


def choose(*, is_json: bool) -> show.Display[Overview]:
    """JSON when asked for, a table drawn in place on a terminal, lines elsewhere."""
    if is_json:
        return JsonLines()
    console = Console()
    # On a terminal the log's JSON lines would come between what is drawn in place.
    if logs.is_json():
        return Lines()
    return Rows(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


def _summary(found: Overview) -> str:
    """How many tables are where."""
    phases = Counter(str(each.phase) for each in found.each if each.phase is not Phase.PLANNING)
    begun = sum(phases.values())
    counts = [f"{count} {phase}" for phase, count in phases.items()]
    waiting = [f"{len(found.each) - begun} not begun"] if begun < len(found.each) else []
    return f"{len(found.each)} tables: " + ", ".join([*counts, *waiting])
