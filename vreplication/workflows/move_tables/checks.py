"""Every check of a move, of both servers and of each table: all are run and listed.

What must stay true: no check is left out because another refused; what cannot be carried over without a loss, or could
be written behind the switch's back, refuses; what the operator has to see to himself is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from vreplication import names
from vreplication.cutover.deny import TRUST_CURE, may_create_triggers
from vreplication.cutover.hook import check_target
from vreplication.mysql import replica as replicas
from vreplication.mysql.disk import size
from vreplication.mysql.quoting import ident
from vreplication.mysql.server import identity
from vreplication.mysql.session import SqlError
from vreplication.planning import privileges, server_checks, space, table_checks, throttle_checks
from vreplication.planning.facts import Check, OfServer, looked, ok, refuse, warn
from vreplication.schema.literals import BINARIES, CHARACTERS
from vreplication.settings import MIB
from vreplication.state import ids, queue, source_marks, workflows
from vreplication.workflows.move_tables import checks_of_tables, replica_checks
from vreplication.workflows.move_tables.facts import MoveFacts, OneServer, named

_CLOCK_SECONDS = 5.0
_SHORT_ROW_PACKET = MIB
"""Holds every row without long columns (65,535 bytes, written as hexadecimal digits)."""
_LOG_OF_MARKS = 128 * MIB
"""What our own rows take of the source's log a day."""
_LONG = (CHARACTERS | BINARIES) - {"char", "varchar", "binary", "varbinary"} | {"json"}
_LONGEST_ID = 48

_ON_SOURCE: tuple[Callable[[OfServer], Check], ...] = (
    server_checks.version,
    server_checks.binary_log,
    server_checks.log_format,
    server_checks.row_image,
    server_checks.partial_json,
    server_checks.commit_order,
    server_checks.log_filters,
    server_checks.compression,
    server_checks.retention,
    server_checks.writable,
    server_checks.cluster,
    server_checks.prepared,
    throttle_checks.held_back,
)
_ON_TARGET: tuple[Callable[[OfServer], Check], ...] = (
    server_checks.version,
    server_checks.lock_order,
    server_checks.writable,
    server_checks.cluster,
    throttle_checks.held_back,
    throttle_checks.replica_lag,
    throttle_checks.free_disk,
)
# The way back is read from the target's log, so that has to be as complete as the source's.
_FOR_THE_WAY_BACK: tuple[Callable[[OfServer], Check], ...] = (
    server_checks.binary_log,
    server_checks.log_format,
    server_checks.row_image,
    server_checks.partial_json,
    server_checks.commit_order,
    server_checks.log_filters,
    server_checks.retention,
)
_CURES = {
    "cluster": "Move from and to servers outside of a cluster.",
    "writable": "Name the primary.",
}
"""Where the cure of an online DDL is not ours."""


def run_checks(facts: MoveFacts, found: Iterable[Check]) -> tuple[Check, ...]:
    """All verdicts; `found`: what reading the tables and trying their definitions gave."""
    back = _FOR_THE_WAY_BACK if facts.spec.reverse else ()
    return (
        *_of_server(facts.source, _ON_SOURCE),
        *_of_server(facts.target, (*_ON_TARGET, *back)),
        *(
            looked(f"{side.role}: {name}", partial(check, facts, side))
            for side in facts.sides
            for name, check in _SIDES
        ),
        *(looked(name, partial(check, facts)) for name, check in _PAIRS),
        *checks_of_tables.per_table(facts),
        *replica_checks.checks(facts),
        *found,
    )


def _of_server(side: OneServer, checks: tuple[Callable[[OfServer], Check], ...]) -> Iterator[Check]:
    for check in server_checks.run(side, checks):
        cure = _CURES.get(check.name, check.cure) if check.cure else ""
        yield replace(check, name=f"{side.role}: {check.name}", cure=cure)


# -- one server -------------------------------------------------------------------------------------------------------


def _grants(facts: MoveFacts, side: OneServer) -> Check:
    name = f"{side.role}: privileges"
    role = privileges.MOVE_SOURCE if side.role == "source" else privileges.MOVE_TARGET
    schema = facts.schema if side.role == "source" else facts.target_schema
    lacks = privileges.lacking(side.session, role, schema, is_mariadb=side.server.is_mariadb)
    if lacks:
        flavor = "mariadb" if side.server.is_mariadb else "mysql"
        where = f"(sql/grants/move_{side.role}.{flavor}.sql has all of them)"
        return refuse(name, f"The user of the {side.role} lacks privileges.", f"{' '.join(lacks)} {where}")
    return ok(name, "The user has all that is needed.")


