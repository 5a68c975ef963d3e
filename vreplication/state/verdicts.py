"""What the last verification of a workflow found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from vreplication.masking import mask
from vreplication.mysql.server import started_at
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import rows, sidecar
from vreplication.state.sidecar import now

CLEAN, BAD, WAIVED = "clean", "bad", "waived"
_SAME_SECONDS = 2
"""As in `lease.is_same_run`: the moment of a start is read in two statements, and in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """hot_keys: keys (literal lists) still being written to after every round, compared under the cut-over lock."""

    verdict: str
    rows_compared: int
    mismatches: int
    repaired: int
    hot_keys: tuple[tuple[str, ...], ...]
    details: str

    @property
    def counts(self) -> str:
        return f"{self.rows_compared:,} rows compared, {self.mismatches:,} differ, {self.repaired:,} repaired"


def save(session: Session, workflow: str, verdict: Verdict) -> None:
    fields = {
        "verdict": verdict.verdict,
        "rows_compared": verdict.rows_compared,
        "mismatches": verdict.mismatches,
        "repaired": verdict.repaired,
        "hot_keys": json.dumps(verdict.hot_keys),
        "details": mask(verdict.details),
        "finished_at": now(),
    }
    # Of the server: by it a later look knows the run.
    start = datetime.fromtimestamp(started_at(session), UTC).replace(tzinfo=None)
    rows.put(session, sidecar.verification, {"workflow": workflow}, started_at=start, **fields)


def is_of_this_run(session: Session, workflow: str) -> bool:
    """False: there is none, or the server was started since, and may have lost the end of its log or its tables."""
    # Not by the end of the verification alone: it lies behind the start where a clock that was ahead was put right
    # while the machine was started again.
    # The start is known in whole seconds, the end of a verification in microseconds: one of the very second of the
    # start may have ended before it, where a server was back within that second (measured: 0.4 s), and counts as older.
    start = started_at(session)
    found = session.row(
        "SELECT verdict=%s OR ABS(TIMESTAMPDIFF(SECOND, started_at, FROM_UNIXTIME(%s))) <= %s "
        f"AND finished_at >= FROM_UNIXTIME(%s) FROM {SIDECAR}.verification WHERE workflow=%s",
        (WAIVED, start, _SAME_SECONDS, start + 1, workflow),
    )
    return found is not None and bool(found[0])


def load(session: Session, workflow: str) -> Verdict | None:
    row = rows.find(session, sidecar.verification, workflow=workflow)
    if row is None:
        return None
    return Verdict(
        verdict=row["verdict"],
        rows_compared=int(row["rows_compared"]),
        mismatches=int(row["mismatches"]),
        repaired=int(row["repaired"]),
        hot_keys=tuple(tuple(k) for k in json.loads(row["hot_keys"])),
        details=row["details"],
    )


def forget(session: Session, workflow: str) -> None:
    rows.remove(session, sidecar.verification, workflow=workflow)


def age_seconds(session: Session, workflow: str) -> float | None:
    """How long ago the last verification ended, by the server's clock; None when there was none."""
    sql = f"SELECT TIMESTAMPDIFF(MICROSECOND, finished_at, NOW(6)) / 1e6 FROM {SIDECAR}.verification WHERE workflow=%s"
    found = session.value(sql, (workflow,))
    return None if found is None else float(found)
