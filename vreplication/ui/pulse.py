"""Whether anybody acts: which part of Airflow is silent, and what was released and is not acted on.

What must stay true: nothing is said of a workflow that some process works on; the advice works without Airflow, and
holds no password.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from vreplication.mysql.url import SourceUrl
from vreplication.progress import numbers

UNHEEDED_SECONDS = 30.0
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Of a part of Airflow that acts on releases. since: of its last heartbeat; None: there never was one."""

    name: str
    since: datetime | None


def sentences(found: Sequence[Silence], now: datetime | None = None) -> list[str]:
    return [_sentence(each, now or datetime.now(UTC)) for each in found]


def _sentence(found: Silence, now: datetime) -> str:
    so = "releases will not be acted on."
    if found.since is None:
        return f"Airflow's {found.name} does not run; {so}"
    at = found.since.astimezone(UTC)
    clock = f"{at:%H:%M}" if now - at < _DAY else f"{at:%Y-%m-%d %H:%M}"
    return f"Airflow's {found.name} has been silent since {clock} UTC; {so}"


def unheeded(seconds: float | None, by: str | None) -> str | None:
    """seconds: for so long nobody has worked on what was released; None: somebody does, or nothing was."""
    # The triggerer looks each second, and then the scheduler has to find a worker: a while of nothing is ordinary.
    if seconds is None or seconds < UNHEEDED_SECONDS:
        return None
    return f"Released by {by or 'somebody'}, and nobody has acted on it for {numbers.duration(seconds)}."


def advice(workflow: str, home: SourceUrl, source: SourceUrl | None = None) -> str:
    """The command that carries a workflow on. source: of a move, whose home is the target."""
    where = ["--source", str(home)] if source is None else ["--source", str(source), "--target", str(home)]
    command = shlex.join(["vreplication", "resume", workflow, *where])
    password = "the password in VREPLICATION_PASSWORD"
    if source is not None:
        password = "the passwords in VREPLICATION_PASSWORD and VREPLICATION_TARGET_PASSWORD"
    return f"`{command}`, {password}, carries it on without Airflow."
