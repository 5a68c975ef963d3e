"""A workflow's row, as prepare would make it, for tests that need no workflow behind it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.settings import SIDECAR
from vreplication.state import feed_members, feed_offsets, feeds, lease, moves, workflows
from vreplication.state.moves import Decision, Move, Side
from vreplication.state.workflows import TableRow, WorkflowRow


def workflow_row(workflow: str, **fields: Any) -> WorkflowRow:
    known: dict[str, Any] = {
        "id": workflow, "kind": "online_ddl", "protocol": 1, "source_schema": "shop", "source_table": "orders",
        "spec": {}, "phase": Phase.WAITING, "is_paused": False, "is_cancel_requested": False, "reason": None,
        "shadow_table": "s", "retired_table": "r", "copy_path": "server", "source_identity": None,
        "shadow_identity": None, "source_definition": None, "server_identity": None, "start_position": None,
        "is_cut": False, "rows_total": None,
    }  # fmt: skip
    return WorkflowRow(**{**known, **fields})


def make_feed(
    session: Session, workflow: str, schema: str, *, lag: float = 0.4, tables: Sequence[str] = (), **figures: Any
) -> Callable[[], None]:
    """Rows of a change feed that sends this schema into topic `shop`, in its second generation.

    What it returns lets its process be heard of once more.
    """
    spec = {"sink": "kafka://b1.example:9092,b2.example:9092/shop", "tables": list(tables), "dispatch": "index-value"}
    row = workflow_row(
        workflow, kind="changefeed", spec=spec, phase=Phase.STREAMING, source_schema=schema, source_table="*",
        shadow_table="", retired_table="", copy_path="rows",
    )  # fmt: skip
    workflows.create(session, row)
    feeds.begin(session, workflow)
    now = _micros(session)
    told: dict[str, Any] = {
        "waiting_for": None, "rows_per_second": 1_204.0, "rates": [300.5, 295.0, 310.25, 298.25],
        "rows_sent": 48_120_345, "ends": [900, 901, 902, 903],
        "rows_by_partition": [12_030_000, 12_030_100, 12_030_200, 12_030_045],
        "committed_seconds": 0.1, "resolved_micros": now - int(lag * 1e6), "lag_seconds": lag, "topic": "shop",
        "topic_id": "topic-1", "partitions": 4, "generation": 2, "open_branches": 0,
    }  # fmt: skip
    beat = functools.partial(feeds.tell, session, lease.acquire(session, workflow, lease.DRIVER), told | figures)
    beat()
    return beat


def make_consumers(
    session: Session, group: str = "copies", *, applied: int = 895, lag: float = 1.5, seen: float = 0
) -> None:
    """A group that has applied so many messages of each partition of `make_feed`'s topic; heard of `seen` s ago."""
    key = feed_offsets.Key(group, "shop")
    feed_offsets.begin(session, key, "transaction", "topic-1")
    resolved = _micros(session) - int(lag * 1e6)
    where = f"WHERE consumer_group='{group}'"
    session.execute_raw(f"UPDATE {SIDECAR}.feed_consumer SET generation=2, partitions=4, watermark={resolved} {where}")
    session.execute_raw(f"DELETE FROM {SIDECAR}.feed_offset {where}")
    values = ",".join(f"('{group}','shop',{number},2000,{applied},{resolved},2)" for number in range(4))
    columns = "consumer_group, topic, number, next_offset, n, resolved, generation"
    session.execute_raw(f"INSERT INTO {SIDECAR}.feed_offset ({columns}) VALUES {values}")
    feed_members.beat(session, key, "host:1")
    session.execute_raw(f"UPDATE {SIDECAR}.feed_member SET seen_at=NOW(6) - INTERVAL {seen} SECOND {where}")


def spread(partitions: int) -> dict[str, Any]:
    """Figures of `make_feed` for so many partitions."""
    return {
        "partitions": partitions,
        "rates": [round(75.0 + 3.5 * number, 2) for number in range(partitions)],
        "ends": [900 + number for number in range(partitions)],
        "rows_by_partition": [3_000_000 + 1_000 * number for number in range(partitions)],
    }


def _micros(session: Session) -> int:
    return int(session.value("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"))


def make_move(session: Session, workflow: str, schema: str, *, number: int = 1, **fields: Any) -> None:
    """Rows of a workflow that moves `orders` and `items` here from elsewhere. number: of the switch that comes next."""
    is_cut = number % 2 == 0
    spec = {"tables": ["orders", "items"], "cutover": "manual", "reverse": True}
    given = {"kind": "move_tables", "spec": spec, "phase": Phase.SWITCHED if is_cut else Phase.WAITING}
    workflows.create(session, workflow_row(workflow, **(given | fields)))
    workflows.set_fields(session, workflow, is_cut=int(is_cut), rows_total=40_000)
    second = TableRow(
        number=1, source_schema="shop", source_table="items", shadow_table="i", retired_table="j", source_identity=None,
        shadow_identity=None, source_definition=None, rows_total=5_000,
    )  # fmt: skip
    workflows.add_table(session, workflow, second)
    move = Move(
        workflow=workflow, target_schema=schema, source_at="old.example:3306", target_at="new.example:3307",
        source_server="uuid", serving=Side.TARGET if is_cut else Side.SOURCE, decision=Decision.RUNNING, number=number,
        secret="s3cr3t-of-the-move", forward_start=None, back_start=None, asked=None, asked_by=None, stall_millis=None,
    )  # fmt: skip
    moves.create(session, move)