def _replica(facts: MoveFacts, side: OneServer) -> Check:
    """Rows that a replica applies fire no trigger, so that nothing denies them."""
    name = f"{side.role}: replica"
    try:
        found = replicas.channels(side.session)
    except SqlError as error:
        return refuse(name, f"What it replicates cannot be read: {error.message}", "See the check of privileges.")
    running = any(map(replicas.is_at_work, found))
    if not found:
        return ok(name, "The server is no replica.")
    if running and side.role == "source":
        return refuse(
            name,
            "The source is itself a replica: what it replicates could not be denied at the switch.",
            "Name the primary, or stop replication on this server for good.",
        )
    # The target is denied on the way back alone, before which each attempt looks at it again.
    words = "is a replica" if running else "is set up as a replica, which is stopped"
    back = " The way back waits until it replicates no more." if running and facts.spec.reverse else ""
    return warn(
        name,
        f"The {side.role} {words}: changes that arrive that way have no fixed order with the moved tables.{back}",
        "See that nothing replicates into the tables that move.",
    )


def _trigger_rights(facts: MoveFacts, side: OneServer) -> Check:
    name = f"{side.role}: deny triggers"
    if reason := may_create_triggers(side.session):
        if side.role == "source":
            return refuse(name, reason, TRUST_CURE)
        if facts.spec.reverse:
            return warn(name, f"{reason} The way back needs them on the target.", TRUST_CURE)
    return ok(name, "The user may create the triggers that deny writes during the switch.")


def _places(facts: MoveFacts, side: OneServer) -> Check:
    name = f"{side.role}: places in the log"
    mode = (side.server.setting("gtid_mode") or "OFF").upper()
    if side.server.is_mariadb or mode == "ON":
        return ok(name, "By GTID: the workflow may go on on a promoted replica of this server.")
    return warn(
        name,
        f"By file and position (gtid_mode is {mode}): the workflow ends if this server is lost.",
        "Switch gtid_mode to ON first, if you want to be able to fail over meanwhile.",
    )


def _room(facts: MoveFacts, side: OneServer) -> Check:
    if side.role == "source":
        return replace(space.room(side, 0, _LOG_OF_MARKS), name="source: disk")
    sizes = [space.needed_of(table.source) for table in facts.tables]
    log = sum(log for _, log in sizes) if side.server.is_on("log_bin") else 0
    return replace(space.room(side, sum(copy for copy, _ in sizes), log), name="target: disk")


_SIDES = (
    ("privileges", _grants),
    ("replica", _replica),
    ("deny triggers", _trigger_rights),
    ("places in the log", _places),
    ("disk", _room),
)


# -- both servers -----------------------------------------------------------------------------------------------------


def _not_itself(facts: MoveFacts) -> Check:
    source, target = (identity(side.server) for side in facts.sides)
    if source != target:
        return ok("two servers", "Source and target are two servers.")
    if facts.schema.lower() == facts.target_schema.lower():
        return refuse(
            "two servers", "Source and target are the same schema of the same server.", "Name another server or schema."
        )
    return ok("two servers", "Source and target are two schemas of one server.")


def _letter_case(facts: MoveFacts) -> Check:
    modes = [side.server.setting("lower_case_table_names") or "0" for side in facts.sides]
    if modes[0] == modes[1]:
        return ok("names", "Both servers tell names apart alike.")
    capital = [t.name for t in facts.tables if any(map(str.isupper, t.source.name + t.target_schema))]
    said = f"lower_case_table_names is {modes[0]} on the source and {modes[1]} on the target"
    if capital:
        return refuse(
            "names",
            f"{said}, and there are capital letters in {named(capital)}.",
            "Rename the tables to lower case first.",
        )
    return warn("names", f"{said}; all names are in lower case.")


def _sql_mode(facts: MoveFacts) -> Check:
    source, target = (set(filter(None, (side.server.setting("sql_mode") or "").split(","))) for side in facts.sides)
    if source == target:
        return ok("sql_mode", "It is the same on both.")
    parts = [
        f"only on the {role}: {named(sorted(modes))}"
        for role, modes in (("source", source - target), ("target", target - source))
        if modes
    ]
    return warn(
        "sql_mode",
        f"It differs ({'; '.join(parts)}): statements of the application may be taken otherwise after the switch.",
        "SET GLOBAL sql_mode on the target as on the source.",
    )


def _time_zone(facts: MoveFacts) -> Check:
    zones = [_zone(side) for side in facts.sides]
    if zones[0] == zones[1]:
        return ok("time_zone", f"It is {zones[0]} on both; rows travel in UTC.")
    return warn(
        "time_zone",
        f"It is {zones[0]} on the source and {zones[1]} on the target: TIMESTAMP keeps its moment, but the"
        " application's sessions will see and write other local times.",
        "SET GLOBAL time_zone on the target as on the source.",
    )


def _zone(side: OneServer) -> str:
    zone = side.server.setting("time_zone") or "SYSTEM"
    return (side.server.setting("system_time_zone") or "UTC") if zone.upper() == "SYSTEM" else zone


def _clocks(facts: MoveFacts) -> Check:
    sql = "SELECT UNIX_TIMESTAMP(NOW(6))"
    ahead = float(facts.target.session.value(sql)) - float(facts.source.session.value(sql))
    if abs(ahead) > _CLOCK_SECONDS:
        side = "ahead of" if ahead > 0 else "behind"
        return warn(
            "clocks",
            f"The target's clock is {abs(ahead):.0f} s {side} the source's: CURRENT_TIMESTAMP jumps at the switch.",
            "Set the clocks (NTP).",
        )
    return ok("clocks", "The servers' clocks agree.")


