"""A live application on the three tables of sandbox.shop, which writes where it is told to (sandbox.on_switch).

Writers keep orders with their items, and customers; each has a till, a row that counts its transactions. Readers look
whether all of an order is there. A knocker was told nothing: it tries both servers in turn, all the time.

What must stay true: errors of every actor are seen; who holds the workload finds no write under way.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from sandbox.shop import Size
from sandbox.shop_actors import Accepted, Actor, Knocker, Memory, Reader, Told, Writing
from sandbox.shop_writer import Writer


class Workload:
    """Start once, stop once; `hold` keeps all writers between two transactions, readers go on."""

    def __init__(
        self,
        told: Told,
        size: Size,
        *,
        writers: int = 2,
        readers: int = 1,
        seed: int = 1,
        rate: float = 60.0,
        read_every: float = 0.005,
    ) -> None:
        """rate: transactions a second of each writer. size: with a till for each."""
        self.told, self.size, self.rate, self.read_every, self.writer_count = told, size, rate, read_every, writers
        self.stopping, self.held = threading.Event(), threading.Event()
        self._writers = [Writer(number, seed, self) for number in range(writers)]
        self.knocker = Knocker(seed, self)
        self._writing: list[Writing] = [*self._writers, self.knocker]
        self._readers = [Reader(number, seed, self) for number in range(readers)]
        self._actors: list[Actor] = [*self._writing, *self._readers]
        self._chance = random.Random(seed)

    @property
    def expected(self) -> Memory:
        """The row last committed under each key that was touched, None where it was deleted."""
        return {key: row for actor in self._writing for key, row in actor.memory.items()}

    @property
    def accepted(self) -> list[Accepted]:
        return [one for actor in self._writing for one in list(actor.tally.accepted)]

    def accepted_by(self, side: str) -> int:
        return sum(one.side == side for one in self.accepted)

    @property
    def tills(self) -> dict[int, int]:
        """Key of each writer's till, and the number of its last transaction."""
        return {-number - 1: writer.serial for number, writer in enumerate(self._writers)}

    @property
    def refused(self) -> Counter[int]:
        return sum((actor.tally.refused for actor in self._writing), Counter())

    @property
    def reads(self) -> int:
        return sum(reader.tally.reads for reader in self._readers)

    @property
    def errors(self) -> list[str]:
        return [error for actor in self._actors for error in actor.tally.errors]

    def some_new_order(self) -> int:
        orders = self._chance.choice(self._writers).orders
        return orders[-self._chance.randint(1, min(20, len(orders)))] if orders else 1

    def longest_stall(self) -> float:
        """Of a write, in seconds, since this was asked last."""
        longest = max(writer.tally.longest_seconds for writer in self._writers)
        for writer in self._writers:
            writer.tally.longest_seconds = 0.0
        return longest

    def wait_for(self, transactions: int, side: str, timeout_seconds: float = 60.0) -> None:
        """Until each writer has so many more of them accepted by this side."""
        wanted = {w: self._of(w, side) + transactions for w in self._writers}
        deadline = time.monotonic() + timeout_seconds
        while any(self._of(w, side) < count for w, count in wanted.items()):
            if time.monotonic() > deadline or not all(w.is_alive() for w in self._writers):
                raise TimeoutError(f"the application does not get on: {self.errors}")
            time.sleep(0.01)

    @staticmethod
    def _of(writer: Writer, side: str) -> int:
        return sum(one.side == side for one in writer.tally.accepted)

    def hold(self) -> None:
        """Returns when no write is under way."""
        for actor in self._writing:
            actor.is_resting.clear()
        self.held.set()
        for actor in self._writing:
            if actor.is_alive() and not actor.is_resting.wait(60):
                raise TimeoutError(f"{actor.name} does not come to rest")

    def go_on(self) -> None:
        self.held.clear()

    def start(self) -> Workload:
        for actor in self._actors:
            actor.start()
        return self

    def stop(self) -> None:
        """End behind the transactions under way; idempotent."""
        self.stopping.set()
        for actor in self._actors:
            if actor.ident is not None:
                actor.join(60)

    def __enter__(self) -> Workload:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
