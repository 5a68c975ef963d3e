"""What a producer makes of messages that its client threw away: the cause decides, and nobody stops for the symptom."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from vreplication.errors import Ambiguous, Superseded
from vreplication.feed.address import parse
from vreplication.feed.producer import FeedProducer


class Client:
    """of: with what it refuses to end the transaction."""

    def __init__(self, of: int | None) -> None:
        self._of = of

    def abort_transaction(self, seconds: float) -> None:
        if self._of is not None:
            raise KafkaException(KafkaError(self._of))


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
@pytest.mark.parametrize(("cause", "kind"), [(None, Ambiguous), (KafkaError._FENCED, Superseded)])
def test_purged_messages_are_judged_by_their_cause(code: int, cause: int | None, kind: type[Exception]) -> None:
    producer = FeedProducer(parse("kafka://h:1/t"), "f", 1_000_000)
    producer._producer = Client(cause)  # type: ignore[assignment]
    assert isinstance(producer._judged(KafkaError(code), "A message was not acknowledged"), kind)
    producer._producer = None
