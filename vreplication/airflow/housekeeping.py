"""Housekeeping of every source, for Airflow.

What must stay true: what may go is logged, all of it, before anything goes; a source that fails keeps no other one
waiting, and fails the run at the end; one that may only have been away for a moment is tried again.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import BaseOperator, Param
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from vreplication.airflow.claiming import find_source
from vreplication.airflow.migration_files import read_files
from vreplication.airflow.scheduling import source_params, sources_of
from vreplication.airflow.telling import events_sent
from vreplication.errors import Ambiguous, Transient, VReplicationError
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.scheduler import housekeeping

log = logging.getLogger(__name__)


def housekeeping_params() -> dict[str, Param]:
    return {
        **source_params(),
        "dry_run": Param(False, type="boolean", title="Dry run", description="List only; remove nothing."),
        "retired_days": Param(
            housekeeping.RETIRED_DAYS, type="integer", minimum=0, title="Days of originals",
            description="How long the original of a complete workflow is kept after its end.",
        ),
        "journal_days": Param(
            housekeeping.JOURNAL_DAYS, type="integer", minimum=1, title="Days of the journal",
            description="How long journal rows of ended workflows are kept.",
        ),
    }  # fmt: skip


class HousekeepingOperator(BaseOperator):
    """Its result says how many were found and removed on each source."""

    ui_color = "#e8eef7"

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder

    def execute(self, context: Any) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        problems: list[str] = []
        away: list[str] = []
        by = f"airflow {context['run_id']}"
        for conn_id, url, problem in map(find_source, sorted(sources_of(context, read_files(self.folder)))):
            if url is None:
                problems += [problem] if problem else []
                continue
            try:
                counts[conn_id], wrong = _tidy(conn_id, url, context["params"], by)
                problems += wrong
            except VReplicationError as error:
                told = away if isinstance(error, (Transient, Ambiguous)) else problems
                told.append(f"Connection {conn_id!r}: {error}")
        _conclude(problems, away)
        return counts


def _conclude(problems: list[str], away: list[str]) -> None:
    """Trying again helps whoever was away, and looks at the other ones once more."""
    if away:
        raise AirflowException("; ".join([*away, *problems]))
    if problems:
        raise AirflowFailException("; ".join(problems))


def _tidy(conn_id: str, url: SourceUrl, params: Any, by: str) -> tuple[dict[str, int], list[str]]:
    """What was found and removed, and what could not be."""
    # It writes journal entries, which have no workflow's task to send them.
    with events_sent(url), connect(url) as session:
        days = {"retired_days": int(params["retired_days"]), "journal_days": int(params["journal_days"])}
        items = housekeeping.find(session, **days)
        for item in items:
            log.info("%s: %s %s may go: %s", conn_id, item.kind, item.what, item.why)
        left = [] if params["dry_run"] else housekeeping.remove_all(session, items, by)
    removed = 0 if params["dry_run"] else len(items) - len(left)
    return {"found": len(items), "removed": removed}, [f"{item.what} stays: {reason}" for item, reason in left]
