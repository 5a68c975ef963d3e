"""The maintenance window of a cut-over: open, it releases; closed, it takes its own release back.

What must stay true: a person's release counts at any time and is never taken back; a paused workflow is not released;
each step is one statement that does nothing when somebody has released in the meantime.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from vreplication.mysql.session import Session
from vreplication.planning.window import Window
from vreplication.state import gate, journal, workflows

_BY = "maintenance window"


class Step(StrEnum):
    RELEASE = "release"
    WITHDRAW = "withdraw"
    NONE = "none"


def named(window: str) -> str:
    """Who has released, where a window did."""
    return f"{_BY} {window}"


def is_a_windows(by: str) -> bool:
    """Of who has released: it was a window, and no person."""
    return by.startswith(f"{_BY} ")


def due(window: Window, moment: datetime, released_by: str | None, *, is_paused: bool) -> Step:
    """What is to be done about the release now."""
    is_open = window.is_open(moment)
    if released_by is None:
        return Step.RELEASE if is_open and not is_paused else Step.NONE
    return Step.WITHDRAW if not is_open and is_a_windows(released_by) else Step.NONE


def keep(session: Session, workflow: str, window: str) -> None:
    """To be called again and again by whoever is about to switch."""
    by, is_paused = gate.released_by(session, workflow), workflows.load(session, workflow).is_paused
    step = due(Window.parse(window), now(), by, is_paused=is_paused)
    # Not over a person's release, which may have come since the look: the window would take it back when it closes.
    if step is Step.RELEASE and gate.release_first(session, workflow, named(window)):
        journal.write(session, workflow, "released", actor=named(window))
    elif step is Step.WITHDRAW and by and gate.withdraw(session, workflow, by):
        journal.write(session, workflow, "release withdrawn", "its time is over", actor=by)


def forget(session: Session, workflow: str) -> None:
    """Of one that goes on without its window: what that has released is not released by a person."""
    by = gate.released_by(session, workflow)
    if by and is_a_windows(by) and gate.withdraw(session, workflow, by):
        journal.write(session, workflow, "release withdrawn", "it goes on without its window", actor=by)


def now() -> datetime:
    return datetime.now(UTC)
