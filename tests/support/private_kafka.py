"""Brokers for tests, in a temporary folder.

What must stay true: a Kafka that is missing skips its tests visibly, and fails them in CI; brokers are ended by their
process ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from sandbox.binaries import ServerMissing
from sandbox.kafka import Cluster, start_cluster
from tests.support import in_memory
from tests.support.private_server import missing


@contextmanager
def private_kafka(
    brokers: int = 1, *, options: Mapping[str, object] | None = None, place: Path | None = None
) -> Iterator[Cluster]:
    """options: settings of each broker. place: its folder, where that is not to be any."""
    with in_memory.temporary("vreplication-kafka-") as folder:
        with closing(_start(place or Path(folder), brokers, options)) as started:
            yield started


def _start(folder: Path, brokers: int, options: Mapping[str, object] | None) -> Cluster:
    try:
        return start_cluster(folder, brokers, options=options)
    except ServerMissing as error:
        missing(str(error))
