"""Why the gate before cut-over is closed: every reason, each in one sentence.

What must stay true: what is not known is a reason (no fresh word from catch-up, no verdict); the gate opens only when
several reads in a row have found nothing, for a lag that is small at one instant says little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from vreplication.cutover.blockers import Blocker, blockers, branch_names, old_snapshots
from vreplication.mysql.server import Server
from vreplication.mysql.session import Session
from vreplication.settings import GATE_BACKLOG_CHANGES, GATE_LAG_SECONDS
from vreplication.state import dirty, gate, journal, lease, ledger, progress, since, verdicts, workflows
from vreplication.state.workflows import WorkflowRow

FRESH_SECONDS = 2.5
"""Catch-up writes its part of the progress row each second; an older one says nothing."""
BLOCKER_SECONDS = 2.0
"""Younger holders of a metadata lock are everyday statements, which LOCK TABLES waits for. Ages are in whole seconds,
counted from a whole second, so a transaction of an instant may be shown as one second old."""
READS_RUNNING = 3
LEFT_BEHIND = "left_behind"
"""Code of the reason of tables that came after the plan of a move of all tables."""
OTHERS = "others"
"""Code of the reason of a table that waits for those that are switched in one with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """`code` is for programs: not_matched, not_verified, dirty, not_running, lag, paused, cancelled, prepared,
    not_released, blocked, old_snapshot, others, left_behind, read_only. `sentence` is for people. value, limit, unit:
    where there is a figure."""

    code: str
    sentence: str
    value: float | None = None
    limit: float | None = None
    unit: str | None = None

    def __str__(self) -> str:
        return self.sentence

    def as_json(self) -> dict[str, Any]:
        figures = {"what": None, "value": self.value, "limit": self.limit, "unit": self.unit}
        return {"code": self.code, **figures, "sentence": self.sentence}


class Gate:
    """Counts the reads in a row that found no reason. `check` is one read, usually `why_closed` with its arguments."""

    def __init__(self, check: Callable[[], list[Reason]], reads: int = READS_RUNNING) -> None:
        self._check = check
        self._needed = reads
        self._clear = 0
        self.reasons: list[Reason] = []

    def is_open(self) -> bool:
        """Read once more. To be called a tenth of a second apart or more, so that it means something."""
        self.reasons = self._check()
        self._clear = 0 if self.reasons else self._clear + 1
        return self._clear >= self._needed


def why_closed(
    session: Session,
    server: Server,
    row: WorkflowRow,
    *,
    own_connections: frozenset[int],
    ignore_old_snapshots: bool = False,
    needs_release: bool,
    window: str | None = None,
    level_since: datetime | None = None,
) -> list[Reason]:
    """Everything that holds the cut-over back now; [] when nothing does. Reads only.

    level_since: since when a table that was not copied by chunks is level.
    """
    # Appliers use the shadow all the time.
    own = own_connections | lease.connections(session, row.id)
    found: list[Reason] = []
    if not row.is_in_place:
        found += [*_copy_reasons(session, row), *_verdict_reasons(session, row)]
        found += catch_up_reasons(session, row.id, server)
    found += asked_reasons(session, row.id)
    if needs_release and gate.released_by(session, row.id) is None:
        found.append(Reason(code="not_released", sentence=_waiting(row, window)))
    found += _blocker_reasons(session, server, row, own)
    if not (ignore_old_snapshots or row.is_in_place):
        # The later of them: before it the new table, or this server's copy of it, was not whole.
        moments = filter(None, (level_since, copied_at(session, row.id)))
        found += _snapshot_reasons(session, max(moments, default=None), own)
    return found


def asked_reasons(session: Session, workflow: str) -> list[Reason]:
    """A pause or a cancel. Read anew: an operator asks for one at any time, and until the driver's beat has seen a
    cancel everything may be done.
    """
    stopped_by = workflows.load(session, workflow).stopped_by
    if stopped_by == "cancelled":
        return [Reason(code="cancelled", sentence="The workflow is being cancelled.")]
    sentence = f"The workflow is paused; `vreplication resume {workflow}` goes on."
    return [Reason(code="paused", sentence=sentence)] if stopped_by else []


def copied_at(session: Session, workflow: str) -> datetime | None:
    """Since when this server has the whole copy (UTC); None: it was not copied.

    When chunks were matched is a moment of the source: a replica that was promoted got them later.
    """
    moved = journal.latest(session, workflow, journal.MOVED)
    moments = (ledger.last_matched(session, workflow), moved["at"] if moved else None)
    return max(filter(None, moments), default=None)


def _waiting(row: WorkflowRow, window: str | None) -> str:
    if "reverts" in row.spec:
        until = str(row.spec["until"])[:16].replace("T", " ")
        return f"Waiting for `vreplication revert {row.spec['reverts']}`, until {until} UTC."
    release = f"`vreplication release {row.id}`"
    return f"Waiting for the window {window}, or {release}." if window else f"Waiting for {release}."


