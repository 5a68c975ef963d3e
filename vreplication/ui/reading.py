"""What the page reads of one source: all workflows in a few statements, one workflow in detail, or its history.

What must stay true: it reads and never writes; a server without our sidecar has no workflows, which is no error; a part
that the login may not read is said to be unknown, and the rest is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from vreplication.cutover.blockers import Blocker, blockers, old_snapshots
from vreplication.cutover.reasons import LEFT_BEHIND, Reason, catch_up_reasons, copied_at, why_closed
from vreplication.engine.effort import Effort, effort
from vreplication.engine.job import request_of
from vreplication.errors import VReplicationError
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import Session
from vreplication.phases import OVER, Phase
from vreplication.planning.request import HELD_BY
from vreplication.progress import fed, moved, snapshot
from vreplication.progress.fed import Consumers, Fed
from vreplication.progress.moved import Moved
from vreplication.progress.outlook import RECENT
from vreplication.progress.snapshot import Snapshot
from vreplication.scheduler import due, queueing
from vreplication.scheduler.due import Standing
from vreplication.schema.difference import Definitions
from vreplication.schema.introspect import size_of
from vreplication.state import (
    definitions,
    feed_rates,
    held,
    history,
    journal,
    lease,
    queue,
    throttling,
    verdicts,
    workflows,
)
from vreplication.state import gate as state_of_gate
from vreplication.state.history import Point
from vreplication.state.moves import Side
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import Request, WorkflowRow
from vreplication.ui import DAG, FEEDS, MOVES, feeds
from vreplication.workflows.online_ddl import reverting

AT_THE_GATE = frozenset({Phase.WAITING, Phase.CUTTING_OVER})
_GATES = 5
RECENT_DAYS = 7
"""What was refused is shown so long."""
_NAMED = 3
"""Tables of a move that its title names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was asked for and released: not in the Snapshot, which is about progress. window: as it was written.

    moved: of tables that move. fed, spec: of a change feed. reverts: of a way back, whose it is.
    """

    alter: str
    cutover: str
    kind: str = DAG
    moved: Moved | None = None
    fed: Fed | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    window: str | None = None
    is_cut: bool = False
    released_by: str | None = None
    reverts: str = ""

    def title(self, seen: Snapshot) -> str:
        """The table, or the tables that move, or are sent."""
        if self.kind == FEEDS:
            return feeds.title(dict(self.spec), seen.source_table)
        if self.moved is None:
            return seen.source_table or ""
        names = [table.source for table in self.moved.tables]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more

    @property
    def change(self) -> str:
        if self.kind == FEEDS:
            return feeds.change(dict(self.spec))
        if self.reverts:
            return f"way back of {self.reverts}"
        return self.alter if self.moved is None else f"move from {self.moved.source_at} to {self.moved.target_at}"

    @property
    def is_held(self) -> bool:
        """Until somebody, or the window, releases it. What was switched back goes there again by a release alone."""
        is_asked_for = self.cutover == "manual" or self.window is not None or self.is_back
        return self.released_by is None and is_asked_for

    @property
    def is_back(self) -> bool:
        """It was switched, and switched back."""
        return self.moved is not None and self.moved.switches > 0 and self.moved.serving is Side.SOURCE

    @property
    def needs_release(self) -> bool:
        """Of a person: nothing else will release it. A way back is there in case somebody wants it."""
        return self.is_held and not self.reverts and (self.window is None or self.is_back)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Why the cut-over is held back, and since when. `problem`: why that is not known."""

    reasons: list[Reason]
    blockers: list[Blocker]
    problem: str | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """points: the last minutes of one that has not ended; gate: of one that stands there."""

    snapshot: Snapshot
    about: About
    points: tuple[Point, ...] = ()
    gate: Gate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a complete workflow has put aside. nbytes None: it is on another server, which is not asked.

    is_open: it is kept level, and can be switched back to.
    """

    table: str
    nbytes: int | None
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Rows that gave way to others under a new unique key: their table, and how many they were at the switch."""

    table: str
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    item: Item
    row: WorkflowRow
    journal: list[dict[str, Any]]
    verdict: Verdict | None
    effort: Effort | None
    is_driven: bool
    """Some process works on it now."""
    definitions: Definitions | None = None
    """Of its table, before and after."""
    unheeded_seconds: float | None = None
    """For so long it has been released, and no process works on it."""
    kept: Kept | None = None
    left_out: LeftOut | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    """What holds it back above which limit, by the names of the options."""

    @property
    def kind(self) -> str:
        return self.item.about.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Of one server. consumers: those that write into it. pending: of its queue, what has no workflow.

    owners: who has asked for each workflow.
    """

    items: list[Item]
    consumers: list[Consumers]
    pending: list[Standing] = field(default_factory=list)
    owners: Mapping[str, str] = field(default_factory=dict)


def overview(session: Session) -> Overview:
    items = _items(session)
    return Overview(
        items=items,
        consumers=consumers(session),
        pending=_pending(session, {each.snapshot.workflow for each in items}),
        owners=journal.owners(session) if items else {},
    )


def _pending(session: Session, begun: set[str]) -> list[Standing]:
    """In the order of its start. What was refused is told for some days."""
    try:
        # Entries are never deleted, and a look takes a statement for each lease: most servers have nothing that waits.
        if not any(e.workflow not in begun and e.state != queue.REMOVED for e in queue.entries(session)):
            return []
        scene = queueing.look(session)
    except VReplicationError:
        # A sidecar of an earlier release has no queue.
        return []
    since = scene.now - timedelta(days=RECENT_DAYS)
    found = (each for each in due.standings(scene) if each.entry.workflow not in scene.known)
    return [
        each
        for each in found
        if each.state in (due.WAITING, due.DUE, due.STARTED)
        # What failed before it was started has no time of its own.
        or (each.state == due.FAILED and (each.entry.started_at or each.entry.submitted_at or since) > since)
    ]


def consumers(session: Session) -> list[Consumers]:
    try:
        return fed.consumers(session)
    except VReplicationError:
        # A sidecar of an earlier release knows none.
        return []


def _items(session: Session) -> list[Item]:
    found = snapshot.read_all(session)
    asked = _about(session) if found else {}
    found = [_seen(each, asked) for each in found]
    points, gates = _points(session, found), _gates(session, found, asked)
    return [
        Item(snapshot=s, about=asked[w], points=points.get(w, ()), gate=gates.get(w))
        for s in found
        if (w := s.workflow) in asked
    ]


def _seen(seen: Snapshot, asked: Mapping[str, About]) -> Snapshot:
    about = asked.get(seen.workflow)
    return fed.as_snapshot(seen, about.fed) if about and about.fed else seen


def _points(session: Session, found: list[Snapshot]) -> dict[str, tuple[Point, ...]]:
    living = [s.workflow for s in found if not s.has_ended]
    try:
        return {name: tuple(some) for name, some in history.recent(session, living, RECENT).items()}
    except VReplicationError:
        # A sidecar of an earlier release has none until the next driver starts.
        return {}


def _gates(session: Session, found: list[Snapshot], asked: dict[str, About]) -> dict[str, Gate]:
    """Of the first few: it takes several statements each, and who stands there long is known by name."""
    standing = [s.workflow for s in found if s.phase in AT_THE_GATE and s.workflow in asked]
    rows = {name: workflows.find(session, name) for name in standing[:_GATES]}
    return {name: _gate(session, row, asked[name]) for name, row in rows.items() if row}


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """rates: of a feed, rows a second by partition, by slot."""

    points: list[Point]
    rates: dict[int, tuple[float, ...]]


def past(session: Session, workflow: str, after: int | None, *, is_whole: bool) -> Past:
    """The last hour, or the whole run, or what has come behind a slot."""
    try:
        if after is not None or is_whole:
            points = history.read(session, workflow, after=after or 0)
        else:
            points = history.last_hour(session, workflow)
    except VReplicationError:
        # A sidecar of an earlier release has none until the next driver starts.
        points = []
    return Past(points=points, rates=_rates(session, workflow, points[0].slot - 1) if points else {})


def _rates(session: Session, workflow: str, after: int) -> dict[int, tuple[float, ...]]:
    try:
        return {each.slot: each.rates for each in feed_rates.read(session, workflow, after=after)}
    except VReplicationError:
        # A sidecar of an earlier release has none until the next driver starts.
        return {}


def detail(session: Session, *, workflow: str) -> Detail | None:
    """None: there is no such workflow."""
    seen, row = snapshot.find(session, workflow), workflows.find(session, workflow)
    asked = _about(session, workflow).get(workflow) if seen else None
    if seen is None or row is None or asked is None:
        return None
    seen = _seen(seen, {workflow: asked})
    points, gate = _points(session, [seen]).get(workflow, ()), _gates(session, [seen], {workflow: asked}).get(workflow)
    is_driven = lease.is_alive(session, workflow, lease.DRIVER)
    # Paused it is not to be acted on, and one that was switched needs no release any more.
    is_standing = seen.phase in AT_THE_GATE and not (is_driven or row.is_paused or row.is_cut)
    return Detail(
        item=Item(snapshot=seen, about=asked, points=points, gate=gate),
        row=row,
        journal=journal.read(session, workflow),
        verdict=verdicts.load(session, workflow),
        effort=None if asked.kind == FEEDS else _effort(session, row),
        limits={} if asked.kind == FEEDS else _limits(session, row),
        is_driven=is_driven,
        definitions=definitions.load(session, workflow),
        unheeded_seconds=state_of_gate.unheeded_seconds(session, workflow) if is_standing else None,
        kept=_kept(session, row, asked) if row.phase is Phase.COMPLETE else None,
        left_out=_left_out(session, row, seen) if row.phase is Phase.COMPLETE else None,
    )


def _kept(session: Session, row: WorkflowRow, asked: About) -> Kept | None:
    if asked.moved is not None:
        listed = ", ".join(f"{t.source_schema}.{t.retired_table}" for t in workflows.tables(session, row.id))
        is_gone = row.spec.get("retired") == "drop" or journal.is_told(session, row.id, "dropped")
        return None if is_gone else Kept(table=listed, nbytes=None)
    back = reverting.closed_way_back(session, row.id)
    nbytes = size_of(session, row.source_schema, row.retired_table) if row.retired_table and not back else None
    if nbytes is None:
        return None
    open_back = reverting.way_back(session, row.id)
    is_open = open_back is not None and open_back.phase not in OVER
    return Kept(table=f"{row.source_schema}.{row.retired_table}", nbytes=nbytes, is_open=is_open)


def _left_out(session: Session, row: WorkflowRow, seen: Snapshot) -> LeftOut | None:
    """None also where somebody has dropped it by hand, of which the journal knows nothing."""
    if seen.side is None:
        return None
    name, count = seen.side
    nbytes = size_of(session, row.source_schema, name)
    return None if nbytes is None else LeftOut(table=f"{row.source_schema}.{name}", rows=count, nbytes=nbytes)


def _limits(session: Session, row: WorkflowRow) -> dict[str, Any]:
    try:
        now = request_of(row, throttling.read(session, row.id))
    except (VReplicationError, ValueError):
        # A request of another release.
        return {}
    return {name: getattr(now, name) for name in HELD_BY}


def _effort(session: Session, row: WorkflowRow) -> Effort | None:
    """None where it is not known: a request, or a sidecar, of another release."""
    try:
        return effort(session, row)
    except (VReplicationError, ValueError):
        return None


def _about(session: Session, workflow: str | None = None) -> dict[str, About]:
    found = workflows.requests(session, workflow)
    fed_by = fed.read(session, workflow) if any(asked.kind == FEEDS for asked in found.values()) else {}
    return {
        name: _about_of(asked, _moved(session, name, asked.kind), fed_by.get(name)) for name, asked in found.items()
    }


def _moved(session: Session, workflow: str, kind: str) -> Moved | None:
    return moved.find(session, workflow) if kind == MOVES else None


def _about_of(asked: Request, about: Moved | None, feed: Fed | None = None) -> About:
    return About(
        alter=str(asked.spec.get("alter") or ""),
        cutover=str(asked.spec.get("cutover") or "auto"),
        kind=asked.kind,
        moved=about,
        fed=feed,
        spec=asked.spec if asked.kind == FEEDS else {},
        window=asked.spec.get("cutover_window"),
        is_cut=asked.is_cut,
        released_by=asked.released_by,
        reverts=str(asked.spec.get("reverts") or ""),
    )


def _gate(session: Session, row: WorkflowRow, asked: About) -> Gate:
    try:
        if asked.moved is not None:
            return _gate_of_move(session, row, asked)
        server, own = inspect(session), _own(session, row)
        return Gate(
            reasons=_reasons(session, server, row, asked, own),
            blockers=_blockers(session, server, row, own),
            since=history.since(session, row.id, AT_THE_GATE),
        )
    except VReplicationError as error:
        return Gate(reasons=[], blockers=[], problem=error.message)


def _gate_of_move(session: Session, row: WorkflowRow, asked: About) -> Gate:
    """As the target's sidecar tells it: the source is not asked, so that nothing is said of its sessions."""
    found = catch_up_reasons(session, row.id)
    if row.is_paused:
        sentence = f"The workflow is paused; `vreplication resume {row.id}` goes on."
        found.append(Reason(code="paused", sentence=sentence))
    if asked.is_held:
        until = f"the window {asked.window}, or " if asked.window and not asked.is_back else ""
        found.append(Reason(code="not_released", sentence=f"Waiting for {until}`vreplication release {row.id}`."))
    # What stands on the source is known by what whoever drives it has said.
    noted = [each for each in held.read(session, row.id).get((row.id, held.GATE), []) if each["code"] == LEFT_BEHIND]
    found += [Reason(code=LEFT_BEHIND, sentence=str(each["sentence"]), value=each["value"]) for each in noted]
    return Gate(reasons=found, blockers=[], since=history.since(session, row.id, AT_THE_GATE))


