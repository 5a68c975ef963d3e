"""Reads a feed's topic while it is written, by docs/feed.md alone and by nothing of vreplication.

What must stay true: what was aborted is not read; each partition is read from its beginning, also those that come
later; a change that is there twice is counted.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sandbox.feed_workload import TIMES, Moments


class Topic(threading.Thread):
    """What is in the topic so far. partitions: how many are in use, as the last Admin has it."""

    def __init__(self, bootstrap: str, name: str, moments: Moments) -> None:
        super().__init__(name="who reads the topic", daemon=True)
        self.rows = self.duplicates = self.partitions = self.generation = 0
        self.has_old_rows = False
        """All rows that were there before have been sent."""
        self.errors: list[str] = []
        self._brokers, self._topic, self._moments = bootstrap, name, moments
        self._tables = {table: flavor for flavor, table in TIMES.items()}
        self._seen: set[tuple[bytes, bytes, bytes]] = set()
        self._ends: dict[int, int] = {}
        self._stopping = threading.Event()

    def run(self) -> None:
        """The group is never asked for a place: partitions are assigned by hand."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._brokers,
                "group.id": "demo",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                # Who leads a partition is learned anew soon when a broker is gone.
                "topic.metadata.refresh.interval.ms": 500,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        try:
            self._read(consumer)
        except Exception as error:
            self.errors.append(f"{self.name}: {error!r}")
        finally:
            consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        if self.ident is not None:
            self.join(30)

    def _read(self, consumer: Consumer) -> None:
        while not self._stopping.is_set():
            # An Admin, which is in the others too, tells of new ones.
            if len(self._ends) < max(self.partitions, 1):
                self._look(consumer)
            for message in consumer.consume(500, 0.05):
                # An error is one of a broker that is away.
                if message.error() is None:
                    self._take(message)

    def _look(self, consumer: Consumer) -> None:
        try:
            found = consumer.list_topics(self._topic, timeout=1).topics[self._topic].partitions
        except KafkaException:
            return
        if new := [number for number in found if number not in self._ends]:
            self._ends.update(dict.fromkeys(new, -1))
            consumer.incremental_assign([TopicPartition(self._topic, number, 0) for number in new])

    def _take(self, message: Any) -> None:
        partition, offset = message.partition(), message.offset()
        if offset <= self._ends[partition]:
            return
        self._ends[partition] = offset
        headers = dict(message.headers())
        if headers["vr-kind"] == b"admin":
            self._admin(message, headers)
        elif headers["vr-kind"] == b"row":
            self._row(message, headers)

    def _admin(self, message: Any, headers: dict[str, bytes]) -> None:
        said = json.loads(message.value())
        if said["generation"] > self.generation:
            self.generation, self.partitions = said["generation"], said["partition"]
        self.has_old_rows |= headers.get("vr-snapshot") == b"done"

    def _row(self, message: Any, headers: dict[str, bytes]) -> None:
        self.rows += 1
        identity = (headers["vr-source"], headers["vr-t"], headers["vr-seq"])
        self.duplicates += identity in self._seen
        self._seen.add(identity)
        if (flavor := self._tables.get(json.loads(message.key())["table"])) is not None:
            number = json.loads(message.value())["update"]["id"]["value"]
            self._moments.in_topic.setdefault((flavor, number), time.monotonic())
