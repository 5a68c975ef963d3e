"""Fills a lake from a topic: Spark's stream of it, batch by batch, and a manifest whenever the watermark has risen.

Where to go on is in the manifest. Spark's own checkpoint lives as long as one run: a process that begins reads from the
manifest's offsets what was not done with.

What must stay true: a manifest names rows and offsets together, and rows of a span of time once; whoever dies at any
moment leaves the lake as the last manifest says; a manifest follows the one that this process has begun with.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vreplication.errors import Refused, Superseded, Terminal, Transient, VReplicationError
from vreplication.feed.address import Address
from vreplication.feed.broker import Broker, Topic
from vreplication.feed.claims import Fetcher
from vreplication.feed.lake import java_client
from vreplication.feed.lake.ddl import Catalog
from vreplication.feed.lake.deciding import Known
from vreplication.feed.lake.manifest import WORK, Manifest, Place, Store, Table
from vreplication.feed.lake.spark_carrying import Carrying, check_rows
from vreplication.feed.lake.spark_files import Files
from vreplication.feed.lake.spark_staging import Staging
from vreplication.pausepoints import reach
from vreplication.spark.jobs import first_line

# Spark's number for the beginning of a partition, in startingOffsets.
_EARLIEST = -2
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
_POLL_SECONDS = 0.2
_LOST = re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRange|data (may|was|might) .{0,20}(lost|missed)|failOnDataLoss", re.I)
_AWAY = re.compile(
    r"TimeoutException|Timeout of|timed out|DisconnectException|NetworkException|Retriable|LEADER|coordinator", re.I
)
_BROKEN = "Begin a new feed into another topic, and a new lake."


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What is asked for. seconds: between two manifests, at least. most: messages of a batch.

    claims: where files of large values are here (feed/claims.py); None: where the messages say.
    """

    address: Address
    store: Store
    seconds: float
    until_caught_up: bool
    most: int = 250_000
    claims: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a manifest has brought."""

    number: int
    watermark: int
    rows: int


class Stream:
    """One run of Spark's stream, from the newest manifest on."""

    def __init__(self, filling: Filling, spark: Any, stop: threading.Event, committed: Callable[[Told], None]) -> None:
        self._filling, self._spark, self._stop, self._committed = filling, spark, stop, committed
        self._work = filling.store.directory / WORK / f"run-{secrets.token_hex(6)}"
        self._busy = threading.Lock()
        self._error: BaseException | None = None
        self._has_ended = False
        self.has_read = False
        """A batch has come, so that what was away is back."""

    def run(self) -> None:
        """Until it is told to stop, or has caught up. Raises Transient, Terminal."""
        filling = self._filling
        topic = _topic(filling.address)
        self._manifest = _begun(filling, topic)
        filling.store.remove_strays("w", self._manifest)
        starts = _starts(filling.address, topic, self._manifest)
        # Of a partition out of use retention may have taken the head: which number is first there is not known.
        places = {number: place for number, place in self._manifest.places.items() if starts[number] == place.next}
        self._staging = Staging(
            spark=self._spark,
            folder=self._work,
            topic=topic.name,
            known=Known(self._manifest.generation, self._manifest.partitions, self._manifest.watermark),
            # Of what begins at its beginning numbers begin at one.
            places=places | {number: Place(next=0, n=0) for number, at in starts.items() if at == _EARLIEST},
            fetcher=Fetcher(filling.claims),
        )
        try:
            self._read(java_client.options(filling.address), starts)
        finally:
            # Spark may still be in `_take`, or come to it once more, and this run's folder goes now.
            with self._busy:
                self._has_ended = True
            shutil.rmtree(self._work, ignore_errors=True)

    def _read(self, options: dict[str, str], starts: dict[int, int]) -> None:
        filling = self._filling
        wanted = {filling.address.topic: {str(number): offset for number, offset in starts.items()}}
        frame = self._spark.readStream.format("kafka").options(**options)
        frame = frame.option("startingOffsets", json.dumps(wanted)).option("maxOffsetsPerTrigger", filling.most)
        trigger = (
            {"availableNow": True} if filling.until_caught_up else {"processingTime": f"{filling.seconds} seconds"}
        )
        writer = frame.load().writeStream.foreachBatch(self._take).trigger(**trigger)
        try:
            query = writer.option("checkpointLocation", str(self._work / "checkpoint")).start()
        except Exception as error:
            raise self._told(error) from None
        self._wait(query)

    def _wait(self, query: Any) -> None:
        failed: BaseException | None = None
        while query.isActive and not self._stop.is_set() and failed is None:
            try:
                query.awaitTermination(_POLL_SECONDS)
            except Exception as error:
                failed = error
        # What has ended it is told below.
        with contextlib.suppress(Exception):
            query.stop()
        if not self._stop.is_set():
            failed = failed or query.exception()
        if failed is not None or (self._error is not None and not self._stop.is_set()):
            raise self._told(failed or self._error or Terminal("Spark's stream has ended.")) from None

    def _told(self, error: BaseException) -> VReplicationError:
        """Ours for what the stream ended with."""
        if isinstance(self._error, VReplicationError):
            return self._error
        words = f"{error} {self._error or ''}"
        if _LOST.search(words):
            return Terminal(
                f"Topic {self._filling.address.topic} does not hold any more what is to be read next.",
                cure="Its retention was too short, or it was made anew. Begin a new feed and a new lake.",
            )
        # Its words do not tell a broker that is away from a fault for certain, so one is asked.
        try:
            Broker(self._filling.address).brokers()
        except VReplicationError as away:
            return away
        if _AWAY.search(words):
            return Transient(f"Kafka did not answer Spark: {first_line(error)}")
        return Terminal(f"Spark could not go on: {first_line(self._error or error)}")

    # A batch.

    def _take(self, frame: Any, number: int) -> None:
        """Called by Spark, in a thread of its own."""
        with self._busy:
            if self._has_ended or self._stop.is_set():
                return
            try:
                self._batch(frame, number)
            except BaseException as error:
                # Spark ends the stream with an error of its own; ours is kept for what is told.
                self._error = error
                raise

    def _batch(self, frame: Any, number: int) -> None:
        reach("lake.before_stage")
        self._staging.take(frame, number)
        self.has_read = True
        reach("lake.staged")
        before = self._staging.known.watermark, self._staging.known.generation
        spans = self._staging.known.go_on()
        if (self._staging.known.watermark, self._staging.known.generation) == before:
            return
        self._manifest = self._fresh()
        catalog = Catalog(self._manifest)
        rows = self._staging.rows(spans)
        if rows is not None:
            reach("lake.before_files")
        self._files(catalog).write(rows, self._staging.due())
        if rows is not None:
            reach("lake.files_written")
        self._commit(catalog, self._staging.reached())
        self._staging.forget()

    def _fresh(self) -> Manifest:
        """With what a compaction has replaced meanwhile, whose files of before are removed after a while."""
        newest, ours = self._filling.store.open(), self._manifest
        is_ours = (newest.watermark, newest.generation) == (ours.watermark, ours.generation)
        # Where another process has gone on, `_commit` finds it and ends this one.
        return newest if is_ours else ours

    def _files(self, catalog: Catalog) -> Files:
        store, carrying = self._filling.store, Carrying(self._spark, self._filling.store)
        return Files(self._spark, store, self._work, catalog, check=carrying.check, check_rows=check_rows)

    def _commit(self, catalog: Catalog, places: dict[int, Place]) -> None:
        known, before = self._staging.known, self._manifest

        def change(newest: Manifest) -> Manifest:
            # Not by the number: a compaction may make manifests beside it, and changes neither of these.
            if (newest.watermark, newest.generation) != (before.watermark, before.generation):
                raise Superseded("Another process has gone on with the lake.")
            tables = _merged(newest, before, catalog)
            return replace(
                newest,
                watermark=known.watermark,
                generation=known.generation,
                partitions=known.partitions,
                places=places,
                names=tuple(name for name in catalog.names if name.table in tables),
                tables=tables,
            )

        self._manifest = self._filling.store.commit(change, reach=lambda: reach("lake.before_manifest"))
        reach("lake.after_manifest")
        rows = _rows(catalog.tables) - _rows(before.tables)
        self._committed(Told(number=self._manifest.number, watermark=known.watermark, rows=rows))


