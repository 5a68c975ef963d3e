"""The queue of migrations: what is asked for, what is due, and who starts it.

What must stay true: what is due is decided by pure functions of a `Scene`; an entry is started only by `claim`, in a
transaction that one scheduler at a time can have, so that none is started twice and never more than `concurrency` work
on a source; a workflow's own row says how it stands, the queue's row only that it was started; an entry that is held
(by its time, its predecessor, its table) holds nobody but its own successors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session
from vreplication.phases import ENDED, Phase
from vreplication.planning.spec import make_spec
from vreplication.state import journal, queue, sidecar
from vreplication.state.queue import Entry, Known

WAITING, DUE, STARTED, DONE, FAILED, CANCELLED = "waiting", "due", "started", "done", "failed", "cancelled"
RUNNING, RUN_FAILED, ABSENT = "running", "failed", "absent"
"""What whoever runs started entries says of a run: queued or running; failed; there is none."""

PATIENCE = timedelta(minutes=5)
"""A started workflow keeps its place this long without a living lease: before it begins, and between its stages."""
SPEC_FIELDS = (
    "table", "alter", "workflow", "cutover", "copy_parallelism", "chunk_rows", "chunk_millis", "copy_path", "retired",
)  # fmt: skip
"""Fields of a Spec that an entry may set: those that the DAG online_ddl hands on."""
QUEUE_FIELDS = ("not_before", "after", "priority")
_STATE_OF = {Phase.COMPLETE: DONE, Phase.FAILED: FAILED, Phase.CANCELLED: CANCELLED}
_OVER = (Phase.COMPLETE, Phase.CANCELLED)
_PLAIN = re.compile(r"[A-Za-z0-9_$]+")


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
            "table": f"{entry.schema}.{entry.table}",
            "alter": entry.spec.get("alter"),
            "state": self.state,
            "not_before": iso(entry.not_before),
            "after": entry.after,
            "priority": entry.priority,
            "why": self.why or None,
            "source_conn_id": entry.conn_id,
            "submitted_by": entry.submitted_by,
            "submitted_at": iso(entry.submitted_at),
            "started_at": iso(entry.started_at),
        }


def iso(moment: datetime | None) -> str | None:
    """A time of the server's as people write it."""
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- decisions ---


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
    return str(known.phase) if known.workflow in scene.held else f"{known.phase}, nobody works on it at the moment"


def _early(entry: Entry, scene: Scene) -> str:
    is_early = entry.not_before is not None and entry.not_before > scene.now
    return f"its time is {iso(entry.not_before)}" if is_early else ""


def _behind(entry: Entry, scene: Scene) -> str:
    """What its predecessor still owes."""
    if entry.after is None:
        return ""
    state = _state_of(entry.after, scene)
    if state == DONE:
        return ""
    if state is None:
        return f"it comes after {entry.after}, which nobody has submitted yet"
    if state in (FAILED, CANCELLED):
        return (
            f"it is held: {entry.after}, which comes before it, {'has failed' if state == FAILED else 'was cancelled'}"
        )
    return f"it comes after {entry.after}, which is not complete"


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
    found = _owners(scene).get(_place(entry))
    if found is None:
        return ""
    known = scene.known.get(found)
    is_failed = known is not None and known.phase is Phase.FAILED
    return f"workflow {found} {'has failed' if is_failed else 'is under way'} on the same table"


def _owners(scene: Scene) -> dict[tuple[str, str], str]:
    """Tables that workflows have, by what has not been cleared away and by what was just started."""
    found = {_place(k): k.workflow for k in scene.known.values() if k.phase not in _OVER}
    begun = [e for e in scene.entries if e.state == queue.STARTED and e.workflow not in scene.known]
    return found | {_place(e): e.workflow for e in begun}


def _place(of: Entry | Known) -> tuple[str, str]:
    """Servers differ in whether case counts in a table's name: holding one too many is harmless."""
    return of.schema.casefold(), of.table.casefold()


def standings(scene: Scene) -> list[Standing]:
    """All, in the order in which they would be started."""
    return [standing(e, scene) for e in sorted(scene.entries, key=_order)]


