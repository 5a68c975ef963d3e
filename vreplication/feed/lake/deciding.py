"""How far a lake may go: what is known of the partitions, and which rows of which generation follow from it.

The rules are those of docs/feed.md, transaction mode: W is the least of what the partitions of the generation have
reached; a generation ends when Admin of the next one stands in all partitions of both, and what lies behind its time
comes again there.

What must stay true: what is decided follows from committed messages alone, in whatever portions they were read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vreplication.errors import Terminal


class Span(NamedTuple):
    """Rows of a generation with after < t <= upto."""

    generation: int
    after: int
    upto: int


class Admin(NamedTuple):
    t: int
    partitions: int


@dataclass(slots=True)
class Known:
    """What was read and is not done with. resolved: by (generation, partition); admins: by generation, by partition."""

    generation: int
    partitions: int
    watermark: int
    resolved: dict[tuple[int, int], int] = field(default_factory=dict)
    admins: dict[int, dict[int, Admin]] = field(default_factory=dict)

    def resolve(self, generation: int, partition: int, t: int) -> None:
        """Raises Terminal."""
        # Nobody else would say so: the partition's Admin would be waited for without a word, for ever.
        if generation > self.generation and partition not in self.admins.get(generation, {}):
            raise Terminal(
                f"Partition {partition} does not begin generation {generation} with its Admin: its head is gone.",
                cure="Begin a new feed into another topic, and a new lake.",
            )
        place = generation, partition
        self.resolved[place] = max(t, self.resolved.get(place, 0))

    def admin(self, generation: int, partition: int, admin: Admin) -> None:
        if generation <= self.generation:
            # D5: an Admin may come again, and an older one says nothing any more.
            return
        known = self.admins.setdefault(generation, {})
        if any(each != admin for each in known.values()):
            raise Terminal(f"Admin of generation {generation} says other things in partition {partition}.")
        known[partition] = admin

    def go_on(self) -> list[Span]:
        """What may be taken now; it is as if it were taken. Raises Terminal."""
        found: list[Span] = []
        while (admin := self._next()) is not None:
            # What stands behind the Admin's time comes again: rows up to the watermark would be there twice.
            if admin.t < self.watermark:
                raise Terminal(f"Generation {self.generation + 1} begins at {admin.t}, before {self.watermark}.")
            self._take(found, admin.t)
            self.admins.pop(self.generation + 1)
            self.generation, self.partitions = self.generation + 1, admin.partitions
        self._take(found, self._least())
        # Those of a later generation count once it begins; of an earlier one nothing is asked again (D5).
        self.resolved = {place: t for place, t in self.resolved.items() if place[0] >= self.generation}
        return found

    def _take(self, found: list[Span], upto: int) -> None:
        if upto > self.watermark:
            found.append(Span(self.generation, self.watermark, upto))
            self.watermark = upto

    def _next(self) -> Admin | None:
        """Of the generation behind, when all partitions of both stand at it."""
        known = self.admins.get(self.generation + 1)
        if not known:
            return None
        admin = next(iter(known.values()))
        # Who begins looks at partition 0 alone for the first one.
        count = max(self.partitions if self.generation else 1, admin.partitions)
        return admin if known.keys() >= set(range(count)) else None

    def _least(self) -> int:
        """All rows of all partitions up to this time have been read."""
        # The first Admin has not come everywhere, so it is not known how many partitions there are.
        if self.generation == 0:
            return self.watermark
        ahead = self.admins.get(self.generation + 1, {})
        reached = []
        for partition in range(self.partitions):
            # admin_resolves: a Resolved that the broker loses leaves no gap in the numbers, and would be waited for for
            # ever. The next generation's Admin says as much.
            t = self.resolved.get((self.generation, partition), self.watermark)
            reached.append(max(t, ahead[partition].t if partition in ahead else 0))
        return min(reached)
