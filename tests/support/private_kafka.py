"""Brokers for tests, in a temporary folder.

What must stay true: a Kafka that is missing skips its tests visibly, and fails them in CI; brokers are ended by their
process ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sandbox.binaries import ServerMissing
from sandbox.kafka import Cluster, start_cluster
from tests.support import in_memory
from tests.support.private_server import missing


@contextmanager
def private_kafka(brokers: int = 1) -> Iterator[Cluster]:
    with in_memory.temporary("vreplication-kafka-") as folder:
        with closing(_start(Path(folder), brokers)) as started:
            yield started


def _start(folder: Path, brokers: int) -> Cluster:
    try:
        return start_cluster(folder, brokers)
    except ServerMissing as error:
        missing(str(error))
