"""A live workload on the orders table: writers that remember what they committed, readers that know what must be there.

Each writer owns keys of its own; together their memories are the truth that sandbox.proof holds against the altered
table. What a writer draws follows from the seed and its number alone.

What must stay true: anything that an application must never see during a change is an error in the report.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox import orders
from sandbox.orders import Order
from sandbox.writer import MAX_ERRORS, Missing, Share, Tally, Writer
from vreplication.errors import Transient, VReplicationError
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReport:
    """What the application did and saw. An error is anything that an application must never see during a change."""

    writes: int
    transactions: int
    rolled_back: int
    retries: int
    reads: int
    longest_stall_ms: float
    errors: tuple[str, ...]


class Workload:
    """Writers and readers on `table`, which holds `rows` base rows of sandbox.orders. Start once, stop once."""

    def __init__(
        self,
        url: SourceUrl,
        table: str,
        *,
        rows: int,
        writers: int = 2,
        readers: int = 0,
        seed: int = 1,
        rate: float | None = None,
        xa: bool = False,
        read_every: float = 0.001,
    ) -> None:
        """`rate`: transactions a second of each writer, None for as fast as it goes.

        read_every: seconds that a reader waits between two reads; each read takes a share of a core from all others.
        """
        self._stop = threading.Event()
        shares = [Share(number=n, writers=writers, rows=rows) for n in range(writers)]
        self._writers = [Writer(url, table, share, seed=seed, rate=rate, xa=xa, stop=self._stop) for share in shares]
        self._readers = [_Reader(url, table, rows, seed + 1000 + n, self._stop, read_every) for n in range(readers)]
        actors: list[Writer | _Reader] = [*self._writers, *self._readers]
        self._tallies = [actor.tally for actor in actors]
        self._threads = [threading.Thread(target=actor.run, name=actor.name, daemon=True) for actor in actors]

    @property
    def expected(self) -> dict[int, Order | None]:
        """The row last committed under each key that was touched, None where it was deleted."""
        return {key: row for writer in self._writers for key, row in writer.rows.items()}

    def start(self) -> Workload:
        for thread in self._threads:
            thread.start()
        return self

    def report(self) -> WorkloadReport:
        """How it stands now."""
        tallies = self._tallies
        return WorkloadReport(
            writes=sum(t.writes for t in tallies),
            transactions=sum(t.transactions for t in tallies),
            rolled_back=sum(t.rolled_back for t in tallies),
            retries=sum(t.retries for t in tallies),
            reads=sum(t.reads for t in tallies),
            longest_stall_ms=1000 * max((w.tally.longest_seconds for w in self._writers), default=0.0),
            errors=tuple(error for t in tallies for error in t.errors),
        )

    def wait_for(self, writes: int, timeout_seconds: float = 60.0) -> None:
        """Return when that many more writes are committed, by each writer at least one."""
        before, each = self.report().writes, [w.tally.transactions for w in self._writers]
        deadline = time.monotonic() + timeout_seconds
        while self.report().writes < before + writes or not self._all_went_on(each):
            if time.monotonic() > deadline or not all(thread.is_alive() for thread in self._threads):
                raise TimeoutError(f"the workload does not get on: {self.report()}")
            time.sleep(0.01)

    def _all_went_on(self, before: Sequence[int]) -> bool:
        return all(w.tally.transactions > n for w, n in zip(self._writers, before, strict=True))

    def stop(self) -> WorkloadReport:
        """End after the transactions under way; idempotent."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        return self.report()

    def __enter__(self) -> Workload:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Reader:
    """Looks again and again for rows that nobody writes: they must always be there."""

    def __init__(self, url: SourceUrl, table: str, rows: int, seed: int, stop: threading.Event, every: float) -> None:
        self.name = f"reader-{seed}"
        self.tally = Tally()
        self._url, self._table, self._rows, self._stopped = url, ident(table), rows, stop
        self._chance, self._every = random.Random(seed), every

    def run(self) -> None:
        while not self._stopped.is_set() and len(self.tally.errors) < MAX_ERRORS:
            try:
                with connect(self._url) as session:
                    self._loop(session)
            except Transient:
                self._stopped.wait(0.05)
            except (VReplicationError, Missing) as error:
                self.tally.errors.append(f"{self.name}: {error}")

    def _loop(self, session: Session) -> None:
        while not self._stopped.is_set() and self._rows:
            number = self._chance.randrange(0, self._rows, 8)
            found = session.rows(f"SELECT email FROM {self._table} WHERE id = %s", (orders.base_key(number),))
            self.tally.reads += 1
            if found != [(f"{number}@example.com",)]:
                raise Missing(f"row {orders.base_key(number)} reads as {found!r}")
            self._stopped.wait(self._every)
