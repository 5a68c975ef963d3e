"""What a workflow looks like from outside at one moment: the one value that CLI, JSON and every page show.

What must stay true: read in one statement, so phase and figures belong together; a figure that is not known is None,
never 0; a figure about "now" whose writer has been silent for STALE_SECONDS is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from vreplication.mysql.session import Session
from vreplication.phases import ENDED, Phase
from vreplication.progress.estimate import UNMATCHED_PERCENT
from vreplication.settings import GATE_BACKLOG_CHANGES, GATE_LAG_SECONDS, PAUSED, holds_verification
from vreplication.state import forecasts, held, history, journal, layout, progress, workflows
from vreplication.state.workflows import strategy_of

STALE_SECONDS = 5.0
"""Both writers write each second; after five of them missed, what they wrote says nothing about now."""
APPLY = "apply "
"""Begins what throttles the copy where that is catch-up; behind it stands how far that is."""
_OF_CATCH_UP = ("lag_seconds", "backlog", "applied_per_second", "apply_eta_seconds", "throttled")
_SIZES = ("chunk_rows", "chunk_millis")
_OF_COPY = ("rows_per_second", "copy_eta_seconds", *_SIZES)
_ABOUT_NOW = (*_OF_CATCH_UP, *_OF_COPY, "converging", "behind", "waiting_for")
_IN_THE_PAST = ("rows_copied", "applied_per_second", "lag_seconds", "backlog", "cutover_attempts")
_FORETOLD = ("foretold_seconds", "eta_low_seconds", "eta_high_seconds")
_COLUMNS_OF_ETA = ("eta_seconds", "eta_low_seconds", "eta_high_seconds")
_AT_THE_GATE = frozenset({Phase.WAITING, Phase.CUTTING_OVER})
_BETWEEN_DRIVERS_SECONDS = 30.0
"""Where a scheduler runs the steps, nobody drives for so long between two of them, while catch-up goes on."""
_UNCOPIED = frozenset({Phase.PLANNING, Phase.PREPARING, Phase.COPYING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Progress of a workflow. Ages are by the server's clock; times of day are UTC.

    behind: how far catch-up is, also inside of a giant transaction, in words; in phases in which it throttles nothing.
    foretold_seconds: what the driver says of the time to its end, or to the gate (`eta_of`: complete, waiting).
    """

    workflow: str
    phase: Phase
    is_paused: bool = False
    is_cancel_requested: bool = False
    source_table: str | None = None
    shadow_table: str | None = None
    retired_table: str | None = None
    side: tuple[str, int] | None = None
    """The table of rows that gave way to others under a new unique key, and how many they were."""
    strategy: str | None = None
    """online, or instant or inplace; None: of another kind."""
    strategy_reason: str | None = None
    reason: str | None = None
    percent: float | None = None
    rows_copied: int = 0
    rows_total: int | None = None
    is_rows_total_exact: bool = False
    rows_per_second: float | None = None
    copy_eta_seconds: float | None = None
    chunk_rows: int | None = None
    chunk_millis: float | None = None
    lag_seconds: float | None = None
    backlog: int | None = None
    events_applied: int = 0
    applied_per_second: float | None = None
    apply_eta_seconds: float | None = None
    converging: bool | None = None
    throttled: str | None = None
    throttled_by: tuple[held.Values, ...] = ()
    waiting_by: tuple[held.Values, ...] = ()
    """The values of `throttled` and of `waiting_for`, as who writes these has noted them."""
    behind: str | None = None
    verify_rows: int | None = None
    verify_total: int | None = None
    verdict: str | None = None
    verified_seconds_ago: float | None = None
    keys_since: int | None = None
    foretold_seconds: float | None = None
    eta_low_seconds: float | None = None
    eta_high_seconds: float | None = None
    eta_of: Phase | None = None
    eta_reason: str | None = None
    waiting_for: str | None = None
    cutover_attempts: int = 0
    cutover_millis: float | None = None
    write_stall_millis: float | None = None
    created_at: datetime | None = None
    ended_at: datetime | None = None
    updated_seconds_ago: float | None = None

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def is_silent(self) -> bool:
        """At work by its phase, but nobody has written for a while: the process is dead, stopped or cut off."""
        age = self.updated_seconds_ago
        return not self.has_ended and age is not None and age > STALE_SECONDS

    @property
    def is_level(self) -> bool | None:
        """As near as the gate asks for. None: not known."""
        if self.lag_seconds is None or self.backlog is None:
            return None
        return self.lag_seconds < GATE_LAG_SECONDS and self.backlog < GATE_BACKLOG_CHANGES

    @property
    def throttle_reasons(self) -> list[held.Values] | None:
        """What holds the copy back, for programs: what is furthest beyond its limit first. None: not known."""
        if self.is_paused and not self.has_ended:
            return [{**_other(PAUSED), "code": "pause"}]
        return self._reasons(self.throttled, self.throttled_by)

    @property
    def gate_reasons(self) -> list[held.Values] | None:
        """What it waits for, for programs. None: not known."""
        return self._reasons(self.waiting_for, self.waiting_by)

    def _reasons(self, words: str | None, noted: tuple[held.Values, ...]) -> list[held.Values] | None:
        if words is not None:
            # The values are in a table of their own, which a writer of an earlier release does not know: then there are
            # words alone.
            return list(noted) or [_other(words)]
        return None if self.updated_seconds_ago is None or self.is_silent else []

    def aged(self, seconds: float) -> Snapshot:
        """What is left of it `seconds` after it was read: figures about now go when they are too old."""
        if self.updated_seconds_ago is None or self.has_ended:
            return self
        age = self.updated_seconds_ago + seconds
        gone: dict[str, Any] = dict.fromkeys((*_ABOUT_NOW, *_FORETOLD)) if seconds > STALE_SECONDS else {}
        left = {name: _less(getattr(self, name), seconds) for name in _FORETOLD}
        verified = None if self.verified_seconds_ago is None else self.verified_seconds_ago + seconds
        return replace(self, updated_seconds_ago=age, verified_seconds_ago=verified, **(left | gone))

    @property
    def eta_seconds(self) -> float | None:
        """Until it has ended, or waits for somebody at the gate (`eta_of`)."""
        if self.phase is Phase.COMPLETE:
            return 0.0
        if self.has_come_to_the_gate:
            return 0.0
        return None if self.is_paused or self.has_ended else self.foretold_seconds

    @property
    def has_come_to_the_gate(self) -> bool:
        """Where it waits for somebody, or for its window."""
        return self.eta_of is Phase.WAITING and self.phase in _AT_THE_GATE

    def as_json(self) -> dict[str, Any]:
        """The progress line of `--json`."""
        # docs/cli.md lists these names, and programs go by them.
        return {
            "event": "progress",
            "workflow": self.workflow,
            "phase": str(self.phase),
            "paused": self.is_paused,
            "percent": self.percent,
            "rows_copied": self.rows_copied,
            "rows_total": self.rows_total,
            "rows_total_exact": self.is_rows_total_exact,
            "copy_eta_seconds": self.copy_eta_seconds,
            "apply_eta_seconds": self.apply_eta_seconds,
            "eta_seconds": self.eta_seconds,
            "eta_low_seconds": self.eta_low_seconds,
            "eta_high_seconds": self.eta_high_seconds,
            "eta_of": None if self.eta_of is None else str(self.eta_of),
            "eta_reason": self.eta_reason,
            "lag_seconds": self.lag_seconds,
            "backlog": self.backlog,
            "converging": self.converging,
            "throttled": self.throttled,
            "throttle_reasons": self.throttle_reasons,
            "shadow_table": self.shadow_table,
        }

    def as_status_json(self) -> dict[str, Any]:
        """The progress line and what `status` adds to it."""
        return self.as_json() | {
            "source_table": self.source_table,
            "retired_table": self.retired_table,
            "side_table": self.side[0] if self.side else None,
            "side_rows": self.side[1] if self.side else None,
            "reason": self.reason,
            "strategy": self.strategy,
            "strategy_reason": self.strategy_reason,
            "rows_per_second": self.rows_per_second,
            "chunk_rows": self.chunk_rows,
            "chunk_millis": self.chunk_millis,
            "events_applied": self.events_applied,
            "behind": self.behind,
            "applied_per_second": self.applied_per_second,
            "verify_rows": self.verify_rows,
            "verify_total": self.verify_total,
            "verdict": self.verdict,
            "verified_seconds_ago": self.verified_seconds_ago,
            "keys_since": self.keys_since,
            "waiting_for": self.waiting_for,
            "gate_reasons": self.gate_reasons,
            "cutover_attempts": self.cutover_attempts,
            "cutover_millis": self.cutover_millis,
            "write_stall_millis": self.write_stall_millis,
            "created_at": _utc(self.created_at),
            "ended_at": _utc(self.ended_at),
            "updated_seconds_ago": self.updated_seconds_ago,
        }


