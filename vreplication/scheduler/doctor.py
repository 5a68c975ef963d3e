"""What is wrong with a server, or with both ends of moves, as far as we are concerned, and what fixes each.

What must stay true: it reads and never writes, which the server enforces (a read-only session): a sidecar of another
release is named and left as it is; no cure drops something that another server's workflow may still need without
saying so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace

from vreplication import names
from vreplication.engine import log_kept
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import Server, identity_of, inspect, is_mariadb
from vreplication.mysql.session import Session
from vreplication.phases import OVER, Phase
from vreplication.planning import server_checks
from vreplication.planning.facts import Verdict
from vreplication.planning.privileges import MOVE_SOURCE, MOVE_TARGET, ONLINE_DDL, Role, lacking
from vreplication.planning.request import Request
from vreplication.scheduler import housekeeping
from vreplication.state import layout, lease, moves, workflows
from vreplication.state.moves import Side
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.move_tables.prepare import place_of
from vreplication.workflows.move_tables.streams import is_forward, stream_id

SETTING, LAYOUT, WORKFLOW, LEASE, LOG, TRIGGER = "setting", "sidecar", "workflow", "lease", "binary log", "trigger"
GRANTS = "grants"
# Old rows of the journal and the charts are no fault of the server: housekeeping takes them in its time.
_LEFT = (housekeeping.RETIRED, housekeeping.SHADOW, housekeeping.LEASE)
_ON_ITS_SOURCE = frozenset({"online_ddl"})
"""Kinds whose state stands beside the log that they read, so that this server alone can tell what is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. `why`: a sentence; `cure`: what to run or to set. server: its role, where two are."""

    kind: str
    what: str
    why: str
    cure: str
    server: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfServer:
    session: Session
    server: Server
    spec: Request


def examine(session: Session) -> list[Finding]:
    """All that is wrong. The session only reads from now on."""
    return _one(session, ONLINE_DDL, _of_the_living(session))


def examine_both(source: Session, target: Session) -> list[Finding]:
    """Of the two ends of moves, which each tell half of it. Both sessions only read from now on."""
    # Of both, before either is told: triggers on the source are of workflows whose state is on the target.
    mine = _of_the_living(source) | _of_the_living(target)
    found = [replace(each, server=Side.SOURCE) for each in _one(source, MOVE_SOURCE, mine)]
    found += [replace(each, server=Side.TARGET) for each in _one(target, MOVE_TARGET, mine)]
    return found if _is_unreadable(target) else [*found, *_moves(source, target)]


def _one(session: Session, role: Role, mine: Collection[str]) -> list[Finding]:
    # What it calls is the code that acts as well, which might complete a sidecar on the way; the server refuses that.
    session.execute_raw("SET SESSION TRANSACTION READ ONLY")
    found = [*_settings(session), *_grants(session, role), *_triggers(session, mine)]
    if not layout.exists(session):
        return found
    if wrong := layout.unlike(session):
        # What is in tables of another layout cannot be told.
        cure = "End what runs there, then run any workflow command of this release, which brings it up to date."
        newer = "Use the newer vreplication that made it."
        return [*found, Finding(kind=LAYOUT, what="sidecar", why=wrong, cure=newer if "newer" in wrong else cure)]
    return [*found, *_workflows(session), *_left_over(session)]


def _grants(session: Session, role: Role) -> Iterator[Finding]:
    """Of the user that asks, on the schema of its URL; which others there are is not for it to see."""
    schema, is_on_mariadb = session.url.database, is_mariadb(session)
    if lacks := lacking(session, role, schema, is_mariadb=is_on_mariadb):
        user = str(session.value("SELECT CURRENT_USER()"))
        why = f"It lacks privileges on this server for tables of the schema {schema}."
        yield Finding(kind=GRANTS, what=user, why=why, cure=f"{' '.join(lacks)} (sql/grants/ has all of them)")


def _moves(source: Session, target: Session) -> Iterator[Finding]:
    """Of moves between these two: is the source the one that they began with, and is the log still there?"""
    at, identity = place_of(source.url), identity_of(source)
    for row in workflows.load_all(target):
        move = None if row.phase in OVER else moves.find(target, row.id)
        if move is not None and move.source_server == identity:
            reads = Side.SOURCE if is_forward(move.number) else Side.TARGET
            log_on = source if reads is Side.SOURCE else target
            for each in _log(target, row, log_on, stream_id(row.id, move.number)):
                yield replace(each, server=reads)
        # Moves from other servers are none of this question; one from this place whose server has another identity is.
        elif move is not None and move.source_at == at:
            why = f"It began with another server than the one that is at {at} now."
            cure = f"Name that one, or vreplication cancel {row.id}."
            yield Finding(kind=WORKFLOW, what=row.id, why=why, cure=cure, server=Side.TARGET)


def _settings(session: Session) -> Iterator[Finding]:
    facts = _OfServer(session=session, server=inspect(session), spec=Request())
    for check in server_checks.run(facts):
        if check.verdict is not Verdict.OK:
            verb = "refused" if check.verdict is Verdict.REFUSE else "warned of"
            yield Finding(kind=SETTING, what=check.name, why=f"{check.sentence} Plans are {verb}.", cure=check.cure)


def _workflows(session: Session) -> Iterator[Finding]:
    for row in workflows.load_all(session):
        if row.phase is Phase.FAILED:
            cure = f"vreplication resume {row.id}, or vreplication cancel {row.id}"
            yield Finding(
                kind=WORKFLOW, what=row.id, why=f"It has failed: {row.reason or 'no reason known'}", cure=cure
            )
        elif row.phase not in OVER:
            yield from _at_work(session, row)
        if row.phase not in OVER and row.kind in _ON_ITS_SOURCE:
            yield from _log(session, row)


def _at_work(session: Session, row: WorkflowRow) -> Iterator[Finding]:
    """Whoever ends in order takes its heartbeat away; one that stays and is old is of a process that died."""
    held = {lease.DRIVER: row.id, lease.REPLICATE: _stream(session, row)}
    holders = {role: lease.holder_of(session, each, role) for role, each in held.items()}
    resume = f"vreplication resume {row.id}"
    if not any(holder and holder.is_alive for holder in holders.values()):
        why = f"Nobody works on it ({row.phase}{', paused' if row.is_paused else ''})."
        yield Finding(kind=WORKFLOW, what=row.id, why=why, cure=resume)
    for role, holder in holders.items():
        if holder and not holder.is_alive and lease.has_beat(session, held[role], role):
            why = f"Its holder {holder.name} has given no sign of life for {holder.age_seconds:.0f} s."
            yield Finding(kind=LEASE, what=f"{role} of {held[role]}", why=why, cure=resume)


def _stream(session: Session, row: WorkflowRow) -> str:
    """Under which the catch-up of a workflow holds its lease: of tables that move, that of the way they go now."""
    move = moves.find(session, row.id)
    return row.id if move is None else stream_id(row.id, move.number)


def _log(home: Session, row: WorkflowRow, log: Session | None = None, stream: str = "") -> Iterator[Finding]:
    """log: the server that is read, where it is not home; stream: under which the place is kept there."""
    if place := log_kept.gone(home, row, source=log, stream=stream):
        why = f"The server has purged its binary log at {place}: a restart could not go on from there."
        cure = f"Let it end if it is at work, else vreplication cancel {row.id}; keep binary logs for longer."
        yield Finding(kind=LOG, what=row.id, why=why, cure=cure)


def _left_over(session: Session) -> Iterator[Finding]:
    for item in housekeeping.find(session):
        if item.kind in _LEFT:
            is_retired = item.kind == housekeeping.RETIRED
            cure = f"vreplication cleanup {item.workflow}" if is_retired else "vreplication housekeeping --yes"
            yield Finding(kind=item.kind, what=item.what, why=f"It is left over: {item.why}.", cure=cure)


def _triggers(session: Session, mine: Collection[str]) -> Iterator[Finding]:
    """Of ours, while no workflow that goes on has them; a move's source has its workflow on the target."""
    sql = "SELECT TRIGGER_SCHEMA, TRIGGER_NAME, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS"
    for schema, name, table in session.rows(f"{sql} WHERE TRIGGER_NAME LIKE 'vr\\_deny\\_%'"):
        if names.is_deny_trigger(str(name)) and str(name) not in mine:
            yield Finding(
                kind=TRIGGER,
                what=f"{schema}.{name}",
                why=f"It denies writes to {schema}.{table}, and no workflow that was looked at has it.",
                cure="First see on the target of every move from here that none goes on (vreplication status); then "
                f"DROP TRIGGER {qualified(str(schema), str(name))}",
            )


def _is_unreadable(session: Session) -> bool:
    """There is no sidecar, or one of another layout."""
    return not layout.exists(session) or bool(layout.unlike(session))


def _of_the_living(session: Session) -> set[str]:
    if _is_unreadable(session):
        return set()
    living = [row for row in workflows.load_all(session) if row.phase not in OVER]
    pairs = {(row.id, table.source_table) for row in living for table in workflows.tables(session, row.id)}
    return {names.deny_trigger(workflow, table, event) for workflow, table in pairs for event in names.DENIED_EVENTS}