def _packets(facts: MoveFacts) -> Check:
    source, target = (int(side.server.setting("max_allowed_packet") or MIB) for side in facts.sides)
    cure = "SET GLOBAL max_allowed_packet on the target as on the source, at least."
    if target < _SHORT_ROW_PACKET:
        return refuse(
            "packets",
            f"max_allowed_packet of the target is {size(target)}: a row may not fit into a statement.",
            cure,
        )
    long = [t.name for t in facts.tables if any(c.data_type in _LONG for c in t.source.columns)]
    if target < source and long:
        return warn(
            "packets",
            f"max_allowed_packet is {size(target)} on the target and {size(source)} on the source: a long"
            f" value of {named(long)} may be refused there.",
            cure,
        )
    return ok("packets", f"The target takes packets of {size(target)}.")


def _target_schema(facts: MoveFacts) -> Check:
    sql = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME=%s"
    if facts.target_schema.lower() in table_checks.SYSTEM_SCHEMAS:
        return refuse("target schema", f"{facts.target_schema} is the server's own or ours.", "Name another schema.")
    if facts.target.session.row(sql, (facts.target_schema,)) is None:
        return refuse(
            "target schema",
            f"There is no schema {facts.target_schema} on the target, or the user may not see it.",
            f"CREATE DATABASE {ident(facts.target_schema)}; and grant on it what sql/grants/move_target has.",
        )
    return ok("target schema", f"Tables move into {facts.target_schema}.")


def _not_moved(facts: MoveFacts) -> Check:
    """What else is in the schema and may go with the tables."""
    queries = {
        "views": "SELECT TABLE_NAME FROM information_schema.VIEWS WHERE TABLE_SCHEMA=%s",
        "routines": "SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA=%s",
        "events": "SELECT EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA=%s",
        "sequences": "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_TYPE='SEQUENCE'",
    }
    found = {
        what: sorted(str(name) for (name,) in facts.source.session.rows(sql, (facts.schema,)))
        for what, sql in queries.items()
    }
    listed = [f"{what} {named(there)}" for what, there in found.items() if there]
    if listed:
        return warn(
            "not moved", f"These stay on the source: {'; '.join(listed)}.", "Create them on the target yourself."
        )
    return ok(
        "not moved", "There are no views, routines, events or sequences beside the tables, as far as the user may see."
    )


def _other_streams(facts: MoveFacts) -> Check:
    mine = facts.spec.workflow or ""
    found = source_marks.streams(facts.source.session)
    others = [stream for stream in found if names.split_stream(stream)[0] != mine]
    if len(others) < len(found) and not workflows.existing(facts.target.session, [mine]):
        # Both would have triggers of one name on the source: what the one opens the other has denied.
        return refuse(
            "other streams",
            f"On the source there is a move {mine} that goes to another target, or whose end it has not seen.",
            "Choose another id.",
        )
    if others:
        return warn("other streams", f"Other workflows move tables from this source, or have: {named(others)}.")
    return ok("other streams", "No other workflow moves tables from this source.")


def _workflow(facts: MoveFacts) -> Check:
    """Each table's state is kept under the id, the number of the stream and the table's."""
    longest = f"{facts.spec.workflow or ''}.s98.{len(facts.tables)}"
    if len(longest) > _LONGEST_ID:
        return refuse(
            "workflow",
            f"The workflow's id is too long for {len(facts.tables)} tables.",
            f"Use at most {_LONGEST_ID - len(longest) + len(facts.spec.workflow or '')} characters.",
        )
    session, workflow = facts.target.session, facts.spec.workflow or ""
    asked = queue.about("move_tables", *facts.spec.place(session.url.database), tuple(facts.spec.tables))
    if why := ids.taken(session, workflow, is_move=True) or ids.queued(session, workflow, asked):
        return refuse("workflow", why, ids.CURE)
    return ok("workflow", "Its id has room for the tables.")


def _hook(facts: MoveFacts) -> Check:
    target = facts.spec.on_switch
    if target is None:
        return warn(
            "on_switch",
            "The application is not told at the switch where to write: its writes fail until it is.",
            "Name a command or an https:// URL by --on-switch.",
        )
    check_target(target)
    return ok("on_switch", "The application is told at the switch.")


_PAIRS: tuple[tuple[str, Callable[[MoveFacts], Check]], ...] = (
    ("workflow", _workflow),
    ("two servers", _not_itself),
    ("target schema", _target_schema),
    ("names", _letter_case),
    ("sql_mode", _sql_mode),
    ("time_zone", _time_zone),
    ("clocks", _clocks),
    ("packets", _packets),
    ("not moved", _not_moved),
    ("other streams", _other_streams),
    ("on_switch", _hook),
)