def find(session: Session, workflow: str) -> Snapshot | None:
    """The workflow's snapshot, or None when there is no such workflow (yet)."""
    # A server without our sidecar has no such workflow: who looks is told so, and not of a missing table.
    rows = layout.look(session, lambda: progress.overview(session, workflow))
    return _snapshot(rows[0], forecasts.read(session, workflow), held.read(session, workflow)) if rows else None


def read(session: Session, workflow: str) -> Snapshot:
    """The workflow's snapshot. Raises Refused when there is none of that id."""
    found = find(session, workflow)
    if found is None:
        raise workflows.unknown(session, workflow)
    return found


def read_all(session: Session, *, over_seconds: float | None = None) -> list[Snapshot]:
    """Every workflow of this server, newest first. over_seconds: of those that are over, what ended within them."""
    rows = layout.look(session, lambda: progress.overview(session, over_seconds=over_seconds)) or ()
    foretold, noted = (forecasts.read(session), held.read(session)) if rows else ({}, {})
    return [_snapshot(row, foretold, noted) for row in rows]


def remember(session: Session, workflow: str) -> None:
    """A point of the history: what this moment looks like from outside."""
    seen = find(session, workflow)
    if seen is None:
        return
    is_copying = seen.phase is Phase.COPYING
    of_copy = {name: getattr(seen, name) if is_copying else None for name in ("rows_per_second", *_SIZES)}
    history.add(
        session,
        workflow,
        phase=str(seen.phase),
        throttled=PAUSED if seen.is_paused else seen.throttled,
        # At the gate 0 s is no promise that could be held against it later.
        eta_seconds=None if seen.has_ended or seen.has_come_to_the_gate else seen.eta_seconds,
        **of_copy,
        **{name: getattr(seen, name) for name in _IN_THE_PAST},
    )


