"""Of tables that move: where the application writes, and the decision of a switch, step by step.

What must stay true: a step is conditional on the one before it and on the driver's lease, in one transaction; from
`decided` on nothing leads back but another whole switch (docs/cut-over.md, Moving tables; the model in
tests/models/).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vreplication.errors import Refused, Superseded, Transient, VReplicationError
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import layout, rows, sidecar
from vreplication.state.lease import Lease, fence

_t = sidecar.move


class Side(StrEnum):
    SOURCE = "source"
    TARGET = "target"

    @property
    def other(self) -> Side:
        return Side.TARGET if self is Side.SOURCE else Side.SOURCE


class Decision(StrEnum):
    RUNNING = "running"
    """No switch is under way: the serving side takes writes."""
    DENYING = "denying"
    """Writes on the serving side may be denied; it can still be given up."""
    ABORTING = "aborting"
    """It is being given up: the serving side is being opened again."""
    DECIDED = "decided"
    """The other side is level, and will take the writes: there is no way back but another switch."""
    OPENED = "opened"
    """The other side takes writes; the application is being told."""


_STEPS = {
    Decision.DENYING: {Decision.RUNNING},
    Decision.ABORTING: {Decision.DENYING},
    Decision.DECIDED: {Decision.DENYING},
    Decision.OPENED: {Decision.DECIDED},
    Decision.RUNNING: {Decision.ABORTING, Decision.OPENED},
}
REVERSE, COMPLETE = "reverse", "complete"
_IN_THE_LOG, _BY_ITSELF = 1, 3
"""Values of innodb_flush_log_at_trx_commit at which a commit is on the disk when it returns. At 1 that is so only if
the binary log is, too, or there is none: a server that starts again takes back what its log does not have.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A row. starts: as `Position.saved`. asked: REVERSE, COMPLETE or None. stall_millis: of the last switch."""

    workflow: str
    target_schema: str
    source_at: str
    target_at: str
    source_server: str
    serving: Side
    decision: Decision
    number: int
    secret: str
    forward_start: str | None
    back_start: str | None
    asked: str | None
    asked_by: str | None
    stall_millis: int | None


def create(session: Session, move: Move) -> None:
    values = {name: getattr(move, name) for name in move.__slots__}
    rows.add(session, _t, **{name: str(v) if isinstance(v, StrEnum) else v for name, v in values.items()})


def find(session: Session, workflow: str) -> Move | None:
    found = layout.look(session, lambda: rows.find(session, _t, workflow=workflow))
    if not found:
        return None
    fields = {name: found[name] for name in Move.__slots__}
    number, stall = int(found["number"]), found["stall_millis"]
    return Move(**fields | {
        "serving": Side(found["serving"]),
        "decision": Decision(found["decision"]),
        "number": number,
        "stall_millis": None if stall is None else int(stall),
    })  # fmt: skip


def load(session: Session, workflow: str) -> Move:
    """Raises Refused where no tables of this workflow move to this server."""
    found = find(session, workflow)
    if found is None:
        raise Refused(
            f"Workflow {workflow!r} moves no tables to this server.",
            cure="`vreplication status` with the target's URL lists those that do.",
        )
    return found


def decide(session: Session, our_lease: Lease, to: Decision, *, until: str | None = None, **fields: Any) -> None:
    """The next step of a switch, and columns that belong to it. Raises Superseded where it is not the next one.

    One that is being given up may be given up again. until: of `later`; Transient when that has passed.
    """
    with session.transaction():
        fence(session, our_lease)
        before = load(session, our_lease.workflow).decision
        if before is to is Decision.ABORTING:
            return
        where = {"workflow": our_lease.workflow, "decision": str(before)}
        # W8, W10: by the step that stands in the row, never by what this process remembers: its commit may have been
        # lost, or the next driver may have gone another way.
        if before not in _STEPS[to] or not rows.change(session, _t, where, decision=str(to), **fields):
            raise Superseded(f"The switch of workflow {our_lease.workflow} is {before}, and cannot become {to}.")
        # Last, so that nothing but the commit comes behind it.
        if until is not None and not session.value("SELECT NOW(6) <= %s", (until,)):
            raise Transient("The switch was not decided in time.")


def take_back(session: Session, our_lease: Lease, by: str) -> None:
    """Of a source that is gone for good and served, or was to: the target serves, and the workflow is to end.

    From here on whoever drives it opens the target, and not the source.
    """
    with session.transaction():
        fence(session, our_lease)
        number = load(session, our_lease.workflow).number
        # The stream that reads where writes are accepted has an even one.
        fields = {"number": number + number % 2, "serving": str(Side.TARGET), "asked": COMPLETE, "asked_by": by}
        rows.change(session, _t, {"workflow": our_lease.workflow}, decision=str(Decision.ABORTING), **fields)


def make_durable(session: Session) -> None:
    """What was committed here comes back with the server, whatever innodb_flush_log_at_trx_commit says.

    At 0 or 2, or with sync_binlog=0 (MariaDB's default), a crash of the machine takes the last commits, and what
    another server was told to do by them stays done.
    Servers flush DDL at once, and with it all that was committed before; FLUSH LOGS takes a privilege that
    our user does not have. Raises LockWait where DDL is forbidden, after a second.
    """
    if _is_flushed(session):
        return
    before = int(session.value("SELECT @@lock_wait_timeout"))
    # The servers' own defaults are a year (MySQL) and a day (MariaDB), and writes may be denied meanwhile.
    session.execute_raw("SET SESSION lock_wait_timeout=1")
    try:
        # One of the two is never nothing: who finds the table there, and then gone, has waited for another's DROP.
        session.execute_raw(f"CREATE TABLE IF NOT EXISTS {SIDECAR}.decided (id INT PRIMARY KEY) ENGINE=InnoDB")
        session.execute_raw(f"DROP TABLE IF EXISTS {SIDECAR}.decided")
    finally:
        # It may not hide what went wrong above.
        with contextlib.suppress(VReplicationError):
            session.execute_raw(f"SET SESSION lock_wait_timeout={before}")


def _is_flushed(session: Session) -> bool:
    """A commit is on the disk when it returns."""
    values = "@@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog"
    flush, has_log, sync = map(int, session.rows(f"SELECT {values}")[0])
    return flush == _BY_ITSELF or (flush == _IN_THE_LOG and (not has_log or sync == 1))


def later(session: Session, seconds: float) -> str:
    """A time of the server's clock, so many seconds from now."""
    return str(session.value("SELECT NOW(6) + INTERVAL %s MICROSECOND", (round(seconds * 1e6),)))


def ask(session: Session, workflow: str, what: str | None, by: str | None) -> None:
    """Note what an operator asks for; the process that drives the workflow does it. None: it is done."""
    with session.transaction():
        rows.change(session, _t, {"workflow": workflow}, asked=what, asked_by=by)


def forget(session: Session, workflow: str) -> None:
    rows.remove(session, _t, workflow=workflow)
