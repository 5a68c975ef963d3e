"""Keeps a new table as a full copy says: of each value of a new unique key the row with the lowest shared key.

The full copy has every row of the source and is written by others; its triggers note what they touch
(state/touched.py). docs/design/duplicates.md has why, and what a model says of it.

What must stay true: one process writes the new table, under the driver's lease, one transaction at a time; notes are
read before the full copy is, and go in the transaction that writes what they ask for; what is looked at is what was
touched *and* what is the lowest now of a value that was touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication import names
from vreplication.apply.writer import in_transaction
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.pausepoints import reach
from vreplication.schema.bounds import range_sql
from vreplication.schema.literals import APPROXIMATE, DECIMALS, INTEGERS, TEMPORALS
from vreplication.schema.model import Column, Key, Table, TableMapping
from vreplication.state import touched
from vreplication.state.lease import Lease
from vreplication.state.ledger import Bound

BATCH = 2_000
"""Notes that one transaction settles."""
_SHOWN = 5
_PLAIN = INTEGERS | DECIMALS | APPROXIMATE | TEMPORALS | {"year"}
"""Types whose values are the same when the server says so; of text a collation may call two the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowest:
    """mapping: of the source to the full copy. new: the new table. unique: its new key. is_last: the highest stays."""

    workflow: str
    lease: Lease
    mapping: TableMapping
    new: Table
    unique: Key
    is_last: bool

    # -- words --------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> str:
        return qualified(*self.place)

    @property
    def place(self) -> tuple[str, str]:
        """Of the full copy: schema and name."""
        return self.mapping.target.schema, self.mapping.target.name

    @property
    def table(self) -> str:
        return qualified(self.new.schema, self.new.name)

    @property
    def key(self) -> list[str]:
        return [ident(pair.target.name) for pair in self.mapping.key]

    @property
    def values(self) -> list[str]:
        return [ident(name) for name in self.unique.columns]

    @property
    def _written(self) -> list[str]:
        return [ident(column.name) for column in self.new.columns if not column.generated]

    @property
    def _key_columns(self) -> tuple[Column, ...]:
        return tuple(pair.target for pair in self.mapping.key)

    @property
    def _batch(self) -> str:
        return qualified(self.new.schema, names.stage_table(self.workflow) + "_notes")

    @property
    def _wanted(self) -> str:
        return qualified(self.new.schema, names.stage_table(self.workflow) + "_keys")

    def _first(self, column: str, row: str, values: list[str]) -> str:
        """SQL of the key, or of a column of it, of the row that stays of the values of `row`."""
        order = ",".join(f"l.{name}{' DESC' if self.is_last else ''}" for name in self.key)
        same = " AND ".join(f"l.{name}={row}.{value}" for name, value in zip(self.values, values, strict=True))
        return (
            f"(SELECT {column} FROM {self.full} AS l FORCE INDEX ({ident(self.unique.name)})"
            f" WHERE {same} ORDER BY {order} LIMIT 1)"
        )

    def stays(self, row: str) -> str:
        """Predicate: this row (an alias) of the full copy is the one that stays of its value, or has none (NULL)."""
        mine = ",".join(f"{row}.{name}" for name in self.key)
        first = self._first(",".join(f"l.{name}" for name in self.key), row, self.values)
        nulls = " OR ".join(f"{row}.{name} IS NULL" for name in self.values)
        return f"({nulls} OR ({mine})={first})"

    def _same_key(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{name}={other}.{name}" for name in self.key)

    def _is_wanted(self, row: str) -> str:
        return " AND ".join(f"{row}.{name}=w.{touched.key_column(i)}" for i, name in enumerate(self.key))

    # -- writing ------------------------------------------------------------------------------------------------------

    def fill(self, session: Session, lower: Bound | None, upper: Bound | None) -> None:
        """Write what stays of a range of keys. The triggers are there."""
        columns, picked = ",".join(self._written), ",".join(f"m.{name}" for name in self._written)
        where = range_sql(self._key_columns, lower, upper, alias="m")
        sql = f"REPLACE INTO {self.table} ({columns}) SELECT {picked} FROM {self.full} AS m WHERE {where}"
        in_transaction(session, self.lease, lambda: _run(session, f"{sql} AND {self.stays('m')}"))

    def prepare(self, session: Session) -> None:
        """Make ready a connection that settles; outside of any transaction."""
        touched.create_batch(session, self._batch, self.workflow)
        keys = ",".join(touched.key_column(i) for i in range(len(self.key)))
        session.execute_raw(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {self._wanted} (PRIMARY KEY ({keys})) ENGINE=InnoDB"
            f" SELECT {keys} FROM {self._batch} LIMIT 0"
        )

    def settle(self, session: Session, most: int = BATCH) -> int:
        """Settle some notes in one transaction; returns how many."""
        done = 0

        def work() -> None:
            nonlocal done
            done = self._settle(session, most)

        in_transaction(session, self.lease, work)
        return done

    def _settle(self, session: Session, most: int) -> int:
        session.execute_raw(f"DELETE FROM {self._batch}")
        session.execute_raw(f"DELETE FROM {self._wanted}")
        # Before any row is looked at (notes_read_first): of a change that commits between the two, the note would be
        # taken for settled although its row was read as it had been.
        found = touched.take(session, self.workflow, self._batch, self.key, self.values, most)
        if not found:
            return 0
        reach("lowest.notes_read")
        # Without a lock on the full copy: what changes behind this reading has a note of its own, and is settled again.
        self._want(session)
        session.execute_raw(
            # keys_cleared: a row that is gone from the full copy, or has lost its value, is written by nothing below.
            f"DELETE t FROM {self._wanted} AS w STRAIGHT_JOIN {self.table} AS t ON {self._is_wanted('t')}"
        )
        columns, picked = ",".join(self._written), ",".join(f"m.{name}" for name in self._written)
        session.execute_raw(
            # others_replaced: the row that holds the value may stand in no note. The fill wrote it while a lower key,
            # whose note this is, did not have the value yet.
            f"REPLACE INTO {self.table} ({columns}) SELECT STRAIGHT_JOIN {picked} FROM {self._wanted} AS w"
            f" JOIN {self.full} AS m ON {self._is_wanted('m')} WHERE {self.stays('m')}"
        )
        # removed_with_rows: removed apart from the rows, a crash in between would lose what the notes ask for. And only
        # those that were read: numbers are given before the commit, so a lower one may become visible later
        # (only_read_removed).
        touched.remove(session, self.workflow, self._batch)
        reach("lowest.before_commit")
        return found

    def _want(self, session: Session) -> None:
        """What was touched, and what is the lowest now of the values that were."""
        keys = [touched.key_column(i) for i in range(len(self.key))]
        values = [touched.value_column(i) for i in range(len(self.values))]
        into = f"INSERT IGNORE INTO {self._wanted} ({','.join(keys)})"
        session.execute_raw(f"{into} SELECT {','.join(keys)} FROM {self._batch}")
        # heirs_looked_for: the row that comes next when the lowest one goes was touched by nobody, so no note names it.
        known = " AND ".join(f"{value} IS NOT NULL" for value in values)
        each = f"SELECT DISTINCT {','.join(values)} FROM {self._batch} WHERE {known}"
        heirs = ",".join(
            f"{self._first(f'l.{name}', 'b', values)} AS {key}" for name, key in zip(self.key, keys, strict=True)
        )
        session.execute_raw(
            f"{into} SELECT * FROM (SELECT {heirs} FROM ({each}) AS b) AS h WHERE {keys[0]} IS NOT NULL"
        )

    # -- comparing ----------------------------------------------------------------------------------------------------

    def wrong_in_range(self, session: Session, lower: Bound | None, upper: Bound | None) -> list[str]:
        """Keys in a range of which the new table is not as the full copy says, and no note tells why."""
        of_full, of_new = (range_sql(self._key_columns, lower, upper, alias=alias) for alias in ("m", "t"))
        return self._wrong(session, f"{self.full} AS m", of_full, f"{self.table} AS t", of_new)

    def wrong_in_batch(self, session: Session) -> list[str]:
        """The same of what was settled last on this connection."""
        same = " AND ".join(f"t.{name}=b.{name}" for name in self.values)
        of_full = f"{self._wanted} AS w STRAIGHT_JOIN {self.full} AS m ON {self._is_wanted('m')}"
        by_key = f"{self._wanted} AS w STRAIGHT_JOIN {self.table} AS t ON {self._is_wanted('t')}"
        by_value = f"{self._noted_values} AS b STRAIGHT_JOIN {self.table} AS t ON {same}"
        return (
            # Three looks, because a row may be wrong under a key that no note has: it stands in the new table under a
            # noted value, or is missing where the full copy has rows of that value.
            self._wrong(session, of_full, "1=1", by_key, "1=1")
            or self._not_there(session, by_value, "1=1")
            or self._without_row(session)
        )

    @property
    def _noted_values(self) -> str:
        """Those of the batch, under the names of their columns."""
        listed = ",".join(f"{touched.value_column(i)} AS {name}" for i, name in enumerate(self.values))
        return f"(SELECT DISTINCT {listed} FROM {self._batch})"

    def _without_row(self, session: Session) -> list[str]:
        """Values that were touched last, of which the full copy has rows and the new table none."""
        same = {row: " AND ".join(f"{row}.{name}=b.{name}" for name in self.values) for row in ("m", "t")}
        rows = session.rows(
            f"SELECT {','.join(f'b.{name}' for name in self.values)} FROM"
            f" {self._noted_values} AS b"
            f" WHERE EXISTS (SELECT 1 FROM {self.full} AS m WHERE {same['m']})"
            f" AND NOT EXISTS (SELECT 1 FROM {self.table} AS t WHERE {same['t']})"
            f" AND NOT {touched.noted(self.workflow, 'b', (), self.values)} LIMIT {_SHOWN}"
        )
        return [f"of value {','.join(map(str, found))}" for found in rows]

    def _wrong(self, session: Session, of_full: str, is_full: str, of_new: str, is_new: str) -> list[str]:
        return self._missing(session, of_full, is_full) or self._not_there(session, of_new, is_new)

    def _missing(self, session: Session, full: str, where: str) -> list[str]:
        """Rows that should be in the new table and are not, or are others."""
        # One statement reads both tables and the notes at one moment. So what differs without a note is wrong for
        # certain, and there is no false alarm to wait for (docs/design/duplicates.md, Comparing).
        differs = " OR ".join(f"NOT {_same(column)}" for column in self.new.columns)
        return self._keys(
            session,
            "m",
            f"{full} LEFT JOIN {self.table} AS t ON {self._same_key('t', 'm')} WHERE ({where})"
            f" AND {self.stays('m')} AND (t.{self.key[0]} IS NULL OR {differs}) AND NOT {self._is_noted('m')}"
            f" AND NOT {self._is_noted('t')}",
        )

    def _not_there(self, session: Session, new: str, where: str) -> list[str]:
        """Rows that should not be in the new table."""
        return self._keys(
            session,
            "t",
            f"{new} LEFT JOIN {self.full} AS m ON {self._same_key('m', 't')} WHERE ({where})"
            f" AND (m.{self.key[0]} IS NULL OR NOT {self.stays('m')}) AND NOT {self._is_noted('m')}"
            f" AND NOT {self._is_noted('t')}",
        )

    def _is_noted(self, row: str) -> str:
        return touched.noted(self.workflow, row, self.key, self.values)

    def _keys(self, session: Session, row: str, rest: str) -> list[str]:
        shown = ",".join(f"{row}.{name}" for name in self.key)
        rows = session.rows(f"SELECT {shown} FROM {rest} LIMIT {_SHOWN}")
        return [",".join(map(str, found)) for found in rows]

    # -- what is left over --------------------------------------------------------------------------------------------

    def set_aside(self, session: Session, side: str, lower: Bound | None, upper: Bound | None) -> None:
        """Copy what does not stay of a range into the side table. The full copy changes no more."""
        columns, picked = ",".join(self._written), ",".join(f"m.{name}" for name in self._written)
        where = range_sql(self._key_columns, lower, upper, alias="m")
        # Judged by the full copy alone (left_over_by_copy): the table in use lacks what the application has deleted
        # since, and that row would be set aside as one that gave way. IGNORE, for a range is done again after a crash.
        sql = f"INSERT IGNORE INTO {side} ({columns}) SELECT {picked} FROM {self.full} AS m WHERE {where}"
        in_transaction(session, self.lease, lambda: _run(session, f"{sql} AND NOT {self.stays('m')}"))


def _run(session: Session, sql: str) -> None:
    session.execute_raw(sql)


def _same(column: Column) -> str:
    name = ident(column.name)
    one, other = (f"{row}.{name}" if column.data_type in _PLAIN else f"HEX({row}.{name})" for row in ("m", "t"))
    return f"({one}<=>{other})"
