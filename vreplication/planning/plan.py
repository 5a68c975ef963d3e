"""A plan: what an online DDL would do, as data. Making one touches nothing.

What must stay true: the run and `explain` read the same plan; every check has a verdict in it; a plan with a refusal is
not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from vreplication.errors import Refused
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import Session, SqlError
from vreplication.planning import forcing, privileges, server_checks, space, strategy, table_checks
from vreplication.planning.checks import copy_path_reason, has_stand_in, holds_counter, may_collide, run_checks
from vreplication.planning.facts import Check, Facts, Verdict, looked, ok, refuse
from vreplication.planning.spec import Spec
from vreplication.planning.stages import CUT_OVER, STAGES, Explained, Stage, switched, together
from vreplication.planning.strategy import ONLINE, Choice, choose, not_tried
from vreplication.schema.alter import AlterClauses, parse_alter
from vreplication.schema.difference import Definitions, definitions_of
from vreplication.schema.introspect import Unreadable, introspect
from vreplication.schema.mapping import map_for
from vreplication.schema.model import Table, TableMapping
from vreplication.schema.trial import trial_alter
from vreplication.state import layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`target` and `mapping` are None where the definition is only known at prepare (partitions, FULLTEXT)."""

    spec: Spec
    server: Server
    source: Table
    target: Table | None
    mapping: TableMapping | None
    clauses: AlterClauses
    copy_path: str
    copy_path_reason: str
    strategy: Choice
    checks: tuple[Check, ...]
    stages: tuple[tuple[Stage[Facts], Explained], ...]
    estimated_rows: int
    copy_bytes: int
    log_bytes: int
    names: tuple[str, str, str, str]
    """(schema, table, its new table, what it is called afterwards)"""
    begun_at: datetime | None = None
    """`created_at` of the row that was written for it."""

    @property
    def refusals(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict is Verdict.REFUSE)

    @property
    def definitions(self) -> Definitions:
        """Before and after, as far as a trial tells."""
        return definitions_of(self.source, self.target, is_trial=True)


def make_plan(session: Session, spec: Spec, *, is_dry: bool = False) -> Plan:
    """Plan an online DDL. Raises Refused where there is no such table, or it may not be read; else verdicts.

    is_dry: no run follows, and so it leaves nothing on the server, not even our own schema where that is missing.
    """
    schema, table = spec.table_parts(session.url.database)
    server = inspect(session)
    source = _introspect(session, server, schema, table)
    facts, alter = _read_alter(session, spec, server, source)
    facts = replace(facts, copy_path=_choose_path(facts))
    # The empty copy is made in our own schema, and `plan` alone is not what brings that to a server.
    is_seen_only = is_dry and spec.strategy != ONLINE and not layout.exists(session)
    choice = not_tried() if is_seen_only or server_checks.is_unwritable(server) else choose(facts)
    if choice.is_in_place:
        return _plan_in_place(facts, choice)
    return _plan(facts, choice, (*run_checks(facts, alter), strategy.check(choice)))


def _plan_in_place(facts: Facts, choice: Choice) -> Plan:
    """Nothing is copied and no log is read: of the checks those that an ALTER by the server needs."""
    checks = (
        *server_checks.run(facts, (server_checks.version, server_checks.writable)),
        looked("privileges", lambda: privileges.check(facts)),
        looked("force", lambda: forcing.check(facts)),
        *table_checks.run(facts, table_checks.IN_PLACE),
        ok("ALTER", "The server takes it."),
        strategy.check(choice),
        strategy.check_replicas(facts, choice),
    )
    made = _plan(replace(facts, copy_path=choice.name), choice, checks)
    stages = strategy.stages(facts, choice)
    return replace(made, copy_path_reason=choice.reason, stages=stages, copy_bytes=0, log_bytes=0)


