"""The queue of migrations: what is asked for goes in, what is due is claimed by whoever will start it.

What must stay true: an entry is started only by `claim`, in a transaction that one scheduler at a time can have, so
that none is started twice and never more than `concurrency` work on a source; what is due is decided by `due` alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session
from vreplication.planning.fields import make_request
from vreplication.planning.window import window_of
from vreplication.scheduler import due
from vreplication.scheduler.due import Scene
from vreplication.state import ids, journal, layout, queue
from vreplication.state.queue import Entry
from vreplication.workflows.registry import KINDS, WorkflowKind, connection_param

QUEUE_FIELDS = ("not_before", "after", "priority")
_PATIENCE = f"{due.PATIENCE.total_seconds() / 60:.0f} minutes"
_PLAIN = re.compile(r"[A-Za-z0-9_$]+")


def make_entry(default_schema: str, given: Mapping[str, Any], *, conn_id: str | None = None) -> Entry:
    """An entry from what a face was given; None means the default. Raises Refused with the Spec's own sentences."""
    kind = kind_of(given)
    asked = {name: given.get(name) for name in kind.spec.model_fields}
    window = _window(asked)
    spec: Any = make_request(
        kind.spec, asked | {"cutover_window": None} | ({**window, "cutover": "manual"} if window else {})
    )
    schema, table = spec.place(default_schema)
    after = given.get("after")
    return Entry(
        workflow=spec.workflow or names.new_workflow(table),
        schema=schema,
        table=table,
        spec={
            # Only what was asked for: what waits is compared with its file (airflow/claiming.py), and a spec that has
            # new fields after an upgrade must not make them differ.
            **spec.model_dump(mode="json", exclude_unset=True, exclude={"workflow"}),
            **_of_kind(kind, given, schema, table),
            **window,
        },
        conn_id=conn_id,
        not_before=_moment(given.get("not_before")),
        after=None if after is None else names.check_workflow(str(after)),
        priority=_priority(given.get("priority")),
    )


def kind_of(given: Mapping[str, Any]) -> WorkflowKind:
    """Raises Refused."""
    name = str(given.get(queue.KIND) or queue.ONLINE_DDL)
    if name not in KINDS:
        raise Refused(f"kind: {name!r} is none of {', '.join(KINDS)}.")
    if not KINDS[name].has_end:
        raise Refused(f"kind: a {name} has no end, and is not queued.", cure=f"Trigger the DAG {name}.")
    return KINDS[name]


def _of_kind(kind: WorkflowKind, given: Mapping[str, Any], schema: str, table: str) -> dict[str, Any]:
    """What an entry holds beside the spec: an online DDL's table in full; else the kind, and where the others are."""
    if kind.name == queue.ONLINE_DDL:
        return {"table": _written(schema, table)}
    others = [connection_param(end) for end in kind.ends if end != kind.home]
    if missing := [name for name in others if not given.get(name)]:
        raise Refused(f"{missing[0]}: it is missing: of which connection is the {missing[0].partition('_')[0]}?")
    others += [name for name in map(connection_param, kind.optional) if given.get(name)]
    return {queue.KIND: kind.name, **{name: str(given[name]) for name in others}}


def _window(asked: Mapping[str, Any]) -> dict[str, str]:
    """What the run is told of its window; to a Spec it is a manual cut-over that has one. Raises Refused."""
    cutover, text = str(asked["cutover"] or "auto"), asked["cutover_window"]
    return {"cutover": cutover, "cutover_window": str(text)} if window_of(cutover, text) else {}


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
    try:
        return found.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        raise Refused(f"not_before: {str(given)!r} is before the first day, or behind the last.", cure=cure) from None


def _priority(given: object) -> int:
    if given is None:
        return 0
    # YAML reads `yes` as true, which is a number to Python.
    if isinstance(given, bool) or not isinstance(given, int) or abs(given) > 1_000_000:
        raise Refused(f"priority: {given!r} is not a whole number from -1000000 to 1000000.")
    return given


def submit(session: Session, entry: Entry, by: str) -> None:
    """Put it into the queue. Raises Refused when its id is taken, or when it would wait for itself."""
    # Outside of the transaction, which its DDL would commit.
    layout.install(session)
    with session.transaction():
        queue.lock(session)
        _check_free(session, entry)
        queue.put(session, entry, by)
        journal.write(session, entry.workflow, "submitted", f"{entry.schema}.{entry.table}", actor=by)


def _check_free(session: Session, entry: Entry) -> None:
    if entry.workflow in queue.workflows_known(session):
        cure = f"`vreplication status {entry.workflow}` shows it; choose another id."
        raise Refused(f"There is a workflow {entry.workflow} on this server already.", cure=cure)
    ids.check_free(session, entry.workflow, is_move=entry.kind != queue.ONLINE_DDL)
    # Under the lock: of two that name each other and are submitted at one time, the second has to see the first.
    if entry.after is not None and due.circle(queue.entries(session), entry.workflow, entry.after):
        raise Refused(f"after: {entry.workflow} and {entry.after} would wait for each other forever.")


def remove(session: Session, workflow: str, by: str) -> None:
    """Take out an entry that waits, or that was started and whose run does not begin it; its id stays taken.

    Raises Refused where it goes on, or has ended.
    """
    if not queue.is_there(session):
        raise _unknown(workflow)
    with session.transaction():
        queue.lock(session)
        entry = queue.find(session, workflow)
        if entry is None:
            raise _unknown(workflow)
        _check_removable(entry, look(session))
        queue.remove(session, workflow, by)
        journal.write(session, workflow, "removed from the queue", actor=by)


