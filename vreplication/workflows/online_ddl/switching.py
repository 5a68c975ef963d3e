"""An attempt at the cut-over, of one workflow or of several together: markers, barrier, the last look, and the end.

What must stay true: of several tables each has its own marker, all of them written before the first is waited for; an
error that is one table's is told to that table, and the others' attempt has only failed; unless it switched, the
markers are taken back, so that catch-up goes on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vreplication.clock import SYSTEM
from vreplication.cutover import carried, foreign
from vreplication.cutover.alone import Alone, Rest
from vreplication.cutover.attempt import CutOver
from vreplication.cutover.outcome import Outcome
from vreplication.cutover.parts import Part
from vreplication.engine import job, recheck, rest
from vreplication.engine.driver import Driver
from vreplication.engine.job import Job
from vreplication.errors import Ambiguous, SourceChanged, Transient, VReplicationError
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import Session, connect
from vreplication.pausepoints import reach
from vreplication.phases import Phase
from vreplication.planning.foreign import foreign_keys
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS
from vreplication.state import dirty, journal, lease, markers, workflows
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.online_ddl import dedup, standing_in
from vreplication.workflows.online_ddl.together import Together

_KEYS_SECONDS = 0.5
"""Between two times at which foreign keys are to be altered: who uses a table goes on meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A table's driver at its attempt of this number."""

    driver: Driver
    number: int

    @property
    def workflow(self) -> str:
        return self.driver.workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """keys: how many were compared under the lock; None: it did not come to that."""

    outcome: Outcome
    keys: int | None = None


Company = Together[Member, Tried]


def attempt(company: Company, members: Sequence[Member]) -> Mapping[str, Tried | Exception]:
    """Try once, for all of them; what it has come to for each, by workflow. Errors are values here."""
    found = _Attempt(members).run()
    for tried in found.values():
        if isinstance(tried, Tried) and tried.outcome.is_switched:
            company.note_switched()
        elif isinstance(tried, Tried) and tried.outcome.not_locked:
            company.lock_first(tried.outcome.not_locked)
    return found


class _Attempt:
    """The first of them acts: the connections are on its server, which is that of all."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = {member.workflow: member for member in members}
        self._jobs: dict[str, Job] = {}
        self._counted: dict[str, int] = {}
        self._used: dict[str, str] = {}
        """Markers by workflow."""
        self._not_taken_back: dict[str, Exception] = {}
        """Catch-up stands at such a marker: its driver has to begin again, which takes it back."""
        self._at_fault: str | None = None
        self._is_unknown = False
        """Which table carries the name: then it is left to who looks that up."""

    def run(self) -> dict[str, Tried | Exception]:
        try:
            for workflow, member in self._members.items():
                with self._about(workflow):
                    self._begin(member)
            outcome = self._try()
        except Exception as error:
            return {each: self._not_taken_back.get(each) or self._end(each, error) for each in self._members}
        tried = {each: Tried(outcome=outcome, keys=self._counted.get(each)) for each in self._members}
        return {**tried, **self._not_taken_back}

    def _end(self, workflow: str, error: Exception) -> Tried | Exception:
        """Of one that is not at fault the attempt has only failed."""
        fault = self._at_fault
        if fault is None or fault == workflow:
            return error
        name = self._jobs[fault].row.source_table if fault in self._jobs else fault
        return Tried(outcome=Outcome(is_switched=False, reason=f"{name}: {error}"))

    @contextlib.contextmanager
    def _about(self, workflow: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._at_fault = self._at_fault or workflow
            raise

    def _begin(self, member: Member) -> None:
        driver = member.driver
        driver.move(Phase.CUTTING_OVER)
        driver.report(cutover_attempts=member.number)
        journal.attempted(driver.session, driver.workflow, member.number, actor=lease.me())
        driver.remember()
        self._jobs[driver.workflow] = found = job.load(driver.session, driver.workflow)
        standing_in.check_none(driver.session, found.row)
        _refuse_children(driver.session, found)
        if lowest := dedup.load(driver):
            # What has come since: the less is left for the lock.
            dedup.settle_some(driver, lowest)

    def _try(self) -> Outcome:
        """Unless it switched, the markers are taken back, so that catch-up goes on."""
        is_switched = False
        try:
            outcome = self._cut_over()
            is_switched = outcome.is_switched
            return outcome
        except Ambiguous:
            self._is_unknown = True
            raise
        finally:
            if not is_switched:
                self._take_back()

    def _cut_over(self) -> Outcome:
        first = next(iter(self._members.values())).driver
        parts = [Part(row=found.row, lease=self._members[each].driver.lease) for each, found in self._jobs.items()]
        server = self._jobs[first.workflow].server
        # Of its own, and not patient: writers wait while it is asked.
        with connect(first.url, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS) as other:
            if not server.is_mariadb and foreign.has_keys(other, parts[0].row):
                return self._alone(other, Alone(first.url, server, parts[0], announce=self._announce))
            cut_over = CutOver(first.url, server, parts, announce=self._announce)
            try:
                return cut_over.attempt(
                    barrier=functools.partial(self._barrier, other),
                    check_locked=functools.partial(self._check_locked, other),
                )
            finally:
                self._at_fault = self._at_fault or cut_over.at_fault

    def _alone(self, other: Session, alone: Alone) -> Outcome:
        """A table with foreign keys, on MySQL: who holds its lock holds the new table's as well."""
        workflow = alone.part.row.id
        driver, found = self._members[workflow].driver, self._jobs[workflow]

        def check_locked(holder: Session, read: Rest) -> None:
            ends = Ends(source=holder, target=holder, home=other)
            self._check_locked(other, alone.part, holder, ends, read.keys)

        return alone.attempt(
            hold=functools.partial(self._barrier, other),
            reading=functools.partial(rest.reading, driver.url, found, driver.lease, other),
            check_locked=check_locked,
        )

    def _announce(self, ids: tuple[int, ...]) -> None:
        """In every heartbeat: whoever takes over one of the tables ends the attempt at all of them."""
        for workflow, member in self._members.items():
            with self._about(workflow):
                member.driver.announce(ids)

    def _barrier(self, other: Session, remaining_seconds: float) -> None:
        """A marker behind the last write; when all are applied the shadows are level and catch-up stands still."""
        until = SYSTEM.monotonic() + remaining_seconds
        for workflow, member in self._members.items():
            with self._about(workflow):
                self._used[workflow] = mark(other, member.driver)
        for workflow, marker in self._used.items():
            with self._about(workflow):
                _wait_level(other, self._members[workflow].driver, marker, max(0.0, until - SYSTEM.monotonic()))

    def _check_locked(
        self, other: Session, part: Part, locked: Session, ends: Ends | None = None, more: Sequence[str] = ()
    ) -> None:
        """Under the lock, after the barrier: what was written since it was last seen equal, and more keys.

        And the last place where a signal or an operator's cancel is heeded: the cut-over comes next.
        """
        for workflow, member in self._members.items():
            with self._about(workflow):
                member.driver.check()
        workflow, found = part.row.id, self._jobs[part.row.id]
        # It may have come since the gate was looked at, a second before or several.
        if stopped_by := workflows.load(other, workflow).stopped_by:
            raise Transient(f"the workflow was {stopped_by} a moment ago")
        # dirty_under_lock: a row may have pushed another one out between the gate's last look and the marker.
        if found.mapping.may_collide and dirty.is_any(other, workflow):
            raise Transient("a row gave way to another one under the new unique key a moment ago")
        # barrier, drained (docs/design/duplicates.md): behind the marker the full copy changes no more, so no note
        # comes late.
        if part.row.keeps_one:
            lowest = dedup.load(self._members[workflow].driver)
            assert lowest is not None
            dedup.settle_locked(other, lowest)
        recheck.check_definition(locked, found.mapping.source, found.row.source_definition, workflow)
        ends, share = ends or Ends.on(other), len(self._members)
        counted = recheck.compare_locked(locked, ends, found.mapping, workflow, share=share, more=more)
        self._counted[workflow] = counted

    def _take_back(self) -> None:
        """Not before the new table is as it was: catch-up would write to it."""
        for workflow, marker in self._used.items():
            driver = self._members[workflow].driver
            try:
                if not self._is_unknown:
                    carried.remove(driver.url, self._jobs[workflow].row, driver.lease)
                    undo_keys(driver, self._jobs[workflow].row)
                markers.remove(self._members[workflow].driver.session, workflow, marker)
            except VReplicationError as error:
                self._not_taken_back[workflow] = error