def _reasons(session: Session, server: Server, row: WorkflowRow, asked: About, own: frozenset[int]) -> list[Reason]:
    return why_closed(
        session,
        server,
        row,
        own_connections=own,
        # Old snapshots are listed as blockers, each session with its own line.
        ignore_old_snapshots=True,
        needs_release=asked.cutover == "manual" or asked.window is not None,
        window=asked.window,
    )


def _blockers(session: Session, server: Server, row: WorkflowRow, own: frozenset[int]) -> list[Blocker]:
    found = blockers(session, server, row.source_schema, row.source_table, own=own)
    of_shadow = blockers(session, server, row.source_schema, row.shadow_table, own=own)
    # Where the server cannot tell tables apart, the same sessions come again.
    found += [b for b in of_shadow if b.is_certain]
    if not row.spec.get("ignore_old_snapshots"):
        found += old_snapshots(session, copied_at(session, row.id), own)
    return sorted(dict.fromkeys(found), key=lambda b: -b.age_seconds)


def _own(session: Session, row: WorkflowRow) -> frozenset[int]:
    """Our own connections use both tables all the time."""
    holders = [lease.holder_of(session, row.id, role) for role in (lease.DRIVER, lease.REPLICATE)]
    return frozenset({session.id, *(number for holder in holders if holder for number in holder.connections)})
