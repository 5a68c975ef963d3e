"""Kafka, as a feed needs it: topics, the last record of one, what stands behind a place.

What must stay true: nothing here writes a message; reading is read_committed; what a broker does not answer in time is
Transient, and what it refuses for good is one sentence.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from vreplication.errors import Terminal, Transient, VReplicationError
from vreplication.feed.address import Address

_SECONDS = 15.0
_READ_SECONDS = 30.0
_FIRST_LOOK = 50
"""So many offsets from its end the last record of a topic is looked for at first."""
_DEFAULT_BYTES = 1_048_588
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_AGAIN = frozenset(
    {
        *(KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE),
        *(KafkaError._WAIT_COORD, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._RETRY),
        *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT),
        *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR),
        *(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.BROKER_NOT_AVAILABLE),
        *(KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.NETWORK_EXCEPTION, KafkaError.NOT_CONTROLLER),
        *(KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART),
        *(KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """replicas, least_in_sync, most_bytes: of its configuration; id changes when it is deleted and made again."""

    name: str
    id: str
    partitions: int
    replicas: int
    least_in_sync: int
    most_bytes: int
    is_compacted: bool


def translated(error: KafkaError, what: str) -> VReplicationError:
    """Ours for a client's error."""
    words = f"{what}: {error.str()}."
    if error.code() in _AGAIN or error.retriable():
        return Transient(words)
    return Terminal(words)


@contextlib.contextmanager
def kafka(what: str) -> Iterator[None]:
    """Turn the client's errors into ours. what: what was being done, as the beginning of a sentence."""
    try:
        yield
    except KafkaException as failure:
        raise translated(failure.args[0], what) from None