def _snapshot(
    row: Mapping[str, Any],
    foretold: Mapping[str, Mapping[str, Any]],
    noted: Mapping[tuple[str, str], list[dict[str, Any]]],
) -> Snapshot:
    phase = Phase(row["phase"])
    driver_age, replicate_age = row["driver_age"], row["replicate_age"]
    return Snapshot(
        workflow=row["id"],
        phase=phase,
        is_paused=bool(row["paused"]),
        is_cancel_requested=bool(row["cancel_requested"]),
        source_table=f"{row['source_schema']}.{row['source_table']}",
        shadow_table=row["shadow_table"] or None,
        retired_table=row["retired_table"] or None,
        strategy=strategy_of(str(row["copy_path"])) if row["kind"] == "online_ddl" else None,
        strategy_reason=journal.reason_in(row["strategy_details"]) if row.get("strategy_details") else None,
        side=journal.put_aside(str(row["aside"])) if row.get("aside") else None,
        reason=row["reason"],
        events_applied=int(row["events_applied"] or 0),
        verdict=row["verdict"],
        verified_seconds_ago=row["verified_age"],
        keys_since=row.get("keys_since"),
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        throttled_by=tuple(noted.get((row["id"], held.COPY), ())),
        waiting_by=tuple(noted.get((row["id"], held.GATE), ())),
        # Either of them is a sign of life: where a scheduler runs the steps, nobody drives between two of them.
        updated_seconds_ago=min((a for a in (driver_age, replicate_age) if a is not None), default=None),
        **_of_copy(row, phase, _is_fresh(driver_age, phase)),
        **_of_catch_up(row, phase, _is_fresh(replicate_age, phase)),
        **_of_end(row, _is_fresh(driver_age, phase)),
        **_of_eta(foretold.get(row["id"]), phase, bool(row["paused"]), _is_fresh(replicate_age, phase)),
    )


