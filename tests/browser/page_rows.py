"""Rows for the page in a browser: workflows in each state, a queue, a feed, that nobody works on.

What must stay true: names, texts and figures are the longest and worst that there may be.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.rows import make_consumers, make_feed, make_move, spread, workflow_row
from vreplication.mysql.session import Session
from vreplication.phases import Phase
from vreplication.scheduler import queueing
from vreplication.schema.difference import Definitions
from vreplication.settings import SIDECAR
from vreplication.state import definitions, history, journal, progress, queue, workflows

SCRIPT = "<script>alert(1)</script>"
ALTER = "ADD COLUMN note VARCHAR(200) NOT NULL DEFAULT '<b>none</b>', ADD INDEX by_" + "very_long_name_" * 4 + "(note)"
WAY_BACK = {"table": SCRIPT, "alter": ALTER, "cutover": "manual", "reverts": "open", "until": "2999-01-01T00:00:00"}
REASONS = {Phase.FAILED: "Duplicate entry 'SUMMER' for key 'code'"}
HELD_FEED = "'the brokers do not answer'"
HELD = "'apply backlog 4,210 changes'"
LIST, ONE, GONE = "/vreplication/?conn_id=archive", "/vreplication/workflows/{}?conn_id=archive", "gone"


def make(session: Session, workflow: str, phase: Phase, **fields: Any) -> str:
    """A workflow on a table with the worst of names; returns the path of its page."""
    spec = {"table": SCRIPT, "alter": ALTER, "cutover": "manual"}
    given = {"source_schema": "archive", "source_table": SCRIPT, "spec": spec, "phase": phase}
    tables = {"shadow_table": "t__vr_new", "retired_table": "t__vr_old"}
    row = workflow_row(workflow, **(given | tables | fields))
    workflows.create(session, row)
    workflows.set_fields(session, workflow, reason=row.reason, paused=int(row.is_paused))
    return ONE.format(workflow)


def make_shop(session: Session) -> None:
    """What a list looks like on a usual day."""
    asked = {
        "orders-region": ("orders", "ADD COLUMN region VARCHAR(16) NOT NULL DEFAULT 'eu'", Phase.COPYING),
        "users-email": ("users", "MODIFY email VARCHAR(320) NOT NULL", Phase.WAITING),
        "coupons-code": ("coupons", "ADD UNIQUE KEY (code)", Phase.FAILED),
        "items-price": ("items", "MODIFY price DECIMAL(14,4) NOT NULL", Phase.COMPLETE),
    }
    for name, (table, alter, phase) in asked.items():
        spec = {"table": table, "alter": alter, "cutover": "manual"}
        make(session, name, phase, source_schema="shop", source_table=table, spec=spec, reason=REASONS.get(phase))
    figures(session, "orders-region")
    progress.write_driver(session, "users-email", percent=100.0)
    progress.write_replicate(session, "users-email", lag_seconds=0.4, backlog=0)
    alive(session, "users-email")
    progress.write_driver(session, "coupons-code", percent=100.0)


def make_all(session: Session) -> list[str]:
    """One in each state; returns the paths of the pages that show them."""
    paths = [
        make(session, "copies", Phase.COPYING),
        make(session, "waits", Phase.WAITING),
        make(session, "paused", Phase.VERIFYING, is_paused=True),
        make(session, "failed", Phase.FAILED, reason=f"{SCRIPT}: 3 rows still differ, `a`.`b` among them"),
        make(session, "done", Phase.COMPLETE),
        make(session, "open", Phase.COMPLETE),
        make(session, "open.revert", Phase.WAITING, spec=WAY_BACK),
    ]
    session.execute_raw("CREATE TABLE IF NOT EXISTS archive.t__vr_old (id INT PRIMARY KEY)")
    figures(session, "copies")
    before = f"CREATE TABLE `t` (\n  `a` int(11) COMMENT '{SCRIPT}'\n)"
    after = before.replace("'\n)", f"{'very_long_' * 30}',\n  KEY `by_{'very_long_' * 6}` (`a`)\n)")
    definitions.save(session, "copies", Definitions(before=before, after=after))
    for name in ("waits", "done"):
        journal.write(session, name, "prepared", actor="host:1", details=f"shadow table {SCRIPT}")
    for name, number in (("moves", 1), ("moved", 2)):
        make_move(session, name, "archive", number=number, source_table=SCRIPT)
        paths.append(ONE.format(name))
    paths.append(make_stream(session, tables=[f"shop.{SCRIPT}", "shop.orders"], **spread(16)))
    make_queue(session)
    return [LIST, *paths]


def make_queue(session: Session) -> None:
    """Three that wait, and one that was refused."""
    asked: dict[str, dict[str, Any]] = {
        "q-1": {"not_before": "2999-12-24T02:00:00Z"},
        "q-2": {"after": "copies"},
        "q-3": {"table": f"`{SCRIPT}`"},
        "q-4": {"alter": "ADD COLUMN x INT"},
    }
    for name, more in asked.items():
        given = {"table": f"shop.t_{name[-1]}", "alter": ALTER, "workflow": name, **more}
        queueing.submit(session, queueing.make_entry("shop", given), "ann@host")
    queue.start(session, "q-4", "s1")
    queue.fail(session, "q-4", f"{SCRIPT}: the table has no primary key. Add one, or name a unique key.")


def make_stream(session: Session, **more: Any) -> str:
    """A feed that somebody seems to work on for an hour, with consumers; returns the path of its page."""
    make_feed(session, "shop-feed", "shop", **more)
    make_consumers(session)
    make_consumers(session, "reports", applied=903, lag=0.6)
    make_consumers(session, "old-copies", applied=400, lag=200_000, seen=190_000)
    session.execute_raw(f"UPDATE {SIDECAR}.feed SET written_at=NOW(6) + INTERVAL 1 HOUR")
    session.execute_raw(
        f"UPDATE {SIDECAR}.feed_member SET seen_at=NOW(6) + INTERVAL 1 HOUR WHERE consumer_group<>'old-copies'"
    )
    now = history.slot_now(session)
    _rates(session, now, len(more.get("rates", range(4))))
    lags = [(ago, 0.4 + ago % 7 / 20 + (ago > 90) * max(0, 150 - ago) * 5) for ago in range(300, 0, -1)]
    values = ", ".join(
        f"('shop-feed', {now - ago}, 'streaming', {1_150 + ago % 17 * 9 - 700 * (90 < ago < 150)}, {lag},"
        f" {'NULL' if not 90 < ago < 150 else HELD_FEED})"
        for ago, lag in lags
    )
    columns = "workflow, slot, phase, rows_per_second, lag_seconds, throttled"
    session.execute_raw(f"INSERT INTO {SIDECAR}.history ({columns}) VALUES {values}")
    return ONE.format("shop-feed")


def _rates(session: Session, now: int, partitions: int) -> None:
    """Half of them came with a scaling, half an hour ago; one gets most of the rows."""
    values = []
    for ago in range(300, 0, -1):
        used = range(partitions if ago < 180 else partitions // 2)
        rates = [800 / (at + 3) + 9 * ((ago + 7 * at) % 11) - 150 * (90 < ago < 150) for at in used]
        values.append(f"('shop-feed', {now - ago}, '{json.dumps([round(max(0.0, rate), 2) for rate in rates])}')")
    session.execute_raw(f"INSERT INTO {SIDECAR}.feed_rates VALUES {','.join(values)}")


def figures(session: Session, workflow: str) -> None:
    progress.write_driver(
        session, workflow, percent=61.04, rows_copied=29_300_000, rows_total=48_100_000, rows_total_exact=0,
        rows_per_second=48_213.0, copy_eta_seconds=390.0, chunk_rows=5_000, chunk_millis=480,
    )  # fmt: skip
    progress.write_replicate(
        session, workflow, lag_seconds=0.4, backlog=310, events_applied=9, applied_per_second=1_204.0,
        apply_eta_seconds=0.0, converging=1,
    )  # fmt: skip
    alive(session, workflow)
    _past(session, workflow)


def alive(session: Session, workflow: str) -> None:
    """For an hour: somebody seems to write the figures."""
    later = "NOW(6) + INTERVAL 1 HOUR"
    where = f"{SIDECAR}.progress SET driver_at={later}, replicate_at={later} WHERE workflow=%s"
    session.execute(f"UPDATE {where}", (workflow,))


def _past(session: Session, workflow: str) -> None:
    """Three hours: a point for every five seconds of the last twenty minutes, one a minute before; held back once."""
    now = history.slot_now(session)
    spans = [*range(3 * history.HOUR, 240, -history.MINUTE), *range(240, 0, -1)]
    values = ", ".join(
        f"('{workflow}', {now - ago}, 'copying', {29_300_000 - ago * 240_000}, {45_000 + ago % 17 * 400}, "
        f"{1_200 + ago % 11 * 40}, {0.3 + ago % 7 / 10}, {300 + ago % 13 * 9}, {24_000 + ago % 5 * 90}, "
        f"{480 + ago % 9 * 8}, {HELD if 100 < ago < 130 else 'NULL'}, 0, NOW() + INTERVAL {390 + ago} SECOND)"
        for ago in spans
    )
    session.execute_raw(f"INSERT INTO {SIDECAR}.history VALUES {values}")