def _merged(newest: Manifest, before: Manifest, catalog: Catalog) -> dict[int, Table]:
    """What was compacted meanwhile, with the files that this batch has added."""
    found = {}
    for number, table in catalog.tables.items():
        # A batch is made from the manifest of its begin, and a compaction may have replaced files since.
        theirs, mine = newest.tables.get(number), before.tables.get(number)
        if theirs is None and mine is not None:
            # It was folded away: it had ended before the horizon.
            continue
        if theirs is not None and mine is not None:
            known = {file.path for file in mine.files}
            added = tuple(file for file in table.files if file.path not in known)
            table = replace(table, files=(*theirs.files, *added))
        found[number] = table
    return found


def _rows(tables: dict[int, Table]) -> int:
    return sum(file.rows for table in tables.values() for file in table.files)


def _topic(address: Address) -> Topic:
    found = Broker(address).find(address.topic)
    if found is None:
        # Waited for: a lake may be begun before the feed, which makes the topic.
        raise Transient(f"There is no topic {address.topic}.")
    if found.is_compacted:
        raise Refused(
            f"Topic {address.topic} is compacted, so it does not hold every change.",
            cure="Feed it into a topic with cleanup.policy=delete.",
        )
    return found


def _begun(filling: Filling, topic: Topic) -> Manifest:
    """The newest manifest, or the first one. Raises Refused, Terminal."""
    found = filling.store.newest()
    if found is None:
        found = Manifest(number=1, topic=topic.name, topic_id=topic.id)
        if not filling.store.put(found):
            return _begun(filling, topic)
    if found.topic != topic.name:
        raise Refused(f"The lake is made of topic {found.topic}.", cure="Give this topic another directory.")
    if found.topic_id != topic.id:
        raise Terminal(
            f"Topic {topic.name} is not the one that the lake is made of: it was deleted and made again.", cure=_BROKEN
        )
    return found


