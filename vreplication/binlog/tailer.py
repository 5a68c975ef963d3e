"""Follows the binary log and hands on what it means for the watched tables: groups in commit order, and heartbeats.

It begins at the file and offset of its start where that is provably the same place (`binlog.origin`), else by GTID.

What must stay true: a lost connection is never repaired here; the caller opens a new tailer at the end of the last
finished group, so that nothing is passed over and nothing is given twice. The dump is asked for a second time, by GTID,
only while no group of the first has been begun.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence

from vreplication.binlog.charsets import codec_of
from vreplication.binlog.events import Position
from vreplication.binlog.origin import Doubt
from vreplication.binlog.reader import Item, Reader
from vreplication.binlog.watch import Following, Watch
from vreplication.binlog.wire import Wire
from vreplication.errors import Transient
from vreplication.mysql.url import SourceUrl

log = logging.getLogger(__name__)

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
        watches: Sequence[Watch],
        *,
        server_id: int,
        is_mariadb: bool,
        guarded: Iterable[tuple[str, str]] = (),
        heartbeat_seconds: float = 0.25,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.is_mariadb = is_mariadb
        self._is_closed = False
        self._dump = functools.partial(Wire, url, start, server_id=server_id, heartbeat_seconds=heartbeat_seconds)
        self._reading = functools.partial(
            Reader, start, watches, guarded=guarded, part_bytes=part_bytes, codec_of=self._codec_of
        )
        self._joined: dict[str, Following] = {}
        try:
            self._wire = self._dump(by_file=True)
        except Doubt as error:
            self._note(error)
            self._wire = self._dump()
        self._reader = self._reading(server=self._wire.server, is_proven=not self.is_by_file)

    @property
    def is_by_file(self) -> bool:
        """The dump began at file and offset."""
        return self._wire.is_by_file

    def _codec_of(self, collation: int) -> str | None:
        return codec_of(self._wire.collations.get(collation))

    @property
    def read_position(self) -> Position:
        """Just behind the last event that has been read; inside a group this is no place to begin at."""
        return self._reader.at

    @property
    def server(self) -> str:
        """Identity of who sends the log."""
        return self._wire.server

    @property
    def is_between(self) -> bool:
        """All that was read has been handed on, up to `read_position`: a place where somebody may join."""
        return self._reader.is_between

    @property
    def names(self) -> tuple[str, ...]:
        """Of those who have joined."""
        return tuple(self._joined)

    def join(self, following: Following) -> None:
        """Follow further tables from `read_position` on. Between two items, and while `is_between`."""
        self._reader.join(following)
        self._joined[following.name] = following

    def leave(self, name: str) -> None:
        """Follow those no more. Between two items."""
        self._reader.leave(name)
        self._joined.pop(name, None)

    def __iter__(self) -> Iterator[Item]:
        """Raises Transient when the connection ends, SourceChanged when the log shows what we may not pass over."""
        try:
            yield from self._reader.items(self._wire.packets())
        except Doubt as error:
            self._note(error)
            # Once is enough: a dump by GTID counts as proved from the start, so no second Doubt can come.
            self._ask_by_gtid()
            yield from self._reader.items(self._wire.packets())

    def _ask_by_gtid(self) -> None:
        """`close` may come from another thread at any time: it sees the new connection, or we see that it came."""
        self._wire.close()
        self._wire = self._dump()
        if self._is_closed:
            self._wire.close()
            raise Transient("The reader of the binary log was closed.")
        self._reader = self._reading(server=self._wire.server)
        for following in self._joined.values():
            self._reader.join(following)

    @staticmethod
    def _note(error: Doubt) -> None:
        log.warning("the binary log is asked for by GTID, for which the server looks through a file: %s", error)

    def is_drained(self, seconds: float) -> bool:
        """All that the server has sent was handed on, and nothing more comes for so long. Raises Transient."""
        return self._wire.is_drained(seconds)

    def close(self) -> None:
        """Drop the connection; a thread that waits in the iterator gets Transient."""
        self._is_closed = True
        self._wire.close()

    def __enter__(self) -> Tailer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
