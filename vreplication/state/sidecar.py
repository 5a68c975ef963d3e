"""The sidecar schema: its tables as SQLAlchemy sees them, and how a statement is run. How they are made: layout.py.

What must stay true: statements are built with SQLAlchemy Core and executed on the Session that is handed in; nothing in
this room opens a connection or commits, so rows, ledger and checkpoint share a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Executable, column, table
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.expression import TableClause
from sqlalchemy.sql.functions import Function, func

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR

PROTOCOL = 2
"""Version of the watermark's rules (changes/protocol.py); `workers` says under which one a workflow goes on."""
_DIALECT = mysql.dialect(paramstyle="format")


def _table(name: str, *columns: str) -> TableClause:
    return table(name, *(column(c) for c in columns), schema=SIDECAR)


workflow = _table(
    "workflow", "id", "kind", "protocol", "spec", "phase", "paused", "cancel_requested", "reason", "server_identity",
    "start_position", "created_at", "updated_at", "ended_at",
)  # fmt: skip
workflow_table = _table(
    "workflow_table", "workflow", "number", "source_schema", "source_table", "shadow_table", "retired_table",
    "copy_path", "source_identity", "shadow_identity", "source_definition", "is_cut", "rows_total",
)  # fmt: skip
workflow_group = _table(
    "workflow_group", "id", "tables", "at_once", "atomic", "paused", "cancel_requested", "released_by", "created_at"
)
move = _table(
    "move", "workflow", "target_schema", "source_at", "target_at", "source_server", "serving", "decision", "number",
    "secret", "forward_start", "back_start", "asked", "asked_by", "stall_millis", "decided_at",
)  # fmt: skip
lease = _table("lease", "workflow", "role", "token", "holder", "taken_at")
worker = _table("worker", "workflow", "role", "token", "protocol")
heartbeat = _table("heartbeat", "workflow", "role", "token", "at", "connections", "server_started")
gate = _table("gate", "workflow", "is_open", "reason", "beat", "written_at")
split = _table(
    "split",
    "workflow",
    "split",
    "lower_bound",
    "upper_bound",
    "has_lower",
    "estimated_rows",
    "attempt",
    "is_done",
)
chunk = _table(
    "chunk", "workflow", "split", "ordinal", "attempt", "state", "lower_bound", "upper_bound", "has_lower",
    "rows_read", "rows_copied", "swallowed", "millis", "opened_at", "landed_at", "matched_at",
)  # fmt: skip
compared = _table("compared", "workflow", "split", "ordinal", "collection", "rows_seen", "noted_at")
checkpoint = _table("checkpoint", "workflow", "position", "batch", "events_applied", "saved_at")
stream = _table("stream", "workflow", "assigned_micros", "held")
marker = _table("marker", "workflow", "id", "kind", "created_at")
marker_applied = _table("marker_applied", "workflow", "id", "branches", "is_holding", "applied_at")
stream_marker = _table("stream_marker", "stream", "id", "kind", "number", "detail", "written_at")
"""On the source of tables that move; of no sidecar."""
gate_release = _table("gate_release", "workflow", "released_by", "released_at")
progress = _table(
    "progress", "workflow", "rows_copied", "rows_total", "rows_total_exact", "percent", "rows_per_second",
    "copy_eta_seconds", "chunks_landed", "chunk_rows", "chunk_millis", "verify_rows", "verify_total",
    "cutover_attempts", "cutover_millis", "write_stall_millis", "waiting_for", "driver_at", "lag_seconds", "backlog",
    "events_applied", "applied_per_second", "apply_eta_seconds", "converging", "throttled", "held_branches",
    "read_position", "replicate_at",
)  # fmt: skip
throttle = _table(
    "throttle", "workflow", "effort", "tasks", "chunk_millis", "base_micros", "latency_micros", "written_at"
)
traffic = _table("traffic", "workflow", "others_per_second", "written_at")
forecast = _table(
    "forecast", "workflow", "eta_seconds", "eta_low_seconds", "eta_high_seconds", "eta_of", "eta_reason", "written_at",
)  # fmt: skip
pace = _table("pace", "id", "workflow", "part", "source_name", "units", "seconds", "write_rate", "noted_at")
throttling = _table("throttling", "workflow", "settings")
held = _table("held", "workflow", "what", "reasons", "written_at")
tuning = _table("tuning", "workflow", "copy_parallelism", "chunk_millis", "slots", "holds_counter")
history = _table(
    "history", "workflow", "slot", "phase", "rows_copied", "rows_per_second", "applied_per_second", "lag_seconds",
    "backlog", "chunk_rows", "chunk_millis", "throttled", "cutover_attempts", "eta_at",
)  # fmt: skip
definition = _table("definition", "workflow", "before_sql", "after_sql", "has_foreign")
since = _table("since", "workflow", "first_round", "round", "collected", "is_void", "is_verified", "keys_waiting")
verification = _table(
    "verification", "workflow", "verdict", "rows_compared", "mismatches", "repaired", "hot_keys", "details",
    "started_at", "finished_at",
)  # fmt: skip
journal = _table("journal", "id", "workflow", "at", "actor", "event", "details")
queue = _table(
    "queue", "number", "workflow", "source_conn_id", "source_schema", "source_table", "spec", "not_before",
    "after_workflow", "priority", "state", "reason", "submitted_by", "submitted_at", "started_by", "started_at",
)  # fmt: skip
queue_place = _table("queue_place", "workflow", "place")

