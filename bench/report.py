"""Medians, ratios, targets: what was measured as one table."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Samples = Mapping[str, Sequence[float]]
"""Figure → its values in the order of the runs. Ratios are made within a run, of its own two sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """unit: "" for a ratio. target: at most this much (`at_least`: at least); None where there is none."""

    name: str
    sentence: str
    unit: str = "s"
    mysql: float | None = None
    mariadb: float | None = None
    at_least: bool = False

    def target(self, flavor: str) -> float | None:
        return self.mysql if flavor == "mysql" else self.mariadb


FIGURES = (
    Figure(name="insert_select", sentence="one INSERT … SELECT of the whole table"),
    Figure(name="copy", sentence="row copy, two Spark tasks, path as `auto` chooses"),
    Figure(name="copy_ratio", sentence="row copy ÷ INSERT … SELECT", unit="", mysql=0.75, mariadb=0.95),
    Figure(name="copy_10000", sentence="row copy in chunks of 10,000 rows"),
    Figure(name="copy_largest", sentence="row copy in the largest chunks (65,535 rows)"),
    Figure(name="limit_ratio", sentence="LIMIT 10,000 ÷ unlimited", unit="", mysql=1.1, mariadb=1.1),
    Figure(name="replace", sentence="multi-row REPLACE of the updated rows, two connections"),
    Figure(name="drain", sentence="drain of the updated rows with the gate held"),
    Figure(name="drain_ratio", sentence="drain ÷ REPLACE", unit="", mysql=2.5, mariadb=2.5),
    Figure(name="backlog_drain", sentence="drain of the same rows in the middle of a copy"),
    Figure(name="stood_still", sentence="meanwhile no chunk is opened"),
    Figure(name="stood_ratio", sentence="copying stands still ÷ drain", unit="", mysql=1.1, mariadb=1.1),
    Figure(name="verify", sentence="verification of all rows"),
    Figure(name="verify_ratio", sentence="verification ÷ row copy", unit="", mysql=0.25, mariadb=0.25),
    Figure(name="around", sentence="everything else around the copy", mysql=12, mariadb=12),
)
RATIOS = {
    "copy_ratio": ("copy", "insert_select"),
    "limit_ratio": ("copy_10000", "copy_largest"),
    "drain_ratio": ("drain", "replace"),
    "stood_ratio": ("stood_still", "backlog_drain"),
    "verify_ratio": ("verify", "copy"),
}


def with_ratios(samples: Samples) -> dict[str, list[float]]:
    found = {name: list(values) for name, values in samples.items()}
    for name, (over, under) in RATIOS.items():
        found[name] = [a / b for a, b in zip(samples.get(over, ()), samples.get(under, ()), strict=False)]
    return found


def table(measured: Mapping[str, Samples], figures: Sequence[Figure] = FIGURES) -> str:
    """Markdown: a row a figure, a column a server; the median, with the least and the greatest behind it."""
    flavors = list(measured)
    lines = ["| figure | " + " | ".join(f"{f} | target" for f in flavors) + " |", "|---" * (1 + 2 * len(flavors)) + "|"]
    for figure in figures:
        cells = []
        for flavor in flavors:
            cells += [_cell(figure, measured[flavor].get(figure.name, ())), _target(figure, flavor)]
        lines.append(f"| {figure.sentence} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(figure: Figure, values: Sequence[float]) -> str:
    if not values:
        return "–"
    middle = statistics.median(values)
    span = f" ({_shown(figure, min(values))}–{_shown(figure, max(values))})" if len(values) > 1 else ""
    return f"**{_shown(figure, middle)}**{f' {figure.unit}' if figure.unit else ''}{span}"


def _shown(figure: Figure, value: float) -> str:
    return f"{value:.1f}" if figure.unit else f"{value:.2f}"


def _target(figure: Figure, flavor: str) -> str:
    target = figure.target(flavor)
    unit = f" {figure.unit}" if figure.unit else ""
    return "" if target is None else f"{'≥' if figure.at_least else '≤'} {target:g}{unit}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
