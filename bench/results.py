"""What a run of the bench found, as files: everything as JSON, tables as Markdown, a chart as PNG.

A run with a name (BENCH_NAME, `--name`) is written to bench/results/NAME and may be committed; any other to
bench/results/scratch, which git ignores.

What must stay true: what has been measured is on the disk before the next measurement begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine, report
from bench.report import Figure
from bench.scenarios import RATIOS, SCENARIOS, Scenario
from sandbox.install import ROOT

FOLDER = ROOT / "bench" / "results"
_SHOWN = (("seconds", "whole", "s"), ("start", "until its first chunk", "s"), ("copy", "copy", "s"))
_SHOWN_LAST = (
    ("verify", "verification", "s"),
    ("server_cpu", "the server's CPU time", "s"),
    ("tool_cpu", "the tool's CPU time", "s"),
    ("others", "cores that all others used meanwhile", "cores"),
    ("slowness", "a fixed piece of work's CPU time, in multiples of its best", "×"),
)
_OF_WRITERS = (
    ("p50", "writers' p50", "ms"),
    ("p99", "writers' p99", "ms"),
    ("longest", "longest", "ms"),
    ("alone_p50", "p50 before", "ms"),
    ("alone_p99", "p99 before", "ms"),
    ("rate", "updates", "/s"),
)
Records = Sequence[Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class Result:
    """own: our own figures by server. records: runs beside the peers by server. missing: peers, and why."""

    name: str
    rows: int
    runs: int
    machine: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    at: str = field(default_factory=lambda: time.strftime("%Y%m%d-%H%M%S"))

    @classmethod
    def of(cls, name: str, rows: int, runs: int) -> Result:
        """A new one; where one of this name is there, that one, to which the runs beside the peers are added."""
        path = FOLDER / name / "results.json"
        if name and path.exists():
            return cls(**json.loads(path.read_text()))
        return cls(name=name, rows=rows, runs=runs)

    @property
    def folder(self) -> Path:
        return FOLDER / self.name if self.name else FOLDER / "scratch" / self.at

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "results.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    def finish(self) -> str:
        """Write everything; returns the tables."""
        self.save()
        text = in_words(self)
        (self.folder / "README.md").write_text(text + "\n")
        if self.records:
            _draw(self)
        return f"{text}\n\nwritten to {self.folder.relative_to(ROOT)}"


def in_words(result: Result) -> str:
    parts = [f"# Measured: {result.name or result.at}", machine.in_words(result.machine)]
    parts += [f"Without {name}: {reason}" for name, reason in result.missing.items()]
    if result.own:
        own = {flavor: report.with_ratios(found["samples"]) for flavor, found in result.own.items()}
        parts += [f"## Our own figures\n\n{result.rows:,} rows, {result.runs} runs.", report.table(own)]
    if result.records:
        measured = {flavor: samples(records) for flavor, records in result.records.items()}
        parts += _beside_peers(result, measured)
    return "\n\n".join(parts)


def _beside_peers(result: Result, measured: Mapping[str, report.Samples]) -> list[str]:
    """Medians with the least and the greatest."""
    ratios = [ratio.figure() for ratio in RATIOS if any(ratio.name in found for found in measured.values())]
    parts = ["## Beside the peers", report.table(measured, ratios)]
    for scenario in SCENARIOS.values():
        if figures := _figures(scenario, measured):
            rows = scenario.rows or result.rows
            parts += [f"### {scenario.name}: {scenario.sentence}; {rows:,} rows", report.table(measured, figures)]
    failed = [one for records in result.records.values() for one in records if one["failed"]]
    lines = [f"- {one['scenario']}, {one['contender']}, round {one['round']}: {one['failed']}" for one in failed]
    return [*parts, "### Runs that did not end well", *lines] if lines else parts


def _figures(scenario: Scenario, measured: Mapping[str, report.Samples]) -> list[Figure]:
    known = {name for found in measured.values() for name in found}
    shown = (*_SHOWN, *_SHOWN_LAST, *_OF_WRITERS)
    return [
        Figure(name=key, sentence=f"{contender.name}: {sentence}", unit=unit)
        for contender in scenario.contenders
        for name, sentence, unit in shown
        if (key := f"{scenario.name}.{contender.name}.{name}") in known
    ]


def samples(records: Records) -> dict[str, list[float]]:
    """`scenario.contender.figure` → its values; each ratio → its values, of two figures of one round each."""
    by_round: dict[str, dict[int, float]] = {}
    for record in records:
        if record["failed"]:
            continue
        for name, value in record["figures"].items():
            key = f"{record['scenario']}.{record['contender']}.{name}"
            by_round.setdefault(key, {})[record["round"]] = value
    found = {name: [values[n] for n in sorted(values)] for name, values in by_round.items()}
    for ratio in RATIOS:
        over, under = by_round.get(ratio.over, {}), by_round.get(ratio.under, {})
        if both := [over[n] / under[n] for n in sorted(over.keys() & under.keys()) if under[n]]:
            found[ratio.name] = both
    return found


def _draw(result: Result) -> None:
    try:
        from bench import chart
    except ImportError as error:
        report.say(f"bench: no chart: {error}")
        return
    measured = {flavor: samples(records) for flavor, records in result.records.items()}
    chart.draw(measured, machine.in_words(result.machine), result.folder / "chart.png")
