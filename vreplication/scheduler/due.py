"""What of the queue is due, and why the rest is not: decisions alone.

What must stay true: pure functions of a `Scene`; never more than `concurrency` work on a source; a workflow's own row
says how it stands, the queue's row only that it was started; an entry that is held (by its time, its predecessor, its
table) holds nobody but its own successors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from vreplication.phases import ENDED, OVER, Phase
from vreplication.state import queue
from vreplication.state.queue import Entry, Known

WAITING, DUE, STARTED, DONE, FAILED, CANCELLED = "waiting", "due", "started", "done", "failed", "cancelled"
RUNNING, RUN_FAILED, ABSENT, ELSEWHERE = "running", "failed", "absent", "elsewhere"
"""What whoever runs started entries says of a run: queued or running; failed; there is none; its name is another one's,
for another server."""

PATIENCE = timedelta(minutes=5)
"""A started workflow keeps its place this long without a living lease: before it begins, and between its stages."""
_STATE_OF = {Phase.COMPLETE: DONE, Phase.FAILED: FAILED, Phase.CANCELLED: CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that is known of a source at one moment of its clock. `held`: workflows with a living lease."""

    now: datetime
    entries: tuple[Entry, ...]
    known: Mapping[str, Known] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    runs: Mapping[str, str] = field(default_factory=dict)

    def entry(self, workflow: str) -> Entry | None:
        return next((e for e in self.entries if e.workflow == workflow), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An entry, how it stands, and why it does not go on."""

    entry: Entry
    state: str
    why: str

    def as_json(self) -> dict[str, Any]:
        entry = self.entry
        return {
            "workflow": entry.workflow,
            "kind": entry.kind,
            "table": f"{entry.schema}.{entry.table}",
            "alter": entry.spec.get("alter"),
            "state": self.state,
            "not_before": iso(entry.not_before),
            "after": entry.after,
            "priority": entry.priority,
            "moved": entry.place is not None,
            "why": self.why or None,
            "source_conn_id": entry.conn_id,
            "submitted_by": entry.submitted_by,
            "submitted_at": iso(entry.submitted_at),
            "started_at": iso(entry.started_at),
        }


def iso(moment: datetime | None) -> str | None:
    """A time of the server's as people write it."""
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def standing(entry: Entry, scene: Scene) -> Standing:
    """How one entry stands; those that are merely due may still have to wait for a place."""
    known = scene.known.get(entry.workflow)
    if known is not None:
        return Standing(entry=entry, state=_STATE_OF.get(known.phase, STARTED), why=_progress(known, scene))
    if entry.state == queue.STARTED:
        return Standing(entry=entry, state=STARTED, why="its run has not begun the workflow yet")
    if entry.state != queue.QUEUED:
        state = FAILED if entry.state == queue.FAILED else CANCELLED
        return Standing(entry=entry, state=state, why=entry.reason or "")
    why = _early(entry, scene) or _behind(entry, scene) or _crowded(entry, scene)
    return Standing(entry=entry, state=WAITING if why else DUE, why=why)


def _progress(known: Known, scene: Scene) -> str:
    if known.phase in ENDED:
        return known.reason or ""
    return str(known.phase) if known.workflow in scene.held else f"{known.phase}, no active worker"


def _early(entry: Entry, scene: Scene) -> str:
    is_early = entry.not_before is not None and entry.not_before > scene.now
    return f"scheduled for {iso(entry.not_before)}" if is_early else ""


def _behind(entry: Entry, scene: Scene) -> str:
    """What its predecessor still owes."""
    if entry.after is None:
        return ""
    state = _state_of(entry.after, scene)
    if state == DONE:
        return ""
    if state is None:
        return f"waiting for {entry.after}, which has not been submitted yet"
    if state in (FAILED, CANCELLED):
        return (
            f"it is held: {entry.after}, which comes before it, {'has failed' if state == FAILED else 'was cancelled'}"
        )
    return f"waiting for {entry.after}, which is not complete"


def _state_of(workflow: str, scene: Scene) -> str | None:
    """As far as successors care: done, failed, cancelled, or anything else that may still become done."""
    known, entry = scene.known.get(workflow), scene.entry(workflow)
    if known is not None:
        return _STATE_OF.get(known.phase, STARTED)
    if entry is None:
        return None
    return {queue.FAILED: FAILED, queue.REMOVED: CANCELLED}.get(entry.state, WAITING)


def _crowded(entry: Entry, scene: Scene) -> str:
    """One workflow at a time has a table; planning would refuse the second."""
    owners = _owners(scene)
    found = next((owners[table] for table in sorted(_tables(entry)) if table in owners), None)
    if found is None:
        return ""
    known = scene.known.get(found)
    is_failed = known is not None and known.phase is Phase.FAILED
    return f"workflow {found} {'has failed' if is_failed else 'is under way'} on the same table"


def _owners(scene: Scene) -> dict[tuple[str, str], str]:
    """Tables that workflows have, by what has not been cleared away and by what was just started."""
    # OVER and not ENDED: one that has failed may be resumed and still has its shadow table, beside which planning
    # refuses another.
    having: list[Entry | Known] = [k for k in scene.known.values() if k.phase not in OVER]
    having += [e for e in scene.entries if e.state == queue.STARTED and e.workflow not in scene.known]
    return {table: each.workflow for each in having for table in _tables(each)}


def _tables(of: Entry | Known) -> frozenset[tuple[str, str]]:
    """Servers differ in whether case counts in a table's name: holding one too many is harmless."""
    return frozenset((schema.casefold(), table.casefold()) for schema, table in of.tables)


def standings(scene: Scene) -> list[Standing]:
    """All, in the order in which they would be started."""
    return [standing(e, scene) for e in sorted(scene.entries, key=order)]


def order(entry: Entry) -> tuple[int, int]:
    return -entry.rank, entry.number


EARLIER, LATER, FIRST = "earlier", "later", "first"


def moved(waiting: list[Entry], workflow: str, where: str) -> list[Entry]:
    """In the order that comes of it; the same order where it is at that end already."""
    was = sorted(waiting, key=order)
    at = next(n for n, entry in enumerate(was) if entry.workflow == workflow)
    to = {EARLIER: max(0, at - 1), LATER: min(len(was) - 1, at + 1), FIRST: 0}[where]
    entry = was.pop(at)
    return [*was[:to], entry, *was[to:]]


def places(wanted: list[Entry]) -> dict[str, int]:
    """What has to be changed for this order: as few places as will do, from the last to the first."""
    changed: dict[str, int] = {}
    behind: tuple[int, int] | None = None
    for entry in reversed(wanted):
        rank, number = entry.rank, entry.number
        if behind is not None and (-rank, number) > (-behind[0], behind[1]):
            # Of equal ones the earlier submitted goes first, so one that was submitted later needs one more.
            rank = changed[entry.workflow] = behind[0] + (number > behind[1])
        behind = rank, number
    return changed


def working(scene: Scene) -> frozenset[str]:
    """Workflows that take a place: with a living lease, or started and not given up yet."""
    # Whoever started them: a workflow of the command line loads the server like one of the queue.
    return scene.held | {e.workflow for e in scene.entries if _keeps_place(e, scene)}


def _keeps_place(entry: Entry, scene: Scene) -> bool:
    if entry.state != queue.STARTED or has_ended(entry, scene):
        return False
    known = scene.known.get(entry.workflow)
    # Between two stages no lease is held, and the row of the workflow was written when the former one ended.
    signs = [t for t in (entry.started_at, known.seen_at if known else None) if t is not None]
    is_young = bool(signs) and scene.now - max(signs) < PATIENCE
    # A run may wait for hours, for a place in a pool or while its DAG is paused, and begins its work then all the same.
    return is_young or scene.runs.get(entry.workflow) == RUNNING


def has_ended(entry: Entry, scene: Scene) -> bool:
    known = scene.known.get(entry.workflow)
    return known is not None and known.phase in ENDED


def choose(scene: Scene, concurrency: int, may_start: Callable[[Entry], bool] = lambda _: True) -> list[Entry]:
    """What to start now: due, in order, no more than there are places, no two on one table."""
    free = concurrency - len(working(scene))
    chosen: list[Entry] = []
    taken: set[tuple[str, str]] = set()
    for found in standings(scene):
        # `_crowded` does not know it: what is chosen in this very round has no workflow, and is not started yet.
        may_have = taken.isdisjoint(tables := _tables(found.entry))
        if len(chosen) < free and found.state == DUE and may_have and may_start(found.entry):
            chosen.append(found.entry)
            taken |= tables
    return chosen


def came_to_nothing(entry: Entry, scene: Scene) -> str:
    """What to do about an entry without a workflow: fail it, put it back (its run was never made), or ''."""
    run = scene.runs.get(entry.workflow)
    is_known = entry.workflow in scene.known
    if run == ELSEWHERE and not is_known and entry.state in (queue.QUEUED, queue.STARTED):
        return queue.FAILED
    if entry.state != queue.STARTED or is_known:
        return ""
    if run == RUN_FAILED:
        return queue.FAILED
    # Claim and run are two steps of whoever starts it: for a moment each living claim has no run either.
    return queue.QUEUED if run == ABSENT and is_overdue(entry, scene) else ""


def is_overdue(entry: Entry, scene: Scene) -> bool:
    """Started a while ago, and its run has not begun the workflow."""
    if entry.state != queue.STARTED or entry.workflow in scene.known:
        return False
    return entry.started_at is None or scene.now - entry.started_at >= PATIENCE


def circle(entries: Iterable[Entry], workflow: str, after: str) -> bool:
    """True when `workflow` after `after` would make each wait for the other."""
    before = {e.workflow: e.after for e in entries}
    seen: set[str] = set()
    step: str | None = after
    while step is not None and step not in seen:
        if step == workflow:
            return True
        seen.add(step)
        step = before.get(step)
    return False
