"""Several tables changed by one command: a workflow each, with one reader of the log and one Spark for all of them.

What must stay true: every table is checked before anything is made, and one refusal refuses all; a table's workflow
runs as it would alone, so that it is as safe, and each table is switched by itself when it is ready; one that fails
leaves the others alone; the same command goes on with those that have not ended; what operators ask of the group holds
for tables whose turn has not come, too. Atomic ones are switched in one statement, and one that fails or is cancelled
before that ends the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from vreplication import about
from vreplication.engine.child import Shared, SharedProcess
from vreplication.engine.result import Result
from vreplication.errors import Cancelled, Interrupted, LeaseHeld, Refused, VReplicationError
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.planning.plan import Plan, make_plan, switched_together
from vreplication.planning.spec import Spec
from vreplication.settings import TABLE_SECONDS
from vreplication.spark.session import Lent as LentSpark
from vreplication.spark.session import SparkStart
from vreplication.state import groups, journal, layout, lease, workflows
from vreplication.state.groups import Group
from vreplication.state.operator_requests import OperatorRequests
from vreplication.state.workflows import IN_PLACE
from vreplication.workflows.online_ddl import ending
from vreplication.workflows.online_ddl import run as online_ddl
from vreplication.workflows.online_ddl.switching import Company
from vreplication.workflows.online_ddl.together import Together

log = logging.getLogger(__name__)

Notify = Callable[[str], None]
MOST_AT_GATES = 16
"""Tables that are held at a time: each has eight connections, of the 151 that a server takes by default."""
MOST_ATOMIC = 12
"""Tables that are switched in one: each has one connection more then, and there are five for all."""
_SLOT_SECONDS = 0.2
_SCHEMA = "schema"
"""Key of what is noted of a table, beside the fields of its Spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What is asked for: a Spec a table, of the group `id`; at_once: so many are copied at a time.

    is_atomic: all are switched in one statement. Of one table that says nothing.
    """

    id: str
    specs: tuple[Spec, ...]
    at_once: int
    is_atomic: bool = False

    @property
    def at_most(self) -> int:
        """So many are followed at a time: those that wait at their gates are, too."""
        is_held = self.is_atomic or any(spec.needs_release for spec in self.specs)
        return len(self.specs) if is_held else min(len(self.specs), 2 * self.at_once)

    @property
    def named(self) -> tuple[Spec, ...]:
        """Each with its workflow's id."""
        ids = groups.members(self.id, len(self.specs))
        return tuple(s.model_copy(update={"workflow": i}) for s, i in zip(self.specs, ids, strict=True))


def plan(tables: Tables, url: SourceUrl, stop: threading.Event | None = None) -> list[Plan]:
    """Every check of every table; touches nothing. Raises Refused where two of them are one, Interrupted."""
    found = []
    check(tables)
    with connect(url, read_timeout=TABLE_SECONDS) as session:
        _check_apart(session, tables)
        _check_count(tables)
        for spec in tables.named:
            if stop and stop.is_set():
                raise Interrupted("Interrupted before anything was made.")
            found.append(make_plan(session, online_ddl.online(spec) if tables.is_atomic else spec, is_dry=True))
    return switched_together(found) if tables.is_atomic and len(found) > 1 else found


def _check_apart(session: Session, tables: Tables) -> None:
    # Our reading of a DDL knows no case, so of two tables whose names differ in case alone one is taken.
    seen: dict[tuple[str, str], Spec] = {}
    for spec in tables.specs:
        schema, table = spec.table_parts(session.url.database)
        other = seen.setdefault((schema.lower(), table.lower()), spec)
        if other is not spec:
            raise _not_apart((schema, table), other.table_parts(session.url.database))


def _not_apart(one: tuple[str, str], other: tuple[str, str]) -> Refused:
    if one == other:
        return Refused(f"{'.'.join(one)} is named twice.", cure="Put all its changes into one ALTER.")
    return Refused(
        f"{'.'.join(other)} and {'.'.join(one)} differ in case alone.",
        cure="Put all changes into one ALTER where they are one table, else change one after the other.",
    )


def _check_count(tables: Tables) -> None:
    if tables.at_most > MOST_AT_GATES and any(spec.needs_release for spec in tables.specs):
        raise Refused(
            f"{len(tables.specs)} tables would wait for their release, each with connections of its own; "
            f"{MOST_AT_GATES} are the most.",
            cure="Begin them with several commands, or with --cutover auto.",
        )


