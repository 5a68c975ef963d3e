"""The proof that no write of the shop's application was lost, doubled or split on the way between two servers.

A copy of the tables was kept on the source before anybody wrote (`keep_copy`). The proof writes into it what the
application remembers as accepted, and compares it with the tables of both servers; besides, it looks at each row that
was touched, at when who accepted what, and tries to write where no writes are taken.

What must stay true: the tables are only read, but for what is tried and must be refused; what must be in them comes
from the copy and from the application's memory; writers are held meanwhile, readers go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sandbox import shop
from sandbox.shop import COLUMNS, KEYS, TABLES, Key, Row
from sandbox.shop_actors import NO_TABLE, READ_ONLY, SOURCE, Accepted, Memory
from sandbox.shop_workload import Workload
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.url import SourceUrl

KEPT = "shop_at_start"
LEVEL_SECONDS = 20.0
_BATCH = 500
_SHOWN = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Of one table."""

    rows: int
    checksum: str


Sums = dict[str, Sum]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """expected, serving, other: what must be there, is there, and is on the side that takes no writes (None: nothing).

    gap_seconds: between the last write that one side took and the first that the other one took.
    """

    accepted: int
    expected: Sums
    serving: Sums
    other: Sums | None
    refusals: tuple[str, ...]
    gap_seconds: float | None
    troubles: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.troubles


def keep_copy(source: Session) -> None:
    """While nobody writes. Not logged: it is nothing that could move."""
    with _unlogged(source):
        source.execute_raw(f"CREATE DATABASE {KEPT}")
        for table in TABLES:
            source.execute_raw(f"CREATE TABLE {KEPT}.{table} LIKE {table}")
            source.execute_raw(f"INSERT INTO {KEPT}.{table} SELECT * FROM {table}")


