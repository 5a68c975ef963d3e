"""The sandbox's Kafka does what the feed's tests rely on: transactions, and a leader that is replaced."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from sandbox.kafka import Cluster

SECONDS = 60.0


def test_a_transaction_is_seen_once_it_is_committed(kafka: Cluster) -> None:
    topic = _new_topic(kafka)
    producer = _producer(kafka, topic)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    assert producer.flush(SECONDS) == 0
    with _reader(kafka, topic, "read_uncommitted") as eager, _reader(kafka, topic, "read_committed") as patient:
        assert (_next(eager), _next(patient)) == (b"one", None)
        producer.commit_transaction(SECONDS)
        assert _next(patient) == b"one"


def test_an_aborted_transaction_is_never_seen(kafka: Cluster) -> None:
    topic = _new_topic(kafka)
    producer = _producer(kafka, topic)
    producer.init_transactions(SECONDS)
    for value, end in ((b"one", producer.abort_transaction), (b"two", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        end(SECONDS)
    with _reader(kafka, topic, "read_committed") as reader:
        assert _next(reader) == b"two"


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.parametrize("ends", ["kill", "stop", "freeze"])
def test_the_leader_is_replaced_and_writes_go_on(kafka_cluster: Cluster, ends: str) -> None:
    topic = _new_topic(kafka_cluster)
    failed: list[KafkaError] = []
    producer = _producer(kafka_cluster)
    _write(producer, topic, b"before", failed)
    first = kafka_cluster.leader(topic)
    methodcaller(ends, first)(kafka_cluster)
    _write(producer, topic, b"after", failed)
    assert failed == []
    assert kafka_cluster.leader(topic) not in (first, -1)
    with _reader(kafka_cluster, topic, "read_committed") as reader:
        assert [_next(reader), _next(reader), _next(reader)] == [b"before", b"after", None]


@pytest.mark.seldom
@pytest.mark.slow
def test_what_was_written_outlives_all_brokers(kafka_cluster: Cluster) -> None:
    """With their ports, on which a client goes on."""
    topic = _new_topic(kafka_cluster)
    producer = _producer(kafka_cluster)
    failed: list[KafkaError] = []
    _write(producer, topic, b"before", failed)
    pids = [broker.pid for broker in kafka_cluster.brokers]
    for broker in kafka_cluster.brokers:
        kafka_cluster.kill(broker.number)
    kafka_cluster.start(0, 1, 2)
    assert not set(pids) & {broker.pid for broker in kafka_cluster.brokers}
    _write(producer, topic, b"after", failed)
    assert failed == []
    with _reader(kafka_cluster, topic, "read_committed") as reader:
        assert [_next(reader), _next(reader), _next(reader)] == [b"before", b"after", None]


def _new_topic(cluster: Cluster) -> str:
    name = f"t{secrets.token_hex(4)}"
    cluster.create_topic(name)
    return name


def _producer(cluster: Cluster, transactional_id: str = "") -> Producer:
    """It waits for an answer of a broker that is frozen for seconds, not for a minute."""
    patience: dict[str, str | int] = {"socket.timeout.ms": 4000, "request.timeout.ms": 3000, "log_level": 0}
    own = {"transactional.id": transactional_id} if transactional_id else {"enable.idempotence": "true"}
    return Producer({"bootstrap.servers": cluster.bootstrap, **patience, **own})


def _write(producer: Producer, topic: str, value: bytes, failed: list[KafkaError]) -> None:
    producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(SECONDS) == 0, "not delivered"


@contextmanager
def _reader(cluster: Cluster, topic: str, isolation: str) -> Iterator[Consumer]:
    """At the first record of the only partition."""
    fixed = {"group.id": topic, "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "isolation.level": isolation, **fixed})
    consumer.assign([TopicPartition(topic, 0, 0)])
    yield consumer
    consumer.close()


def _next(consumer: Consumer) -> bytes | None:
    """The next record's value, or nothing where there is none that this reader may see yet."""
    message = consumer.poll(SECONDS)
    assert message is not None, "no answer"
    error = message.error()
    if error is not None:
        assert error.code() == KafkaError._PARTITION_EOF, error
        return None
    return message.value()
