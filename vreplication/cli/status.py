"""`status`: a table of all workflows, one in detail, or either as JSON lines; --watch repeats it each second.

What must stay true: it reads and never writes; an unknown id is refused (exit 2), an empty list is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
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
from vreplication.phases import ENDED, Phase
from vreplication.progress import fed, moved, numbers
from vreplication.progress.fed import why_no_lag
from vreplication.progress.moved import Moved, MovedTable
from vreplication.progress.snapshot import Snapshot, find, read, read_all
from vreplication.state import feeds, groups, journal, layout
from vreplication.state.moves import Side
from vreplication.workflows import lookup
from vreplication.workflows.lookup import Servers

WATCH_SECONDS = 1.0
EMPTY = f'No workflows on this server yet; start one with: {PROGRAM} online-ddl --table NAME --alter "CLAUSES"'
TOGETHER = "All of them are switched together, in one statement."
_HEADER = ("Workflow", "Table", "Phase", "Copied")
_TABLES_SHOWN = 20
_REVERTED = "reverted: the original serves again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A workflow at one moment; moved: of tables that move, where it was asked for; fed: figures of a change feed.

    journal: of one that was named, oldest first. back: phase of the way back of one that was named, if it has one.
    """

    snapshot: Snapshot
    moved: Moved | None = None
    fed: Mapping[str, Any] | None = None
    journal: Sequence[Mapping[str, Any]] = ()
    back: Phase | None = None

    def aged(self, seconds: float) -> Seen:
        known = None if self.fed is None else fed.told(self.fed, self.fed["age_seconds"] + seconds)
        return replace(self, snapshot=self.snapshot.aged(seconds), fed=known)

    def as_json(self) -> dict[str, Any]:
        fed = {"feed": dict(self.fed)} if self.fed is not None else {}
        told = {"journal": [figures.entry(each) for each in self.journal]} if self.journal else {}
        back = {"way_back": str(self.back)} if self.back else {}
        return self.snapshot.as_status_json() | (self.moved.as_json() if self.moved else {}) | fed | told | back


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """leaving: ids of workflows whose tables leave the server, and whose state is elsewhere.

    is_atomic: they are tables of one command, which are switched in one statement.
    """

    each: tuple[Seen, ...]
    leaving: tuple[str, ...] = ()
    is_atomic: bool = False

    @property
    def has_ended(self) -> bool:
        return all(seen.snapshot.has_ended for seen in self.each)

    def aged(self, seconds: float) -> Overview:
        return replace(self, each=tuple(seen.aged(seconds) for seen in self.each))


Look = Callable[[], Overview]


def status(
    workflow: Annotated[str | None, typer.Argument(metavar="ID", help="One workflow in detail.")] = None,
    source: options.SourceOption = None,
    source_file: options.SourceFileOption = None,
    target: options.TargetOption = None,
    target_file: options.TargetFileOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second, until it has ended.")] = False,
    is_json: options.JsonOption = False,
) -> None:
    """Show all workflows of a server, or one. That of tables that move is on the server that they move to."""
    servers = options.servers(source, source_file, target, target_file)
    members: Mapping[str, str] = {}
    if workflow is None:
        look = _all(servers)
    else:
        found = lookup.find(servers, names.check_workflow(workflow))
        members = {} if found.group is None else _members(found.group)
        look = _named(found.home, workflow, members, is_atomic=found.group is not None and found.group.is_atomic)
    is_one = workflow is not None and not members
    until = _Until(is_watched=watch, is_named=workflow is not None)
    if is_json:
        _json(look, until)
    elif watch and (console := Console()).is_terminal and not console.is_dumb_terminal:
        _watch_live(look, until, is_one=is_one)
    else:
        _watch_plain(look, until, is_one=is_one)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Until:
    """Look again? What was asked for by its id is looked at until it has ended."""

    is_watched: bool
    is_named: bool

    def goes_on(self, found: Overview) -> bool:
        return self.is_watched and not (self.is_named and found.has_ended)


def _members(group: groups.Group) -> dict[str, str]:
    """Tables by their workflows' ids."""
    return dict(zip(group.members, (str(spec["table"]) for spec in group.specs), strict=True))


def _not_begun(session: Session, workflow: str, name: str) -> Snapshot:
    """One of several whose turn has not come, and will not where they are cancelled."""
    group = groups.of_member(session, workflow)
    is_cancelled = group is not None and group.is_cancel_requested
    phase = Phase.CANCELLED if is_cancelled else Phase.PLANNING
    return Snapshot(workflow=workflow, phase=phase, source_table=name)


