"""Whether a target is equal to the sources of a feed, by plain SELECTs, and how late it was.

What must stay true: rows are compared whole, one by one; nothing here knows what vreplication thinks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from sandbox.feed_workload import Moments
from vreplication.mysql.session import Session

Rows = list[tuple[Any, ...]]


def rows(session: Session, table: str) -> Rows:
    """In the order of the key."""
    return session.rows(f"SELECT * FROM {table} ORDER BY {'order_id, line' if table == 'items' else 'id'}")


def difference(source: Rows, target: Rows) -> str:
    """In words; empty where there is none."""
    if source == target:
        return ""
    here, there = set(source), set(target)
    lost, invented = [r for r in source if r not in there], [r for r in target if r not in here]
    return (
        f"{len(source):,} rows on the source, {len(target):,} in the target; {len(lost):,} of the source's are not"
        f" in the target {lost[:2]}, {len(invented):,} of the target's are not on the source {invented[:2]}"
    )


def checksum(found: Rows) -> str:
    return hashlib.sha256(repr(found).encode()).hexdigest()[:6]


def latency(moments: Moments, stages: Sequence[str]) -> Iterator[str]:
    """Lines of a table."""
    yield f"  {'':<20} {'in the topic':^24}   {'in the target':^24}"
    yield f"  {'':<20} {_HEAD}   {_HEAD}   {'rows':>6}"
    for stage in stages:
        topic, target = (moments.delays(stage, seen) for seen in (moments.in_topic, moments.in_target))
        if topic and target:
            yield f"  {stage:<20} {_figures(topic)}   {_figures(target)}   {len(target):>6,}"


_HEAD = f"{'p50':>8}{'p99':>8}{'most':>8}"


def _figures(delays: list[float]) -> str:
    found = (delays[len(delays) // 2], delays[len(delays) * 99 // 100], delays[-1])
    return "".join(f"{seconds:>8.2f}" for seconds in found)
