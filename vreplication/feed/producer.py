"""Messages into Kafka, in transactions that carry the feed's progress. The contract with readers is docs/feed.md.

One producer a feed; its transactional.id is the feed's id, so that beginning anew fences whoever came before and ends
his transaction. A transaction is: messages, Resolved in every partition, and, when all of that is acknowledged, the
progress record. librdkafka has no KIP-890: an EndTxn that comes late may end the next transaction too early, with what
is in it by then. Progress standing last makes that harmless: such rows are found behind the progress at the next start
and are not sent again.

What must stay true: a partition holds a prefix of what the log says is its own, in order, at any time; `n` has no gap;
after an error nobody goes on with this producer.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from vreplication.errors import Ambiguous, Superseded, Terminal, Transient
from vreplication.feed import large
from vreplication.feed.address import Address
from vreplication.feed.broker import translated
from vreplication.feed.lanes import Lane
from vreplication.feed.messages import COUNTED, Encoded, Header, Kind, Place, Tags, headers
from vreplication.feed.progress import End, Progress
from vreplication.pausepoints import reach

log = logging.getLogger(__name__)

# For so long at the most a producer that hangs holds up who reads what is committed: then the broker aborts.
TRANSACTION_SECONDS = 60
# P5: a message gives up before its transaction's time is over, so that we hear of it and not the broker ends it for us.
_MESSAGE_SECONDS = 45
_INIT_SECONDS = 60.0
_SOCKET_SECONDS = 20
_KNOWN_SECONDS = 5.0
_SLICE_SECONDS, _TOLD_SECONDS, _LET_GO_SECONDS = 0.5, 5.0, 5.0
_AGAIN_SECONDS = 0.05
_BEFORE = frozenset({KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.COORDINATOR_LOAD_IN_PROGRESS})
"""The coordinator is not ready yet, or still ends what an earlier producer had open: a matter of milliseconds."""
_FENCED = frozenset(
    {
        *(KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED),
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_SPOILED = frozenset({KafkaError._FATAL, KafkaError._STATE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""It happened before, in the background, and this call is only the first to hear of it."""
_OVER = frozenset(
    {
        *(KafkaError._FAIL, KafkaError._STATE, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT),
        *(KafkaError.INVALID_TXN_STATE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError.UNKNOWN_PRODUCER_ID),
    }
)
"""Not the transaction that the client takes for open: it was ended from elsewhere, or by a request that came late."""
_LAST = (Kind.RESOLVED, Kind.ADMIN)


def let_go(producer: Producer, *, abort: bool) -> None:
    """Every message has been reported when the client goes: it would call back from its own end, and crash.

    abort: end the transaction, so that readers need not wait for its time.
    """
    with contextlib.suppress(KafkaException, SystemError):
        producer.purge()
    if abort:
        with contextlib.suppress(KafkaException, SystemError):
            producer.abort_transaction(5.0)
    until = time.monotonic() + _LET_GO_SECONDS
    while len(producer) and time.monotonic() < until:
        with contextlib.suppress(KafkaException, SystemError):
            producer.poll(0.1)