def _all(servers: Servers) -> Look:
    """Of each server that is given. Two schemas of one server have the same workflows."""

    def look() -> Overview:
        found: dict[str, Seen] = {}
        leaving: list[str] = []
        for url in servers.given:
            with connect(url, use_database=False) as session:
                feeding = fed.read(session)
                for snapshot in read_all(session):
                    one = feeding.get(snapshot.workflow)
                    seen = Seen(snapshot=fed.as_snapshot(snapshot, one) if one else snapshot)
                    found.setdefault(snapshot.workflow, seen)
                # Else a source that only loses tables would be told as a server without workflows.
                leaving += lookup.leaving(session)
                if not found:
                    # An empty list would say that there are none.
                    layout.check_readable(session)
        return Overview(each=tuple(found.values()), leaving=tuple(id for id in leaving if id not in found))

    return look


def _named(url: SourceUrl, workflow: str, members: Mapping[str, str], *, is_atomic: bool) -> Look:
    """Reads the sidecar alone: looking at a workflow loads nothing of what works on it."""

    def look() -> Overview:
        with connect(url, use_database=False) as session:
            if not members:
                return Overview(each=(_seen(session, workflow),))
            each = [find(session, each) or _not_begun(session, each, name) for each, name in members.items()]
        return Overview(each=tuple(Seen(snapshot=snapshot) for snapshot in each), is_atomic=is_atomic)

    return look


def _seen(session: Session, workflow: str) -> Seen:
    snapshot, feed, one = read(session, workflow), feeds.find(session, workflow), fed.find(session, workflow)
    told = journal.read(session, workflow)
    if feed is None or one is None:
        back = _way_back(session, snapshot)
        return Seen(snapshot=snapshot, moved=moved.find(session, workflow), journal=told, back=back)
    known = {**fed.told(feed[1], one.age_seconds), "wanted_partitions": feed[0]}
    return Seen(snapshot=fed.as_snapshot(snapshot, one), fed=known, journal=told)


def _way_back(session: Session, snapshot: Snapshot) -> Phase | None:
    """A reverted workflow stays complete: that its original serves again is told by its way back alone."""
    found = find(session, f"{snapshot.workflow}.revert") if snapshot.phase is Phase.COMPLETE else None
    return found.phase if found else None


def _json(look: Look, until: _Until) -> None:
    def show(found: Overview) -> None:
        for seen in found.each:
            json_line(seen.as_json() | ({"atomic": True} if found.is_atomic else {}))
        for workflow in found.leaving:
            json_line({"event": "leaving", "workflow": workflow})

    _repeat(look, show, until)


def _watch_plain(look: Look, until: _Until, *, is_one: bool) -> None:
    # Into a file or a pipe Rich would fold lines at 80 columns.
    console = Console(width=None if Console().is_terminal else 200, soft_wrap=True)
    _repeat(look, lambda found: console.print(_page(found, View(), is_one=is_one)), until)


def _watch_live(look: Look, until: _Until, *, is_one: bool) -> None:
    view, console = View(), Console()
    with Live(auto_refresh=False, console=console) as live:
        show = lambda found: live.update(_fitted(console, _page(found, view, is_one=is_one), found), refresh=True)  # noqa: E731
        _repeat(look, show, until)


def _fitted(console: Console, page: Group, found: Overview) -> Group:
    """Of a journal that is too long for the terminal the newest lines: Rich would leave out just those."""
    if not any(seen.journal for seen in found.each):
        return page
    *above, told = page.renderables
    title, *lines = console.render_lines(told, pad=False)
    room = console.height - len(console.render_lines(Group(*above))) - 1
    newest = lines[-max(1, room) :]
    return Group(*above, Segments([part for line in (title, *newest) for part in (*line, Segment.line())]))


def _repeat(look: Look, show: Callable[[Overview], None], until: _Until) -> None:
    """Once; or each second until what was named has ended. A connection lost meanwhile is made again."""
    found, at = look(), time.monotonic()
    show(found)
    while until.goes_on(found):
        time.sleep(WATCH_SECONDS)
        try:
            found, at = look(), time.monotonic()
        except Transient:
            # From what was read last, by the clock: a second at a time nothing of it would ever be too old.
            show(found.aged(time.monotonic() - at))
        else:
            show(found)


