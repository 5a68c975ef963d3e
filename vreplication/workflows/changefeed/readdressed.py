"""Another address of the Kafka cluster that a feed writes to: all of its brokers have got other names, say.

What must stay true: an address is taken only where it leads to the very topic that the feed has written, by its id; one
where no broker answers changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vreplication.errors import Refused, Transient
from vreplication.feed.address import parse
from vreplication.feed.broker import Broker
from vreplication.workflows.changefeed.spec import FeedSpec

log = logging.getLogger(__name__)

_CURE = "Name brokers of the same cluster, or begin another feed, with another id."


def address(was: FeedSpec, asked: FeedSpec, figures: Mapping[str, Any], password: str) -> str:
    """That from now on. figures: that the feed has told. Raises Refused, Terminal."""
    new, known = parse(asked.sink, password), figures.get("topic_id")
    if asked.sink == was.sink or new.topic != parse(was.sink).topic or not known:
        return was.sink
    try:
        found = Broker(new).find(new.topic)
    except Transient as error:
        # A command that is older than the address that holds is not to end the feed.
        log.warning("the feed's address stays: %s", error)
        return was.sink
    if found is None:
        raise Refused(f"There is no topic {new.topic} at {new.servers}, or this user may not see it.", cure=_CURE)
    if found.id != known:
        raise Refused(
            f"Topic {new.topic} at {new.servers} is not the one that feed {was.workflow} has written.", cure=_CURE
        )
    return asked.sink
