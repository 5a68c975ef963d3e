"""The switch of a feed to another server: one record of progress, and not where the topic has more than that says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from vreplication.errors import Terminal
from vreplication.feed import failover
from vreplication.feed.feed import Run
from vreplication.feed.messages import Place
from vreplication.feed.progress import Followed, Progress


def followed(server: str, assigned: int) -> Followed:
    return Followed(source=server, position="binlog.000001:4", assigned=assigned)


def switching(*, has_more: bool, latest: int) -> tuple[Run, Progress, list[Progress]]:
    """The second of two sources is another server now."""
    progress = Progress(feed="f", sources=(followed("a", 50), followed("b", 60)), topic="t", topic_id="x", partitions=1)
    committed: list[Progress] = []
    producer = SimpleNamespace(commit=lambda topic, made: committed.append(made))
    anything: Any = SimpleNamespace(progress_topic="p")
    run = Run(settings=anything, broker=anything, producer=producer, sources=(), hooks=anything, progress=progress)  # type: ignore[arg-type]
    run._lanes = SimpleNamespace(has_more=has_more, latest=Place(latest, 0))  # type: ignore[assignment]
    return run, msgspec.structs.replace(progress, sources=(followed("a", 50), followed("c", 60))), committed


def test_times_go_on_behind_a_resolved_that_no_progress_tells_of() -> None:
    run, moved, committed = switching(has_more=False, latest=90)
    assert run._move(moved) == committed[0]
    assert [(each.source, each.assigned) for each in committed[0].sources] == [("a", 50), ("c", 90)]


def test_rows_that_no_progress_tells_of_are_not_left_behind() -> None:
    run, moved, committed = switching(has_more=True, latest=90)
    with pytest.raises(Terminal, match="the former server alone"):
        run._move(moved)
    assert committed == []


@pytest.mark.parametrize(
    ("found", "is_mixed"), [(["b", "a"], True), (["c", "a"], True), (["a", "c"], False), (["c", "d"], False)]
)
def test_servers_in_another_order_are_no_replicas(found: list[str], is_mixed: bool) -> None:
    assert failover._is_mixed(found, ["a", "b"]) is is_mixed
