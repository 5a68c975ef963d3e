"""What the page reads of one source: all workflows in a few statements, one workflow in detail, or its history.

What must stay true: it reads and never writes; a server without our sidecar has no workflows, which is no error; a part
that the login may not read is said to be unknown, and the rest is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vreplication.cutover.blockers import Blocker, blockers, old_snapshots
from vreplication.cutover.reasons import why_closed
from vreplication.errors import VReplicationError
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.outlook import RECENT
from vreplication.progress.snapshot import Snapshot
from vreplication.state import history, journal, lease, ledger, verdicts, workflows
from vreplication.state.history import Point
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.effort import Effort, effort

AT_THE_GATE = frozenset({Phase.WAITING, Phase.CUTTING_OVER})
_GATES = 5
_LISTED_ELSEWHERE = frozenset({"blocked", "old_snapshot"})


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was asked for and released: not in the Snapshot, which is about progress. window: as it was written."""

    alter: str
    cutover: str
    window: str | None = None
    is_cut: bool = False
    released_by: str | None = None

    @property
    def is_held(self) -> bool:
        """Until somebody, or the window, releases it."""
        return self.released_by is None and (self.cutover == "manual" or self.window is not None)

    @property
    def needs_release(self) -> bool:
        """Of a person: nothing else will release it."""
        return self.is_held and self.window is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Why the cut-over is held back, and since when. `problem`: why that is not known."""

    reasons: list[str]
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
class Detail:
    item: Item
    row: WorkflowRow
    journal: list[dict[str, Any]]
    verdict: Verdict | None
    effort: Effort | None
    is_driven: bool
    """Some process works on it now."""


def overview(session: Session) -> list[Item]:
    found = snapshot.read_all(session)
    asked = _about(session) if found else {}
    points, gates = _points(session, found), _gates(session, found, asked)
    return [
        Item(snapshot=s, about=asked[w], points=points.get(w, ()), gate=gates.get(w))
        for s in found
        if (w := s.workflow) in asked
    ]


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


def past(session: Session, workflow: str, after: int | None, *, is_whole: bool) -> list[Point]:
    """The last hour, or the whole run, or what has come behind a slot."""
    try:
        if after is not None or is_whole:
            return history.read(session, workflow, after=after or 0)
        return history.last_hour(session, workflow)
    except VReplicationError:
        return []


def detail(session: Session, *, workflow: str) -> Detail | None:
    """None: there is no such workflow."""
    seen, row = snapshot.find(session, workflow), workflows.find(session, workflow)
    asked = _about(session, workflow).get(workflow) if seen else None
    if seen is None or row is None or asked is None:
        return None
    points, gate = _points(session, [seen]).get(workflow, ()), _gates(session, [seen], {workflow: asked}).get(workflow)
    return Detail(
        item=Item(snapshot=seen, about=asked, points=points, gate=gate),
        row=row,
        journal=journal.read(session, workflow),
        verdict=verdicts.load(session, workflow),
        effort=_effort(session, row),
        is_driven=lease.is_alive(session, workflow, lease.DRIVER),
    )


def _effort(session: Session, row: WorkflowRow) -> Effort | None:
    """None where it is not known: a request, or a sidecar, of another release."""
    try:
        return effort(session, row)
    except (VReplicationError, ValueError):
        return None


def _about(session: Session, workflow: str | None = None) -> dict[str, About]:
    found = workflows.requests(session, workflow)
    return {name: _about_of(asked.spec, asked.is_cut, asked.released_by) for name, asked in found.items()}


def _about_of(spec: dict[str, Any], is_cut: bool, released_by: str | None) -> About:
    alter, cutover, window = (
        str(spec.get("alter") or ""),
        str(spec.get("cutover") or "auto"),
        spec.get("cutover_window"),
    )
    return About(alter=alter, cutover=cutover, window=window, is_cut=is_cut, released_by=released_by)


def _gate(session: Session, row: WorkflowRow, asked: About) -> Gate:
    try:
        server, own = inspect(session), _own(session, row)
        return Gate(
            reasons=_reasons(session, server, row, asked, own),
            blockers=_blockers(session, server, row, own),
            since=history.since(session, row.id, AT_THE_GATE),
        )
    except VReplicationError as error:
        return Gate(reasons=[], blockers=[], problem=error.message)


def _reasons(session: Session, server: Server, row: WorkflowRow, asked: About, own: frozenset[int]) -> list[str]:
    found = why_closed(
        session,
        server,
        row,
        own_connections=own,
        ignore_old_snapshots=True,
        needs_release=asked.cutover == "manual" or asked.window is not None,
        window=asked.window,
    )
    return [reason.sentence for reason in found if reason.code not in _LISTED_ELSEWHERE]


def _blockers(session: Session, server: Server, row: WorkflowRow, own: frozenset[int]) -> list[Blocker]:
    found = blockers(session, server, row.source_schema, row.source_table, own=own)
    of_shadow = blockers(session, server, row.source_schema, row.shadow_table, own=own)
    # Where the server cannot tell tables apart, the same sessions come again.
    found += [b for b in of_shadow if b.is_certain]
    if not row.spec.get("ignore_old_snapshots"):
        found += old_snapshots(session, ledger.last_matched(session, row.id), own)
    return sorted(dict.fromkeys(found), key=lambda b: -b.age_seconds)


def _own(session: Session, row: WorkflowRow) -> frozenset[int]:
    """Our own connections use both tables all the time."""
    holders = [lease.holder_of(session, row.id, role) for role in (lease.DRIVER, lease.REPLICATE)]
    return frozenset({session.id, *(number for holder in holders if holder for number in holder.connections)})
