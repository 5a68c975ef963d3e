"""The Kafka client of a consumer: only what is committed, from the offsets that it is told, none of its own.

What must stay true: an offset that is not there any more ends the consumer, it never goes on somewhere else; what Kafka
remembers of a group decides nothing but who reads what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from vreplication.errors import Terminal, Transient
from vreplication.feed.address import Address
from vreplication.feed.broker import kafka, translated

_MESSAGES, _SECONDS = 1_000, 0.1
# Who came too late to the next read joins the group again with it; rows of what others have taken D1 refuses.
_AGAIN_BY_ITSELF = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError._PARTITION_EOF})
Assigned = Callable[[list[int]], None]


class Client:
    """told: of what is wrong with the broker, as long as it may get well by itself. Not thread-safe."""

    def __init__(self, address: Address, group: str, *, told: Callable[[str], None], is_alone: bool) -> None:
        """is_alone: nobody else reads, so nobody takes anything away from who is slow."""
        self._topic, self._told = address.topic, told
        self._errors: list[KafkaError] = []
        self._held: set[int] = set()
        self.is_away = False
        # A day, the most that librdkafka takes.
        patience = {"max_poll_interval_ms": 86_400_000} if is_alone else {}
        settings = {
            **address.settings(
                group_id=group,
                isolation_level="read_committed",
                # D1: by default librdkafka goes on at the topic's end where the offset is gone, without a word.
                auto_offset_reset="error",
                enable_auto_commit=False,
                queued_max_messages_kbytes=32 << 10,
                fetch_wait_max_ms=100,
                reconnect_backoff_max_ms=2_000,
                allow_auto_create_topics=False,
                # So soon somebody of the group reads a partition that is new.
                topic_metadata_refresh_interval_ms=5_000,
                **patience,
            ),
            "error_cb": self._errors.append,
        }
        # By default partitions of a process that was killed stay unread for 45 s. The address may say otherwise.
        settings.setdefault("session.timeout.ms", 10_000)
        try:
            self._consumer = Consumer(settings)
        except KafkaException as failure:
            raise translated(failure.args[0], "Kafka cannot be read") from None

    def subscribe(self, assigned: Assigned) -> None:
        """assigned: called inside `read` with the partitions of this process, whenever they change. Then `assign`."""

        def gained(consumer: Consumer, parts: list[TopicPartition]) -> None:
            # Else the client would begin where Kafka remembers the group to be.
            self._let_go()
            consumer.assign([])
            assigned([part.partition for part in parts])

        def lost(_: Consumer, parts: list[TopicPartition]) -> None:
            assigned([])

        self._consumer.subscribe([self._topic], on_assign=gained, on_revoke=lost, on_lost=lost)

    def assign(self, offsets: Iterable[tuple[int, int]]) -> None:
        """(partition, offset) of each that is read from now on."""
        parts = [TopicPartition(self._topic, number, offset) for number, offset in offsets]
        with kafka(f"Topic {self._topic} cannot be read"):
            self._let_go()
            self._consumer.assign(parts)

    def _let_go(self) -> None:
        """Behind `assign`, which goes on in the background, a resume may overtake it: then nothing comes, for ever."""
        if self._held:
            self._consumer.resume([TopicPartition(self._topic, number) for number in sorted(self._held)])
        self._held.clear()

    def hold(self, numbers: Sequence[int]) -> None:
        """Read no more of these partitions."""
        self._held.update(numbers)
        with kafka(f"Topic {self._topic} cannot be held"):
            self._consumer.pause([TopicPartition(self._topic, number) for number in numbers])

    def go_on(self, number: int, offset: int) -> None:
        part = TopicPartition(self._topic, number, offset)
        self._held.discard(number)
        with kafka(f"Topic {self._topic} cannot be read on"):
            self._consumer.seek(part)
            self._consumer.resume([part])

    def read(self, seconds: float = _SECONDS) -> list[Message]:
        """Some messages, as they come; none after so long without any. Raises Transient, Terminal."""
        with kafka(f"Topic {self._topic} cannot be read"):
            found = self._consumer.consume(_MESSAGES, seconds)
        errors, self._errors = [*self._errors, *(e for m in found if (e := m.error()) is not None)], []
        for error in errors:
            self._judge(error)
        messages = [message for message in found if message.error() is None]
        self.is_away = self.is_away and not messages
        return messages

    def _judge(self, error: KafkaError) -> None:
        if error.code() in _AGAIN_BY_ITSELF:
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise Terminal(
                f"Topic {self._topic} does not hold any more what is to be read next: {error.str()}.",
                cure="Its retention was too short, or it was made anew. Begin again with a copy and a new feed.",
            )
        found = translated(error, f"Topic {self._topic} cannot be read")
        if not isinstance(found, Transient):
            raise found
        # Not raised: the client connects again by itself, and all that is in memory would be read once more.
        if not self.is_away:
            self._told(f"{found.message} Waiting for it.")
        self.is_away = True

    def close(self) -> None:
        self._consumer.close()
