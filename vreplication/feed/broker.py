"""Kafka, as a feed needs it: topics, the last record of one, what stands behind a place.

What must stay true: nothing here writes a message; reading is read_committed, from leaders alone; what a broker does
not answer in time is Transient, and what it refuses for good is one sentence.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from vreplication.errors import Terminal, Transient, VReplicationError
from vreplication.feed.address import Address

_SECONDS = 15.0
_READ_SECONDS = 30.0
_AT_ONCE = 500
"""Topics or partitions in one request."""
_PARTITIONS_AT_ONCE = 2_000
"""In one request to make some: with topics and settings the controller takes 10,000 records."""
_FIRST_LOOK = 50
"""So many offsets from its end the last record of a topic is looked for at first."""
# Kafka's own default of max.message.bytes.
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
        # A leader that is new may say so for a moment, also of a topic that is there.
        *(KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART),
        # The client throws messages away once their transaction has ended; the producer asks for the cause.
        *(KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT),
        # What librdkafka says of offsets ("No leaders found") while a partition has no leader.
        KafkaError._NOENT,
        *(KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR),
        # Leaders have changed, and one side knows more of it than the other. The client calls none of these retriable.
        *(KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.LISTENER_NOT_FOUND),
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """replicas, least_in_sync, most_bytes: of its configuration; id changes when it is deleted and made again.

    is_compacted: older messages of a key go. is_cut: the oldest messages go, whatever their key.
    """

    name: str
    id: str
    partitions: int
    replicas: int
    least_in_sync: int
    most_bytes: int
    is_compacted: bool
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Of a topic, what can be asked of many at once. has_leaders: of all its partitions."""

    id: str
    partitions: int
    has_leaders: bool


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
        return all(said.lower() != "false" for said in self._settings("transaction.partition.verification.enable"))

    def most_bytes(self) -> int:
        """Of a message (rather a batch) of a topic that says nothing of it: what each broker takes that may lead it."""
        return min(map(int, filter(None, self._settings("message.max.bytes"))), default=_DEFAULT_BYTES)

    def _settings(self, name: str) -> list[str]:
        """What each broker has, for each has its own; those that do not know it are left out."""
        with kafka("The brokers' settings cannot be read"):
            numbers = list(self.admin.list_topics(timeout=_SECONDS).brokers)
            # One in a request: it has to go to that broker itself. All of them at once.
            asked = [self.admin.describe_configs([ConfigResource(ResourceType.BROKER, str(at))]) for at in numbers]
            found = [_result(each) for each in asked]
        return [str(each[name].value or "") for each in found if name in each]

    def find(self, name: str) -> Topic | None:
        """None: there is no such topic."""
        said = self._described([name]).get(name)
        if said is None:
            return None
        with kafka(f"Topic {name} cannot be looked at"):
            configs = _result(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
        settings = {key: entry.value for key, entry in configs.items()}
        return Topic(
            name=name,
            id=str(said.topic_id),
            partitions=len(said.partitions),
            replicas=min(len(part.replicas) for part in said.partitions),
            least_in_sync=int(settings.get("min.insync.replicas") or 1),
            most_bytes=int(settings.get("max.message.bytes") or _DEFAULT_BYTES),
            is_compacted="compact" in str(settings.get("cleanup.policy")),
            is_cut="delete" in str(settings.get("cleanup.policy")),
        )

    def names(self, prefix: str) -> list[str]:
        """Of topics that this user may see."""
        with kafka("The topics cannot be listed"):
            return sorted(name for name in self.admin.list_topics(timeout=_SECONDS).topics if name.startswith(prefix))

    def look(self, names: Sequence[str]) -> dict[str, Seen]:
        """Those of them that are there."""
        found = {}
        for name, said in self._described(names).items():
            led = all(part.leader is not None and part.leader.id >= 0 for part in said.partitions)
            found[name] = Seen(id=str(said.topic_id), partitions=len(said.partitions), has_leaders=led)
        return found

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        """Those that are there. To ask for a topic's metadata would make one where the brokers do so by themselves."""
        found = {}
        for at in range(0, len(names), _AT_ONCE):
            some = list(names[at : at + _AT_ONCE])
            with kafka(f"Topic {some[0]} cannot be looked at"):
                answers = self.admin.describe_topics(_collection(some), request_timeout=_SECONDS)
            for name, answer in answers.items():
                with kafka(f"Topic {name} cannot be looked at"):
                    said = _unless_missing(answer)
                if said is not None and said.partitions:
                    found[name] = said
        return found

    def create(self, name: str, partitions: int, **config: str) -> None:
        """Unless it is there. Three replicas where there are three brokers, two of them in sync."""
        self.create_all([name], partitions, **config)

    def create_all(self, names: Sequence[str], partitions: int, **config: str) -> None:
        replicas = min(3, self.brokers())
        # P5: acknowledged by two, and no leader that lacks what was acknowledged: a partition would lose its end.
        # With two brokers both in sync would be too many: a feed would wait as long as either is away.
        settings = {"min.insync.replicas": "2" if replicas == 3 else "1", "unclean.leader.election.enable": "false"}
        settings |= _dotted(config)
        first = min(partitions, _PARTITIONS_AT_ONCE)
        made = [NewTopic(name, num_partitions=first, replication_factor=replicas, config=settings) for name in names]
        step = min(_AT_ONCE, _PARTITIONS_AT_ONCE // first)
        for at in range(0, len(made), step):
            some = made[at : at + step]
            with kafka(f"Topic {some[0].topic} cannot be created"):
                answers = self.admin.create_topics(some, operation_timeout=_SECONDS)
            self._settle(answers, "cannot be created", {})
        # A broker may learn of them a moment later than who made them.
        self.wait_for(names, first)
        if partitions > first:
            self.grow(names, partitions)

    def grow(self, names: Sequence[str], partitions: int) -> None:
        """Partitions up to this count; they may have them already."""
        seen = self.look(names)
        have = {name: seen[name].partitions if name in seen else 0 for name in names}
        words = f"cannot be given {partitions} partitions"
        while some := _steps(have, partitions):
            asked = [NewPartitions(name, count) for name, count in some.items()]
            with kafka(f"Topic {next(iter(some))} {words}"):
                answers = self.admin.create_partitions(asked, operation_timeout=_SECONDS)
            self._settle(answers, words, some)
            have |= some
        self.wait_for(names, partitions)

    def _settle(self, answers: Mapping[str, Any], words: str, wanted: Mapping[str, int]) -> None:
        """A refusal is none where the topic is what it was to become. wanted: how many partitions; else any."""
        for name, answer in answers.items():
            try:
                with kafka(f"Topic {name} {words}"):
                    answer.result(timeout=_SECONDS * 2)
            except Terminal:
                again = self.look([name]).get(name)
                if again is None or again.partitions < wanted.get(name, 1):
                    raise

    def wait_for(self, names: Sequence[str], partitions: int) -> None:
        """Until each partition has a leader. Raises Transient."""
        deadline, missing = time.monotonic() + _READ_SECONDS, list(names)
        while missing:
            seen = self.look(missing)
            missing = [name for name in missing if not _is_led(seen.get(name), partitions)]
            if missing and time.monotonic() > deadline:
                raise Transient(f"Topic {missing[0]} has partitions without a leader.")
            if missing:
                time.sleep(0.1)

    # Reading.

    def bounds(self, topic: str, partition: int, *, is_committed: bool = True) -> tuple[int, int]:
        """The first offset, and the one behind the last; is_committed: behind which all has ended, at the most."""
        with self._reader(is_committed=is_committed) as reader, kafka(f"Topic {topic} cannot be read"):
            low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SECONDS)
            return low, high

    def bounds_of(
        self, partitions: Iterable[tuple[str, int]], *, is_committed: bool = True
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """As `bounds`, of many."""
        wanted = list(partitions)
        low = self._offsets(wanted, OffsetSpec.earliest(), is_committed=is_committed)  # type: ignore[no-untyped-call]
        high = self._offsets(wanted, OffsetSpec.latest(), is_committed=is_committed)  # type: ignore[no-untyped-call]
        return {each: (low[each], high[each]) for each in wanted}

    def _offsets(
        self, wanted: Sequence[tuple[str, int]], which: OffsetSpec, *, is_committed: bool
    ) -> dict[tuple[str, int], int]:
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        found = {}
        for at in range(0, len(wanted), _AT_ONCE):
            asked = {TopicPartition(*each): which for each in wanted[at : at + _AT_ONCE]}
            with kafka(f"Topic {wanted[at][0]} cannot be read"):
                answers = self.admin.list_offsets(asked, isolation_level=level, request_timeout=_SECONDS)
            for of, answer in answers.items():
                with kafka(f"Topic {of.topic} cannot be read"):
                    found[of.topic, of.partition] = int(answer.result(timeout=_SECONDS * 2).offset)
        return found

    def last(self, topic: str) -> bytes | None:
        """The value of the last committed record in a topic of one partition; None: there is none, or no topic."""
        # One that cannot be looked at is not the same as none: who takes it for that begins anew.
        if topic not in self._described([topic]):
            return None
        low, high = self.bounds(topic, 0)
        look = _FIRST_LOOK
        while high > low:
            start = max(low, high - look)
            values = [message.value() for message in self.behind(topic, {0: start})]
            if values or start == low:
                return values[-1] if values else None
            # The end may hold marks and what was aborted, which nobody reads who reads what is committed.
            look *= 10
        return None

    def open_ones(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Those in which a transaction is open, and from which offset on."""
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        # The end for those who read what is committed stands before the first transaction that is open.
        written, ended = (self._offsets(partitions, latest, is_committed=level) for level in (False, True))
        return {each: end for each, end in ended.items() if end < written[each]}

    def behind(self, topic: str, starts: dict[int, int]) -> Iterator[Message]:
        """Committed messages from these offsets on, by partition, to the end as it is now."""
        yield from self.behind_each({(topic, number): offset for number, offset in starts.items()})

    def behind_each(self, starts: Mapping[tuple[str, int], int], *, is_committed: bool = True) -> Iterator[Message]:
        """As `behind`, of several topics."""
        if not starts:
            return
        topic = next(iter(starts))[0]
        with self._reader(is_committed=is_committed) as reader:
            reader.assign([TopicPartition(*each, offset) for each, offset in starts.items()])
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
                    open_ones.discard((str(message.topic()), message.partition() or 0))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    # No fault of anybody's: the next run asks what is left, and takes what is gone for sent.
                    raise Transient(f"Retention has removed what was about to be read of topic {message.topic()}.")
                else:
                    raise translated(error, f"Topic {topic} cannot be read")

    @contextlib.contextmanager
    def _reader(self, *, is_committed: bool = True) -> Iterator[Consumer]:
        settings = self.address.settings(
            # The client wants a name for a group, also where none is formed.
            group_id="vreplication.look",
            isolation_level="read_committed" if is_committed else "read_uncommitted",
            enable_auto_commit=False,
            enable_partition_eof=True,
            # By default the client would go on at the end, without a word, where retention has taken what is asked for.
            auto_offset_reset="error",
            # A broker holds an answer back for half a second where nothing is new, and here the end is what is looked
            # for.
            fetch_wait_max_ms=50,
            # A replica near by may lack what a leader has committed, and the client takes its end for the topic's: of
            # what was sent, and of the progress, the last would not be found. Who applies rows may read there.
            client_rack="",
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


def _unless_missing(answer: Any) -> Any:
    """What was asked for; None: it is not there. Raises KafkaException."""
    try:
        return answer.result(timeout=_SECONDS * 2)
    except KafkaException as failure:
        if failure.args[0].code() in _MISSING:
            return None
        raise


def _steps(have: Mapping[str, int], partitions: int) -> dict[str, int]:
    """What topics are to have after the next request, of those that have fewer."""
    found, room = {}, _PARTITIONS_AT_ONCE
    for name, count in have.items():
        if (more := min(partitions - count, room)) > 0:
            found[name] = count + more
            room -= more
        if not room or len(found) == _AT_ONCE:
            break
    return found


def _is_led(seen: Seen | None, partitions: int) -> bool:
    return seen is not None and seen.partitions >= partitions and seen.has_leaders


def _dotted(config: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}
