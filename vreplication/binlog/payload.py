"""MySQL's compressed transactions (TRANSACTION_PAYLOAD): one event that holds all the others of its group.

What must stay true: the events come out one by one, so that memory holds one of them whatever the transaction weighs;
what comes out is as long as the envelope tells, or the workflow ends.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from vreplication.binlog.framing import HEADER, HEADER_BYTES, Event, packed_int
from vreplication.errors import SourceChanged

_ALGORITHM, _SIZE = 2, 3
_ZSTD, _PLAIN = 0, 255
_BUFFER_BYTES = 1 << 20


def events_of_payload(event: Event) -> Iterator[Event]:
    """The events inside; they carry no checksums of their own."""
    spooled = event.spooled
    head = spooled.head[HEADER_BYTES:] if spooled else event.body
    fields, at = fields_of(head)
    source = spooled.from_(HEADER_BYTES + at) if spooled else memoryview(head)[at:]
    stream = io.BufferedReader(_opened(_number(fields, _ALGORITHM), source), _BUFFER_BYTES)
    try:
        yield from _events_of(stream, _number(fields, _SIZE))
    finally:
        if spooled:
            spooled.close()


def _number(fields: dict[int, bytes], kind: int) -> int | None:
    return packed_int(fields[kind], 0)[0] if kind in fields else None


def _opened(algorithm: int | None, source: Any) -> Any:
    if algorithm == _ZSTD:
        import zstandard

        # MySQL may write a transaction in several frames; without this the reader ends behind the first one.
        return zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
    if algorithm == _PLAIN:
        return io.BytesIO(source) if isinstance(source, memoryview) else source
    raise SourceChanged(
        f"A transaction is compressed with algorithm {algorithm}, which we do not know.",
        cure="Switch binlog_transaction_compression off.",
    )


def fields_of(body: bytes) -> tuple[dict[int, bytes], int]:
    """Type-length-value fields up to the end mark (0); the payload's place is behind it."""
    fields: dict[int, bytes] = {}
    at = 0
    while True:
        kind, at = packed_int(body, at)
        if kind == 0:
            return fields, at
        size, at = packed_int(body, at)
        fields[kind] = body[at : at + size]
        at += size


def _events_of(stream: io.BufferedReader, told: int | None) -> Iterator[Event]:
    total = 0
    while header := _read(stream, HEADER_BYTES):
        if len(header) < HEADER_BYTES:
            raise SourceChanged("A compressed transaction ends inside an event.")
        timestamp, kind, server_id, size, _, flags = HEADER.unpack(header)
        body = _read(stream, max(0, size - HEADER_BYTES))
        if len(body) != size - HEADER_BYTES:
            raise SourceChanged("A compressed transaction ends inside an event.")
        total += size
        # Inside the envelope they stand at no place of the file.
        yield Event(kind, timestamp, size, 0, flags, body, server_id)
    # What was cut between two events ends like a whole one; only the length says that some are missing.
    if told is not None and total != told:
        raise SourceChanged(f"A compressed transaction holds {total} bytes of events and tells {told}.")


def _read(stream: io.BufferedReader, size: int) -> bytes:
    try:
        return stream.read(size)
    except Exception as error:
        # zstandard's own error type; the package is loaded only where it is needed.
        raise SourceChanged(f"A compressed transaction cannot be read ({error!r}).") from None
