"""Recorded runs, told to a forecast again: what `python -m bench.eta` saw each second, in few columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vreplication.phases import Phase
from vreplication.progress.forecast import Forecast, Outlook, Table
from vreplication.progress.snapshot import Snapshot
from vreplication.state.forecasts import Pace

COLUMNS = (
    "rows_copied", "rows_total", "applied_per_second", "lag_seconds", "backlog", "apply_eta_seconds", "converging",
    "throttled", "verify_rows", "waiting_for",
)  # fmt: skip
TABLE = Table(name="bench.stress_test_pk", rows=2_000_000, row_bytes=75)
Said = tuple[float, dict[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """seen: (seconds since the command's start, what there was to see, None before there was anything).

    phases: when each began.
    """

    name: str
    whole: float
    phases: dict[Phase, float]
    seen: Sequence[tuple[float, Snapshot | None]]


def compact(found: dict[str, Any]) -> list[Any]:
    """Of one server, as bench.eta writes it."""
    return [
        {
            "name": name,
            "whole": round(run["whole"], 2),
            "phases": run.get("phases", {}),
            "seen": [[round(at, 2), _short(s)] for at, s in run["samples"]],
        }
        for name, run in found.items()
    ]


def _short(seen: dict[str, Any] | None) -> list[Any] | None:
    if seen is None:
        return None
    values = [seen[name] for name in COLUMNS]
    return [seen["phase"], *(round(v, 2) if isinstance(v, float) else v for v in values)]


def load(path: Path) -> list[Recorded]:
    return loaded(json.loads(path.read_text()))


def loaded(runs: list[Any]) -> list[Recorded]:
    return [
        Recorded(
            name=run["name"],
            whole=run["whole"],
            phases={Phase(name): at for name, at in run["phases"].items()},
            seen=[(at, s and _snapshot(s)) for at, s in run["seen"]],
        )
        for run in runs
    ]


def _snapshot(values: list[Any]) -> Snapshot:
    phase, *others = values
    return Snapshot(workflow="w", phase=Phase(phase), **dict(zip(COLUMNS, others, strict=True)))


def replay(run: Recorded, past: list[Pace], table: Table = TABLE) -> tuple[list[Said], list[Pace]]:
    """What is said of it each second, and what it leaves for later ones."""
    forecast, said = Forecast(past, table), []
    entered = sorted(run.phases.items(), key=lambda item: item[1])
    for at, seen in run.seen:
        while entered and entered[0][1] <= at:
            forecast.enter(*entered.pop(0))
        found = None if seen is None else forecast.observe(at, seen, Phase.COMPLETE)
        said.append((at, None if found is None else _fields(found)))
    forecast.enter(Phase.COMPLETE, run.whole)
    return said, forecast.finished[::-1]


def _fields(found: Outlook) -> dict[str, Any]:
    return {
        "eta_seconds": found.eta_seconds,
        "eta_low_seconds": found.low_seconds,
        "eta_high_seconds": found.high_seconds,
        "reason": found.reason,
    }
