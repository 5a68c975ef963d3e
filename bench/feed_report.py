"""What the bench of feeds found, as files: each value as JSON, medians and ratios as Markdown."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.feed_contenders import OFTEN, ONCE, OURS
from bench.report import say
from bench.results import FOLDER
from sandbox.install import ROOT

WANTED = {
    "rows_per_second": "≥ 3",
    "p99_ms": "≤ 0.5",
    "resident_mib": "≤ 0.33",
}
"""Of ours divided by Debezium's with exactly-once."""
_BARE = frozenset({"duplicates", "lost", "rows", "rolled_back_sent", "committed_lost"})


@dataclass(slots=True, kw_only=True)
class Results:
    """records: one a run. options: sizes."""

    name: str
    options: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    at: str = field(default_factory=lambda: time.strftime("%Y%m%d-%H%M%S"))

    def __post_init__(self) -> None:
        """To what is there under this name records are added; rounds are counted on."""
        path = self._folder / "results.json"
        if self.name and path.exists():
            found = json.loads(path.read_text())
            self.machine, self.records = found["machine"], found["records"]

    @property
    def _folder(self) -> Path:
        return FOLDER / self.name if self.name else FOLDER / "scratch" / f"feed-{self.at}"

    def add(
        self, flavor: str, scenario: str, cell: str, contender: str, number: int, figures: dict[str, float]
    ) -> None:
        shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items()) or "failed"
        say(f"  {flavor}, {scenario}, {cell}, {contender}: {shown}")
        # Of a further run under this name rounds are counted on.
        is_same = {"flavor": flavor, "scenario": scenario, "cell": cell, "contender": contender}
        number = max(number, 1 + sum(is_same.items() <= record.items() for record in self.records))
        self.records.append(
            {
                **is_same,
                "round": number,
                "figures": {name: round(value, 3) for name, value in figures.items()},
            }
        )
        self.save()

    def save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        found = {"machine": self.machine, "options": self.options, "records": self.records}
        (self._folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        (self._folder / "README.md").write_text(self.in_words() + "\n")

    def finish(self) -> str:
        self.save()
        return f"{self.in_words()}\n\nwritten to {self._folder.relative_to(ROOT)}"

    def in_words(self) -> str:
        parts = [f"# Measured: {self.name or self.at}"]
        if self.machine:
            parts.append(machine.in_words(self.machine))
        parts.append(", ".join(f"{name} {value}" for name, value in self.options.items()))
        for flavor, scenario in dict.fromkeys((r["flavor"], r["scenario"]) for r in self.records):
            found = [r for r in self.records if (r["flavor"], r["scenario"]) == (flavor, scenario)]
            parts.append(f"## {flavor}, {scenario}\n\n{table(found)}")
        return "\n\n".join(parts)


def table(records: Sequence[dict[str, Any]]) -> str:
    """A row a cell and figure, a column a contender: medians; ratios are made within rounds."""
    there = {record["contender"] for record in records}
    names = [name for name in (OURS, ONCE, OFTEN) if name in there] or sorted(there)
    has_ratio = {OURS, ONCE} <= there
    more = " ours ÷ exactly once | wanted |" if has_ratio else ""
    lines = [f"| | | {' | '.join(names)} |{more}", f"|---|---|{'---|' * len(names)}{'---|---|' if has_ratio else ''}"]
    for cell in dict.fromkeys(record["cell"] for record in records):
        own = [record for record in records if record["cell"] == cell]
        figures = dict.fromkeys(name for record in own for name in record["figures"])
        if not figures:
            lines.append(f"| {_plain(cell)} | failed: {own[0]['contender']} |")
        for figure in figures:
            values = [_values(own, name, figure) for name in names]
            shown = " | ".join(_median(each) for each in values)
            ratio = f" {_ratio(values[0], values[1], figure)} | {WANTED.get(figure, '')} |" if has_ratio else ""
            lines.append(f"| {cell} | {figure} | {shown} |{ratio}")
    return "\n".join(lines)


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def _values(records: Sequence[dict[str, Any]], contender: str, figure: str) -> dict[int, float]:
    return {
        record["round"]: record["figures"][figure]
        for record in records
        if record["contender"] == contender and figure in record["figures"]
    }


def _median(values: dict[int, float]) -> str:
    if not values:
        return "–"
    middle = statistics.median(values.values())
    return f"{middle:,.0f}" if middle >= 100 or middle == int(middle) else f"{middle:.2f}"


def _ratio(ours: dict[int, float], theirs: dict[int, float], figure: str) -> str:
    both = [ours[n] / theirs[n] for n in sorted(ours.keys() & theirs.keys()) if theirs[n]]
    return "" if figure in _BARE or not both else f"{statistics.median(both):.2f}"