class FeedProducer:
    """Between `open` and `close`. Not thread-safe."""

    def __init__(self, address: Address, feed: str, most_bytes: int) -> None:
        self._address, self._feed = address, feed
        self._most_bytes, self._piece = most_bytes, large.piece_of(most_bytes)
        self._producer: Producer | None = None
        self._lanes: dict[str, Lane] = {}
        self._error: KafkaError | None = None
        self._is_open = False
        self.check: Callable[[], None] = lambda: None
        """Raises what ends the feed; asked while the broker is waited for."""
        self.waits: Callable[[str], None] = lambda text: None
        """Told once that the broker is waited for."""
        self.dispatch = ""
        """By which rule rows are sent, for who reads them."""
        self.rows = self.nbytes = 0
        """In the open transaction."""

    def open(self, seconds: float = _INIT_SECONDS) -> None:
        """Fence whoever was there before, and end what he had open, within so long. Raises Transient."""
        settings = self._address.settings(
            transactional_id=self._feed,
            transaction_timeout_ms=TRANSACTION_SECONDS * 1000,
            message_timeout_ms=_MESSAGE_SECONDS * 1000,
            # A request costs this process and the broker more than the messages in it. Consumers see none before the
            # commit, and `flush` does not wait for this.
            linger_ms=25,
            # The broker's limit is of a batch, which has some bytes beside its messages.
            batch_size=min(1_000_000, max(1_000, self._most_bytes - 500)),
            compression_type="lz4",
            queue_buffering_max_messages=200_000,
            # A message that is larger than the queue would wait for ever.
            queue_buffering_max_kbytes=max(64 << 10, self._most_bytes >> 9),
            message_max_bytes=max(1_000_000, self._most_bytes),
            # P5: with more in flight requests may overtake one another, also those of an idempotent producer, and a row
            # goes back.
            max_in_flight=5,
            socket_timeout_ms=_SOCKET_SECONDS * 1000,
            request_timeout_ms=(_SOCKET_SECONDS - 5) * 1000,
        )
        with self._calls("The feed's transactions cannot be begun"):
            self._producer = Producer({**settings, "error_cb": self._note_failure}, logger=log)
            self._patiently(self._producer.init_transactions, seconds, _BEFORE)

    def begin_from(self, progress: Progress, lanes: Iterable[Lane]) -> None:
        self._lanes = {lane.name: lane for lane in lanes}
        # A value of which some parts are there already has to be cut as it was.
        self._piece = progress.piece or self._piece

    def close(self) -> None:
        """What is open is left to be ended by who comes next, or by its time."""
        # P4: whatever has gone wrong, nobody goes on with this one. A late request to end its transaction carries the
        # old epoch, and the broker refuses it once a new producer has begun.
        producer, self._producer = self._producer, None
        if producer is not None:
            let_go(producer, abort=self._is_open)
        self._is_open = False

    @property
    def piece(self) -> int:
        return self._piece

    def add(self, lane: Lane) -> None:
        self._lanes[lane.name] = lane

    # Messages.

    def row(
        self, lane: Lane, partition: int, place: Place, messages: Sequence[Encoded], tags: Sequence[Header]
    ) -> None:
        """One row; may be several messages, and those several parts."""
        there = lane.sent.rows(partition, place)
        if len(messages) == 1 and not there and large.is_whole(messages[0], self._piece):
            # Nearly always.
            self._produce(lane, partition, Kind.ROW, place, messages[0], tags, "")
        else:
            pieces = [piece for message in messages for piece in self._pieces(message)]
            # What is there already are the first ones, for a partition always holds a prefix of what is its own.
            for message, part in pieces[there:]:
                self._produce(lane, partition, Kind.ROW, place, message, tags, part)
        lane.last = place.t
        # Also where all of it stood there already: so much of the log was gone by, and a commit says so.
        self.rows += 1

    def broadcast(
        self, lane: Lane, kind: Kind, place: Place, messages: Sequence[Encoded], tags: Sequence[Header] = ()
    ) -> None:
        """To all partitions in use. Only what is counted can be there already."""
        pieces = [piece for message in messages for piece in self._pieces(message)]
        for partition in range(lane.partitions):
            there = lane.sent.others(partition, kind, lane.generation, place)
            for message, part in pieces[there:]:
                self._produce(lane, partition, kind, place, message, tags, part)
        lane.last = max(lane.last, place.t)

    def align(self, lane: Lane, number: Place, message: Encoded) -> None:
        """To all partitions in use, whatever is there."""
        for partition in range(lane.partitions):
            self._produce(lane, partition, Kind.ALIGN, number, message, (), "")

    def admin(self, lane: Lane, place: Place, message: Encoded, *, partitions: int, generation: int) -> None:
        """A new generation, to the partitions of the old one and of this one, which the client knows."""
        # The old ones and the new ones: a reader of the generation before stops at it, one of the next begins with it.
        # In a partition that lacks it either would wait for ever.
        both = max(lane.partitions, partitions)
        lane.sent.ends += [End()] * (both - len(lane.sent.ends))
        lane.partitions, lane.generation = both, generation
        self.broadcast(lane, Kind.ADMIN, place, [message], [("vr-dispatch", self.dispatch.encode())])
        lane.partitions = partitions

    def know(self, lanes: Sequence[Lane], partitions: int) -> None:
        """The client learns of new partitions minutes later by itself, each broker a moment later. Raises Transient."""
        until = time.monotonic() + _KNOWN_SECONDS
        while (lane := self._unknown(lanes, partitions)) is not None:
            if time.monotonic() > until:
                raise Transient(f"Topic {lane.name} does not have {partitions} partitions yet.")
            time.sleep(0.05)

    def _unknown(self, lanes: Sequence[Lane], partitions: int) -> Lane | None:
        of_all, one = self._own.list_topics, lanes[0].name
        with self._calls("The topic's partitions cannot be looked at"):
            # Of one topic by name, for a cluster may have thousands; of many, one question is cheaper than one of each.
            found = (of_all(timeout=15.0) if len(lanes) > 1 else of_all(one, timeout=15.0)).topics
        few = (each for each in lanes if each.name not in found or len(found[each.name].partitions) < partitions)
        return next(few, None)

    def resolved(self, lane: Lane, t: int, message: Encoded, partitions: Iterable[int] | None = None) -> None:
        """partitions: not to all that are in use, but to these."""
        for partition in range(lane.partitions) if partitions is None else partitions:
            self._produce(lane, partition, Kind.RESOLVED, Place(t, 0), message, (), "")
        lane.resolved, lane.resolved_at = t, time.monotonic()

    def _pieces(self, message: Encoded) -> list[tuple[Encoded, str]]:
        """Of what is too large for one message, consecutive ones."""
        value = message.value or b""
        room = large.room(message, self._piece)
        if len(value) <= room:
            return [(message, "")]
        cuts = range(0, len(value), room)
        return [
            (Encoded(key=message.key, value=value[at : at + room], headers=message.headers), f"{i}/{len(cuts)}")
            for i, at in enumerate(cuts)
        ]

    def _produce(
        self, lane: Lane, partition: int, kind: Kind, place: Place, message: Encoded, tags: Sequence[Header], part: str
    ) -> None:
        is_counted = kind in COUNTED
        end = lane.sent.ends[partition]
        n = end.n + is_counted
        if is_counted:
            lane.sent.ends[partition] = End(offset=end.offset, n=n)
        lane.is_changed = True
        found = headers(kind, place, n, lane.generation, part=part)
        found += tags
        found += message.headers
        self._put(lane.name, partition, message, found, is_last=kind in _LAST)
        self.nbytes += len(message.value or b"") + len(message.key or b"") + 120

    def _put(self, topic: str, partition: int, message: Encoded, tags: list[Header], *, is_last: bool) -> None:
        if not self._is_open:
            self._begin()
        producer = self._own
        # Resolved and Admin stand behind all else of their partition, so no other offset has to be known.
        report = self._note_offset if is_last else self._note_error
        while True:
            try:
                # The partition is said here: the client's own choice would go by how many the topic has, and metadata
                # decides nothing.
                producer.produce(
                    topic,
                    value=message.value,
                    key=message.key,
                    partition=partition,
                    headers=tags,  # type: ignore[arg-type]
                    on_delivery=report,
                )
                return
            # The client's queue is full until reports of what was delivered are taken.
            except BufferError:
                with self._calls("Messages cannot be sent"):
                    producer.poll(0.05)
                self._check()
            except KafkaException as failure:
                raise self._judged(failure.args[0], "A message cannot be sent") from None

    def _begin(self) -> None:
        if not self._is_open:
            with self._calls("A transaction cannot be begun"):
                self._own.begin_transaction()
            self._is_open = True

    # The end of a transaction.

    def flush(self) -> None:
        """All that was sent is acknowledged. Raises Transient."""
        reach("feed.before_flush")
        # By then each message is acknowledged, or has given up by its own time.
        until = time.monotonic() + _MESSAGE_SECONDS + 5
        with self._calls("Messages cannot be sent"), self._telling() as tell:
            while self._own.flush(_SLICE_SECONDS) and self._error is None:
                if time.monotonic() > until:
                    raise Transient("The broker does not acknowledge messages.")
                tell()
        self._check()

    def _patiently(self, call: Callable[[float], object], seconds: float, passing: Set[int] = frozenset()) -> None:
        """A call that may be made again when its time is up; whoever ends us need not wait for all of it.

        passing: other errors behind which it is made again.
        """
        until = time.monotonic() + seconds
        with self._telling() as tell:
            while True:
                try:
                    call(_SLICE_SECONDS)
                    return
                except KafkaException as failure:
                    error: KafkaError = failure.args[0]
                    is_passing = error.code() == KafkaError._TIMED_OUT or error.code() in passing
                    if not is_passing or not error.retriable() or time.monotonic() > until:
                        raise
                tell()
                time.sleep(_AGAIN_SECONDS)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[Callable[[], None]]:
        """Between two tries: raises what ends the feed, and says once that it waits."""
        since = time.monotonic()
        is_told = False

        def tell() -> None:
            nonlocal is_told
            self.check()
            if not is_told and time.monotonic() - since > _TOLD_SECONDS:
                is_told = True
                self.waits(f"Kafka ({self._address.servers}) does not answer. Waiting for it.")

        yield tell

    def commit(self, topic: str, progress: Progress) -> None:
        """Progress behind all else, and the end of it. Raises Transient, Ambiguous, Superseded."""
        self._begin()
        reach("feed.before_progress")
        with self._calls("The feed's progress cannot be written"):
            # Under one key, so that compaction keeps the last of these records.
            self._own.produce(topic, value=progress.encoded(), key=self._feed.encode(), partition=0)
        reach("feed.before_commit")
        began = time.monotonic()
        with self._calls("The feed's transaction cannot be committed"):
            # For longer than the broker lets a transaction live: by then it has ended, one way or the other.
            self._patiently(self._own.commit_transaction, TRANSACTION_SECONDS + 10)
        if time.monotonic() - began > _SOCKET_SECONDS:
            # The client may have asked twice, and the other request may come during the next transaction (P4).
            raise Transient("The broker took too long to commit.")
        self._is_open = False
        self.rows = self.nbytes = 0
        reach("feed.after_commit")

    def close_open(self, last: Mapping[tuple[str, int], Tags], t: int, message: Encoded) -> None:
        """Commit what a transaction before has left open there, by a Resolved behind it. last: of that, by partition.

        The broker leaves its mark out in a partition that has no leader when the transaction ends.
        """
        for (topic, partition), tags in last.items():
            # With the last number that stands in front of it, of what is committed by this as well: another one would
            # be a gap.
            own = headers(Kind.RESOLVED, Place(t, 0), tags.n, tags.generation)
            # Its offset is not noted: no lanes are known yet, and the tails are read behind it.
            self._put(topic, partition, message, own, is_last=False)
        self.flush()
        with self._calls("What was left open cannot be committed"):
            self._patiently(self._own.commit_transaction, TRANSACTION_SECONDS + 10)
        self._is_open = False

    def poll(self) -> None:
        """Serve what has come back. Raises Transient where a message was refused."""
        with self._calls("Messages cannot be sent"):
            self._own.poll(0)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._judged(self._error, "A message was not acknowledged")

    def _note_failure(self, error: KafkaError) -> None:
        """What the client tells by itself: brokers that are away come back, what is fatal does not."""
        if error.fatal():
            self._error = error

    def _note_error(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._error = self._error or error

    def _note_offset(self, error: KafkaError | None, message: Message) -> None:
        self._note_error(error, message)
        if error is None:
            ends, number = self._lanes[str(message.topic())].sent.ends, message.partition() or 0
            # Its number was counted when it was produced; where it came to stand is known to the broker alone.
            ends[number] = End(offset=message.offset() or 0, n=ends[number].n)

    def _cause(self, error: KafkaError) -> KafkaError:
        """Once something has gone wrong the client says of every call only that."""
        if error.code() not in _SPOILED or self._producer is None:
            return error
        return self._cause_of_end(error)

    def _cause_of_end(self, error: KafkaError) -> KafkaError:
        """Ends the transaction; where nothing can be done any more, the answer says why."""
        try:
            self._own.abort_transaction(5.0)
        except KafkaException as failure:
            found: KafkaError = failure.args[0]
            return found
        return error

    @property
    def _own(self) -> Producer:
        if self._producer is None:
            raise Terminal("The feed's producer is not open.")
        return self._producer

    @contextlib.contextmanager
    def _calls(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as failure:
            raise self._judged(failure.args[0], what) from None
        except SystemError as failure:
            # The client met an error while it called us back, and lost it.
            if self._producer is None:
                raise
            raise self._judged(self._cause_of_end(KafkaError(KafkaError._FAIL, str(failure))), what) from None

    def _judged(self, error: KafkaError, what: str) -> Exception:
        """Whatever it is, this producer ends with it (P4)."""
        error = self._cause(error)
        if error.code() in _FENCED or (error.fatal() and "fenced" in error.str().lower()):
            return Superseded("Another process has taken over the feed.", cure="This one has stopped sending.")
        if error.fatal() or error.txn_requires_abort() or error.code() in _OVER:
            return Ambiguous(f"{what}: {error.str()}.")
        return translated(error, what)