def move(session: Session, workflow: str, by: str, where: str) -> None:
    """Earlier, later or first among what waits. Raises Refused when it does not wait, or is at that end already."""
    if not queue.is_there(session):
        raise _unknown(workflow)
    # The DDL of an upgrade would commit the transaction: it comes before.
    layout.complete(session)
    with session.transaction():
        queue.lock(session)
        scene = look(session)
        entry = scene.entry(workflow)
        if entry is None:
            raise _unknown(workflow)
        _check_waits(entry, scene)
        # One that was started by hand is queued for ever: it would be a place that is not seen.
        waiting = [e for e in scene.entries if due.standing(e, scene).state in (due.WAITING, due.DUE)]
        _move(session, waiting, workflow, by, where)


def _move(session: Session, waiting: list[Entry], workflow: str, by: str, where: str) -> None:
    wanted = due.moved(waiting, workflow, where)
    changed = due.places(wanted)
    if not changed:
        end = "last" if where == due.LATER else "first"
        raise Refused(f"Workflow {workflow} is the {end} one that waits already.")
    for each, place in changed.items():
        queue.put_at(session, each, place)
    at = [entry.workflow for entry in wanted].index(workflow)
    told = f"{where}: place {at + 1} of {len(wanted)}"
    journal.write(session, workflow, "moved in the queue", told, actor=by)


def _unknown(workflow: str) -> Refused:
    return Refused(f"There is no {workflow!r} in the queue.", cure="`vreplication queue` lists what there is.")


def _check_removable(entry: Entry, scene: Scene) -> None:
    # Not before that: its run may begin at any moment, and would go on all the same.
    if not due.is_overdue(entry, scene):
        _check_waits(entry, scene)


def _check_waits(entry: Entry, scene: Scene) -> None:
    state = due.standing(entry, scene).state
    if state not in (due.WAITING, due.DUE):
        cure = f"`vreplication cancel {entry.workflow}` ends it." if state == due.STARTED else ""
        if cure and entry.workflow not in scene.known:
            cure = f"Its run begins it in a moment; where it has not after {_PATIENCE}, it can be removed."
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


def claim(
    session: Session,
    concurrency: int,
    by: str,
    *,
    claimant: str = "",
    look_up: Callable[[Entry], str] | None = None,
    may_start: Callable[[Entry], bool] = lambda _: True,
) -> list[Entry]:
    """What the caller must start now; nobody else will be told to. Called again by the same `by`, the same again.

    claimant: whose runs they are, of several that look at one queue; each begins a workflow with `queue.check_claim`.
    `look_up`: what the runs' own records say of one: RUNNING, RUN_FAILED, ABSENT, ELSEWHERE or anything else.
    """
    if not queue.is_there(session):
        return []
    # Asked before the lock, for all who start or queue wait for it, and the answer may be Airflow's.
    scene = look(session)
    asked = [*_in_doubt(scene), *due.choose(scene, concurrency, may_start)] if look_up else []
    runs = {e.workflow: look_up(e) for e in asked} if look_up else {}
    with session.transaction():
        queue.lock(session)
        # Looked at anew: another may have started entries since.
        scene = _settled(session, _believed(look(session, runs), claimant), by)
        chosen = due.choose(scene, concurrency, may_start)
        for entry in chosen:
            # Noted before there is a run: killed in between, whoever claimed it gets it again (`_mine`), and where that
            # does not ask again it goes back after PATIENCE. The other order could start it twice.
            queue.start(session, entry.workflow, by, claimant)
            journal.write(session, entry.workflow, "started from the queue", actor=by)
    return [*_mine(scene, queue.claimed(by, claimant)), *chosen]


def _believed(scene: Scene, claimant: str) -> Scene:
    """Of what another one has started our own records tell nothing, but that we have no run of it."""
    others = {e.workflow for e in scene.entries if e.state == queue.STARTED and queue.is_anothers(e, claimant)}
    runs = {w: run for w, run in scene.runs.items() if w not in others or run == due.ABSENT}
    return replace(scene, runs=runs)


def _in_doubt(scene: Scene) -> list[Entry]:
    """Started, and neither ended nor held by a living lease."""
    return [
        e
        for e in scene.entries
        if e.state == queue.STARTED and e.workflow not in scene.held and not due.has_ended(e, scene)
    ]


def _settled(session: Session, scene: Scene, by: str) -> Scene:
    """Entries whose start came to nothing are failed or put back first."""
    found = {e.workflow: due.came_to_nothing(e, scene) for e in scene.entries}
    for workflow, state in found.items():
        if state == queue.FAILED:
            reason = _why_failed(workflow, scene)
            queue.fail(session, workflow, reason)
            journal.write(session, workflow, "refused", reason, actor=by)
        elif state == queue.QUEUED:
            queue.put_back(session, workflow)
    entries = tuple(replace(e, state=found[e.workflow] or e.state) for e in scene.entries)
    return replace(scene, entries=entries)


def _why_failed(workflow: str, scene: Scene) -> str:
    if scene.runs.get(workflow) == due.ELSEWHERE:
        return f"There is a run {workflow} for another connection already: submit it again under another id."
    return f"Its run {workflow} failed before the workflow began; the run's log says why."


def _mine(scene: Scene, claimed: str) -> list[Entry]:
    """Claimed by this caller before it was cut short."""
    return [
        e for e in sorted(scene.entries, key=due.order)
        if e.state == queue.STARTED and e.started_by == claimed and e.workflow not in scene.known
    ]  # fmt: skip
