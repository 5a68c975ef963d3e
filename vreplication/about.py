"""What a line of the log is about: the workflow that its writer works on, and where that stands.

What must stay true: only told, never decided by; a thread that works on one of several workflows has said which.
"""

from __future__ import annotations

from contextvars import ContextVar

_of_thread: ContextVar[str] = ContextVar("workflow", default="")
_of_process = ""
_phases: dict[str, str] = {}


def enter(workflow: str) -> None:
    """What this process works on, as far as a thread does not know better."""
    global _of_process
    _of_process = workflow
    _phases.clear()


def this_thread(workflow: str) -> None:
    _of_thread.set(workflow)


def stands(workflow: str, phase: str) -> None:
    """It is known to be there."""
    _phases[workflow] = phase


def now() -> tuple[str | None, str | None]:
    """Workflow and phase; None: of none, or not known yet."""
    workflow = _of_thread.get() or _of_process
    return workflow or None, _phases.get(workflow)