def _is_fresh(age: float | None, phase: Phase) -> bool:
    return age is not None and age <= STALE_SECONDS and phase not in ENDED


def _of_copy(row: Mapping[str, Any], phase: Phase, is_fresh: bool) -> dict[str, Any]:
    # Until the driver has told of the copy, what was counted or estimated when it was prepared.
    total = row["rows_total"] if row["rows_total"] is not None else row["planned_rows"]
    # The driver writes on in later phases, and what it last wrote of the copy stays in the row.
    is_now = is_fresh and phase is Phase.COPYING
    return {
        "percent": _percent(row["percent"], phase),
        "rows_copied": int(row["rows_copied"] or 0),
        "rows_total": total,
        "is_rows_total_exact": bool(row["rows_total_exact"]),
        **{name: row[name] if is_now else None for name in _OF_COPY},
    }


def _percent(percent: float | None, phase: Phase) -> float | None:
    """While chunks are being copied the last one is not matched, whatever was written."""
    if phase is Phase.COMPLETE:
        return 100.0
    if percent is None or phase not in _UNCOPIED:
        return percent
    return min(percent, UNMATCHED_PERCENT)


def _of_catch_up(row: Mapping[str, Any], phase: Phase, is_fresh: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {name: row[name] if is_fresh else None for name in _OF_CATCH_UP}
    figures["behind"] = None
    is_held = phase is Phase.VERIFYING and holds_verification(figures["throttled"] or "")
    if phase is not Phase.COPYING and not is_held:
        # The chunk gate is shut in other phases too, but there it holds nothing back; an operator's limit also does
        # the verification.
        reason, figures["throttled"] = figures["throttled"] or "", None
        figures["behind"] = reason.removeprefix(APPLY) if reason.startswith(APPLY) else None
    converging = row["converging"] if is_fresh else None
    return figures | {"converging": None if converging is None else bool(converging)}


def _of_end(row: Mapping[str, Any], is_fresh: bool) -> dict[str, Any]:
    return {
        "verify_rows": row["verify_rows"],
        "verify_total": row["verify_total"],
        "waiting_for": row["waiting_for"] if is_fresh else None,
        "cutover_attempts": int(row["cutover_attempts"] or 0),
        "cutover_millis": row["cutover_millis"],
        "write_stall_millis": row["write_stall_millis"],
    }


def _of_eta(row: Mapping[str, Any] | None, phase: Phase, is_paused: bool, is_caught_up_with: bool) -> dict[str, Any]:
    """What the driver foretold, less the time that has gone by since."""
    if phase in ENDED:
        return {"eta_of": Phase.COMPLETE if phase is Phase.COMPLETE else None}
    reason = "paused" if is_paused else None
    if row is None:
        return {"eta_reason": reason}
    is_for_gate = row["eta_of"] == str(Phase.WAITING)
    of = Phase.WAITING if is_for_gate and not row["is_released"] else Phase.COMPLETE
    found = {"eta_of": of, "eta_reason": reason}
    is_known = row["age"] <= (_BETWEEN_DRIVERS_SECONDS if is_caught_up_with else STALE_SECONDS)
    if is_paused or not is_known or (is_for_gate and of is not Phase.WAITING):
        # What was foretold up to the gate says nothing about the end.
        return found
    left = {name: _less(row[column], row["age"]) for name, column in zip(_FORETOLD, _COLUMNS_OF_ETA, strict=True)}
    return found | left | {"eta_reason": row["eta_reason"]}


def _less(seconds: float | None, gone: float) -> float | None:
    return None if seconds is None else max(0.0, seconds - gone)


def _other(words: str) -> held.Values:
    """What is only known in words."""
    return {"code": "other", "what": None, "value": None, "limit": None, "unit": None, "sentence": words}


def _utc(moment: datetime | None) -> str | None:
    return f"{moment.isoformat(timespec='seconds')}Z" if moment else None
