"""The sidecar schema: its tables as SQLAlchemy sees them, how they are made, and how a statement is run.

What must stay true: statements are built with SQLAlchemy Core and executed on the Session that is handed in; nothing in
this room opens a connection or commits, so rows, ledger and checkpoint share a transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Executable, column, select, table
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.expression import TableClause
from sqlalchemy.sql.functions import Function, func

from vreplication.errors import Refused, Terminal
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError
from vreplication.settings import SIDECAR

T = TypeVar("T")
VERSION = 1
MECHANISM = 2
"""Version of the watermark's rules (changes/mechanism.py); `workers` says under which one a workflow goes on."""
_DENIED = frozenset({1044, 1142, 1143})
_DIALECT = mysql.dialect(paramstyle="format")


def _table(name: str, *columns: str) -> TableClause:
    return table(name, *(column(c) for c in columns), schema=SIDECAR)


workflow = _table(
    "workflow", "id", "kind", "mechanism", "source_schema", "source_table", "spec", "phase", "paused",
    "cancel_requested", "reason", "shadow_table", "retired_table", "copy_path", "source_identity", "shadow_identity",
    "source_definition", "server_identity", "start_position", "is_cut", "rows_total", "created_at", "updated_at",
    "ended_at",
)  # fmt: skip
lease = _table("lease", "workflow", "role", "token", "holder", "taken_at")
worker = _table("worker", "workflow", "role", "token", "mechanism")
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
tuning = _table("tuning", "workflow", "copy_parallelism", "chunk_millis", "slots", "holds_counter")
history = _table(
    "history", "workflow", "slot", "phase", "rows_copied", "rows_per_second", "applied_per_second", "lag_seconds",
    "backlog", "chunk_rows", "chunk_millis", "throttled", "cutover_attempts", "eta_at",
)  # fmt: skip
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

OF_A_WORKFLOW = (
    lease, heartbeat, worker, gate, split, chunk, compared, checkpoint, stream, since, marker, marker_applied,
    gate_release, throttle, traffic,
)  # fmt: skip
"""Tables whose rows of a workflow go when it has ended."""
REMEMBERED = (progress, verification, tuning, history, forecast)
"""What is kept of one that has ended, beside its own row and the journal."""


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
    return statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})  # type: ignore[attr-defined]


def of_kind(workflow_id: str, kind: str) -> Executable:
    """Markers of a workflow of one kind."""
    return select(marker.c.id).where(marker.c.workflow == workflow_id, marker.c.kind == kind)


def exists(session: Session) -> bool:
    """True when the sidecar was installed on this server. The last of its tables is looked for."""
    sql = "SELECT 1 FROM information_schema.tables WHERE table_schema=%s AND table_name='workflow'"
    return session.row(sql, (SIDECAR,)) is not None


def look(session: Session, query: Callable[[], T]) -> T | None:
    """What the query finds; None where no sidecar was installed. Where one was, it costs nothing to ask so.

    Asked again when it failed and the sidecar is there: it may have been installed in between. Raises Refused where
    the user may not read it.
    """
    with contextlib.suppress(SqlError):
        return query()
    try:
        return query() if exists(session) else None
    except SqlError as error:
        if error.code not in _DENIED:
            raise
        raise Refused(
            f"The user may not read our own schema {SIDECAR}: {error.message}.",
            cure=f"GRANT SELECT ON {ident(SIDECAR)}.* TO the user; (sql/grants/ has all that is needed)",
        ) from None


def complete(session: Session) -> None:
    """Create the tables that a sidecar of an earlier release lacks; a look is enough where nothing is missing."""
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema=%s"
    there = {str(name) for (name,) in session.rows(sql, (SIDECAR,))}
    if not names() <= there:
        install(session)


def names() -> frozenset[str]:
    """The tables that every sidecar has."""
    return frozenset(path.stem for path in _folder().glob("*.sql"))


def install(session: Session) -> None:
    """Create what is missing. Raises Terminal when the sidecar is of a newer version than this program.

    A new table needs no new version, for older programs do not see it; a change to one that they know does.
    """
    session.execute_raw(f"CREATE DATABASE IF NOT EXISTS {ident(SIDECAR)}")
    for path in sorted(_folder().glob("*.sql")):
        session.execute_raw(_qualified(path.read_text()))
    row = session.row(f"SELECT version FROM {ident(SIDECAR)}.schema_version WHERE id=1")
    if row is None:
        session.execute_raw(f"INSERT IGNORE INTO {ident(SIDECAR)}.schema_version VALUES (1,{VERSION})")
    elif int(row[0]) > VERSION:
        raise Terminal(
            f"The sidecar schema {SIDECAR} is of version {row[0]}; this program knows {VERSION}.",
            cure="Use the newer vreplication that made it.",
        )


def _qualified(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    marker_text = "CREATE TABLE IF NOT EXISTS "
    return "\n".join(lines).replace(marker_text, f"{marker_text}{ident(SIDECAR)}.", 1)


def _folder() -> Path:
    """`sql/sidecar` of the repository, or its copy inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_sql" / "sidecar", package.parent / "sql" / "sidecar"):
        if folder.is_dir():
            return folder
    raise Terminal("The sidecar's table definitions are missing from this installation.", cure="Install it again.")
