"""Who and what holds the cut-over of an online DDL up, at one moment.

What must stay true: reads only; our own sessions, and those of the workflow's processes, are nobody's blockers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vreplication.cutover.blockers import Blocker, blockers, old_snapshots
from vreplication.cutover.reasons import Reason, copied_at, why_closed
from vreplication.errors import Refused
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session
from vreplication.planning.spec import RevertSpec, spec_of
from vreplication.state import lease, workflows

_OF_SESSIONS = ("blocked", "old_snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocking:
    """others: reasons that are no sessions, in sentences. reasons: all, as values."""

    blockers: tuple[Blocker, ...]
    others: tuple[str, ...]
    reasons: tuple[Reason, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"blockers": [asdict(each) for each in self.blockers], "others": list(self.others)} | {
            "reasons": [each.as_json() for each in self.reasons]
        }


def read(session: Session, workflow: str) -> Blocking:
    """Raises Refused where there is no such workflow, or it has switched or ended."""
    row = workflows.load(session, workflow)
    if row.has_ended or row.is_cut:
        raise Refused(f"Workflow {workflow} waits for no cut-over ({row.phase}).")
    server, spec = inspect(session), spec_of(row.spec)
    own = lease.connections(session, workflow) | {session.id}
    found = [
        each
        for table in dict.fromkeys((row.source_table, row.shadow_table))
        for each in blockers(session, server, row.source_schema, table, own=own)
    ]
    # Of a way back nothing was copied, and its own gate knows since when it is level.
    if not (spec.ignore_old_snapshots or row.is_in_place or isinstance(spec, RevertSpec)):
        found += old_snapshots(session, copied_at(session, workflow), own)
    # ignore_old_snapshots: those are listed above, session by session.
    reasons = why_closed(
        session, server, row, own_connections=own, ignore_old_snapshots=True, needs_release=spec.needs_release,
        window=spec.cutover_window,
    )  # fmt: skip
    others = tuple(r.sentence for r in reasons if r.code not in _OF_SESSIONS)
    # Who has been there for longest first: who came later may be waiting for that one.
    distinct = dict.fromkeys(sorted(found, key=lambda b: -b.age_seconds))
    return Blocking(
        blockers=tuple({(b.connection_id, b.kind, b.statement): b for b in distinct}.values()),
        others=others,
        reasons=tuple(reasons),
    )
