"""A feed that goes on under other options than it was begun with: what is not taken is said."""

from __future__ import annotations

from typing import Any

import pytest

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
