"""Shorter pauses between two looks, for flows without a JVM: a table of a few rows is ready long before the next look.

What must stay true: what is looked at, and how often in a row it has to be so, stays as it is, and so do the deadlines
of whoever waits for us; flows with a JVM take the pauses that a user's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def hurry(patch: Callable[[Any, str, float], None]) -> None:
    """patch: what sets a module's name to a value, as `monkeypatch.setattr`."""
    from vreplication.engine import beater
    from vreplication.spark import jobs
    from vreplication.workflows.online_ddl import gate

    patch(beater, "GATE_PERIOD_SECONDS", 0.1)
    patch(gate, "_POLL_SECONDS", 0.1)
    patch(gate, "_CLEAR_SECONDS", 0.05)
    # Without a JVM no one ends a task, which would be waited for in vain.
    patch(jobs, "STOP_SECONDS", 2.0)
