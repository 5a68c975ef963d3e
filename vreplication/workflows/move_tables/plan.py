"""A plan: what a move would do, as data. Making one touches nothing on either server.

What must stay true: the run and what is printed read the same plan; every check has a verdict in it; a plan with a
refusal is not run, and only then may a table of it lack its definition or its mapping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from vreplication import names
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.server import Server, inspect
from vreplication.mysql.session import ConnectionLost, Session
from vreplication.planning import space
from vreplication.planning.facts import Check, Verdict, refuse
from vreplication.planning.stages import Explained, Stage
from vreplication.schema.alter import AlterClauses
from vreplication.schema.carried import try_carried
from vreplication.schema.carry import carry
from vreplication.schema.introspect import introspect, tables_of
from vreplication.schema.mapping import computes_by_session, local_zone, map_tables
from vreplication.schema.model import ColumnPair, Table, TableMapping
from vreplication.schema.soft import soft_pairs
from vreplication.workflows.move_tables.checks import run_checks
from vreplication.workflows.move_tables.facts import MovedTable, MoveFacts, OneServer
from vreplication.workflows.move_tables.spec import MoveSpec, plain_name
from vreplication.workflows.move_tables.stages import STAGES

__all__ = ["MovePlan", "MovedTable", "make_move_plan", "mapping_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """copy_bytes, log_bytes: on the target, estimated."""

    spec: MoveSpec
    source_server: Server
    target_server: Server
    tables: tuple[MovedTable, ...]
    checks: tuple[Check, ...]
    stages: tuple[tuple[Stage[MoveFacts], Explained], ...]
    estimated_rows: int
    copy_bytes: int
    log_bytes: int
    begun_at: datetime | None = None
    """`created_at` of the row that was written for it."""

    @property
    def refusals(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict is Verdict.REFUSE)


def make_move_plan(source: Session, target: Session, spec: MoveSpec, replica: Session | None = None) -> MovePlan:
    """Plan a move of tables of the source URL's schema. Verdicts, never an error of ours but for a lost connection.

    replica: of the source, where the copy is to read.
    """
    facts = MoveFacts(
        source=OneServer(role="source", session=source, server=inspect(source), spec=spec),
        target=OneServer(role="target", session=target, server=inspect(target), spec=spec),
        schema=source.url.database,
        target_schema=spec.target_schema or target.url.database,
        spec=spec,
        tables=(),
        replica=replica,
    )
    tables, found = _read_tables(facts)
    facts = replace(facts, tables=tables)
    sizes = [space.needed_of(table.source) for table in tables]
    return MovePlan(
        spec=spec,
        source_server=facts.source.server,
        target_server=facts.target.server,
        tables=tables,
        checks=run_checks(facts, found),
        stages=tuple((stage, stage.explain(facts)) for stage in STAGES),
        estimated_rows=sum(table.source.estimated_rows for table in tables),
        copy_bytes=sum(copy for copy, _ in sizes),
        log_bytes=sum(log for _, log in sizes) if facts.target.server.is_on("log_bin") else 0,
    )


def _read_tables(facts: MoveFacts) -> tuple[tuple[MovedTable, ...], list[Check]]:
    """The tables that are asked for, as far as they can be read, and what refuses."""
    refused: list[Check] = []
    tables: list[MovedTable] = []
    for name in _wanted(facts, refused):
        try:
            table = introspect(facts.source.session, facts.schema, name)
        # That the server was lost says nothing of the table: the command fails, and goes on when it is given again.
        except ConnectionLost:
            raise
        except VReplicationError as error:
            refused.append(refuse("tables", error.message, error.cure or "Check the user's privileges."))
            continue
        tables.append(_moved(facts, table, refused))
    return tuple(tables), refused


def _wanted(facts: MoveFacts, refused: list[Check]) -> list[str]:
    """Names; `refused` takes what is wrong with them."""
    spec, there = facts.spec, tables_of(facts.source.session, facts.schema)
    if not spec.all_tables:
        return _plain(facts, spec.tables, there, refused)
    stay = _plain(facts, spec.exclude, there, refused)
    if unknown := [name for name in stay if name not in there]:
        refused.append(
            refuse(
                "tables", f"There is no table {unknown[0]} in {facts.schema} to exclude.", "Check the names to exclude."
            )
        )
    found = [name for name in there if name not in stay and not names.is_ours(name)]
    if not found:
        refused.append(refuse("tables", f"There are no tables to move in {facts.schema}.", "Check the source's URL."))
    return found


def _plain(facts: MoveFacts, asked: Iterable[str], there: list[str], refused: list[Check]) -> list[str]:
    found: dict[str, None] = {}
    for name in asked:
        try:
            found[plain_name(name, facts.schema, there)] = None
        except Refused as error:
            refused.append(refuse("tables", error.message, error.cure))
    return list(found)


def _moved(facts: MoveFacts, table: Table, refused: list[Check]) -> MovedTable:
    """The table with its definition, tried, and its mapping, as far as it comes."""
    try:
        shadow = names.shadow_table(table.name)
    except Refused:
        shadow = ""
    moved = MovedTable(source=table, target_schema=facts.target_schema, target_name=table.name, shadow=shadow)
    try:
        return _carried(facts, moved)
    except ConnectionLost:
        raise
    except VReplicationError as error:
        where = f"{moved.name}: {error.message}" if moved.name not in error.message else error.message
        refused.append(refuse("definition", where, error.cure or "Change it on the source first."))
        return moved


def _carried(facts: MoveFacts, moved: MovedTable) -> MovedTable:
    source, target = facts.source.server, facts.target.server
    place = {"schema": moved.target_schema, "name": moved.shadow or moved.target_name}
    carried = carry(moved.source, source, target, **place)
    made = try_carried(facts.target.session, moved.source, carried, **place)
    return replace(moved, carried=carried, made=made, mapping=mapping_of(moved.source, made, source, target))


def mapping_of(source: Table, target: Table, source_server: Server, target_server: Server) -> TableMapping:
    """How rows of `source` become rows of `target`, which `schema.carry` has made of it, or the other way round.

    Raises Refused where no key is shared, or where what the target computes or checks may depend on the time zone.
    """
    is_foreign = source_server.flavor != target_server.flavor
    mapping = map_tables(source, target, AlterClauses(text=""), is_mariadb=target_server.is_mariadb)
    zones = [_local_zone(server) for server in (source_server, target_server)]
    if any(zones) and computes_by_session(target, mapping.pairs):
        raise Refused(
            f"What {source.name} computes or checks may depend on the time zone, and {next(filter(None, zones))} is not"
            " UTC.",
            cure="Move it while time_zone is '+00:00' on both servers, or drop that column, key or CHECK first.",
        )
    if is_foreign:
        mapping = replace(mapping, kept=_generated_pairs(source, target))
    return replace(mapping, soft=soft_pairs(mapping, is_foreign=is_foreign))


def _local_zone(server: Server) -> str | None:
    return local_zone(server.setting("time_zone") or "SYSTEM", server.setting("system_time_zone") or "UTC")


def _generated_pairs(source: Table, target: Table) -> tuple[ColumnPair, ...]:
    """Columns that two flavors compute each by itself: all are compared."""
    return tuple(
        ColumnPair(source=source.column(column.name), target=column) for column in target.columns if column.generated
    )
