"""One writer of the workload: an application connection that knows exactly what it has committed.

What must stay true: a row enters the memory only when its COMMIT has returned, or was looked up after it was lost; each
statement says how many rows it must touch, and any other number is an error.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sandbox import orders
from sandbox.orders import COLUMNS, Order
from vreplication.errors import Ambiguous, Transient, VReplicationError
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import ConnectionLost, LockWait, Session, SqlError, connect
from vreplication.mysql.url import SourceUrl

MAX_ERRORS = 20
_UNKNOWN_BRANCH = 1397


@dataclass(slots=True)
class Tally:
    """Counters of one thread; read by others, written by it alone."""

    writes: int = 0
    transactions: int = 0
    rolled_back: int = 0
    retries: int = 0
    reads: int = 0
    longest_seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Pending:
    """What the open transaction has written so far; remembered when it is committed."""

    rows: dict[int, Order | None] = field(default_factory=dict)
    writes: int = 0
    keys: list[int] = field(default_factory=list)
    inserted: int = 0

    def copy(self) -> _Pending:
        return _Pending(rows=dict(self.rows), writes=self.writes, keys=list(self.keys), inserted=self.inserted)


class Missing(Exception):
    """A statement met other rows than were committed: something was lost or invented."""


class _RollBack(Exception):
    """The writer has chosen to roll this transaction back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which keys one writer owns: base keys (odd), the gaps beside them (even), and negative ones of its own."""

    number: int
    writers: int
    rows: int

    def base(self, chance: random.Random) -> int | None:
        """Number of some base row of ours, or None when there is none."""
        for _ in range(64):
            row = chance.randrange(max(self.rows, 1))
            if row < self.rows and row // 8 % self.writers == self.number and not orders.is_read_only(row):
                return row
        return None

    def gap(self, chance: random.Random) -> int | None:
        row = self.base(chance)
        # The key after the last base row is the table's next AUTO_INCREMENT value.
        return None if row is None or row == self.rows - 1 else orders.base_key(row) + 1

    def negative(self, count: int) -> int:
        return -(count * self.writers + self.number + 1)


class Writer:
    """One application connection that writes transaction after transaction."""

    def __init__(
        self,
        url: SourceUrl,
        table: str,
        share: Share,
        *,
        seed: int,
        rate: float | None,
        xa: bool,
        stop: threading.Event,
    ) -> None:
        self.name = f"writer-{share.number}"
        self.rows: dict[int, Order | None] = {}
        self.tally = Tally()
        self._url, self._table, self._share, self._rate, self._xa, self._stopped = (
            url,
            ident(table),
            share,
            rate,
            xa,
            stop,
        )
        self._chance = random.Random(f"{seed}-{share.number}")
        self._pending = _Pending()
        self._own_keys: list[int] = []
        self._last_insert_id = 0
        self._serial = 0
        self._session: Session | None = None
        self._rolled_back = ""

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._loop()
        except Exception as error:
            # A thread that dies unheard would look like a workload without errors.
            self.tally.errors.append(f"{self.name} died: {error!r}")
        finally:
            self._close()

    def _loop(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set() and len(self.tally.errors) < MAX_ERRORS:
            self._attempt()
            if self._rate:
                # After a stall the writer catches up, by one second's worth at most.
                due = max(due + 1 / self._rate, time.monotonic() - 1)
                self._stopped.wait(max(0.0, due - time.monotonic()))

    def _attempt(self) -> None:
        self._pending = _Pending()
        try:
            self._transaction()
        except _RollBack:
            self.tally.rolled_back += 1
        except LockWait:
            self.tally.retries += 1
            self._roll_back()
        except Ambiguous:
            self._look_up()
        except Transient:
            self._reconnect()
        except (VReplicationError, Missing) as error:
            self.tally.errors.append(f"{self.name}: {error}")
            self._roll_back()

    def _transaction(self) -> None:
        if self._xa and self._chance.random() < 0.1:
            self._xa_transaction()
            return
        self._run("BEGIN")
        self._some_acts()
        if self._chance.random() < 0.1:
            self._inside_savepoint()
        if self._chance.random() < 0.05:
            self._run("ROLLBACK")
            raise _RollBack
        self._commit("COMMIT")

    def _inside_savepoint(self) -> None:
        """What happens after the savepoint is undone; the transaction goes on."""
        self._run("SAVEPOINT here")
        kept = self._pending.copy()
        self._some_acts()
        self._run("ROLLBACK TO SAVEPOINT here")
        self._pending = kept
        self._some_acts()

    def _xa_transaction(self) -> None:
        """Prepared, then committed or rolled back; never one-phase."""
        self._serial += 1
        branch = f"'w{self._share.number}-{self._serial}-{self._chance.getrandbits(32):08x}','b'"
        self._run(f"XA START {branch}")
        self._some_acts()
        self._run(f"XA END {branch}")
        try:
            self._run(f"XA PREPARE {branch}")
            if self._chance.random() < 0.3:
                if not self._roll_back_branch(branch):
                    raise Missing(f"{branch} was prepared, and is not there")
                raise _RollBack
            self._commit(f"XA COMMIT {branch}")
        except (ConnectionLost, Ambiguous):
            self._end_branch(branch)

    def _end_branch(self, branch: str) -> None:
        """The connection was lost after PREPARE was sent: roll the branch back if it is still there."""
        self._reconnect()
        if not self._roll_back_branch(branch):
            raise Ambiguous("the outcome of the branch is not known")

    def _roll_back_branch(self, branch: str) -> bool:
        """False: the server does not know it."""
        try:
            self._run(f"XA ROLLBACK {branch}")
        except SqlError as error:
            if error.code != _UNKNOWN_BRANCH:
                raise
            return False
        self._rolled_back = branch
        return True

    def _commit(self, statement: str) -> None:
        try:
            self._run(statement)
        except ConnectionLost as error:
            raise Ambiguous(error.message) from None
        self._committed()

    def _committed(self) -> None:
        self.rows.update(self._pending.rows)
        self._own_keys.extend(self._pending.keys)
        self._last_insert_id = max(self._last_insert_id, self._pending.inserted)
        self.tally.writes += self._pending.writes
        self.tally.transactions += 1

    # -- acts ------------------------------------------------------------------------------------------------------

    def _some_acts(self) -> None:
        acts: list[Callable[[], None]] = [
            self._insert,
            self._update,
            self._delete,
            self._move,
            self._upsert,
            self._replace,
            self._delete_and_insert,
            self._swap,
        ]
        for act in self._chance.choices(acts, weights=(5, 6, 2, 2, 2, 1, 1, 1), k=self._chance.choice((1, 1, 1, 2, 4))):
            act()

    def _insert(self) -> None:
        row = self._fresh(0)
        values = row[1:]
        self._write(f"INSERT INTO {self._table} ({','.join(Order._fields[1:])}) VALUES ({_marks(values)})", values, 1)
        key = int(self._query("SELECT LAST_INSERT_ID()", ())[0][0])
        # A value whose insert was rolled back may come again: seen on MariaDB around a plain ALTER.
        if key <= self._last_insert_id:
            raise Missing(f"AUTO_INCREMENT gave {key} after {self._last_insert_id}: a key that was in use comes again")
        self._pending.inserted = key
        self._stage(row._replace(id=key))
        self._pending.keys.append(key)

    def _update(self) -> None:
        row = self._existing()
        if row is None:
            return
        status, more, now = (
            self._chance.choice(orders.STATUSES),
            Decimal(self._chance.randrange(500)) / 100,
            self._now(),
        )
        sql = f"UPDATE {self._table} SET status = %s, amount = amount + %s, updated_at = %s WHERE id = %s"
        self._write(sql, (status, more, now, row.id), 1)
        self._stage(row._replace(status=status, amount=row.amount + more, updated_at=now))

    def _delete(self) -> None:
        row = self._existing()
        if row is not None:
            self._write(f"DELETE FROM {self._table} WHERE id = %s", (row.id,), 1)
            self._pending.rows[row.id] = None

    def _move(self) -> None:
        """Change a key: into a gap between base rows, or below the lowest."""
        row, key = self._existing(), self._free_key()
        if row is None or key is None:
            return
        self._write(f"UPDATE {self._table} SET id = %s WHERE id = %s", (key, row.id), 1)
        self._pending.rows[row.id] = None
        self._stage(row._replace(id=key))
        self._pending.keys.append(key)

    def _upsert(self) -> None:
        key = self._any_key()
        if key is None:
            return
        before, fresh = self._row(key), self._fresh(key)
        sql = (
            f"INSERT INTO {self._table} ({COLUMNS}) VALUES ({_marks(fresh)}) "
            "ON DUPLICATE KEY UPDATE note = %s, updated_at = %s"
        )
        # Both servers count a row that was there twice, here as for REPLACE.
        self._write(sql, (*fresh, fresh.note, fresh.updated_at), 2 if before else 1)
        self._stage(before._replace(note=fresh.note, updated_at=fresh.updated_at) if before else fresh)

    def _replace(self) -> None:
        key = self._any_key()
        if key is not None:
            before, fresh = self._row(key), self._fresh(key)
            self._write(f"REPLACE INTO {self._table} ({COLUMNS}) VALUES ({_marks(fresh)})", fresh, 2 if before else 1)
            self._stage(fresh)

    def _delete_and_insert(self) -> None:
        row = self._existing()
        if row is not None:
            self._write(f"DELETE FROM {self._table} WHERE id = %s", (row.id,), 1)
            fresh = self._fresh(row.id)._replace(email=row.email)
            self._write(f"INSERT INTO {self._table} ({COLUMNS}) VALUES ({_marks(fresh)})", fresh, 1)
            self._stage(fresh)

    def _swap(self) -> None:
        """Two rows exchange their unique values, by way of a third value."""
        one, two = self._existing(), self._existing()
        if one is None or two is None or one.id == two.id:
            return
        sql = f"UPDATE {self._table} SET email = %s WHERE id = %s"
        for email, key in ((self._fresh(0).email, one.id), (one.email, two.id), (two.email, one.id)):
            self._write(sql, (email, key), 1)
        self._stage(one._replace(email=two.email))
        self._stage(two._replace(email=one.email))

    # -- what is where ---------------------------------------------------------------------------------------------

    def _stage(self, row: Order) -> None:
        self._pending.rows[row.id] = row

    def _row(self, key: int) -> Order | None:
        """What is committed, or written by this transaction, under a key of ours."""
        for known in (self._pending.rows, self.rows):
            if key in known:
                return known[key]
        is_base = key > 0 and key % 2 == 1 and key < orders.base_key(self._share.rows)
        return orders.base_row(key // 2) if is_base else None

    def _any_key(self) -> int | None:
        if self._own_keys and self._chance.random() < 0.4:
            return self._chance.choice(self._own_keys)
        row = self._share.base(self._chance)
        return None if row is None else orders.base_key(row)

    def _existing(self) -> Order | None:
        for _ in range(16):
            key = self._any_key()
            row = None if key is None else self._row(key)
            if row is not None:
                return row
        return None

    def _free_key(self) -> int | None:
        self._serial += 1
        key = self._share.gap(self._chance) if self._chance.random() < 0.7 else self._share.negative(self._serial)
        return key if key is not None and self._row(key) is None else None

    def _fresh(self, key: int) -> Order:
        self._serial += 1
        mark = f"w{self._share.number}-{self._serial}-{self._chance.getrandbits(32):08x}"
        return Order(
            id=key,
            customer=self._chance.randrange(100_000),
            status=self._chance.choice(orders.STATUSES),
            amount=Decimal(self._chance.randrange(10_000_000)) / 100,
            note=self._chance.choice((None, "", f"naïve 💶 {mark}", mark)),
            email=f"{mark}@example.org",
            updated_at=self._now(),
        )

    def _now(self) -> datetime:
        """Each write has a time of its own, which says nothing about the clock: runs with one seed look alike."""
        self._serial += 1
        return datetime(2025, 1, 1) + timedelta(microseconds=1_000_003 * self._serial)

    # -- the connection --------------------------------------------------------------------------------------------

    def _write(self, sql: str, values: Sequence[Any], expected: int) -> None:
        """`expected`: affected rows. Anything else means that a row is gone, or one is there that should not be."""
        touched = self._timed(lambda session: session.execute(sql, tuple(values)))
        self._pending.writes += 1
        if touched != expected:
            raise Missing(f"{sql.split(' ', 1)[0]} touched {touched} rows instead of {expected}: {tuple(values)!r}")

    def _run(self, sql: str) -> None:
        self._timed(lambda session: session.execute_raw(sql))

    def _query(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._open().rows(sql, tuple(values))

    def _timed(self, act: Callable[[Session], int]) -> int:
        session, started = self._open(), time.monotonic()
        try:
            return act(session)
        finally:
            self.tally.longest_seconds = max(self.tally.longest_seconds, time.monotonic() - started)

    def _open(self) -> Session:
        if self._session is None:
            # Rows that were found are counted: an UPDATE to the very same values would touch none otherwise.
            self._session = connect(self._url, found_rows=True)
        return self._session

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _roll_back(self) -> None:
        """Whatever was open (a transaction, an XA branch not yet prepared) ends with its connection."""
        self._close()

    def _reconnect(self) -> None:
        """Wait for the server to come back."""
        self.tally.retries += 1
        while not self._stopped.is_set():
            self._close()
            try:
                self._open()
                # MariaDB does not keep a rollback over kill -9: the branch is prepared again, and it is ours to end.
                if self._rolled_back:
                    self._roll_back_branch(self._rolled_back)
                return
            except Transient:
                self._stopped.wait(0.05)

    def _look_up(self) -> None:
        """COMMIT was sent and its answer lost: all rows are as staged, or all as before."""
        self._reconnect()
        while self._pending.rows and not self._stopped.is_set():
            try:
                now = {key: self._read(key) for key in self._pending.rows}
            except Transient:
                self._reconnect()
                continue
            self._decide(now)
            return

    def _read(self, key: int) -> Order | None:
        found = self._query(f"SELECT {COLUMNS} FROM {self._table} WHERE id = %s", (key,))
        return Order(*found[0]) if found else None

    def _decide(self, now: dict[int, Order | None]) -> None:
        # So that `_row` tells of each key what was committed before this transaction.
        wanted, self._pending.rows = self._pending.rows, {}
        before = {key: self._row(key) for key in wanted}
        self._pending.rows = wanted
        if now == wanted:
            self._committed()
        elif now != before:
            self.tally.errors.append(f"{self.name}: half of a transaction is there: {now!r} of {wanted!r}")


def _marks(values: Sequence[Any]) -> str:
    return ",".join(["%s"] * len(values))
