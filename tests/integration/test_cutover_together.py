"""Several tables in one cut-over on real servers: no write is lost at any of them, and all are switched or none.

RENAME comes to its tables one after the other. The names here are those that stand next to each other in its order,
with nothing of ours between them, and those that do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from cutover_setup import Background, Points, Ready, app, nothing, points, prepare, until, waiting_for_lock

from sandbox.databases import Database
from vreplication.cutover.attempt import CutOver
from vreplication.cutover.decide import decide
from vreplication.cutover.outcome import Outcome
from vreplication.cutover.parts import Part
from vreplication.errors import BadValue, SourceChanged, Superseded, Terminal
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR

__all__ = ["app", "points"]
NAMES = ("orders_A", "orders", "items")
"""As they are given. RENAME's order is items, orders, orders_A."""
RUNS, WRITERS = 8, 2


@dataclass(kw_only=True)
class Readies:
    """Workflows of the three tables, ready to be switched together."""

    each: tuple[Ready, ...]
    announced: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def database(self) -> Database:
        return self.each[0].database

    @property
    def session(self) -> Session:
        return self.each[0].session

    @property
    def lockers(self) -> dict[str, int]:
        """Connections by the table that they lock."""
        first, _, _, _, *others = self.announced[-1]
        return dict(zip((ready.row.source_table for ready in self.each), (first, *others), strict=False))

    @property
    def renamer(self) -> int:
        return self.announced[-1][1]

    def attempt(self, **more: Any) -> Outcome:
        barrier, checked = more.pop("barrier", nothing), more.pop("check_locked", nothing)
        parts = [ready.part for ready in self.each]
        cut_over = CutOver(self.database.url, self.each[0].server, parts, announce=self.announced.append, **more)
        return cut_over.attempt(barrier=barrier, check_locked=checked)

    def are(self, what: Callable[[Ready], bool]) -> bool:
        """The same of all of them."""
        (found,) = {what(ready) for ready in self.each}
        return found

    @property
    def are_untouched(self) -> bool:
        return self.are(Ready.is_untouched)

    @property
    def are_switched(self) -> bool:
        return self.are(Ready.is_switched)

    def close(self) -> None:
        for ready in self.each:
            ready.session.close()


def make(database: Database, suffix: str = "") -> Readies:
    found = (prepare(database, f"{name}{suffix}", f"wf{suffix}.{n}") for n, name in enumerate(NAMES, start=1))
    return Readies(each=tuple(found))


@pytest.fixture
def ready(database: Database) -> Iterator[Readies]:
    made = make(database)
    yield made
    made.close()


class Writing:
    """Writers of one table that never stop, until the block is left."""

    def __init__(self, database: Database, table: str) -> None:
        self.acknowledged: set[int] = set()
        self.errors: list[str] = []
        self._table, self._over = ident(table), threading.Event()
        self.sessions = [connect(database.app_url) for _ in range(WRITERS)]
        self._threads = [threading.Thread(target=self._run, args=(s,), daemon=True) for s in self.sessions]

    def __enter__(self) -> Writing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread, session in zip(self._threads, self.sessions, strict=True):
            thread.join(20)
            session.close()

    def _run(self, session: Session) -> None:
        try:
            while not self._over.is_set():
                session.execute_raw(f"INSERT INTO {self._table} (v) VALUES (1)")
                self.acknowledged.add(int(session._connection.insert_id()))
        except Exception as error:
            self.errors.append(str(error))

    def wait(self, count: int) -> None:
        seen = len(self.acknowledged)
        until(lambda: bool(self.errors) or len(self.acknowledged) >= seen + count)


def ids(session: Session, table: str) -> set[int]:
    return {int(number) for (number,) in session.rows(f"SELECT id FROM {ident(table)}")}