def _page(found: Overview, view: View, *, is_one: bool) -> Group:
    if is_one:
        (seen,) = found.each
        if seen.fed is not None:
            return Group(*_facts_of_feed(seen, seen.fed), *figures.journal(seen.journal))
        view.update(seen.snapshot)
        return Group(view, *_facts(seen), *figures.journal(seen.journal))
    if not found.each:
        return Group(*(map(_leaves, found.leaving) if found.leaving else [Text(EMPTY)]))
    together = [Text(TOGETHER, style=QUIET)] if found.is_atomic else []
    return Group(table([seen.snapshot for seen in found.each]), *together, *map(_leaves, found.leaving))


def _leaves(workflow: str) -> Text:
    return Text(f"{workflow} moves tables away from this server; see it with: {PROGRAM} status {workflow} --target URL")


def table(found: list[Snapshot]) -> Group:
    """A line a workflow, and below it what is to be said about it: 80 columns are enough."""
    rows = [_cells(snapshot) for snapshot in found]
    reverted = {names.whose_way_back(each.workflow) for each in found if each.phase is Phase.COMPLETE}
    widths = [max(len(cell) for cell in column) for column in zip(_HEADER, *rows, strict=True)]
    lines = [_line(_HEADER, widths, "bold")]
    for snapshot, cells in zip(found, rows, strict=True):
        lines.append(_line(cells, widths, phase_color(snapshot)))
        if remark := _REVERTED if snapshot.workflow in reverted else mask(_remark(snapshot)):
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


def _strategy(snapshot: Snapshot) -> str | None:
    return f"{snapshot.strategy}: {snapshot.strategy_reason}" if snapshot.strategy_reason else None


