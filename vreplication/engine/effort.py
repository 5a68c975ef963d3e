"""How hard a running copy works: what is asked for, what of it is possible, and the operator's act that changes it.

What must stay true: a wrong value is the sentence that the command line and the form have for it; who asked, and what
was before, is journaled; nothing restarts: whoever copies reads the row (docs/concepts.md, Tuning).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vreplication.engine.job import limits_of, request_of
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import OVER, Phase
from vreplication.planning import throttle_checks
from vreplication.planning.request import EFFORT, HELD_BY
from vreplication.planning.spec import make_spec
from vreplication.settings import Limits, Tuning
from vreplication.state import journal, layout, lease, throttling, tuning, workflows
from vreplication.state.workflows import WorkflowRow

WHEN = (
    "The time holds from each task's next chunk on. A task more starts within seconds, one less stops behind its chunk."
)
OFF = "off"
"""Of what holds it back: nothing, as by default."""
_NONE = {"latency_factor": 0.0}
"""What `off` means, where that is not the default."""
_COPIED = frozenset({Phase.VERIFYING, Phase.WAITING, Phase.CUTTING_OVER, Phase.SWITCHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """limits: as asked for now, and what nobody may go beyond. slots: of Spark's local master, where it is known."""

    limits: Limits
    asked: Tuning
    slots: int | None = None

    @property
    def tasks(self) -> int:
        """That run at a time at the most."""
        return min(self.limits.copy_parallelism, self.slots or self.limits.copy_parallelism)

    @property
    def shortfall(self) -> str:
        """Why not all of what was asked for is done; '' when it is."""
        wanted, millis = self.asked.copy_parallelism or 0, self.asked.chunk_millis or 0
        if millis > self.limits.most_chunk_millis:
            return (
                "INSERT … SELECT locks the counter of an AUTO_INCREMENT table here, so it stays at "
                f"{self.limits.chunk_millis} ms a chunk."
            )
        return f"Spark has slots for {self.slots}: no more run at a time." if wanted > self.tasks else ""


def effort(session: Session, row: WorkflowRow) -> Effort:
    """As of now, by the sidecar alone."""
    asked, room = tuning.read(session, row.id), tuning.room(session, row.id)
    base = limits_of(request_of(row), holds_counter=room.holds_counter)
    return Effort(limits=base.tuned(asked), asked=asked, slots=room.slots)


def tune(url: SourceUrl, workflow: str, by: str, asked_for: Mapping[str, object]) -> str:
    """Set `copy_parallelism`, `chunk_millis` or both; returns what comes of it, in words. Raises Refused."""
    asked, held = checked(asked_for)
    with connect(url) as session:
        layout.complete(session)
        row = workflows.load(session, workflow)
        _refuse(row, asked)
        before = effort(session, row)
        now = request_of(row, {**throttling.read(session, workflow), **held})
        # A move's query is asked on its source, which is not known here.
        throttle_checks.demand(session, now, held.keys() - ({"throttle_query"} if _is_move(row) else set()))
        words = [_change(before, asked), _held_change(session, row, held)]
        # All that may refuse has been asked by now: a command that is refused has set nothing.
        if asked != Tuning():
            tuning.ask(session, workflow, asked)
        if held:
            throttling.change(session, workflow, held)
        journal.write(session, workflow, "tuned", ", ".join(filter(None, words)), actor=by)
        what = ", ".join(filter(None, [_what(asked), *(f"{n.replace('_', '-')} {_shown(v)}" for n, v in held.items())]))
        return " ".join([f"Set: {what}.", *(_remarks(session, row) if asked != Tuning() else ["It holds at once."])])


def checked(asked_for: Mapping[str, object]) -> tuple[Tuning, dict[str, Any]]:
    """By the fields of the Spec, so with its limits and its words: what of the effort, and what is to hold it back.

    Raises Refused.
    """
    given = {name: value for name, value in asked_for.items() if value is not None}
    if unknown := sorted(given.keys() - {*EFFORT, *HELD_BY}):
        raise Refused(f"{unknown[0]}: there is no such setting.")
    if not given:
        raise Refused(
            "Nothing to set is given.", cure="Give copying tasks at a time, milliseconds a chunk, or a limit."
        )
    wanted = {name: _NONE.get(name) if value == OFF else value for name, value in given.items()}
    if wrong := sorted(name for name in EFFORT if given.get(name) == OFF):
        raise Refused(f"{wrong[0]} cannot be {OFF}.")
    spec = make_spec(table="t", alter="t", **wanted)
    held = {name: getattr(spec, name) for name in HELD_BY if name in given}
    return Tuning(**{name: getattr(spec, name) for name in EFFORT if name in given}), held


def _is_move(row: WorkflowRow) -> bool:
    return "tables" in row.spec


def _held_change(session: Session, row: WorkflowRow, held: Mapping[str, Any]) -> str:
    """For the journal."""
    before = request_of(row, throttling.read(session, row.id))
    changes = ((name.replace("_", "-"), value, getattr(before, name)) for name, value in held.items())
    return ", ".join(f"{name}: {_shown(value)} (was {_shown(old)})" for name, value, old in changes)


def _shown(value: object) -> str:
    return OFF if value is None else str(value)


def _refuse(row: WorkflowRow, asked: Tuning) -> None:
    if row.is_cut or row.phase in OVER:
        raise Refused(f"Workflow {row.id} copies no more ({row.phase}) and cannot be tuned.")
    rows = row.spec.get("chunk_rows")
    if asked.chunk_millis is not None and rows:
        raise Refused(f"The chunks of workflow {row.id} were fixed at {rows:,} rows when it began: they have no time.")


def _what(asked: Tuning) -> str:
    tasks, millis = asked.copy_parallelism, asked.chunk_millis
    words = [] if tasks is None else [f"{tasks} copying task{'s' if tasks > 1 else ''} at a time"]
    return ", ".join([*words, *([] if millis is None else [f"{millis:,} ms a chunk"])])


def _change(before: Effort, asked: Tuning) -> str:
    """For the journal."""
    tasks, millis = asked.copy_parallelism, asked.chunk_millis
    words = [] if tasks is None else [f"copying tasks at a time: {tasks} (was {before.limits.copy_parallelism})"]
    words += [] if millis is None else [f"time of a chunk: {millis:,} ms (was {before.limits.chunk_millis:,} ms)"]
    return ", ".join(words)


def _remarks(session: Session, row: WorkflowRow) -> list[str]:
    shortfall = effort(session, row).shortfall
    return [text for text in (shortfall, _when(session, row)) if text]


def _when(session: Session, row: WorkflowRow) -> str:
    if row.phase in _COPIED:
        return "The rows are copied; it holds for what is verified or copied again."
    return WHEN if lease.is_alive(session, row.id, lease.DRIVER) else "No copy is running; it holds when one does."
