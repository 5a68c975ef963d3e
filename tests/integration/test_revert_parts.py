"""Of a way back: a transaction that is read in parts, and again after a crash, takes nothing from any row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from rowcopy_setup import WORKFLOW, workflow_row

from sandbox.databases import Database
from vreplication.apply import since as kept
from vreplication.apply.applier import MAX_BATCH_CHANGES, Applier
from vreplication.apply.writer import Target
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes.watermark import Watermark
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, connect
from vreplication.schema.alter import parse_alter
from vreplication.schema.introspect import introspect
from vreplication.schema.mapping import map_back
from vreplication.state import keytables, layout, lease, since, workflows

ORIGINAL = "t__vr_old"


def part(first: int, *rows: tuple[int, int], is_last: bool = False) -> Group:
    """Rows (id, u), and so many others that they are written before the rest comes."""
    others = ((n, n) for n in range(first, first + MAX_BATCH_CHANGES))
    items = [RowChange(0, None, (str(key), f"{key},{u}")) for key, u in (*rows, *others)]
    at = Position.of("binlog.000001", first)
    return Group(
        kind=GroupKind.COMMIT, start=at, end=at, time_micros=1, items=items, nbytes=1, is_last=is_last, changes=20_000
    )


@contextmanager
def way_back(database: Database) -> Iterator[tuple[Session, Target]]:
    admin = database.admin
    admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, u INT, UNIQUE (u)) ENGINE=InnoDB")
    admin.execute_raw(f"CREATE TABLE {ORIGINAL} (id INT PRIMARY KEY, u INT, w INT NOT NULL DEFAULT 0, UNIQUE (u))")
    admin.execute_raw(f"INSERT INTO {ORIGINAL} VALUES (1,1,11),(3,3,33)")
    with connect(database.url) as session:
        layout.install(session)
        workflows.create(session, workflow_row(database.name, ORIGINAL))
        source, old = (introspect(session, database.name, name) for name in ("t", ORIGINAL))
        mapping = map_back(inspect(session), source, old, parse_alter("DROP COLUMN w"))
        keytables.create_all(session, mapping, WORKFLOW)
        ours = lease.acquire(session, WORKFLOW, lease.REPLICATE)
        yield session, Target(mapping=mapping, lease=ours, packet=16 << 20)


@contextmanager
def applying(database: Database, target: Target, taken: Sequence[Group]) -> Iterator[Applier]:
    with connect(database.url) as writing:
        applier = Applier([writing], [target], Watermark(), held=lambda: (), on_first_open=lambda: None)
        for each in taken:
            applier.take(each)
        yield applier
        applier.end()
        applier.close()


def test_a_unique_value_that_went_through_several_rows_costs_none_of_them_what_it_keeps(database: Database) -> None:
    """Row 1 has had u=9 before row 3 got it. Read again, row 1 with u=9 puts row 3 out of its way, by then at u=9."""
    admin = database.admin
    parts = [part(10_000, (1, 9)), part(20_000, (1, 5), (3, 9)), part(30_000, is_last=True)]
    with way_back(database) as (_, target):
        for taken in (parts[:2], parts):
            with applying(database, target, taken):
                pass
    assert admin.rows(f"SELECT id, u, w FROM {ORIGINAL} WHERE id<10") == [(1, 5, 11), (3, 9, 33)]
    assert admin.value(f"SELECT COUNT(*) FROM {ORIGINAL}") == 2 + 3 * MAX_BATCH_CHANGES


def test_a_heartbeat_waits_for_no_transaction_that_is_written_in_parts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catch-up's own: after 15 s its round would begin anew, and the transaction with it, for ever."""
    monkeypatch.setattr(kept, "MAX_KEYS", 1)
    with way_back(database) as (session, target), connect(database.url, lock_wait_seconds=1) as beating:
        since.begin(session, WORKFLOW, Position.of("binlog.000001", 4).saved)
        with applying(database, target, [part(10_000, is_last=True), part(20_000)]) as applier:
            since.note_waiting(beating, WORKFLOW, 0)
            applier.take(part(30_000, is_last=True))
        assert since.count(session, WORKFLOW) == 3 * MAX_BATCH_CHANGES