def _starts(address: Address, topic: Topic, manifest: Manifest) -> dict[int, int]:
    """By partition, the offset from which it is read."""
    broker, found = Broker(address), {}
    for number in range(topic.partitions):
        place = manifest.places.get(number)
        low, high = broker.bounds(topic.name, number)
        # Of one that is out of use nothing is missed: it comes into use again by an Admin, for which deciding.py looks.
        is_read = number < manifest.partitions
        if place is None:
            if low > 0 and is_read:
                raise Terminal(
                    f"Partition {number} of topic {topic.name} does not begin with the first generation: its head is"
                    " gone.",
                    cure=_BROKEN,
                )
            found[number] = _EARLIEST if low == 0 else low
        elif (place.next < low and is_read) or place.next > max(high, low):
            raise Terminal(
                f"Partition {number} of topic {topic.name} holds {low} to {high}, and {place.next} is to be read next.",
                cure=f"Its retention was too short, or messages were lost. {_BROKEN}",
            )
        else:
            found[number] = max(place.next, low)
    return found


def fill(
    filling: Filling,
    spark: Callable[[], Any],
    *,
    stop: threading.Event,
    notify: Callable[[str], None],
    committed: Callable[[Told], None] = lambda told: None,
) -> None:
    """Until told to stop, or until it has caught up; what is away is waited for. spark: starts it. Raises Terminal."""
    # For its refusals, before Spark is started.
    java_client.options(filling.address)
    filling.store.create()
    with _alone(filling.store):
        session = spark()
        pause, told = _FIRST_PAUSE_SECONDS, ""
        while not stop.is_set():
            stream = Stream(filling, session, stop, committed)
            try:
                return stream.run()
            except Transient as error:
                # A batch has come since, so this is another outage, of which is told again.
                if stream.has_read:
                    pause, told = _FIRST_PAUSE_SECONDS, ""
                if error.message != told:
                    notify(f"{error.message} Waiting for it.")
                told = error.message
            stop.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


@contextlib.contextmanager
def _alone(store: Store) -> Iterator[None]:
    with store.alone("writer", "Another process fills the lake in"):
        for left in (store.directory / WORK).glob("run-*"):
            _remove(left)
        yield


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