def check(tables: Tables) -> None:
    """What the request alone tells. Raises Refused."""
    if not tables.is_atomic:
        return
    if len(tables.specs) > MOST_ATOMIC:
        raise Refused(
            f"--atomic switches at most {MOST_ATOMIC} tables, and {len(tables.specs)} are given: each is held, with "
            "connections of its own, until all are ready.",
            cure="Leave out the tables that need not be switched in the same moment.",
        )
    if named := next((spec for spec in tables.specs if spec.strategy in IN_PLACE), None):
        raise Refused(
            f"--atomic switches all tables by one RENAME, and {named.table} is to be altered with --strategy "
            f"{named.strategy}.",
            cure="Leave out --atomic, or take --strategy online.",
        )
    if len(tables.specs) > 1 and (named := next((s for s in tables.specs if s.triggers == "preserve"), None)):
        raise Refused(
            f"--atomic holds the locks of all tables, and with --triggers preserve that of {named.table} takes "
            "along the tables that its triggers use.",
            cure="Leave out --atomic, or --triggers preserve.",
        )
    if len(tables.specs) > 1 and (named := next((s for s in tables.specs if s.foreign_keys == "rebuild"), None)):
        raise Refused(
            f"--atomic holds the locks of all tables, and with --foreign-keys rebuild that of {named.table} "
            "takes along the tables that foreign keys tie to it.",
            cure="Leave out --atomic, or --foreign-keys rebuild.",
        )
    if len(tables.specs) > 1 and (named := next((s for s in tables.specs if s.keeps_one), None)):
        raise Refused(
            f"--atomic holds the locks of all tables, and with --on-duplicate the last changes of "
            f"{named.table} are applied to its new table meanwhile.",
            cure="Leave out --atomic, or --on-duplicate.",
        )
    windows = {spec.cutover_window for spec in tables.specs}
    if len(windows) > 1:
        raise Refused(
            "With --atomic all tables are switched in the same moment, and they have different cutover-windows.",
            cure="Give all of them the same one, or none.",
        )


def run(tables: Tables, url: SourceUrl, *, stop: threading.Event, notify: Notify, by: str = "") -> list[Result]:
    """How each table's workflow ended, in order. Raises what ends it before the first of them has begun."""
    begin(tables, url, stop)
    first, *_ = tables.specs
    spark = SparkStart(first.spark_master, max(spec.tasks for spec in tables.specs))
    process = SharedProcess(url, tables.id, tables.at_most)
    # As for one table: to load the program takes half a second, which would lie before the first chunk.
    process.load()
    several = _Several(
        tables=tables, url=url, stop=stop, notify=notify, process=process, spark=spark, asking=threading.Lock(),
        slots=threading.Semaphore(tables.at_once), company=_company(tables), by=by,
    )  # fmt: skip
    try:
        with ThreadPoolExecutor(tables.at_most, thread_name_prefix="table") as pool:
            return list(pool.map(several.run, tables.named))
    finally:
        spark.stop()
        process.end()


def _company(tables: Tables) -> Company | None:
    if not tables.is_atomic:
        return None
    return Together({spec.workflow or "": spec.table for spec in tables.named}, tables.id)


def begin(tables: Tables, url: SourceUrl, stop: threading.Event) -> None:
    """Note what is asked for, unless that was done before; then it must be the same. Raises Refused or LeaseHeld."""
    # Of one that goes on, too: tables whose turn has not come are planned by what is asked for now.
    check(tables)
    with connect(url) as session:
        found = groups.find(session, tables.id)
        if found is not None:
            _check_same(session, found, tables)
            # Who resumes it by its id alone plans tables whose turn has not come by what is noted.
            if (asked := tables_of(found, session.url.database)) != tables:
                log.info("options of %s are %s now, and were %s", tables.id, tables, asked)
                groups.change(session, _group(tables, session.url.database))
            return
        # Before it is planned: planning may search whole tables for duplicates.
        _check_free(session, tables)
    refused = [f"{p.source.name}: {r.sentence} {r.cure}".strip() for p in plan(tables, url, stop) for r in p.refusals]
    if refused:
        raise Refused(" ".join(refused))
    with connect(url) as session:
        layout.install(session)
        groups.create(session, _group(tables, session.url.database))


def _group(tables: Tables, schema: str) -> Group:
    # With the schema that names without one are of: who goes on may have another default.
    specs = tuple({**spec, _SCHEMA: schema} for spec in _plain(tables.specs))
    return Group(id=tables.id, specs=specs, at_once=tables.at_once, is_atomic=tables.is_atomic)


def _plain(specs: Sequence[Spec]) -> tuple[dict[str, Any], ...]:
    return tuple(spec.model_copy(update={"workflow": None}).model_dump(mode="json") for spec in specs)


def _check_free(session: Session, tables: Tables) -> None:
    for workflow in (tables.id, *groups.members(tables.id, len(tables.specs))):
        if workflows.find(session, workflow) is not None:
            raise Refused(f"There is a workflow {workflow} already.", cure="Give the new one another --workflow id.")


