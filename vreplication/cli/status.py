"""`status`: a table of all workflows, one in detail, or either as JSON lines; --watch repeats it each second.

What must stay true: it reads and never writes; an unknown id is refused (exit 2), an empty list is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vreplication import names
from vreplication.cli import figures, options
from vreplication.cli.bars import QUIET, View, phase_color
from vreplication.cli.say import PROGRAM, json_line
from vreplication.errors import Transient
from vreplication.masking import mask
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot, find, read, read_all
from vreplication.state import groups

WATCH_SECONDS = 1.0
EMPTY = f'No workflows on this server yet; start one with: {PROGRAM} online-ddl --table NAME --alter "CLAUSES"'
_HEADER = ("Workflow", "Table", "Phase", "Copied")
Look = Callable[[], list[Snapshot]]


def status(
    workflow: Annotated[str | None, typer.Argument(metavar="[ID]", help="One workflow in detail.")] = None,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second, until it has ended.")] = False,
    is_json: options.JsonOption = False,
) -> None:
    """Show all workflows of this source, or one."""
    url = options.resolve(source, source_file)
    members = _members(url, workflow)
    look, is_one = _looker(url, workflow, members), workflow is not None and not members
    until = _Until(is_watched=watch, is_named=workflow is not None)
    if is_json:
        _json(look, until)
    elif watch and Console().is_terminal:
        _watch_live(look, until, is_one=is_one)
    else:
        _watch_plain(look, until, is_one=is_one)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Until:
    """Look again? What was asked for by its id is looked at until it has ended."""

    is_watched: bool
    is_named: bool

    def goes_on(self, found: list[Snapshot]) -> bool:
        return self.is_watched and not (self.is_named and all(each.has_ended for each in found))


def _members(url: SourceUrl, workflow: str | None) -> dict[str, str]:
    """Tables by their workflows' ids, where the id is of several."""
    if workflow is None:
        return {}
    with connect(url) as session:
        group = groups.find(session, names.check_workflow(workflow))
    return {} if group is None else dict(zip(group.members, (str(s["table"]) for s in group.specs), strict=True))


def _not_begun(session: Session, workflow: str, name: str) -> Snapshot:
    """One of several whose turn has not come, and will not where they are cancelled."""
    group = groups.of_member(session, workflow)
    is_cancelled = group is not None and group.is_cancel_requested
    phase = Phase.CANCELLED if is_cancelled else Phase.PLANNING
    return Snapshot(workflow=workflow, phase=phase, source_table=name)


def _looker(url: SourceUrl, workflow: str | None, members: Mapping[str, str]) -> Look:
    """Reads the sidecar alone: looking at a workflow loads nothing of what works on it."""

    def look() -> list[Snapshot]:
        with connect(url) as session:
            if workflow is None:
                return read_all(session)
            if not members:
                return [read(session, workflow)]
            return [find(session, each) or _not_begun(session, each, name) for each, name in members.items()]

    return look


def _json(look: Look, until: _Until) -> None:
    def show(found: list[Snapshot]) -> None:
        for snapshot in found:
            json_line(snapshot.as_status_json())

    _repeat(look, show, until)


def _watch_plain(look: Look, until: _Until, *, is_one: bool) -> None:
    console = Console(width=None if Console().is_terminal else 200, soft_wrap=True)
    _repeat(look, lambda found: console.print(_page(found, View(), is_one=is_one)), until)


def _watch_live(look: Look, until: _Until, *, is_one: bool) -> None:
    view = View()
    with Live(auto_refresh=False, console=Console()) as live:
        show = lambda found: live.update(_page(found, view, is_one=is_one), refresh=True)  # noqa: E731
        _repeat(look, show, until)


def _repeat(look: Look, show: Callable[[list[Snapshot]], None], until: _Until) -> None:
    """Once; or each second until what was named has ended. A connection lost meanwhile is made again."""
    found = look()
    show(found)
    while until.goes_on(found):
        time.sleep(WATCH_SECONDS)
        try:
            found = look()
        except Transient:
            found = [snapshot.aged(WATCH_SECONDS) for snapshot in found]
        show(found)


def _page(found: list[Snapshot], view: View, *, is_one: bool) -> RenderableType:
    if is_one:
        view.update(found[0])
        return Group(view, *_facts(found[0]))
    return table(found) if found else Text(EMPTY)


def table(found: list[Snapshot]) -> Group:
    """A line a workflow, and below it what is to be said about it: 80 columns are enough."""
    rows = [_cells(snapshot) for snapshot in found]
    widths = [max(len(cell) for cell in column) for column in zip(_HEADER, *rows, strict=True)]
    lines = [_line(_HEADER, widths, "bold")]
    for snapshot, cells in zip(found, rows, strict=True):
        lines.append(_line(cells, widths, phase_color(snapshot)))
        if remark := mask(_remark(snapshot)):
            lines.append(Text(f"  {remark}", style=QUIET, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _cells(snapshot: Snapshot) -> tuple[str, ...]:
    copied = figures.percent(snapshot.percent)
    return snapshot.workflow, snapshot.source_table or "", figures.phase(snapshot), copied


def _line(cells: tuple[str, ...], widths: list[int], color: str) -> Text:
    """The phase has the color; the figure stands to the right."""
    *words, phase, copied = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    plain = "bold" if color == "bold" else ""
    figure = copied.strip().rjust(widths[-1])
    return Text.assemble(*((f"{word}  ", plain) for word in words), (f"{phase}  ", color), (figure, plain))


def _remark(snapshot: Snapshot) -> str:
    if snapshot.has_ended:
        return _first_line(snapshot.reason or "")
    lag = [] if snapshot.lag_seconds is None else [f"lag {numbers.duration(snapshot.lag_seconds)}"]
    return _first_line(" · ".join([*lag, *(figures.notes(snapshot) or [figures.eta(snapshot)])]).removesuffix(" · "))


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _facts(snapshot: Snapshot) -> list[RenderableType]:
    """What the bars do not say."""
    facts = {
        "Shadow table": None if snapshot.has_ended else snapshot.shadow_table,
        "Original": _original(snapshot),
        "Cut-over": _cutover(snapshot),
        "Next": _next(snapshot),
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value:
            grid.add_row(Text(name, style="bold"), Text(mask(value)))
    return [grid]


def _original(snapshot: Snapshot) -> str | None:
    is_renamed = snapshot.phase is Phase.COMPLETE and snapshot.retired_table
    return f"was renamed to {snapshot.retired_table}" if is_renamed else None


def _cutover(snapshot: Snapshot) -> str | None:
    parts = [f"{snapshot.cutover_attempts} attempts"] if snapshot.cutover_attempts else []
    if snapshot.write_stall_millis is not None:
        parts.append(f"writers waited at most {numbers.millis(snapshot.write_stall_millis)}")
    return ", ".join(parts) or None


def _next(snapshot: Snapshot) -> str | None:
    """What is expected of the person."""
    name = snapshot.workflow
    known = {
        Phase.FAILED: f"{PROGRAM} resume {name} once the cause is fixed, or {PROGRAM} cancel {name}",
        Phase.COMPLETE: f"{PROGRAM} cleanup {name} drops the original, if it was kept",
        Phase.WAITING: f"{PROGRAM} release {name}, if it was started with --cutover manual",
    }
    if snapshot.is_silent:
        return f"{PROGRAM} resume {name}"
    return known.get(snapshot.phase)
