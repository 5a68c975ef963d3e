"""Rows: copy, catch-up, chunk protocol, crashes and zombies, in all interleavings within bounds.

At any moment at which the cut-over could happen (every chunk matched, all of the log visible and applied, nothing
dirty) the shadow must hold what the source holds: that is P1. Actors and what each of their actions stands for:
rows_application.py, rows_prepare.py, rows_tasks.py, rows_catch_up.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.models import rows_application as application
from tests.models import rows_catch_up as catch_up
from tests.models import rows_prepare as prepare
from tests.models import rows_tasks as tasks
from tests.models.explorer import Step
from tests.models.rows_rules import Rules
from tests.models.rows_world import (
    HOLDS_LOCKS,
    LANDED,
    MATCHED,
    NONE,
    NOT_BEGUN,
    PREPARATION_DONE,
    PREPARED,
    UNOPENED,
    UNUSED,
    Bounds,
    Rows,
    State,
    World,
    said_rows,
)

COPY = (tasks.claim, tasks.open_chunk, tasks.read, tasks.write_rows, tasks.land, tasks.roll_back)
CATCH_UP = (catch_up.apply_batch, catch_up.match)
PREPARATION = (
    prepare.read_position,
    prepare.send_marker,
    prepare.list_branches,
    prepare.see_ended,
    prepare.read_range,
)
OTHERS = (
    application.show,
    application.write,
    application.prepare,
    application.end_branch,
    catch_up.write_share,
    catch_up.save,
    catch_up.crash,
    catch_up.pass_marker,
    catch_up.replace,
    catch_up.wake,
    catch_up.settle_dirty,
    catch_up.forget_dirty,
    tasks.settle,
    tasks.take_over,
    tasks.clear,
    tasks.begin_again,
)
ACTIONS = (*COPY, *CATCH_UP, *PREPARATION, *OTHERS)
"""All but those of a rule that is taken out."""


def actions_of(b: Bounds, rules: Rules) -> Iterator[Callable[..., Iterable[Step[State]]]]:
    """Those that can happen within the bounds."""
    yield from (application.show, *CATCH_UP, *COPY, application.write)
    if b.workers or not rules.checkpoint_behind_rows:
        yield catch_up.write_share
    if b.branches or b.branches_before:
        yield from (application.prepare, application.end_branch)
    if b.is_mariadb:
        yield tasks.settle
    if b.crashes:
        yield from (catch_up.save, catch_up.crash)
    if b.crashes or b.prepares or b.is_mariadb:
        yield catch_up.pass_marker
    if b.has_stale:
        yield from (catch_up.replace, catch_up.wake)
    if b.prepares:
        yield from PREPARATION
    if b.repairs:
        yield from (tasks.take_over, tasks.clear)
    if b.begins_again:
        yield tasks.begin_again
    if b.unique == "added":
        yield from (catch_up.settle_dirty, catch_up.forget_dirty)
    if not rules.dirty_under_lock:
        yield catch_up.pass_gate
    if not rules.landed_in_stream:
        yield catch_up.delete_late


@dataclass(frozen=True, slots=True)
class RowsModel:
    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    actions: Sequence[Callable[[State], Iterable[Step[State]]]] = field(init=False)

    def __post_init__(self) -> None:
        world = World(rules=self.rules, bounds=self.bounds)
        object.__setattr__(self, "actions", tuple(partial(a, world) for a in actions_of(self.bounds, self.rules)))

    def initial(self) -> list[State]:
        return [begun(self.bounds, rows) for rows in self.bounds.starts]

    def wrong(self, s: State) -> str | None:
        if s.failure:
            return wrong_failure(s)
        if is_level(self.rules, s) and s.shadow != s.source:
            return f"the source holds {said_rows(s.source)}, the new table {said_rows(s.shadow)}"
        return None

    def is_end(self, s: State) -> bool:
        return bool(s.failure) or is_level(self.rules, s) or is_out_of_rounds(s)


def begun(b: Bounds, rows: Rows) -> State:
    none = (NONE,) * len(rows)
    before = ((PREPARED, ((0, 2),)),) * b.branches_before
    s = State(
        source=rows,
        seen=rows,
        shadow=none,
        writes=b.writes,
        tombs=none,
        dirty=none,
        crashes=b.crashes,
        rounds=b.rounds,
        branches=before + ((UNUSED, ()),) * b.branches,
    )
    if b.prepares:
        return s._replace(stage=NOT_BEGUN)
    s = s._replace(ranges=b.ranges, chunks=((UNOPENED, 0),) * len(b.ranges), attempts=(0,) * len(b.splits))
    return repaired(s) if b.repairs else s


def repaired(s: State) -> State:
    """The first copy is matched, and a verification has found the shadow to be wrong: two repairs, one a driver."""
    return s._replace(ranges=s.ranges * 3, chunks=((MATCHED, 1), (UNOPENED, 0), (UNOPENED, 0)), attempts=(1, 0, 0))


def is_level(rules: Rules, s: State) -> bool:
    """The cut-over could happen: every rule of the gate holds and the barrier's marker would be applied now."""
    is_quiet = not s.hidden and not any(t.phase in HOLDS_LOCKS for t in s.tasks)
    is_applied = s.applied == len(s.log) and not s.todo
    has_branch = any(state == PREPARED and changes for state, changes in s.branches)
    if not (s.stage == PREPARATION_DONE and is_quiet and is_applied) or has_branch or s.late:
        return False
    return is_copied(rules, s) and is_clean(rules, s)


def is_copied(rules: Rules, s: State) -> bool:
    """ledger.Left.is_nothing."""
    wanted = (MATCHED,) if rules.gate_matched else (LANDED, MATCHED)
    states = [state for state, _ in s.chunks if state != UNOPENED or rules.gate_copied]
    return all(state in wanted for state in states) and (rules.gate_copied or bool(states))


def is_clean(rules: Rules, s: State) -> bool:
    if not rules.gate_dirty or (s.has_passed_gate and not rules.dirty_under_lock):
        return True
    return not catch_up.is_dirty(s)


def is_out_of_rounds(s: State) -> bool:
    return catch_up.is_dirty(s) and not s.rounds


def wrong_failure(s: State) -> str | None:
    """A failure is right only where a row could not have been right."""
    return s.failure if "unknown" in s.failure else None
