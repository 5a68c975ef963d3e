"""Which version of the rules those who work on a workflow know, and when it goes on under a newer one.

An installation is renewed a process at a time. A workflow goes on under the version that it began with until all of its
workers know a newer one, as the seed's rolling upgrade asks; then its row says so, for good.

What must stay true: who does not tell what it knows, is of the first version; a version is raised by the holder of
catch-up's lease alone, for catch-up alone moves the watermark.
"""

from __future__ import annotations

from vreplication.mysql.session import Session
from vreplication.state import journal, lease, rows, sidecar
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow

FIRST = 1


def tell(session: Session, our_lease: Lease) -> None:
    """What this program knows."""
    rows.put(
        session,
        sidecar.worker,
        {"workflow": our_lease.workflow, "role": our_lease.role},
        token=our_lease.token,
        protocol=sidecar.PROTOCOL,
    )


def renew(session: Session, our_lease: Lease, row: WorkflowRow) -> int:
    """The version to go on under: the newest that all living workers know. Raises Superseded."""
    if row.protocol >= sidecar.PROTOCOL or (common := _known_to_all(session, row.id)) <= row.protocol:
        return row.protocol
    with session.transaction():
        lease.fence(session, our_lease)
        rows.change(session, sidecar.workflow, {"id": row.id}, protocol=common)
        journal.write(session, row.id, "rules renewed", f"version {row.protocol} to {common}", actor=lease.me())
    return common


def _known_to_all(session: Session, workflow: str) -> int:
    holders = {role: lease.holder_of(session, workflow, role) for role in (lease.DRIVER, lease.REPLICATE)}
    known = [_known(session, workflow, role, h.token) for role, h in holders.items() if h and h.is_alive]
    return min(known, default=FIRST)


def _known(session: Session, workflow: str, role: str, token: int) -> int:
    # By the token: what a former holder told says nothing of this one, which may be an older program.
    row = rows.find(session, sidecar.worker, workflow=workflow, role=role, token=token)
    return int(row["protocol"]) if row else FIRST