def _order(entry: Entry) -> tuple[int, int]:
    return -entry.priority, entry.number


def working(scene: Scene) -> frozenset[str]:
    """Workflows that take a place: with a living lease, or started and not given up yet."""
    return scene.held | {e.workflow for e in scene.entries if _keeps_place(e, scene)}


def _keeps_place(entry: Entry, scene: Scene) -> bool:
    known = scene.known.get(entry.workflow)
    if entry.state != queue.STARTED or (known is not None and known.phase in ENDED):
        return False
    signs = [t for t in (entry.started_at, known.seen_at if known else None) if t is not None]
    is_young = bool(signs) and scene.now - max(signs) < PATIENCE
    return is_young or scene.runs.get(entry.workflow) == RUNNING


def choose(scene: Scene, concurrency: int, may_start: Callable[[Entry], bool] = lambda _: True) -> list[Entry]:
    """What to start now: due, in order, no more than there are places, no two on one table."""
    free = concurrency - len(working(scene))
    chosen: dict[tuple[str, str], Entry] = {}
    for found in standings(scene):
        if len(chosen) < free and found.state == DUE and may_start(found.entry):
            chosen.setdefault(_place(found.entry), found.entry)
    return list(chosen.values())


def came_to_nothing(entry: Entry, scene: Scene) -> str:
    """What to do about a started entry without a workflow: fail it, put it back (its run was never made), or ''."""
    if entry.state != queue.STARTED or entry.workflow in scene.known:
        return ""
    run = scene.runs.get(entry.workflow)
    if run == RUN_FAILED:
        return queue.FAILED
    is_old = entry.started_at is None or scene.now - entry.started_at >= PATIENCE
    return queue.QUEUED if run == ABSENT and is_old else ""


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


# --- asking ---


def make_entry(default_schema: str, given: Mapping[str, Any], *, conn_id: str | None = None) -> Entry:
    """An entry from what a face was given; None means the default. Raises Refused with the Spec's own sentences."""
    spec = make_spec(**{name: given.get(name) for name in SPEC_FIELDS})
    schema, table = spec.table_parts(default_schema)
    after = given.get("after")
    return Entry(
        workflow=spec.workflow or names.new_workflow(table),
        schema=schema,
        table=table,
        spec={
            **spec.model_dump(mode="json", exclude_unset=True, exclude={"workflow"}),
            "table": _written(schema, table),
        },
        conn_id=conn_id,
        not_before=_moment(given.get("not_before")),
        after=None if after is None else names.check_workflow(str(after)),
        priority=_priority(given.get("priority")),
    )


def _written(schema: str, table: str) -> str:
    """The table so that it means the same on any connection to this server."""
    is_plain = _PLAIN.fullmatch(schema) and _PLAIN.fullmatch(table)
    return f"{schema}.{table}" if is_plain else qualified(schema, table)


def _moment(given: object) -> datetime | None:
    """The server's time (UTC, without a zone). Raises Refused on what could be read in two ways."""
    if given is None:
        return None
    cure = "Write it as 2026-12-24T02:00:00Z or 2026-12-24T02:00:00+01:00."
    try:
        found = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        raise Refused(f"not_before: {str(given)!r} is not a time.", cure=cure) from None
    if found.tzinfo is None:
        raise Refused(f"not_before: {str(given)!r} does not say in which time zone.", cure=cure)
    return found.astimezone(UTC).replace(tzinfo=None)


def _priority(given: object) -> int:
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or abs(given) > 1_000_000:
        raise Refused(f"priority: {given!r} is not a whole number from -1000000 to 1000000.")
    return given


def submit(session: Session, entry: Entry, by: str) -> None:
    """Put it into the queue. Raises Refused when its id is taken, or when it would wait for itself."""
    sidecar.install(session)
    with session.transaction():
        queue.lock(session)
        _check_free(session, entry)
        queue.put(session, entry, by)
        journal.write(session, entry.workflow, "submitted", f"{entry.schema}.{entry.table}", actor=by)


