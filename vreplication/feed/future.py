"""Times of a log that are still to be: by a server's clock, or by a session's SET timestamp (MariaDB).

Order, and what Resolved says, hold all the same; but how late the feed is, these times do not tell. Of several sources
the one with such a time sends nothing until the others have come to it.

What must stay true: the source is named, once each run; what waits is told as long as it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vreplication.feed.merge import AHEAD_MICROS, Merge
from vreplication.feed.reading import Piece, Reading
from vreplication.feed.sending import Sending

_WHY = "by its clock or by a session's SET timestamp"
_LAG = "by a clock that is behind it no lag is known; nothing is lost, and the order holds."


def _now() -> int:
    return time.time_ns() // 1000


@dataclass(slots=True, kw_only=True)
class Future:
    """sendings: of all sources. warn: as of Hooks. held: what waits for the other sources by now; ''."""

    sendings: Sequence[Sending]
    warn: Callable[[str], None]
    held: str = ""
    _latest: int = field(default_factory=lambda: _now() + AHEAD_MICROS)
    """What is later is still to be; as of the last look."""
    _told: set[int] = field(default_factory=set)
    """Sources. Not transactions: where a clock is ahead, each has such a time."""

    def meet(self, piece: Piece) -> None:
        """What is sent now."""
        # This is asked of each piece: the clock is read only for one that looked late at the last look.
        if piece.commit > self._latest and piece.commit > _now() + AHEAD_MICROS:
            self._tell(
                piece.source,
                f"Source {self._name(piece.source)} has committed transaction {piece.gtid} at {shown(piece.commit)}"
                f" UTC, {_WHY}. Until then nothing that it commits has an earlier time, and {_LAG}",
            )

    def look(self, stream: Reading | Merge) -> None:
        self._latest = _now() + AHEAD_MICROS
        if isinstance(stream, Merge):
            self._look_at_heads(stream)
        # Times only rise: behind one late commit all have later ones, whatever the log says of them.
        elif self.sendings[0].assigned > self._latest:
            self._tell(
                0,
                f"The log of source {self._name(0)} has come to {shown(self.sendings[0].assigned)} UTC, {_WHY}. Until"
                f" then {_LAG}",
            )

    def _look_at_heads(self, stream: Merge) -> None:
        heads = stream.ahead(self._latest)
        self.held = self._words(heads[0]) if heads else ""
        for head in heads:
            self._tell(
                head.source,
                f"Source {self._name(head.source)} has committed transaction {head.gtid} at {shown(head.t)} UTC,"
                f" {_WHY}: that one, and all that the source has committed since, is sent when the other sources have"
                " come to that time. Begin another feed where that is too late.",
            )

    def _words(self, head: Piece) -> str:
        return (
            f"Source {self._name(head.source)} is ahead ({_WHY}): what it has committed since {shown(head.t)} UTC is"
            " sent when the other sources have come to that time."
        )

    def _tell(self, source: int, text: str) -> None:
        if source not in self._told:
            self._told.add(source)
            self.warn(text)

    def _name(self, source: int) -> str:
        return self.sendings[source].name


def shown(micros: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(micros // 10**6))