def _check_same(session: Session, found: Group, tables: Tables) -> None:
    known_specs = tables_of(found, session.url.database).specs
    asked, known = (_named_alters(session, each) for each in (tables.specs, known_specs))
    if asked != known:
        raise Refused(
            f"Workflow {found.id} exists for other tables or another ALTER.",
            cure=f"Repeat its own arguments or run `vreplication resume {found.id}` to go on with it, or give the new "
            "one another --workflow id.",
        )
    if found.is_atomic != tables.is_atomic:
        _refuse_other_kind(found)
    rows = [row for each in found.members if (row := workflows.find(session, each))]
    if len(rows) == len(found.members) and all(row.phase in OVER and not _is_untold(session, row) for row in rows):
        raise Refused(f"Workflow {found.id} has ended.", cure="Give the new one another --workflow id.")
    for each in found.members:
        if lease.is_alive(session, each, lease.DRIVER) and not _is_untold(session, workflows.find(session, each)):
            raise LeaseHeld(
                f"Workflow {found.id} is being worked on.",
                cure=f"Watch it with `vreplication status {found.id} --watch`.",
            )


def _refuse_other_kind(found: Group) -> None:
    raise Refused(
        f"Workflow {found.id} was begun {'with' if found.is_atomic else 'without'} --atomic.",
        cure=f"Repeat its own arguments or run `vreplication resume {found.id}` to go on with it.",
    )


def _named_alters(session: Session, specs: Sequence[Spec]) -> list[tuple[str, str, str]]:
    return [(*spec.table_parts(session.url.database), spec.alter) for spec in specs]


def _is_untold(session: Session, row: workflows.WorkflowRow | None) -> bool:
    return row is not None and ending.is_untold(session, row)


def tables_of(group: Group, default_schema: str) -> Tables:
    """What was asked for, to go on with it where names without a schema are of this one."""
    specs = tuple(_spec_of(spec, default_schema) for spec in group.specs)
    return Tables(id=group.id, specs=specs, at_once=group.at_once, is_atomic=group.is_atomic)


def _spec_of(noted: dict[str, Any], default_schema: str) -> Spec:
    # Groups of older versions have no schema noted.
    begun_in = noted.get(_SCHEMA, default_schema)
    spec = Spec.model_validate({name: value for name, value in noted.items() if name != _SCHEMA})
    if begun_in == default_schema:
        return spec
    return spec.model_copy(update={"table": qualified(*spec.table_parts(begun_in))})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Several:
    """Runs one table after the other, in as many threads as call it."""

    tables: Tables
    url: SourceUrl
    stop: threading.Event
    notify: Notify
    process: SharedProcess
    spark: SparkStart
    asking: threading.Lock
    slots: threading.Semaphore
    company: Company | None = None
    by: str = ""

    def run(self, spec: Spec) -> Result:
        result = self._result(spec)
        if self.company is None:
            return result
        self.company.note_end(result)
        # By itself a table does not go on.
        return replace(result, resume_command=result.resume_command and ending.resume_command(self.tables.id))

    def _result(self, spec: Spec) -> Result:
        workflow = spec.workflow or ""
        slot = _Slot(self.slots)
        try:
            while not slot.take():
                if self.stop.is_set():
                    return _not_begun(workflow)
                if self.company:
                    self.company.check()
            if over := self._over(workflow):
                return over
            if self.company:
                self.company.check()
            return _not_begun(workflow) if self.stop.is_set() else self._run(spec, slot)
        except Cancelled as error:
            return Result(event="cancelled", workflow=workflow, reason=str(error), exit_code=Cancelled.exit_code)
        except VReplicationError as error:
            return Result(event="failed", workflow=workflow, reason=str(error), exit_code=1)
        except Exception as error:  # a fault of ours ends this table's run, and no other's
            log.exception("workflow %s ended by an unexpected error", workflow)
            reason = f"Unexpected {type(error).__name__}: {error}"
            return Result(event="failed", workflow=workflow, reason=reason, exit_code=1)
        finally:
            slot.free()

    def _run(self, spec: Spec, slot: _Slot) -> Result:
        about.this_thread(spec.workflow or "")
        lent = online_ddl.Lent(
            spark=LentSpark(self.spark, self.asking),
            child=Shared(self.process, self.url, spec.workflow or ""),
            asked=self._asked,
            at_gate=slot.free,
            company=self.company,
        )
        return online_ddl.run(
            spec,
            self.url,
            stop=self.stop,
            notify=lambda text: self.notify(f"{spec.table}: {text}"),
            lent=lent,
            by=self.by,
        )

    def _over(self, workflow: str) -> Result | None:
        """Of one that ended in an earlier run, or was cancelled before its turn came."""
        with connect(self.url) as session:
            row, group = workflows.find(session, workflow), groups.find(session, self.tables.id)
            if row is not None and row.phase is Phase.COMPLETE:
                return ending.completed_of(session, workflow)
            if (row is not None and row.phase is Phase.CANCELLED) or (row is None and _is_cancelled(group)):
                reason = "Cancelled; the source table is untouched."
                return Result(event="cancelled", workflow=workflow, reason=reason, exit_code=3)
        return None

    def _asked(self) -> OperatorRequests:
        with connect(self.url) as session:
            group = groups.find(session, self.tables.id)
        if group is None:
            return OperatorRequests()
        return OperatorRequests(
            is_paused=group.is_paused, is_cancel_requested=group.is_cancel_requested, released_by=group.released_by
        )