def _introspect(session: Session, server: Server, schema: str, table: str) -> Table:
    """Without SELECT a table is seen, but what it looks like is not told."""
    try:
        return introspect(session, schema, table)
    except Unreadable as error:
        # Nothing was touched.
        raise Refused(error.message, cure=error.cure) from None
    except SqlError:
        # The missing GRANT first: the server's own words name the statement that it refused, not what would help.
        privileges.demand(session, schema, table, is_mariadb=server.is_mariadb)
        raise


def _plan(facts: Facts, choice: Choice, checks: tuple[Check, ...]) -> Plan:
    copy_bytes, log_bytes = space.needed(facts)
    return Plan(
        spec=facts.spec,
        server=facts.server,
        source=facts.source,
        target=facts.target,
        mapping=facts.mapping,
        clauses=facts.clauses,
        copy_path=facts.copy_path,
        copy_path_reason=copy_path_reason(facts),
        strategy=choice,
        checks=checks,
        stages=tuple((stage, stage.explain(facts)) for stage in STAGES),
        estimated_rows=facts.source.estimated_rows,
        copy_bytes=copy_bytes,
        log_bytes=log_bytes,
        names=switched(facts),
    )


def switched_together(plans: Sequence[Plan]) -> list[Plan]:
    """The same plans, with one cut-over for all of them."""
    joint = together([plan.names for plan in plans])
    return [replace(p, stages=tuple((s, joint if s.name == CUT_OVER else e) for s, e in p.stages)) for p in plans]


def _read_alter(session: Session, spec: Spec, server: Server, source: Table) -> tuple[Facts, Check]:
    """Parse, try and map the ALTER: the facts as far as they are known, and the verdict on it."""
    facts = Facts(
        session=session,
        server=server,
        spec=spec,
        source=source,
        clauses=AlterClauses(text=spec.alter),
        target=None,
        mapping=None,
        copy_path="server",
    )
    try:
        facts = replace(facts, clauses=parse_alter(spec.alter))
        facts = replace(facts, target=trial_alter(session, source, facts.clauses))
        if facts.target is None:
            return facts, ok("ALTER", "Its definition is checked at prepare: a temporary table cannot try it here.")
        facts = replace(facts, mapping=_map(facts, facts.target))
    except (Refused, Unreadable) as error:
        # With as much as is known by now, for the other checks: a user fixes all at once.
        return facts, refuse("ALTER", error.message, error.cure)
    return facts, ok("ALTER", "The server takes it.")


def _map(facts: Facts, target: Table) -> TableMapping:
    may_be_null = facts.spec.allow_nullable_key
    return map_for(facts.server, facts.source, target, facts.clauses, may_be_null=may_be_null)


def _choose_path(facts: Facts) -> str:
    """By INSERT … SELECT on the server, unless that would hold catch-up up at each of many statements."""
    if facts.spec.copy_path != "auto":
        return facts.spec.copy_path
    # F3b: INSERT … SELECT holds the AUTO-INC lock to its end, and under a new unique key catch-up writes by many
    # statements, each of which would wait for it.
    return "rows" if holds_counter(facts) and may_collide(facts) else "server"


def check_prepared(session: Session, plan: Plan, target: Table, mapping: TableMapping) -> tuple[Check, ...]:
    """What a plan without a mapping could not say, now that the shadow table is there: the checks that refuse."""
    found = table_checks.run_on_target(_facts_of(session, plan, target, mapping))
    return tuple(check for check in found if check.verdict is Verdict.REFUSE)


def path_of(session: Session, plan: Plan, target: Table, mapping: TableMapping) -> str:
    """The copy path, likewise."""
    return _choose_path(_facts_of(session, plan, target, mapping))


def stands_in(session: Session, plan: Plan, target: Table, mapping: TableMapping) -> bool:
    """Whether rows go through a stand-in, likewise."""
    return has_stand_in(_facts_of(session, plan, target, mapping))


def _facts_of(session: Session, plan: Plan, target: Table, mapping: TableMapping) -> Facts:
    return Facts(
        session=session,
        server=plan.server,
        spec=plan.spec,
        source=plan.source,
        clauses=plan.clauses,
        target=target,
        mapping=mapping,
        copy_path=plan.copy_path,
    )
