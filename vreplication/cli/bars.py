"""A snapshot as bars on a terminal: copy, catch-up, verification, and a line on what is expected of whom.

What must stay true: one color means one thing (blue moving, green proven, yellow waiting for somebody, red failed) and
never color alone; 80 columns are enough, and in fewer only the figures at the end of a line are cut.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vreplication.cli import figures
from vreplication.masking import mask
from vreplication.phases import Phase
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import GATE_LAG_SECONDS

MOVING, PROVEN, WAITING, FAILED, QUIET = "blue", "green", "yellow", "red", "bright_black"
_PHASE_COLORS = {
    Phase.COMPLETE: PROVEN,
    Phase.FAILED: FAILED,
    Phase.CANCELLED: FAILED,
    Phase.WAITING: WAITING,
    Phase.SWITCHED: PROVEN,
}
_NAME_WIDTH, _WORD_WIDTH, _FIGURES_WIDTH = 9, 8, 44
_FIXED_WIDTH = 10 + 9 + 2


class View:
    """Draws the newest snapshot; remembers the greatest lag, which is where the catch-up bar begins."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.is_stopping = False
        self._peak_lag = GATE_LAG_SECONDS

    def update(self, snapshot: Snapshot, *, is_stopping: bool = False) -> None:
        self.snapshot, self.is_stopping = snapshot, is_stopping
        # A lag has no whole of which it could be a share: the worst that was seen stands for it.
        self._peak_lag = max(self._peak_lag, snapshot.lag_seconds or 0.0)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.snapshot is None:
            return
        yield _title(self.snapshot)
        yield _steps(self.snapshot)
        yield self._bars(self.snapshot, options.max_width)
        yield from self._foot(self.snapshot)

    def _bars(self, snapshot: Snapshot, whole: int) -> Table:
        width = _bar_width(whole)
        table = Table.grid(padding=(0, 1))
        table.add_column(width=_NAME_WIDTH)
        table.add_column(width=width)
        table.add_column(width=_WORD_WIDTH, justify="right")
        # Without its own bound the others would be cut as well, the percentage first.
        rest = whole - _NAME_WIDTH - width - _WORD_WIDTH - 3
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(1, rest))
        for name, share, word, text in (_copy(snapshot), self._catch_up(snapshot), _verify(snapshot)):
            table.add_row(name, _bar(share, width, _color(snapshot, share)), word, Text(text))
        return table

    def _catch_up(self, snapshot: Snapshot) -> tuple[str, float | None, str, str]:
        lag, text = snapshot.lag_seconds, figures.catch_up(snapshot)
        if lag is None:
            done = 1.0 if snapshot.phase is Phase.COMPLETE else None
            applied = f"{numbers.count(snapshot.events_applied)} changes applied" if snapshot.events_applied else ""
            return "Catch-up", done, "–" if done is None else "done", applied
        if snapshot.is_level:
            return "Catch-up", 1.0, "level", text
        word = {True: "gaining", False: "losing", None: "behind"}[snapshot.converging]
        # Below 1, which is drawn as proven.
        return "Catch-up", min(0.99, max(0.0, 1.0 - lag / self._peak_lag)), word, text

    def _foot(self, snapshot: Snapshot) -> Iterator[Text]:
        if self.is_stopping:
            yield Text("stopping: what is done stays done; the same workflow goes on later", style=WAITING)
        if (line := figures.eta(snapshot)) and not self.is_stopping:
            yield Text(line)
        for note in figures.notes(snapshot):
            yield Text(mask(note), style=WAITING)


def _bar_width(whole: int) -> int:
    """Of a line of so many columns."""
    rest = whole - _FIXED_WIDTH
    return max(1, min(10, rest // 3), min(48, rest - _FIGURES_WIDTH))


def phase_color(snapshot: Snapshot) -> str:
    is_held = snapshot.is_paused and not snapshot.has_ended
    return WAITING if is_held else _PHASE_COLORS.get(snapshot.phase, MOVING)


def _title(snapshot: Snapshot) -> Text:
    color, words = phase_color(snapshot), figures.phase(snapshot)
    name = f"{snapshot.source_table}  " if snapshot.source_table else ""
    return Text.assemble((name, "bold"), (f"{snapshot.workflow}  ", QUIET), (words, f"bold {color}"))


def _steps(snapshot: Snapshot) -> Text:
    """● done  ◉ here  ○ to come."""
    words = numbers.steps(snapshot.phase)
    order = list(words)
    here = order.index(snapshot.phase) if snapshot.phase in words else len(order)
    if snapshot.phase in (Phase.FAILED, Phase.CANCELLED):
        return Text(mask(snapshot.reason or str(snapshot.phase)), style=FAILED)
    return Text("  ").join(_step(index, here, word) for index, word in enumerate(words.values()))


def _step(index: int, here: int, word: str) -> Text:
    if index < here:
        return Text(f"● {word}", style=PROVEN)
    return Text(f"◉ {word}", style=f"bold {MOVING}") if index == here else Text(f"○ {word}", style=QUIET)


def _copy(snapshot: Snapshot) -> tuple[str, float | None, str, str]:
    share = None if snapshot.percent is None else snapshot.percent / 100
    text = figures.rows(snapshot) if snapshot.rows_copied or snapshot.rows_total else ""
    rate = figures.per_second(snapshot.rows_per_second, "rows") if snapshot.phase is Phase.COPYING else ""
    return "Copy", share, figures.percent(snapshot.percent), " · ".join(p for p in (text, rate) if p)


def _verify(snapshot: Snapshot) -> tuple[str, float | None, str, str]:
    done, total = snapshot.verify_rows, snapshot.verify_total
    if snapshot.verdict and snapshot.phase is not Phase.VERIFYING:
        return "Verify", 1.0, snapshot.verdict, figures.verified(snapshot)
    if done is None or not total:
        return "Verify", None, "–", ""
    # Below 1: the total is an estimate, and a full bar is drawn as proven.
    share = min(done / total, 0.999)
    return "Verify", share, figures.percent(100 * share), f"{numbers.short(done)} of ~{numbers.short(total)} rows"


def _color(snapshot: Snapshot, share: float | None) -> str:
    if snapshot.phase in (Phase.FAILED, Phase.CANCELLED):
        return FAILED
    if share == 1.0:
        return PROVEN
    return WAITING if snapshot.is_paused or snapshot.throttled else MOVING


def _bar(share: float | None, width: int, color: str) -> ProgressBar:
    return ProgressBar(
        total=1.0,
        completed=share or 0.0,
        width=width,
        style=QUIET,
        complete_style=color,
        finished_style=color,
    )