def _copy_reasons(session: Session, row: WorkflowRow) -> list[Reason]:
    copy, found = ledger.left(session, row.id), []
    if not copy.is_nothing:
        left = copy.splits - copy.splits_done
        found.append(
            Reason(
                code="not_matched",
                sentence=f"The copy is not complete: {left} of {copy.splits} splits are not done, "
                f"{copy.chunks} chunks are not matched.",
                value=left,
                limit=0,
                unit="splits",
            )
        )
    if keys := dirty.count(session, row.id):
        sentence = f"{keys} rows conflicted with the new unique key and are copied again."
        found.append(Reason(code="dirty", sentence=sentence, value=keys, limit=0, unit="rows"))
    return found


def _verdict_reasons(session: Session, row: WorkflowRow) -> list[Reason]:
    verdict = verdicts.load(session, row.id)
    # A person has waived the verification, and with it the look at what was written since.
    if verdict is not None and verdict.verdict == verdicts.WAIVED:
        return []
    if verdict is None or verdict.verdict != verdicts.CLEAN:
        what = "found differences" if verdict else "has not been done"
        return [Reason(code="not_verified", sentence=f"The verification {what}.")]
    found = since.load(session, row.id)
    if found is not None and found.vouches:
        return []
    return [Reason(code="not_verified", sentence="What was written since the verification is not known any more.")]


def catch_up_reasons(session: Session, workflow: str, server: Server | None = None) -> list[Reason]:
    """As the state tells it. server: where the prepared branches can be listed."""
    found = progress.catch_up(session, workflow)
    # What catch-up said before it died would open the gate for ever.
    if found is None or found.age_seconds > FRESH_SECONDS:
        return [Reason(code="not_running", sentence="Catch-up is not running.")]
    return [*_lag_reasons(found.lag_seconds, found.backlog), *_prepared_reasons(session, server, found.held_branches)]


def _lag_reasons(lag: float | None, backlog: int | None) -> list[Reason]:
    if lag is None or backlog is None:
        return [Reason(code="lag", sentence="Catch-up has not said yet how far behind it is.")]
    if lag < GATE_LAG_SECONDS and backlog < GATE_BACKLOG_CHANGES:
        return []
    value, limit, unit = (
        (lag, GATE_LAG_SECONDS, "seconds") if lag >= GATE_LAG_SECONDS else (backlog, GATE_BACKLOG_CHANGES, "changes")
    )
    sentence = f"Catch-up is {lag:.1f} s and {backlog} changes behind."
    return [Reason(code="lag", sentence=sentence, value=value, limit=limit, unit=unit)]


def _prepared_reasons(session: Session, server: Server | None, held: int) -> list[Reason]:
    """Branches whose rows of our table catch-up holds back until their outcome is in the log."""
    if not held:
        return []
    names = branch_names(session, server) if server else None
    listed = f" (XA RECOVER: {', '.join(names)})" if names else ""
    sentence = f"{held} prepared XA transactions changed the table{listed}; XA COMMIT or XA ROLLBACK them."
    if names == []:
        # They have just ended; or the server has lost them in a crash (changes/lost_branches.py).
        sentence = f"{held} prepared XA transactions changed the table, and XA RECOVER lists none any more."
    return [Reason(code="prepared", sentence=sentence, value=held, limit=0, unit="transactions")]


def _blocker_reasons(session: Session, server: Server, row: WorkflowRow, own: frozenset[int]) -> list[Reason]:
    """Only what is certain holds the gate: any open transaction of the server may be harmless, and LOCK will tell."""
    tables = (row.source_table, row.shadow_table)
    found = [b for table in tables for b in blockers(session, server, row.source_schema, table, own=own)]
    return [_by_session("blocked", b) for b in found if _is_lasting(b)]


def _is_lasting(blocker: Blocker) -> bool:
    return blocker.is_certain and (blocker.connection_id is None or blocker.age_seconds >= BLOCKER_SECONDS)


def _snapshot_reasons(session: Session, since: datetime | None, own: frozenset[int]) -> list[Reason]:
    return [_by_session("old_snapshot", b) for b in old_snapshots(session, since, own)]


def _by_session(code: str, blocker: Blocker) -> Reason:
    """A branch has no connection, and nobody knows its age."""
    if blocker.connection_id is None:
        return Reason(code=code, sentence=_sentence(blocker))
    return Reason(code=code, sentence=_sentence(blocker), value=blocker.age_seconds, unit="seconds")


def _sentence(blocker: Blocker) -> str:
    line = str(blocker)
    return line[0].upper() + line[1:]
