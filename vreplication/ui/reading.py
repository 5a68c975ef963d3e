"""What the page reads of one source: all workflows in two statements, or one workflow in detail.

What must stay true: it reads and never writes; a server without our sidecar has no workflows, which is no error; a part
that the login may not read is said to be unknown, and the rest is shown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vreplication.cutover.blockers import Blocker, blockers, last_matched, old_snapshots
from vreplication.cutover.reasons import why_closed
from vreplication.errors import VReplicationError
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import SIDECAR
from vreplication.state import journal, lease, progress, verdicts, workflows
from vreplication.state.verdicts import Verdict
from vreplication.state.workflows import WorkflowRow

AT_THE_GATE = frozenset({Phase.WAITING, Phase.CUTTING_OVER})
_LISTED_ELSEWHERE = frozenset({"blocked", "old_snapshot"})


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was asked for and released: not in the Snapshot, which is about progress."""

    alter: str
    cutover: str
    is_cut: bool = False
    released_by: str | None = None

    @property
    def needs_release(self) -> bool:
        return self.cutover == "manual" and self.released_by is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    snapshot: Snapshot
    about: About


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Why the cut-over is held back. `problem`: why that is not known."""

    reasons: list[str]
    blockers: list[Blocker]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    item: Item
    row: WorkflowRow
    journal: list[dict[str, Any]]
    figures: dict[str, Any]
    verdict: Verdict | None
    gate: Gate | None
    is_driven: bool
    """Some process works on it now."""


def overview(session: Session) -> list[Item]:
    found = snapshot.read_all(session)
    asked = _about(session) if found else {}
    return [Item(snapshot=s, about=asked[s.workflow]) for s in found if s.workflow in asked]


def detail(session: Session, workflow: str) -> Detail | None:
    """None: there is no such workflow."""
    seen, row = snapshot.find(session, workflow), workflows.find(session, workflow)
    asked = _about(session, workflow).get(workflow) if seen else None
    if seen is None or row is None or asked is None:
        return None
    return Detail(
        item=Item(snapshot=seen, about=asked),
        row=row,
        journal=journal.read(session, workflow),
        figures=progress.read(session, workflow),
        verdict=verdicts.load(session, workflow),
        gate=_gate(session, row, asked) if row.phase in AT_THE_GATE else None,
        is_driven=lease.is_alive(session, workflow, lease.DRIVER),
    )


def _about(session: Session, workflow: str | None = None) -> dict[str, About]:
    one, args = (" WHERE w.id=%s", (workflow,)) if workflow else ("", None)
    rows = session.rows(
        f"SELECT w.id, w.spec, w.is_cut, r.released_by FROM {SIDECAR}.workflow w "
        f"LEFT JOIN {SIDECAR}.gate_release r ON r.workflow = w.id{one}",
        args,
    )
    return {str(name): _about_of(json.loads(spec), bool(cut), by) for name, spec, cut, by in rows}


def _about_of(spec: dict[str, Any], is_cut: bool, released_by: str | None) -> About:
    alter, cutover = str(spec.get("alter") or ""), str(spec.get("cutover") or "auto")
    return About(alter=alter, cutover=cutover, is_cut=is_cut, released_by=released_by)


def _gate(session: Session, row: WorkflowRow, asked: About) -> Gate:
    try:
        server, own = inspect(session), _own(session, row)
        return Gate(reasons=_reasons(session, server, row, asked, own), blockers=_blockers(session, server, row, own))
    except VReplicationError as error:
        return Gate(reasons=[], blockers=[], problem=error.message)


def _reasons(session: Session, server: Server, row: WorkflowRow, asked: About, own: frozenset[int]) -> list[str]:
    found = why_closed(
        session,
        server,
        row,
        own_connections=own,
        ignore_old_snapshots=True,
        needs_release=asked.cutover == "manual",
    )
    return [reason.sentence for reason in found if reason.code not in _LISTED_ELSEWHERE]


def _blockers(session: Session, server: Server, row: WorkflowRow, own: frozenset[int]) -> list[Blocker]:
    found = blockers(session, server, row.source_schema, row.source_table, own=own)
    of_shadow = blockers(session, server, row.source_schema, row.shadow_table, own=own)
    # Where the server cannot tell tables apart, the same sessions come again.
    found += [b for b in of_shadow if b.is_certain]
    if not row.spec.get("ignore_old_snapshots"):
        found += old_snapshots(session, last_matched(session, SIDECAR, row.id), own)
    return sorted(dict.fromkeys(found), key=lambda b: -b.age_seconds)


def _own(session: Session, row: WorkflowRow) -> frozenset[int]:
    """Our own connections use both tables all the time."""
    holders = [lease.holder_of(session, row.id, role) for role in (lease.DRIVER, lease.REPLICATE)]
    return frozenset({session.id, *(number for holder in holders if holder for number in holder.connections)})