def _check_free(session: Session, entry: Entry) -> None:
    if entry.workflow in queue.workflows_known(session):
        cure = f"`vreplication status {entry.workflow}` shows it; choose another id."
        raise Refused(f"There is a workflow {entry.workflow} on this server already.", cure=cure)
    if entry.after is not None and circle(queue.entries(session), entry.workflow, entry.after):
        raise Refused(f"after: {entry.workflow} and {entry.after} would wait for each other for ever.")


def remove(session: Session, workflow: str, by: str) -> None:
    """Take a waiting entry out; its id stays taken. Raises Refused when it does not wait."""
    if not queue.is_there(session):
        raise _unknown(workflow)
    with session.transaction():
        queue.lock(session)
        entry = queue.find(session, workflow)
        if entry is None:
            raise _unknown(workflow)
        _check_waits(entry, look(session))
        queue.remove(session, workflow, by)
        journal.write(session, workflow, "removed from the queue", actor=by)


def _unknown(workflow: str) -> Refused:
    return Refused(f"There is no {workflow!r} in the queue.", cure="`vreplication queue` lists what there is.")


def _check_waits(entry: Entry, scene: Scene) -> None:
    state = standing(entry, scene).state
    if state not in (WAITING, DUE):
        cure = f"`vreplication cancel {entry.workflow}` ends it." if state == STARTED else ""
        raise Refused(f"Workflow {entry.workflow} does not wait any more: it is {state}.", cure=cure)


def look(session: Session, runs: Mapping[str, str] | None = None) -> Scene:
    """What is known now, by the server's clock."""
    return Scene(
        now=queue.server_now(session),
        entries=tuple(queue.entries(session)),
        known=queue.workflows_known(session),
        held=queue.held_leases(session),
        runs=runs or {},
    )


# --- starting ---


def claim(
    session: Session,
    concurrency: int,
    by: str,
    *,
    look_up: Callable[[str], str] | None = None,
    may_start: Callable[[Entry], bool] = lambda _: True,
) -> list[Entry]:
    """What the caller must start now; nobody else will be told to. Called again by the same `by`, the same again.

    `look_up`: what the runs' own records say of one: RUNNING, RUN_FAILED, ABSENT or anything else.
    """
    if not queue.is_there(session):
        return []
    runs = {e.workflow: look_up(e.workflow) for e in _in_doubt(look(session))} if look_up else {}
    with session.transaction():
        queue.lock(session)
        scene = _settled(session, look(session, runs), by)
        chosen = choose(scene, concurrency, may_start)
        for entry in chosen:
            queue.start(session, entry.workflow, by)
            journal.write(session, entry.workflow, "started from the queue", actor=by)
    return [*_mine(scene, by), *chosen]


def _in_doubt(scene: Scene) -> list[Entry]:
    """Started, and neither ended nor held by a living lease."""
    return [
        e
        for e in scene.entries
        if e.state == queue.STARTED and e.workflow not in scene.held and not _has_ended(e, scene)
    ]


def _has_ended(entry: Entry, scene: Scene) -> bool:
    known = scene.known.get(entry.workflow)
    return known is not None and known.phase in ENDED


def _settled(session: Session, scene: Scene, by: str) -> Scene:
    """Entries whose start came to nothing are failed or put back first."""
    found = {e.workflow: came_to_nothing(e, scene) for e in scene.entries}
    for workflow, state in found.items():
        if state == queue.FAILED:
            reason = f"Its run {workflow} failed before the workflow began; the run's log says why."
            queue.fail(session, workflow, reason)
            journal.write(session, workflow, "refused", reason, actor=by)
        elif state == queue.QUEUED:
            queue.put_back(session, workflow)
    entries = tuple(replace(e, state=found[e.workflow] or e.state) for e in scene.entries)
    return replace(scene, entries=entries)


def _mine(scene: Scene, by: str) -> list[Entry]:
    """Claimed by this caller before it was cut short."""
    return [
        e for e in sorted(scene.entries, key=_order)
        if e.state == queue.STARTED and e.started_by == by and e.workflow not in scene.known
    ]  # fmt: skip