def test_no_write_is_lost_at_any_of_them(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Writers queue at every table; what its lock's holder saw is all that a retired table ever holds."""
    longest = 0.0
    for run in range(RUNS):
        ready, under_lock = make(database, f"_{run}"), {}
        with ExitStack() as stack:
            writing = {
                r.row.source_table: stack.enter_context(Writing(database, r.row.source_table)) for r in ready.each
            }
            sessions = [session.id for each in writing.values() for session in each.sessions]

            def barrier(_: float, sessions: list[int] = sessions, ready: Readies = ready) -> None:
                until(lambda: all(waiting_for_lock(ready.session, each) for each in sessions))

            def look(part: Part, locker: Session, seen: dict[str, set[int]] = under_lock) -> None:
                seen[part.row.source_table] = ids(locker, part.row.source_table)

            for each in writing.values():
                each.wait(5)
            outcome = ready.attempt(barrier=barrier, check_locked=look)
            assert outcome.is_switched, outcome.reason
            longest = max(longest, outcome.total_millis)
            for each in writing.values():
                each.wait(5)
        assert ready.are_switched
        for each in ready.each:
            name = each.row.source_table
            retired, new = ids(ready.session, each.row.retired_table), ids(ready.session, name)
            assert retired == under_lock[name]
            assert writing[name].acknowledged <= retired | new
            assert writing[name].errors == []
        ready.close()
    with capsys.disabled():
        print(f" [{database.server.flavor}: {RUNS} switches of {len(NAMES)}, longest {longest:.0f} ms]", end="")


@contextmanager
def held(ready: Readies, points: Points, point: str) -> Iterator[Background]:
    """An attempt that stands at the point while the block runs."""
    points.hold(f"cutover.{point}")
    running = Background(ready.attempt)
    points.wait(f"cutover.{point}")
    yield running
    points.let_go(f"cutover.{point}")


def end(ready: Readies, connection: int) -> None:
    admin = ready.database.admin
    admin.kill(connection)
    until(lambda: admin.row("SELECT 1 FROM information_schema.processlist WHERE id=%s", (connection,)) is None)


@pytest.mark.parametrize("point", ["locked", "rename_pending", "sentry_dropped", "handed_over"])
@pytest.mark.parametrize("victim", ["renamer", "locker of the last"])
@pytest.mark.in_turn
def test_one_connection_dies_and_none_is_switched(
    ready: Readies, points: Points, app: Session, point: str, victim: str
) -> None:
    """Also when RENAME has got the first table already."""
    with held(ready, points, point) as running:
        end(ready, ready.renamer if victim == "renamer" else ready.lockers["orders_A"])
        if victim != "renamer":
            # Its lock is gone: this row is in the old table, behind the marker.
            app.execute_raw("INSERT INTO orders_A (v) VALUES (7)")
    assert not running.result().is_switched
    assert ready.are_untouched
    for name in NAMES:
        app.execute_raw(f"INSERT INTO {name} (v) VALUES (1)")
    assert ready.attempt().is_switched
    assert ready.are_switched


def test_the_last_of_them_is_left_to_rename_when_that_waits_for_it(
    ready: Readies, points: Points, app: Session
) -> None:
    """A writer that queued before RENAME came to its table writes to the new one."""
    with connect(ready.database.app_url) as other:
        queued = ((app, "orders_A"), (other, "items"))
        with held(ready, points, "handed_over") as running:
            writers = [
                Background(lambda s=s, name=name: s.execute_raw(f"INSERT INTO {name} (id, v) VALUES (77, 7)"))
                for s, name in queued
            ]
            until(lambda: all(waiting_for_lock(ready.session, session.id) for session, _ in queued))
        assert running.result().is_switched
        for writer in writers:
            writer.result()
    for _, name in queued:
        assert 77 in ids(app, name)


def test_none_is_let_go_before_rename_waits_for_it(ready: Readies, app: Session) -> None:
    """Somebody uses the new table of the first: there RENAME waits, and the server shows that as it shows the other."""
    app.execute_raw("BEGIN")
    app.rows("SELECT * FROM items__vr_new")
    with connect(ready.database.app_url) as other:
        running = Background(lambda: ready.attempt(deadline_seconds=2.0))
        until(lambda: bool(ready.announced) and waiting_for_lock(ready.session, ready.renamer))
        writing = Background(lambda: other.execute_raw("INSERT INTO orders (id, v) VALUES (77, 7)"))
        writing.result()
        app.rollback()
        outcome = running.result()
    assert 77 in ids(app, "orders")
    assert not outcome.is_switched
    assert ready.are_untouched


@pytest.mark.parametrize("point", ["after_barrier", "handed_over"])
def test_a_truncate_that_queued_at_one_of_them_ends_it(
    ready: Readies, points: Points, app: Session, point: str
) -> None:
    with held(ready, points, point) as running:
        emptied = Background(lambda: app.execute_raw("TRUNCATE TABLE orders_A"))
        until(lambda: waiting_for_lock(ready.session, app.id))
    outcome = running.result()
    emptied.result()
    assert not outcome.is_switched
    assert "TRUNCATE TABLE orders_A" in outcome.reason
    assert ids(ready.session, "orders_A") == set()
    assert [each.is_untouched() for each in ready.each] == [False, True, True]
    with pytest.raises(SourceChanged, match="orders_A is not the one"):
        ready.attempt()


def test_a_transaction_that_holds_one_and_waits_for_another_gets_no_error(ready: Readies, app: Session) -> None:
    """With one session for all locks the server would end it as a deadlock. The table it holds is named."""
    app.execute_raw("BEGIN")
    app.execute_raw("INSERT INTO items (v) VALUES (1)")
    running = Background(ready.attempt)
    until(lambda: bool(ready.announced) and waiting_for_lock(ready.session, ready.lockers["items"]))
    app.execute_raw("INSERT INTO orders (v) VALUES (1)")
    app.execute_raw("COMMIT")
    outcome = running.result()
    assert (outcome.is_switched, outcome.not_locked) == (False, "wf.3")
    assert f"Table {ready.database.name}.items could not be locked" in outcome.reason
    assert f"connection {app.id} " in outcome.reason
    assert 1000 <= outcome.lock_millis < 3000
    assert ready.are_untouched
    assert ready.attempt().is_switched


def test_what_is_raised_for_one_names_it_and_switches_none(ready: Readies) -> None:
    cut_over = CutOver(ready.database.url, ready.each[0].server, [each.part for each in ready.each])

    def differs(part: Part, _: Session) -> None:
        if part.row.source_table == "orders":
            raise BadValue("Key 2 differs.")

    with pytest.raises(BadValue):
        cut_over.attempt(barrier=nothing, check_locked=differs)
    assert cut_over.at_fault == "wf.2"
    assert ready.are_untouched


def test_a_name_that_is_taken_leaves_no_sentry_of_the_others(ready: Readies) -> None:
    taken = ready.each[0].row.retired_table
    ready.session.execute_raw(f"CREATE TABLE {taken} (id INT PRIMARY KEY)")
    with pytest.raises(Terminal, match="is not ours"):
        ready.attempt()
    ready.session.execute_raw(f"DROP TABLE {taken}")
    assert ready.are_untouched


def test_one_lease_that_is_lost_switches_none(ready: Readies, points: Points) -> None:
    with held(ready, points, "after_barrier") as running:
        ready.database.admin.execute_raw(f"UPDATE {SIDECAR}.lease SET token = token + 1 WHERE workflow='wf.2'")
    with pytest.raises(Superseded):
        running.result()
    assert {decide(ready.session, each.row) for each in ready.each} == {"not switched"}