class _unlogged:
    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.execute_raw("SET SESSION sql_log_bin=0")

    def __exit__(self, *_: object) -> None:
        self._session.execute_raw("SET SESSION sql_log_bin=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """source, target: administrator's sessions. app: the application's URLs by side."""

    source: Session
    target: Session
    app: dict[str, SourceUrl]
    workload: Workload

    def prove(self, serving: str, since: float, *, is_other_level: bool) -> Proof:
        """serving: the side that takes writes, since the switch that was asked for at `since`.

        is_other_level: the other side has the same, within a moment, under the same names; else it has no such tables.
        """
        self.workload.hold()
        try:
            return self._prove(serving, since, is_other_level)
        finally:
            self.workload.go_on()

    def _prove(self, serving: str, since: float, is_other_level: bool) -> Proof:
        here, there = (self.source, self.target) if serving == SOURCE else (self.target, self.source)
        memory = self.workload.expected
        with _unlogged(self.source):
            _apply(self.source, memory)
        expected = {table: _sum(self.source, f"{KEPT}.{table}", table) for table in TABLES}
        found = sums(here)
        other = self._wait_level(there, expected) if is_other_level else None
        refusals, taken = self._try(serving)
        gap, order = in_turn(self.workload.accepted, serving, since)
        troubles = [
            *self.workload.errors,
            *_differences(here, serving, memory, expected, found),
            *(_other_differences(there, memory, expected, other) if other else ()),
            *_halves(here, f"the side that takes writes, the {serving}"),
            *(_halves(there, "the other side") if other else ()),
            *taken,
            *order,
        ]
        return Proof(
            accepted=len(self.workload.accepted),
            expected=expected,
            serving=found,
            other=other,
            refusals=refusals,
            gap_seconds=gap,
            troubles=tuple(troubles),
        )

    def _wait_level(self, there: Session, expected: Sums) -> Sums:
        """What is accepted comes there a moment later."""
        deadline = time.monotonic() + LEVEL_SECONDS
        while (found := sums(there)) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _try(self, serving: str) -> tuple[tuple[str, ...], list[str]]:
        """Each kind of write on each table, where none is taken: (what the server said, what it took)."""
        side = next(name for name in self.app if name != serving)
        said, taken = [], []
        with connect(self.app[side]) as session:
            for table in TABLES:
                for sql in _tries(table):
                    try:
                        session.execute_raw(sql)
                        taken.append(f"the {side} took a write that belongs to the {serving}: {sql}")
                    except SqlError as error:
                        said.append(error.message)
                        if error.code not in (READ_ONLY, NO_TABLE):
                            taken.append(f"the {side} refused a write with other words: {error.message}")
        return tuple(dict.fromkeys(said)), taken


def _tries(table: str) -> tuple[str, ...]:
    columns, first = COLUMNS[table], KEYS[table][0]
    again = ",".join(f"{first}-1000000000" if name == first else name for name in columns)
    if table == "orders":
        again = again.replace("code", "CONCAT('try ',code)")
    return (
        f"INSERT INTO {table} ({','.join(columns)}) SELECT {again} FROM {table} LIMIT 1",
        f"UPDATE {table} SET serial=serial+1 LIMIT 1",
        f"DELETE FROM {table} LIMIT 1",
    )


def in_turn(accepted: Iterable[Accepted], serving: str, since: float) -> tuple[float | None, list[str]]:
    """Seconds between the two sides, and every write of the other side that came behind one of the serving side's.

    Of what was sent since the switch to `serving` was asked for.
    """
    sent = [one for one in accepted if one.sent >= since]
    new = [one for one in sent if one.side == serving]
    old = [one for one in sent if one.side != serving]
    if not new:
        return None, [f"the {serving} has taken no write"]
    first = min(new, key=lambda one: one.returned)
    # Only what was sent behind the other's answer: two that overlap say nothing of an order.
    late = [one for one in old if one.sent >= first.returned]
    gap = first.returned - max((one.returned for one in old), default=first.returned)
    return gap, [
        f"the {one.side} took a write of {one.who} {1000 * (one.sent - first.returned):.1f} ms after the {serving} had"
        f" taken one of {first.who}"
        for one in late[:_SHOWN]
    ]


# -- what must be there, and what is ----------------------------------------------------------------------------------


def _apply(source: Session, memory: Memory) -> None:
    """All keys that were touched go first, so that unique values that changed hands meet nobody."""
    for table in TABLES:
        rows = {key: row for (name, key), row in memory.items() if name == table}
        for keys in _batches(rows):
            source.execute(f"DELETE FROM {KEPT}.{table} WHERE {_in(table, keys)}", _flat(keys))
        for some in _batches(row for row in rows.values() if row is not None):
            marks = ",".join([f"({','.join(['%s'] * len(COLUMNS[table]))})"] * len(some))
            source.execute(f"INSERT INTO {KEPT}.{table} VALUES {marks}", _flat(some))


def _in(table: str, keys: Sequence[Key]) -> str:
    names = KEYS[table]
    mark = f"({','.join(['%s'] * len(names))})"
    return f"({','.join(names)}) IN ({','.join([mark] * len(keys))})"


def _flat(rows: Iterable[Sequence[object]]) -> list[object]:
    return [value for row in rows for value in row]


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def sums(session: Session) -> Sums:
    return {table: _sum(session, table, table) for table in TABLES}


def _sum(session: Session, name: str, table: str) -> Sum:
    """64 bits of each row's SHA-256, joined by exclusive or; the key is in the row, so no two rows cancel out."""
    text = ",".join(f"QUOTE({_as_text(column)})" for column in COLUMNS[table])
    bits = f"BIT_XOR(CAST(CONV(LEFT(SHA2(CONCAT_WS(',',{text}),256),16),16,10) AS UNSIGNED))"
    found = session.row(f"SELECT COUNT(*), {bits} FROM {name}")
    assert found is not None
    return Sum(rows=int(found[0]), checksum=f"{int(found[1] or 0):016x}")


def _as_text(column: str) -> str:
    """Each server writes JSON its own way: some values stand for it; where rows were touched all are compared."""
    if column != "profile":
        return ident(column)
    parts = ",".join(f"COALESCE(JSON_UNQUOTE(JSON_EXTRACT(profile,'$.{name}')),'-')" for name in ("city", "level"))
    return f"CONCAT({parts},COALESCE(JSON_UNQUOTE(JSON_EXTRACT(profile,'$.tags[1]')),'-'))"


def _differences(here: Session, side: str, memory: Memory, expected: Sums, found: Sums) -> Iterator[str]:
    for table in TABLES:
        yield from _lost(here, side, table, memory)
        if expected[table] != found[table]:
            yield f"{table} on the {side}: {found[table].rows} rows instead of {expected[table].rows}, or other ones"


def _other_differences(there: Session, memory: Memory, expected: Sums, found: Sums) -> Iterator[str]:
    for table in TABLES:
        if expected[table] != found[table]:
            yield f"{table}, other side: {found[table].rows} rows instead of {expected[table].rows}, or other ones"
        yield from _lost(there, "other side", table, memory)


def _lost(session: Session, side: str, table: str, memory: Memory) -> Iterator[str]:
    """Every row that was touched is as the application left it."""
    rows = {key: row for (name, key), row in memory.items() if name == table}
    wrong = []
    for keys in _batches(rows):
        sql = f"SELECT {','.join(COLUMNS[table])} FROM {table} WHERE {_in(table, keys)}"
        there = {shop.key_of(table, row): row for row in map(_read(table), session.rows(sql, _flat(keys)))}
        wrong += [(key, there.get(key), rows[key]) for key in keys if there.get(key) != rows[key]]
    for key, is_there, wanted in wrong[:_SHOWN]:
        kind = "lost" if is_there is None else "invented" if wanted is None else "other content"
        yield f"{table} on the {side}, {kind}: {key}: {is_there!r} instead of {wanted!r}"
    if len(wrong) > _SHOWN:
        yield f"{table} on the {side}: {len(wrong)} rows are wrong in all"


def _read(table: str):  # type: ignore[no-untyped-def]
    """Of a row as the server gives it; JSON in the one form in which texts are compared."""

    def read(values: tuple[object, ...]) -> Row:
        row = shop.KINDS[table](*values)  # type: ignore[arg-type]
        if isinstance(row, shop.Customer):
            profile = json.dumps(json.loads(row.profile), ensure_ascii=False, sort_keys=True)
            return row._replace(profile=profile)
        return row

    return read


def _halves(session: Session, where: str) -> Iterator[str]:
    if half := shop.half_written(session):
        yield f"half of a transaction is on {where}: orders {half[:_SHOWN]} ({len(half)} in all)"
    if alone := shop.orphans(session):
        yield f"half of a transaction is on {where}: items of the orders {alone[:_SHOWN]} ({len(alone)} in all)"