def _refuse_children(session: Session, found: Job) -> None:
    """Foreign keys to the table that no log tells of: made with sql_log_bin=0. All of the server are read, so not under
    the lock. Raises SourceChanged.
    """
    if foreign.is_asked(found.row):
        return
    table = (found.row.source_schema, found.row.source_table)
    every = foreign_keys(session, is_mariadb=found.server.is_mariadb)
    if children := sorted({".".join(each.child) for each in every if each.parent == table}):
        raise SourceChanged(
            f"{'.'.join(table)} is the parent of foreign keys in {', '.join(children[:5])} by now, which would go on"
            " pointing to the retired table.",
            cure=f"Drop them, run `vreplication cancel {found.row.id}` and start again.",
        )


def undo_keys(driver: Driver, row: WorkflowRow) -> None:
    """Of an attempt that did not switch, whose connections are gone."""
    foreign.undo(driver.url, row, driver.lease, lambda why: _say_and_wait(driver, why))


def finish_keys(driver: Driver, row: WorkflowRow) -> None:
    """Behind the switch."""
    foreign.finish(driver.url, row, lambda why: _say_and_wait(driver, why))


def _say_and_wait(driver: Driver, why: str) -> None:
    driver.report(waiting_for=why)
    driver.wait(_KEYS_SECONDS)


def mark(other: Session, driver: Driver) -> str:
    """Write the marker at which catch-up holds. Raises Superseded where the lease is another's."""
    # marker_fenced: at one of a driver that was taken over the living one's catch-up would stand still for good.
    return markers.write(other, driver.workflow, markers.CUTOVER, our_lease=driver.lease)


def _wait_level(other: Session, driver: Driver, marker: str, seconds: float) -> None:
    # R22: applied, not only read. Asked so often because writers wait meanwhile.
    applied = markers.wait_applied(
        other, driver.workflow, marker, timeout_seconds=seconds, check=driver.check, poll_seconds=0.003
    )
    # branches_looked_at: a branch that catch-up holds may commit behind the marker, into the retired table.
    if applied.branches:
        raise Transient(f"XA branch {applied.branches[0]} has no outcome yet.")
    if not applied.is_holding:
        raise Transient("Catch-up does not hold at the marker.")


def note_switched(driver: Driver, details: str = "") -> None:
    """On a connection of its own: the driver's may have gone with the cut-over."""
    driver.note_switched()
    driver.reconnect()
    workflows.set_fields(driver.session, driver.workflow, is_cut=1)
    journal.write(driver.session, driver.workflow, "switched", details, actor=lease.me())
    reach("workflow.switched")
