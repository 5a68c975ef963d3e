"""A feed that goes on under other options than it was begun with: what is not taken is said."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.errors import Refused, Transient
from vreplication.feed.broker import Broker
from vreplication.workflows.changefeed import readdressed
from vreplication.workflows.changefeed.run import not_taken
from vreplication.workflows.changefeed.spec import FeedSpec, make_feed_spec


def spec(**given: Any) -> FeedSpec:
    return make_feed_spec(**{"sink": "kafka://b:9092/shop", "workflow": "f", **given})


@pytest.mark.parametrize(
    ("began", "asked", "words"),
    [
        ({}, {}, ""),
        ({"tables": ["s.a"]}, {"tables": ["s.a"]}, ""),
        (
            {"tables": ["s.a"]},
            {"tables": ["s.a", "s.b"]},
            "What the feed began with holds on: tables s.a.",
        ),
        (
            {"dispatch": "table"},
            {"dispatch": "index-value", "exclude": ["s.c"]},
            "What the feed began with holds on: exclude none, dispatch table.",
        ),
    ],
)
def test_what_is_not_taken(began: dict[str, Any], asked: dict[str, Any], words: str) -> None:
    assert not_taken(spec(**asked), spec(**began)) == words


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ("kafka://new:9092/shop", "kafka://new:9092/shop"),
        ("kafka://new:9092/other", "kafka://b:9092/shop"),
        ("kafka://away:9092/shop", "kafka://b:9092/shop"),
        ("kafka://foreign:9092/shop", None),
        ("kafka://empty:9092/shop", None),
    ],
)
def test_another_address_of_the_same_topic_is_taken(
    asked: str, holds: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(broker: Broker, name: str) -> Any:
        host = broker.address.servers.partition(":")[0]
        if host == "away":
            raise Transient("No broker answers.")
        return None if host == "empty" else SimpleNamespace(id={"new": "7"}.get(host, "8"))

    monkeypatch.setattr(Broker, "find", find)
    words = (
        pytest.raises(Refused, match=r"is not the one that feed f has written|There is no topic shop at empty")
        if holds is None
        else nullcontext()
    )
    with words:
        assert readdressed.address(spec(), spec(sink=asked), {"topic_id": "7"}, "") == holds
    # Of one that has told nothing yet it is not known which topic is its.
    assert readdressed.address(spec(), spec(sink=asked), {}, "") == "kafka://b:9092/shop"
