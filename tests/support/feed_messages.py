"""Messages of a partition, made without a broker, as a reader gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vreplication.feed.formats.open import Open
from vreplication.feed.messages import Admin, Kind, Place, headers

OPEN = Open()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    at: int
    tags: Any
    body: bytes | None = None

    def offset(self) -> int:
        return self.at

    def headers(self) -> Any:
        return self.tags

    def key(self) -> bytes:
        return b"{}"

    def value(self) -> bytes | None:
        return self.body

    def __len__(self) -> int:
        return len(self.body or b"")


class Partition:
    """Messages, numbered as a feed does. n: what was counted before them."""

    def __init__(self, n: int = 0, partitions: int = 2) -> None:
        self.n, self.messages = n, []  # type: int, list[Message]
        if not n:
            self.add(Kind.ADMIN, 0, 0, OPEN.admin(Admin(t=0, partitions=partitions, generation=1)).value)

    def add(
        self, kind: Kind, t: int, seq: int = 0, body: bytes | None = None, *, generation: int = 1, part: str = ""
    ) -> Partition:
        self.n += kind in (Kind.ROW, Kind.DDL, Kind.ADMIN)
        tags = headers(kind, Place(t, seq), self.n, generation, part=part)
        self.messages.append(Message(at=len(self.messages), tags=tags, body=body))
        return self

    def scale(self, t: int, partitions: int) -> Partition:
        """Admin of the second generation."""
        said = OPEN.admin(Admin(t=t, partitions=partitions, generation=2)).value
        return self.add(Kind.ADMIN, t, 0, said, generation=2)
