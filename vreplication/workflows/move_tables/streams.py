"""The streams of tables that move: to the target up to the first switch, back after it, and so on.

A stream is known by the number of the switch that it leads to: 1 goes to the target, 2 back to the source. Each has its
own checkpoint, key tables and markers at home, so that none goes on from where another stopped.

What must stay true: a stream is over as soon as its switch is decided; one that goes on to a side where writes are
denied says the exemption, which nobody else knows.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from vreplication.engine.job import Stream, StreamJob, StreamTable, definition_of
from vreplication.errors import Refused, SourceChanged
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import Server, identity, inspect
from vreplication.mysql.session import Session
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Key, Table, TableMapping
from vreplication.state import moves, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.workflows import TableRow, WorkflowRow
from vreplication.workflows.move_tables.plan import mapping_of
from vreplication.workflows.move_tables.spec import MoveSpec

log = logging.getLogger(__name__)


def stream_id(workflow: str, number: int) -> str:
    """At most 48 characters with a table's number behind it, as the plan has seen to."""
    return workflow if number == 1 else f"{workflow}.s{number}"


def is_forward(number: int) -> bool:
    return number % 2 == 1


def serving(number: int) -> Side:
    """The side that takes writes while this stream runs, and from which it reads."""
    return Side.SOURCE if is_forward(number) else Side.TARGET


def stream_of(route: Route, workflow: str, number: int) -> Stream:
    """route: to the target, whichever way this stream goes."""
    way = route if is_forward(number) else route.turned()
    return Stream(
        id=stream_id(workflow, number),
        workflow=workflow,
        route=way,
        load=lambda ends: load(ends, workflow, number),
        is_cut=lambda home: is_over(home, workflow, number),
    )


def is_over(home: Session, workflow: str, number: int) -> bool:
    found = moves.load(home, workflow)
    is_decided = found.decision in (Decision.DECIDED, Decision.OPENED)
    return found.number > number or (found.number == number and is_decided)


def load(ends: Ends, workflow: str, number: int) -> StreamJob:
    """Raises SourceChanged where a table, or a server, is not the one that it began with."""
    row, move = workflows.load(ends.home, workflow), moves.load(ends.home, workflow)
    spec = MoveSpec.model_validate(row.spec)
    source, target = inspect(ends.source), inspect(ends.target)
    _check_servers(row, move, source if is_forward(number) else target, target if is_forward(number) else source)
    stream = stream_id(workflow, number)
    tables = tuple(
        StreamTable(number=t.number, id=t.id(stream), mapping=_mapping(ends, row, move, t, (source, target), number))
        for t in workflows.tables(ends.home, workflow)
    )
    starts = move.forward_start if is_forward(number) else move.back_start
    return StreamJob(
        row=row,
        tables=tables,
        is_mariadb=source.is_mariadb,
        is_target_mariadb=target.is_mariadb,
        packet=int(target.setting("max_allowed_packet") or 16 << 20),
        apply_parallelism=spec.apply_parallelism,
        start=(row.start_position if number == 1 else starts) or "",
        has_copy=number == 1,
        # The first stream writes to tables that nobody has denied.
        exemption=move.secret if number > 1 else "",
    )


def _check_servers(row: WorkflowRow, move: Move, at_source: Server, at_target: Server) -> None:
    for what, noted, found in (
        ("source", move.source_server, identity(at_source)),
        ("target", row.server_identity, identity(at_target)),
    ):
        if noted != found:
            raise SourceChanged(
                f"Workflow {row.id} began with another {what} server than this one.",
                cure="Use the URLs that it began with.",
            )


def names_of(table: TableRow, move: Move, number: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """(schema, table) on the source, and on the target while stream `number` runs."""
    at_source = (table.source_schema, table.source_table)
    return at_source, (move.target_schema, table.shadow_table if number == 1 else table.source_table)


def load_mappings(ends: Ends, workflow: str, number: int) -> dict[int, TableMapping]:
    """From the source to the target, whichever way rows go, by the tables' numbers. ends: of the way to the target."""
    move, servers = moves.load(ends.home, workflow), (inspect(ends.source), inspect(ends.target))
    found = {}
    for table in workflows.tables(ends.home, workflow):
        old, new = names_of(table, move, number)
        found[table.number] = mapping_of(introspect(ends.source, *old), introspect(ends.target, *new), *servers)
    return found


def _mapping(
    ends: Ends, row: WorkflowRow, move: Move, table: TableRow, servers: tuple[Server, Server], number: int
) -> TableMapping:
    old, new = names_of(table, move, number)
    here, there = (old, new) if is_forward(number) else (new, old)
    source, target = introspect(ends.source, *here), introspect(ends.target, *there)
    # Behind the first switch the two definitions only have to fit together, as `mapping_of` tells.
    if number == 1 and definition_of(source) != table.source_definition:
        raise SourceChanged(
            f"The definition of {'.'.join(old)} was changed while workflow {row.id} was under way.",
            cure=f"Run `vreplication cancel {row.id}` and start again.",
        )
    try:
        mapping = mapping_of(source, target, *servers)
    except Refused as error:
        if number == 1:
            raise
        raise _do_not_fit(row, here, there, error.message) from None
    if added := [key.name for key in mapping.added_unique if not _is_on_both(key, source, target)]:
        # Rows that are written would push others out. The plan has refused that, so it has come since.
        raise _do_not_fit(row, here, there, f"the unique key {added[0]} is on the second alone")
    if mapping.added_unique:
        # A plan of today refuses it: one of an older version has begun.
        log.warning("sessions may find other values under the unique key %s", mapping.added_unique[0].name)
        # As that version went on: of a move nothing sees to rows that give way, and the verification compares all.
        return replace(mapping, added_unique=())
    return mapping


def _is_on_both(key: Key, source: Table, target: Table) -> bool:
    """The same key over the same columns."""

    def told(table: Table) -> list[tuple[str, str | None]]:
        columns = [table.column(part.column) for part in key.parts if part.column]
        return [(column.column_type, column.collation) for column in columns]

    is_there = any(other.is_unique and (other.name, other.parts) == (key.name, key.parts) for other in source.keys)
    return is_there and told(source) == told(target)


def _do_not_fit(row: WorkflowRow, here: tuple[str, str], there: tuple[str, str], why: str) -> SourceChanged:
    return SourceChanged(
        f"{'.'.join(here)} and {'.'.join(there)} do not fit together any more ({why}).",
        cure=f"There is no way back behind a change of a definition: `vreplication complete {row.id}` ends it.",
    )
