"""Shows a run while it lasts: bars on a terminal, a line every few seconds elsewhere, JSON lines for programs.

What must stay true: a display only shows; one that cannot be written to (a closed pipe) raises, and the run is stopped
cleanly by who called.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from rich.console import Console
from rich.live import Live

from vreplication.cli import figures, logs
from vreplication.cli.bars import View
from vreplication.cli.say import json_line, tell
from vreplication.masking import mask
from vreplication.progress import numbers
from vreplication.progress.snapshot import Snapshot

LINE_SECONDS = 3.0
JSON_SECONDS = 0.8
"""A progress line "at least every second": a little less, so that a late tick does not break it."""
_log = logging.getLogger("vreplication.run")


S = TypeVar("S", contravariant=True)


class Display(Protocol[S]):
    """Told the newest snapshot some times a second (`tick`), and of single happenings (`note`).

    `note` is called by the work, from any thread, and never raises.
    """

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def tick(self, snapshot: S, *, is_stopping: bool) -> None: ...

    def note(self, text: str) -> None: ...


class Bars:
    """Bars that are drawn in place; notes scroll above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view = View()
        # Drawn by `tick` alone: in Rich's own thread a closed pipe would raise where nobody hears of it.
        self._live = Live(self._view, console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Bars:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tick(self, snapshot: Snapshot, *, is_stopping: bool) -> None:
        self._view.update(snapshot, is_stopping=is_stopping)
        self._live.refresh()

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(mask(text), markup=False, highlight=False, style="bright_black")


class LineDisplay:
    """Lines every few seconds, and at once when it is told of another place."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last: tuple[str, float] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say_if_due(self, where: str, lines: Sequence[str]) -> None:
        """Unless the same place was told of a moment ago."""
        now = self._monotonic()
        if self._last and self._last[0] == where and now - self._last[1] < LINE_SECONDS:
            return
        self._last = where, now
        for each in lines:
            self._print(each)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._print(text)

    def _print(self, text: str) -> None:
        # Notes come from the work's threads while `tick` writes from the main one.
        with self._lock:
            tell(text if logs.is_json() else f"{time.strftime('%H:%M:%S')} {text}")


class Lines(LineDisplay):
    """A line every few seconds, and one at once when the phase changes."""

    def tick(self, snapshot: Snapshot, *, is_stopping: bool) -> None:
        where = f"{snapshot.phase}{snapshot.is_paused}{is_stopping}"
        self.say_if_due(where, [line(snapshot) + (" · stopping" if is_stopping else "")])


class JsonDisplay:
    """JSON lines at least every second; notes go to the log."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def is_due(self) -> bool:
        """True at most once in JSON_SECONDS."""
        now = self._monotonic()
        if self._last is not None and now - self._last < JSON_SECONDS:
            return False
        self._last = now
        return True

    def note(self, text: str) -> None:
        _log.info("%s", text)


class JsonLines(JsonDisplay):
    """A line of one workflow."""

    def tick(self, snapshot: Snapshot, *, is_stopping: bool) -> None:
        if self.is_due():
            json_line(snapshot.as_json())


def choose(*, is_json: bool) -> Display[Snapshot]:
    """JSON when asked for, bars on a terminal, lines elsewhere."""
    if is_json:
        return JsonLines()
    console = Console()
    # On a terminal the log's JSON lines would come between what is drawn in place.
    if logs.is_json():
        return Lines()
    return Bars(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


def line(snapshot: Snapshot) -> str:
    """A snapshot in one line."""
    parts = [figures.phase(snapshot), *_copy_parts(snapshot), figures.catch_up(snapshot)]
    if snapshot.verify_rows is not None and snapshot.verify_total and not snapshot.verdict:
        parts.append(f"verified {numbers.short(snapshot.verify_rows)} of ~{numbers.short(snapshot.verify_total)} rows")
    parts += [figures.eta(snapshot), *figures.notes(snapshot)]
    return " · ".join(part for part in parts if part)


def _copy_parts(snapshot: Snapshot) -> list[str]:
    if snapshot.percent is None and not snapshot.rows_copied:
        return []
    known = [figures.percent(snapshot.percent)] if snapshot.percent is not None else []
    return [*known, figures.rows(snapshot), figures.per_second(snapshot.rows_per_second, "rows")]