feed = _table("feed", "workflow", "wanted_partitions", "figures", "written_at")
feed_rates = _table("feed_rates", "workflow", "slot", "rates")
feed_member = _table("feed_member", "consumer_group", "topic", "member", "seen_at", "is_going")
feed_consumer = _table(
    "feed_consumer", "consumer_group", "topic", "mode", "topic_id", "generation", "partitions", "watermark", "ddl_done",
    "ddl_intent", "ddl_before",
)  # fmt: skip
feed_offset = _table(
    "feed_offset", "consumer_group", "topic", "number", "next_offset", "n", "resolved", "generation", "stand",
    "stand_t", "stand_count", "aligned_epoch", "aligned_count",
)  # fmt: skip
feed_asked = _table(
    "feed_asked", "consumer_group", "topic", "number", "source", "schema_name", "table_name", "asked_at", "gtids"
)

# A new table with rows of a workflow belongs in one of these two: whoever forgets a workflow goes by them, and rows
# that stay would be found by the next one of that id.
OF_A_WORKFLOW = (
    lease, heartbeat, worker, gate, split, chunk, compared, checkpoint, stream, since, marker, marker_applied,
    gate_release, throttle, traffic, held,
)  # fmt: skip
"""Tables whose rows of a workflow go when it has ended."""
REMEMBERED = (progress, verification, definition, tuning, throttling, history, forecast, feed, feed_rates)
"""What is kept of one that has ended, beside its own row and the journal."""
ASKED = (gate_release, tuning, throttling)
"""What operators ask of a workflow, beside its own row; it holds for a preparation that is begun again."""


NOW: Function[Any] = func.now(6)
"""The server's clock, microseconds, UTC by our session settings."""


def now() -> Function[Any]:
    """The same each time, by which `rows` knows it among other values."""
    return NOW


def execute(session: Session, statement: Executable) -> int:
    """Run a statement; returns the affected rows."""
    sql, args = _ready(statement)
    return session.execute(sql, args)


def fetch(session: Session, statement: Executable) -> list[dict[str, Any]]:
    """Run a query; rows by column name."""
    sql, args = _ready(statement)
    return session.named_rows(sql, args)


def fetch_one(session: Session, statement: Executable) -> dict[str, Any] | None:
    found = fetch(session, statement)
    return found[0] if found else None


def _ready(statement: Executable) -> tuple[str, tuple[Any, ...]]:
    found = compiled(statement)
    params: Mapping[str, Any] = found.params
    return str(found), tuple(params[name] for name in found.positiontup or ())


def compiled(statement: Executable) -> Any:
    """As SQLAlchemy's SQLCompiler leaves it, in PyMySQL's style. Costs a fifth of a millisecond and more: rows.py."""
    # Lists of IN are written out now: SQLAlchemy would do that as it runs a statement, which it does not here.
    return statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})  # type: ignore[attr-defined]
