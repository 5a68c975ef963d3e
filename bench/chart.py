"""What was measured beside the peers, as one picture: a column of panels a server.

What must stay true: bars are medians and their whiskers go from the least to the greatest value; seconds begin at zero.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from bench.report import Samples
from bench.scenarios import SCENARIOS, TOOLS

_COLORS = {"ours": "#2563eb", "gh-ost": "#94a3b8", "spirit": "#c4b5a0", "pt-online-schema-change": "#cbd5e1"}
_PANELS = (
    ("seconds", "seconds from start to exit", ("whole", "load", "wide", "large"), False),
    ("p99", "writers' p99 meanwhile, ms", ("load",), True),
)


def draw(measured: Mapping[str, Samples], conditions: str, path: Path) -> None:
    shown = [panel for panel in _PANELS if any(_groups(panel, found) for found in measured.values())]
    if not shown:
        return
    size = (6.4 * len(measured), 3.9 * len(shown) + 0.8)
    figure, axes = pyplot.subplots(len(shown), len(measured), squeeze=False, figsize=size, layout="constrained")
    for row, panel in zip(axes, shown, strict=True):
        for place, (flavor, found) in zip(row, measured.items(), strict=True):
            _panel(place, panel, found)
            place.set_title(flavor)
    figure.supxlabel(textwrap.fill(conditions, 95 * len(measured)), fontsize=7, color="#64748b")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _groups(panel: Any, found: Samples) -> list[str]:
    figure, _, scenarios, _ = panel
    return [name for name in scenarios if any(f"{name}.{tool.name}.{figure}" in found for tool in TOOLS)]


def _panel(place: Any, panel: Any, found: Samples) -> None:
    """A group of bars a scenario, a bar a tool that was measured in any of them."""
    figure, label, _, is_logarithmic = panel
    groups = _groups(panel, found)
    here = [tool.name for tool in TOOLS if any(f"{name}.{tool.name}.{figure}" in found for name in groups)]
    width = 0.8 / max(len(here), 1)
    for number, tool in enumerate(here):
        places = [n + (number - (len(here) - 1) / 2) * width for n in range(len(groups))]
        _bars(place, places, [found.get(f"{name}.{tool}.{figure}", ()) for name in groups], width, tool)
    place.set_xticks(range(len(groups)), [SCENARIOS[name].sentence for name in groups])
    place.set_ylabel(label)
    place.spines[["top", "right"]].set_visible(False)
    if is_logarithmic:
        place.set_yscale("log")
    place.legend(frameon=False, fontsize=8)


def _bars(place: Any, places: Sequence[float], values: Sequence[Sequence[float]], width: float, tool: str) -> None:
    there = [(x, found) for x, found in zip(places, values, strict=True) if found]
    middle = [statistics.median(found) for _, found in there]
    spans = [[m - min(f) for m, (_, f) in zip(middle, there, strict=True)]]
    spans.append([max(f) - m for m, (_, f) in zip(middle, there, strict=True)])
    bars = place.bar(
        [x for x, _ in there], middle, 0.92 * width, yerr=spans, label=tool, color=_COLORS[tool], capsize=2
    )
    place.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
