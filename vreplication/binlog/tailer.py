"""Follows the binary log and hands on what it means for one table: groups in commit order, and heartbeats.

What must stay true: a lost connection is never mended here; the caller opens a new tailer at the end of the last
finished group, so that nothing is passed over and nothing is given twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vreplication.binlog.charsets import codec_of
from vreplication.binlog.events import Group, Heartbeat, Position, SidecarWatch, SourceWatch
from vreplication.binlog.reader import Reader
from vreplication.binlog.wire import Wire
from vreplication.mysql.url import SourceUrl

PART_BYTES = 16 * 1024 * 1024


class Tailer:
    """One dump of the log, read once from `start` until it is closed or breaks.

    guarded: further tables (schema, name) whose definition must not change, such as the shadow.
    part_bytes: a transaction that weighs more in memory is handed on in parts.
    """

    def __init__(
        self,
        url: SourceUrl,
        start: Position,
        source: SourceWatch,
        sidecars: Sequence[SidecarWatch] = (),
        *,
        server_id: int,
        is_mariadb: bool,
        guarded: Iterable[tuple[str, str]] = (),
        heartbeat_seconds: float = 0.25,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.is_mariadb = is_mariadb
        self._wire = Wire(url, start, server_id=server_id, heartbeat_seconds=heartbeat_seconds)
        self._reader = Reader(start, source, sidecars, guarded=guarded, part_bytes=part_bytes, codec_of=self._codec_of)

    def _codec_of(self, collation: int) -> str | None:
        return codec_of(self._wire.collations.get(collation))

    @property
    def read_position(self) -> Position:
        """Just behind the last event that has been read; inside a group this is no place to begin at."""
        return self._reader.at

    def __iter__(self) -> Iterator[Group | Heartbeat]:
        """Raises Transient when the connection ends, SourceChanged when the log shows what we may not pass over."""
        return self._reader.items(self._wire.packets())

    def close(self) -> None:
        """Drop the connection; a thread that waits in the iterator gets Transient."""
        self._wire.close()

    def __enter__(self) -> Tailer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