class _Slot:
    """The right to copy, of which there are few."""

    def __init__(self, slots: threading.Semaphore) -> None:
        self._slots, self._is_ours = slots, False

    def take(self) -> bool:
        """False after a moment."""
        self._is_ours = self._slots.acquire(timeout=_SLOT_SECONDS)
        return self._is_ours

    def free(self) -> None:
        """Once is enough."""
        if self._is_ours:
            self._is_ours = False
            self._slots.release()


def _not_begun(workflow: str) -> Result:
    return Result(event="interrupted", workflow=workflow, reason="Not begun.", exit_code=Interrupted.exit_code)


def _is_cancelled(group: Group | None) -> bool:
    return group is not None and group.is_cancel_requested


def worst(results: Sequence[Result]) -> Result:
    """The one that says how the whole ended: the first that did not complete, those that failed before others."""
    order = {"failed": 0, "refused": 1, "interrupted": 2, "cancelled": 3, "complete": 4}
    return min(results, key=lambda result: order.get(result.event, 0))


def summed_up(tables: Tables, results: Sequence[Result]) -> Result:
    """Of the group as of one workflow."""
    found = worst(results)
    done = sum(result.event == "complete" for result in results)
    reason = None if done == len(results) else f"{done} of {len(results)} tables are complete."
    again = f"vreplication resume {tables.id}" if any(result.resume_command for result in results) else None
    code = 1 if found.event == "refused" else found.exit_code
    event = "failed" if found.event == "refused" else found.event
    return replace(
        Result(event=event, workflow=tables.id, reason=reason, exit_code=code),
        resume_command=again,
        rows_copied=sum(result.rows_copied or 0 for result in results),
        events_applied=sum(result.events_applied or 0 for result in results),
    )


# What operators do.


def act(url: SourceUrl, group: Group, one: Callable[[str], object], **asked: Any) -> list[str]:
    """Note what is asked of all, then do it to each that has begun and has not ended; returns their ids."""
    with connect(url) as session:
        # First: a table whose turn comes in between finds it here.
        if asked:
            groups.ask(session, group.id, **asked)
        live = [each for each in group.members if (row := workflows.find(session, each)) and row.phase not in OVER]
    done, refused = [], []
    for workflow in live:
        try:
            done += [workflow] if _done(url, workflow, one) else []
        except VReplicationError as error:
            # The others are told all the same.
            refused.append(error)
    if refused:
        raise refused[0]
    return done


def _done(url: SourceUrl, workflow: str, one: Callable[[str], object]) -> bool:
    """False for one that has ended meanwhile, or has switched, and is past it."""
    try:
        one(workflow)
    except Refused:
        with connect(url) as session:
            row = workflows.find(session, workflow)
        if row is not None and not (row.is_cut or row.phase in OVER):
            raise
        return False
    return True


def check_complete(url: SourceUrl, group: Group) -> None:
    """Raises Refused unless all of them are."""
    with connect(url) as session:
        rows = [workflows.find(session, each) for each in group.members]
    for name, row in zip(group.members, rows, strict=True):
        if row is None or row.phase is not Phase.COMPLETE:
            raise Refused(
                f"Workflow {name} is not complete.",
                cure=f"`vreplication resume {group.id}` goes on with it; `vreplication cleanup ID` takes one as well.",
            )


def unpause(url: SourceUrl, group: Group, by: str) -> None:
    """All of them go on."""

    def one(workflow: str) -> None:
        with connect(url) as session:
            workflows.set_paused(session, workflow, False)
            journal.write(session, workflow, "resumed", actor=by)

    act(url, group, one, paused=0)


def by_driver(url: SourceUrl, group: Group) -> tuple[list[str], list[str]]:
    """Those that a process works on, and of the others those that have begun and may go on."""
    with connect(url) as session:
        driven = [each for each in group.members if lease.is_alive(session, each, lease.DRIVER)]
        rows = (workflows.find(session, each) for each in group.members if each not in driven)
        return driven, [row.id for row in rows if row and row.phase not in OVER]
