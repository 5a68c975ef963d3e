"""Writes a topic as a feed does, message by message, for tests of who reads it.

What must stay true: without a word of the test it follows the producer's rules: `n` has
no gap, DDL and Resolved go to every partition, Admin to those of the old generation and of the new one.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewPartitions

from sandbox.kafka import Cluster
from vreplication.feed import address
from vreplication.feed.address import Address
from vreplication.feed.formats.open import Open
from vreplication.feed.large import Fit
from vreplication.feed.layout import Layout, make_layout
from vreplication.feed.messages import Admin, Ddl, Encoded, Header, Kind, Place, Row, headers
from vreplication.feed.spoken import Spoken
from vreplication.mysql.session import Session
from vreplication.schema.introspect import introspect

Image = tuple[Any, ...] | None


class FeedWriter:
    """A topic of its own and a transactional producer. n: the last number of each partition."""

    def __init__(self, kafka: Cluster, partitions: int, *, t: int = 0, begins: bool = True, dispatch: str = "") -> None:
        self._kafka = kafka
        self.topic = f"feed-{secrets.token_hex(4)}"
        kafka.create_topic(self.topic, partitions)
        self.partitions, self.generation = 0, 0
        self.n = [0] * partitions
        self._open = Open()
        self._dispatch = dispatch
        self._rows: list[tuple[int, Encoded, list[Header]]] = []
        settings = {
            "bootstrap.servers": kafka.bootstrap,
            "transactional.id": self.topic,
            "linger.ms": 5,
            "log_level": 2,
        }
        self._producer = Producer(settings)
        self._producer.init_transactions(30)
        if begins:
            with self.transaction():
                self.admin(t, partitions)

    def address(self, **options: Any) -> Address:
        more = "&".join(f"{name.replace('_', '.')}={value}" for name, value in options.items())
        return address.parse(f"kafka://{self._kafka.bootstrap}/{self.topic}?{more}")

    @contextlib.contextmanager
    def transaction(self, *, is_aborted: bool = False) -> Iterator[None]:
        """An aborted one counts as never sent."""
        before, sent = list(self.n), list(self._rows)
        self._producer.begin_transaction()
        yield
        self._producer.flush(30)
        if is_aborted:
            self._producer.abort_transaction(30)
            self.n, self._rows = before, sent
        else:
            self._producer.commit_transaction(30)

    def row(
        self,
        partition: int,
        layout: Layout,
        t: int,
        before: Image,
        after: Image,
        *,
        seq: int = 0,
        parts: int = 1,
        since: int = 0,
        until: int | None = None,
        fit: Fit | None = None,
    ) -> None:
        """since, until: of its parts. fit: what becomes of it where it is too large."""
        row = Row(layout=layout, place=Place(t, seq), before=before, after=after)
        made = self._open.row(row)
        for encoded in fit.row(self._open, row, made) if fit else made:
            for piece, part in list(_pieces(encoded, parts))[since:until]:
                self._send(partition, Kind.ROW, Place(t, seq), piece, part=part)

    def ddl(
        self, t: int, schema: str, sql: str, *, to: Iterable[int] | None = None, spoken: Spoken | None = None
    ) -> None:
        """spoken: what its session was, where the feed tells it."""
        ddl = Ddl(place=Place(t, 0), schema=schema, sql=sql, verb="", what="TABLE", tables=((schema, "t"),))
        for partition in self._all(to):
            for made in self._open.ddl(ddl):
                encoded = msgspec.structs.replace(made, headers=(spoken.header,)) if spoken else made
                self._send(partition, Kind.DDL, Place(t, 0), encoded)

    def resolved(self, t: int, *, to: Iterable[int] | None = None) -> None:
        for partition in self._all(to):
            self._send(partition, Kind.RESOLVED, Place(t, 0), self._open.resolved(t))

    def align(self, epoch: int, number: int, t: int, *, to: Iterable[int] | None = None) -> None:
        encoded = Encoded(
            key=json.dumps({"ts": t, "type": "Align"}).encode(), value=json.dumps({"align": [epoch, number]}).encode()
        )
        for partition in self._all(to):
            self._send(partition, Kind.ALIGN, Place(t, 0), encoded)

    def admin(self, t: int, count: int, *, to: Iterable[int] | None = None) -> None:
        """The next generation. to: some of those partitions now; the rest with `admin_again`."""
        both = max(self.partitions, count)
        self.n += [0] * (both - len(self.n))
        self.generation += 1
        self._admin(t, count, range(both) if to is None else to)
        self.partitions = count

    def admin_again(self, t: int, count: int, to: Iterable[int]) -> None:
        self._admin(t, count, to)

    def _admin(self, t: int, count: int, to: Iterable[int]) -> None:
        made = self._open.admin(Admin(t=t, partitions=count, generation=self.generation))
        encoded = msgspec.structs.replace(made, headers=(("vr-dispatch", self._dispatch.encode()),))
        for partition in to:
            self._send(partition, Kind.ADMIN, Place(t, 0), encoded)

    def grow(self, count: int) -> None:
        """The topic itself."""
        admin = self._kafka.admin()
        admin.create_partitions([NewPartitions(self.topic, count)])[self.topic].result(30)

    def _all(self, to: Iterable[int] | None) -> Iterable[int]:
        return range(self.partitions) if to is None else to

    def _send(self, partition: int, kind: Kind, place: Place, encoded: Encoded, *, part: str = "") -> None:
        self.n[partition] += kind in (Kind.ROW, Kind.DDL, Kind.ADMIN)
        tags = [*headers(kind, place, self.n[partition], self.generation, part=part), *encoded.headers]
        if kind is Kind.ROW:
            self._rows.append((partition, encoded, tags))
        elif kind is Kind.ADMIN:
            self._rows.clear()
        self.send_raw(partition, encoded, tags)

    def repeat_rows(self, count: int) -> None:
        """The last ones of this generation, as they were."""
        for partition, encoded, tags in self._rows[-count:]:
            self.send_raw(partition, encoded, tags)

    def send_raw(self, partition: int, encoded: Encoded, tags: Sequence[tuple[str, bytes]]) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                self._producer.produce(
                    self.topic, value=encoded.value, key=encoded.key, partition=partition, headers=list(tags)
                )
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as failure:
                # It has not heard of new partitions yet.
                if failure.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                    raise
                self._producer.list_topics(self.topic, timeout=10)
                self._producer.poll(0.1)
        self._producer.poll(0)


def _pieces(encoded: Encoded, parts: int) -> Iterator[tuple[Encoded, str]]:
    if parts == 1:
        yield encoded, ""
        return
    value = encoded.value or b""
    size = -(-len(value) // parts)
    cuts = [value[at : at + size] for at in range(0, len(value), size)]
    for i, cut in enumerate(cuts):
        yield Encoded(key=encoded.key, value=cut), f"{i}/{len(cuts)}"


def layout_of(session: Session, schema: str, table: str) -> Layout:
    """As the feed would send a table that is there now."""
    return make_layout(1, introspect(session, schema, table))
