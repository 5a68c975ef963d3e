"""Who reads what a feed sent, read_committed, and when.

Messages are kept and looked into afterwards, so that looking costs nothing while it is measured.

What must stay true: a row counts as readable when this reader has it; the rows of both contenders are known by the
`id` in their value, whatever the format.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.feed_contenders import Contender, Job
from bench.feed_site import Site

_ID = re.compile(rb'"after":\{"id":(\d+)|"update":\{"id":\{"type":"LongLong","value":(\d+)')
_WAIT_SECONDS = 90.0


class Stuck(Exception):
    """Nothing came any more."""


def ids(value: bytes | None) -> int | None:
    """Of an INSERT in either format; None: it is something else."""
    found = _ID.search(value) if value else None
    return int(found[1] or found[2]) if found else None


@dataclass(slots=True)
class Reader:
    """Reads a topic from its beginning, in a thread of its own. batches: (when, their values).

    keep: only values whose key holds this; all are counted.
    """

    site: Site
    topic: str
    partitions: int
    keep: bytes = b""
    batches: list[tuple[float, list[bytes]]] = field(default_factory=list)
    count: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Reader:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(30)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.site.cluster.bootstrap,
                "group.id": f"bench-{self.topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 20,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self.topic, number, 0) for number in range(self.partitions)])
        while not self._over.is_set():
            # All that is there: to wait for a number of messages would make the first ones late.
            found = [message for message in consumer.consume(2_000, 0.005) if _is_row(message)]
            if found:
                values = [message.value() for message in found if self.keep in (message.key() or b"")]
                self.batches.append((time.monotonic(), values))
                self.count += len(found)
        consumer.close()

    def wait(self, holds: Callable[[], bool], contender: Contender, job: Job, patience: float = _WAIT_SECONDS) -> None:
        """Raises Stuck when nothing comes for a long time, with what the contender says."""
        seen, at = self.count, time.monotonic()
        while not holds():
            time.sleep(0.01)
            if self.count != seen:
                seen, at = self.count, time.monotonic()
            elif time.monotonic() - at > patience:
                raise Stuck(f"{contender.name}, {job.name}: nothing for {patience:.0f} s. {contender.trouble(job)}")

    def rows(self) -> Iterator[tuple[float, int]]:
        """(when, id) of each message of a row."""
        for at, values in self.batches:
            for value in values:
                if (number := ids(value)) is not None:
                    yield at, number

    def copies(self) -> Counter[int]:
        return Counter(number for _, number in self.rows())


def _is_row(message: Any) -> bool:
    """Values of Resolved are empty, that of Admin is told apart."""
    value = None if message.error() else message.value()
    return value is not None and not value.startswith(b'{"partition"')
