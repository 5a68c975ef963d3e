"""Lakes on the page: what the runs that fill them have told last, in words.

What must stay true: as in `view`: everything is data, and an unknown figure is never shown as 0; of several runs that
fill one directory the newest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from vreplication.masking import masked
from vreplication.progress import metrics, numbers
from vreplication.progress.fed import AHEAD_MICROS
from vreplication.ui import Run
from vreplication.ui.detail import run_path, task_path
from vreplication.ui.feeds import Data, at

STALE_SECONDS = 30.0
"""It is told every four, unless Spark, or Airflow, is busy."""
_GOING, _DONE = "running", "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A run that fills one. state: Airflow's, of the run. told: as airflow/lakes.py has told it last."""

    run: Run
    state: str
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> str:
        return str(self.told.get("directory") or "")

    def is_filled(self, now: float) -> bool:
        """Some process does."""
        # Both: Airflow calls a run running until it has missed its worker, and one that has ended has told something
        # just now.
        return self.state == _GOING and now - float(self.told.get("at") or 0) <= STALE_SECONDS


def newest(found: Iterable[Lake]) -> list[Lake]:
    """One a directory. found: the newest first."""
    by_directory: dict[str, Lake] = {}
    for each in found:
        if each.directory:
            # One that has told nothing so far has no directory, and says nothing against the run before it.
            by_directory.setdefault(each.directory, each)
    return [by_directory[name] for name in sorted(by_directory)]


def shown(lake: Lake, now: float) -> Data:
    """As a list's row and the run's page show it."""
    told, is_filled = lake.told, lake.is_filled(now)
    tone, state = _state(lake, is_filled=is_filled)
    found = {
        "directory": lake.directory,
        "topic": told.get("topic"),
        "tone": tone,
        "state": state,
        "told_at": _time(told.get("at")),
        "manifest": told.get("manifest"),
        "generation": told.get("generation") or "not begun",
        "partitions": told.get("partitions"),
        "resolved_at": at(told.get("watermark_micros")),
        "lag_seconds": _lag(told, now) if is_filled else None,
        "lag": _lag_words(told, now, is_filled=is_filled),
        "tables": _count(told.get("tables")),
        "files": _count(told.get("files")),
        "changes": _count(told.get("changes")),
        "nbytes": _bytes(told.get("nbytes")),
        "waiting_for": told.get("waiting_for") if is_filled else None,
        "run": {"run_id": lake.run.run_id, "url": run_path(lake.run), "log_url": task_path(lake.run, "fill")},
        "page": f"runs/{lake.run.dag_id}/{quote(lake.run.run_id, safe='')}",
        "expected": _expected(lake, is_filled=is_filled),
    }
    # Of a topic and a directory that somebody has typed, and of what Kafka has said: no connection's secrets are known
    # here.
    return dict(masked(found))


def _state(lake: Lake, *, is_filled: bool) -> tuple[str, str]:
    """Its color, and the word for it."""
    if is_filled:
        return ("held", "waits") if lake.told.get("waiting_for") else ("moving", "filled")
    if lake.state == _GOING:
        return "held", "no sign of life"
    return ("ended", "ended") if lake.state == _DONE else ("failed" if lake.state == "failed" else "ended", lake.state)


def _expected(lake: Lake, *, is_filled: bool) -> str:
    if is_filled:
        return "Nothing: it goes on until somebody ends the run."
    if lake.state == _GOING:
        return "Nothing: Airflow tries the task again, and it goes on where the manifest says."
    if lake.state == "failed":
        return "Clear the task once the cause is gone; its log says what it is."
    return "Nothing. To go on, clear the task, or trigger a run with the same directory."


def _lag(told: Mapping[str, Any], now: float) -> float | None:
    micros = told.get("watermark_micros")
    return max(0.0, now - int(micros) / 1e6) if micros and not _is_ahead(told, now) else None


def _is_ahead(told: Mapping[str, Any], now: float) -> bool:
    """Times of the log are still to be: they do not tell how late the lake is."""
    return int(told.get("watermark_micros") or 0) > int(now * 1e6) + AHEAD_MICROS


def _lag_words(told: Mapping[str, Any], now: float, *, is_filled: bool) -> str:
    lag = _lag(told, now)
    if lag is None and not _is_ahead(told, now):
        return "not known yet"
    if not is_filled:
        return "not being filled"
    return "not known: times of the log are ahead of the clock" if lag is None else numbers.duration(lag)


def _count(value: Any) -> str:
    return "not known" if value is None else numbers.count(int(value))


def _bytes(value: Any) -> str:
    if value is None:
        return "not known"
    return f"{int(value) / (1 << 20):,.1f} MiB"


def _time(seconds: Any) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(float(seconds), UTC).isoformat()[:19]}Z"


def samples(found: Iterable[Lake], now: float) -> list[metrics.Sample]:
    """For Prometheus."""
    return [
        sample
        for each in found
        for sample in metrics.of_lake(
            each.directory, str(each.told.get("topic") or ""), each.told, is_up=each.is_filled(now)
        )
    ]