class Broker:
    """A connection for questions, opened when the first is asked."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            with kafka("The broker cannot be asked"):
                self._admin = AdminClient(self.address.settings(socket_timeout_ms=10_000))
        return self._admin

    def brokers(self) -> int:
        """How many there are. Raises Transient where none answers."""
        with kafka(f"No broker of {self.address.servers} answers"):
            return len(self.admin.list_topics(timeout=_SECONDS).brokers)

    def verifies_transactions(self) -> bool:
        """False: records of a transaction that has ended may come in behind it, and hang there. Default: true."""
        with kafka("The brokers' settings cannot be read"):
            numbers = list(self.admin.list_topics(timeout=_SECONDS).brokers)
            found = _result(self.admin.describe_configs([ConfigResource(ResourceType.BROKER, str(numbers[0]))]))
        entry = found.get("transaction.partition.verification.enable")
        return entry is None or str(entry.value).lower() != "false"

    def most_bytes(self) -> int:
        """Of a message (rather a batch) of a topic that says nothing of it."""
        with kafka("The brokers' settings cannot be read"):
            numbers = list(self.admin.list_topics(timeout=_SECONDS).brokers)
            found = _result(self.admin.describe_configs([ConfigResource(ResourceType.BROKER, str(numbers[0]))]))
        entry = found.get("message.max.bytes")
        return int(entry.value) if entry is not None and entry.value else _DEFAULT_BYTES

    def find(self, name: str) -> Topic | None:
        """None: there is no such topic."""
        with kafka(f"Topic {name} cannot be looked at"):
            found = self.admin.list_topics(name, timeout=_SECONDS).topics.get(name)
        if found is None or found.error is not None or not found.partitions:
            return None
        with kafka(f"Topic {name} cannot be looked at"):
            said = _result(self.admin.describe_topics(_collection([name])))
            configs = _result(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
        settings = {key: entry.value for key, entry in configs.items()}
        return Topic(
            name=name,
            id=str(said.topic_id),
            partitions=len(found.partitions),
            replicas=min(len(part.replicas) for part in found.partitions.values()),
            least_in_sync=int(settings.get("min.insync.replicas") or 1),
            most_bytes=int(settings.get("max.message.bytes") or _DEFAULT_BYTES),
            is_compacted="compact" in str(settings.get("cleanup.policy")),
        )

    def create(self, name: str, partitions: int, **config: str) -> None:
        """Unless it is there. Three replicas where there are three brokers, two of them in sync."""
        replicas = min(3, self.brokers())
        settings = {"min.insync.replicas": "2" if replicas == 3 else "1", "unclean.leader.election.enable": "false"}
        made = NewTopic(
            name, num_partitions=partitions, replication_factor=replicas, config={**settings, **_dotted(config)}
        )
        try:
            with kafka(f"Topic {name} cannot be created"):
                _result(self.admin.create_topics([made], operation_timeout=_SECONDS))
        except Terminal:
            if self.find(name) is None:
                raise
        self.wait_for(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        """Partitions up to this count; it may have them already."""
        found = self.find(name)
        if found is None or found.partitions < partitions:
            try:
                with kafka(f"Topic {name} cannot be given {partitions} partitions"):
                    _result(self.admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=_SECONDS))
            except Terminal:
                if (again := self.find(name)) is None or again.partitions < partitions:
                    raise
        self.wait_for(name, partitions)

    def wait_for(self, name: str, partitions: int) -> None:
        """Until each has a leader. Raises Transient."""
        deadline = time.monotonic() + _READ_SECONDS
        while not self._has_leaders(name, partitions):
            if time.monotonic() > deadline:
                raise Transient(f"Topic {name} has partitions without a leader.")
            time.sleep(0.1)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        with kafka(f"Topic {name} cannot be looked at"):
            found = self.admin.list_topics(name, timeout=_SECONDS).topics.get(name)
        if found is None or found.error is not None or len(found.partitions) < partitions:
            return False
        return all(part.leader >= 0 for part in found.partitions.values())

    # Reading.

    def bounds(self, topic: str, partition: int, *, is_committed: bool = True) -> tuple[int, int]:
        """The first offset, and the one behind the last; is_committed: behind which all has ended, at the most."""
        with self._reader(is_committed=is_committed) as reader, kafka(f"Topic {topic} cannot be read"):
            low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SECONDS)
            return low, high

    def last(self, topic: str) -> bytes | None:
        """The value of the last committed record in a topic of one partition; None: there is none, or no topic."""
        with kafka(f"Topic {topic} cannot be looked at"):
            found = self.admin.list_topics(topic, timeout=_SECONDS).topics.get(topic)
        if found is not None and found.error is not None and found.error.code() not in _MISSING:
            # Not the same as none: who takes it for that begins anew.
            raise translated(found.error, f"Topic {topic} cannot be looked at")
        if found is None or found.error is not None or not found.partitions:
            return None
        low, high = self.bounds(topic, 0)
        look = _FIRST_LOOK
        while high > low:
            start = max(low, high - look)
            values = [message.value() for message in self.behind(topic, {0: start})]
            if values or start == low:
                return values[-1] if values else None
            look *= 10
        return None

    def behind(self, topic: str, starts: dict[int, int]) -> Iterator[Message]:
        """Committed messages from these offsets on, by partition, to the end as it is now."""
        if not starts:
            return
        with self._reader() as reader:
            reader.assign([TopicPartition(topic, number, offset) for number, offset in starts.items()])
            open_ones, deadline = set(starts), time.monotonic() + _READ_SECONDS
            while open_ones:
                message = reader.poll(0.5)
                if message is None:
                    if time.monotonic() > deadline:
                        raise Transient(f"Topic {topic} does not answer.")
                    continue
                deadline = time.monotonic() + _READ_SECONDS
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ones.discard(message.partition())
                else:
                    raise translated(error, f"Topic {topic} cannot be read")

    @contextlib.contextmanager
    def _reader(self, *, is_committed: bool = True) -> Iterator[Consumer]:
        settings = self.address.settings(
            group_id="vreplication.look",
            isolation_level="read_committed" if is_committed else "read_uncommitted",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            fetch_wait_max_ms=50,
        )
        with kafka("The topic cannot be read"):
            reader = Consumer(settings)
        try:
            yield reader
        finally:
            reader.close()


def _collection(names: list[str]) -> Any:
    from confluent_kafka import TopicCollection

    return TopicCollection(names)


def _result(futures: dict[Any, Any]) -> Any:
    """Of the one thing that was asked for. Raises KafkaException."""
    (future,) = futures.values()
    return future.result(timeout=_SECONDS * 2)


def _dotted(config: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}