def _facts(seen: Seen) -> list[RenderableType]:
    """What the bars do not say."""
    snapshot, about = seen.snapshot, seen.moved
    facts = {
        "Shadow table": None if snapshot.has_ended or about else snapshot.shadow_table,
        "New table" if names.whose_way_back(snapshot.workflow) else "Original": None if about else _original(seen),
        "Side table": _left_out(snapshot),
        **({} if about is None else _of_move(snapshot, about)),
        "Strategy": _strategy(snapshot),
        "Cut-over": _cutover(snapshot),
        "Next": _next(seen) if about is None else _next_of_move(snapshot, about),
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value:
            grid.add_row(Text(name, style="bold"), Text(mask(value)))
    return [grid]


def _facts_of_feed(seen: Seen, fed: Mapping[str, Any]) -> list[RenderableType]:
    snapshot = seen.snapshot
    resolved = fed.get("resolved_micros")
    wanted = fed.get("wanted_partitions")
    facts = {
        "Feed": f"{snapshot.workflow}: {figures.phase(snapshot)}",
        "Silent": numbers.silence(snapshot),
        "Waiting for": snapshot.waiting_for,
        "Reason": snapshot.reason if snapshot.has_ended else None,
        "Topic": _topic(fed),
        "Partitions": _partitions(fed, wanted),
        "Sent": f"{numbers.count(fed['rows_sent'])} rows since it was started" if "rows_sent" in fed else None,
        "Of each": ", ".join(map(numbers.count, fed.get("rows_by_partition") or ())),
        "Lag": _lag_of_feed(snapshot, fed),
        "Resolved": None
        if resolved is None
        else f"{datetime.fromtimestamp(resolved / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC",
        "Prepared": f"{fed['open_branches']} XA branches whose outcome is open" if fed.get("open_branches") else None,
        "Next": f"{PROGRAM} resume {snapshot.workflow}"
        if snapshot.is_silent or snapshot.phase is Phase.FAILED
        else None,
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value:
            grid.add_row(Text(name, style="bold"), Text(mask(str(value))))
    return [grid]


def _lag_of_feed(snapshot: Snapshot, figures: Mapping[str, Any]) -> str | None:
    if snapshot.lag_seconds is not None:
        return numbers.duration(snapshot.lag_seconds)
    why = "" if snapshot.is_silent or snapshot.has_ended else why_no_lag(figures)
    return f"not known: {why}" if why else None


def _topic(fed: Mapping[str, Any]) -> str | None:
    more = int(fed.get("topics") or 1) - 1
    return f"{fed['topic']}, and {more} of tables" if more else fed.get("topic")


def _partitions(fed: Mapping[str, Any], wanted: int | None) -> str | None:
    if "partitions" not in fed:
        return None
    asked = f", {wanted} asked for" if wanted not in (None, fed["partitions"]) else ""
    return f"{fed['partitions']}, generation {fed['generation']}{asked}"


def _of_move(snapshot: Snapshot, about: Moved) -> dict[str, str | None]:
    asked = f"{about.asked}, by {about.asked_by}" if about.asked and not snapshot.has_ended else None
    serving = about.source_at if about.serving is Side.SOURCE else about.target_at
    return {
        "Tables": "\n".join(map(_moved_table, about.tables[:_TABLES_SHOWN])) + _more(len(about.tables)),
        "From, to": f"{about.source_at}, {about.target_at}",
        "Serves": f"the {about.serving}, {serving}",
        "Asked for": asked,
    }


def _more(count: int) -> str:
    return f"\nand {count - _TABLES_SHOWN} more" if count > _TABLES_SHOWN else ""


def _moved_table(one: MovedTable) -> str:
    about = "" if one.rows_total is None else f" of about {numbers.short(max(one.rows_total, one.rows_copied))}"
    how = (
        f"{numbers.short(one.rows_copied)} rows copied"
        if one.is_copied
        else f"{numbers.short(one.rows_copied)}{about} rows"
    )
    return f"{one.source} → {one.target}: {how}"


def _next_of_move(snapshot: Snapshot, about: Moved) -> str | None:
    """What is expected of the person."""
    name = snapshot.workflow
    if snapshot.phase is Phase.COMPLETE:
        return f"{PROGRAM} cleanup {name} drops the source's old tables, if they were kept"
    if snapshot.phase is Phase.FAILED:
        end = "cancel" if about.serving is Side.SOURCE else "complete"
        return f"{PROGRAM} resume {name} once the cause is fixed, or {PROGRAM} {end} {name}"
    if snapshot.has_ended:
        return None
    if snapshot.is_silent:
        return f"{PROGRAM} resume {name}"
    if snapshot.phase is Phase.SWITCHED:
        return f"{PROGRAM} reverse {name} goes back, {PROGRAM} complete {name} ends the way back"
    if snapshot.phase is Phase.WAITING:
        return f"{PROGRAM} release {name}, if it waits for that"
    return None


def _left_out(snapshot: Snapshot) -> str | None:
    """It is there for as long as nobody asks for its end."""
    if snapshot.side is None:
        return None
    table, rows = snapshot.side
    return f"{table}, {numbers.count(rows)} rows; {PROGRAM} cleanup {snapshot.workflow} --duplicates drops it"


def _original(seen: Seen) -> str | None:
    snapshot = seen.snapshot
    if seen.back is Phase.COMPLETE:
        return f"serves again: {PROGRAM} revert switched back"
    is_renamed = snapshot.phase is Phase.COMPLETE and snapshot.retired_table
    return f"was renamed to {snapshot.retired_table}" if is_renamed else None


def _cutover(snapshot: Snapshot) -> str | None:
    parts = [f"{snapshot.cutover_attempts} attempts"] if snapshot.cutover_attempts else []
    if snapshot.write_stall_millis is not None:
        parts.append(f"writers waited at most {numbers.millis(snapshot.write_stall_millis)}")
    return ", ".join(parts) or None


def _next(seen: Seen) -> str | None:
    """What is expected of the person."""
    snapshot, name = seen.snapshot, seen.snapshot.workflow
    if seen.back is Phase.COMPLETE:
        return f"{PROGRAM} cleanup {name} drops the new table, if it was kept"
    if seen.back and seen.back not in ENDED:
        return f"{PROGRAM} revert {name} switches back, {PROGRAM} cleanup {name} ends the way back"
    known = {
        Phase.FAILED: f"{PROGRAM} resume {name} once the cause is fixed, or {PROGRAM} cancel {name}",
        Phase.COMPLETE: f"{PROGRAM} cleanup {name} drops the original, if it was kept",
        Phase.WAITING: f"{PROGRAM} release {name}, if it was started with --cutover manual",
    }
    if snapshot.is_silent:
        return f"{PROGRAM} resume {name}"
    if of := names.whose_way_back(name):
        known[Phase.WAITING] = f"{PROGRAM} revert {of} switches back, {PROGRAM} cleanup {of} ends the way back"
        known[Phase.COMPLETE] = f"{PROGRAM} cleanup {of} drops the new table, if it was kept"
        known[Phase.FAILED] = f"{PROGRAM} cleanup {of} drops the original"
    return known.get(snapshot.phase)
