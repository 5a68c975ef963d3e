"""One reader of the log for several followers, on a live server: who comes late gets every change once, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from sandbox.databases import Database
from tests.support.changes import Effect, effects
from tests.support.flow import wait_until
from tests.support.tailing import here, ours, watch
from vreplication.binlog.events import Group, Position
from vreplication.binlog.position import draw_server_id
from vreplication.binlog.tailer import Tailer
from vreplication.binlog.watch import Following
from vreplication.engine.reading import Intake, SharedReader
from vreplication.errors import SourceChanged
from vreplication.mysql.session import connect
from vreplication.state import layout

TABLES = ("a", "b", "c")


@dataclass(slots=True)
class Follower:
    """What came to it."""

    groups: list[Group] = field(default_factory=list)
    error: BaseException | None = None

    def put(self, group: Group) -> None:
        self.groups.append(group)

    def has_room(self, nbytes: int) -> bool:
        return True

    def fail(self, error: BaseException) -> None:
        self.error = error

    @property
    def changes(self) -> list[Effect]:
        return [effect for group in self.groups for effect in effects(group.items)]


@pytest.fixture
def tables(database: Database) -> Database:
    layout.install(database.admin)
    with connect(database.app_url) as app:
        for name in TABLES:
            app.execute_raw(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
    return database


@contextmanager
def writing(database: Database) -> Iterator[Callable[[int], None]]:
    """Transactions over all tables, with savepoints, as fast as they go; the call waits for so many more."""
    stop, done = threading.Event(), [0]

    def run() -> None:
        with connect(database.app_url) as app:
            while not stop.is_set():
                done[0] += 1
                n = done[0]
                app.execute_raw("BEGIN")
                for name in TABLES:
                    app.execute_raw(f"REPLACE INTO {name} VALUES ({n % 50},{n})")
                app.execute_raw("SAVEPOINT s")
                app.execute_raw(f"DELETE FROM {TABLES[n % 3]}")
                app.execute_raw("ROLLBACK TO s" if n % 4 else "RELEASE SAVEPOINT s")
                app.execute_raw("COMMIT")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait_for(more: int) -> None:
        until = done[0] + more
        wait_until(lambda: done[0] >= until, "nothing is written")

    try:
        yield wait_for
    finally:
        stop.set()
        thread.join()


class Followers:
    """One shared reader, and who follows by it."""

    def __init__(self, database: Database) -> None:
        self._database, self.reader = database, SharedReader()
        self._intakes: dict[str, Intake] = {}

    def open_log(self, start: Position) -> Tailer:
        database = self._database
        with connect(database.url) as session:
            drawn = draw_server_id(session)
        # Parts, so that a transaction of some rows comes in several.
        return Tailer(
            database.url, start, ours(database), server_id=drawn, is_mariadb=database.server.is_mariadb, part_bytes=600
        )

    def follow(self, table: str, start: Position) -> Follower:
        found = watch(self._database, table, number=self.reader.number(table))
        follower = Follower()
        following = Following(name=table, watches=(found,))
        self._intakes[table] = Intake(self.reader, following, follower, self.open_log)
        self._intakes[table].begin(start)
        return follower

    def leave(self, table: str) -> None:
        self._intakes.pop(table).close()

    def __enter__(self) -> Followers:
        return self

    def __exit__(self, *_: object) -> None:
        for table in list(self._intakes):
            self.leave(table)


def committed(follower: Follower) -> list[tuple[Position, list[Effect]]]:
    """Whole transactions: where each began, and what it changed."""
    found: list[tuple[Position, list[Effect]]] = []
    open_: list[Effect] = []
    for group in follower.groups:
        if group.keep is not None:
            del open_[group.keep :]
        open_ += effects(group.items)
        if group.is_last:
            found.append((group.start, open_))
            open_ = []
    return found


def dumps(database: Database) -> int:
    """Connections that read the log."""
    found = database.admin.rows("SELECT command FROM information_schema.processlist")
    return sum("Binlog Dump" in str(command) for (command,) in found)


def reached(database: Database, *followers: Follower) -> None:
    end = here(database)

    def is_there() -> bool:
        assert [f.error for f in followers] == [None] * len(followers)
        return all(f.groups and f.groups[-1].is_last and f.groups[-1].end >= end for f in followers)

    wait_until(is_there, "they do not come to the end")


def test_late_ones_change_over_and_lose_nothing(tables: Database) -> None:
    start = here(tables)
    with Followers(tables) as all_of_them:
        with writing(tables) as wait_for:
            first = all_of_them.follow("a", start)
            wait_for(60)
            late = all_of_them.follow("b", start)
            wait_for(60)
            later = all_of_them.follow("c", start)
            wait_for(200)
            wait_until(lambda: dumps(tables) == 1, "each keeps a dump of its own")
        tables.admin.execute_raw(f"INSERT INTO {tables.name}.a VALUES (1000,0)")
        reached(tables, first, late, later)
    seen = [committed(each) for each in (first, late, later)]
    places = [[place for place, _ in each] for each in seen]
    assert places[0] == places[1] == places[2] == sorted(set(places[0]))
    for table, follower in zip(TABLES, (first, late, later), strict=True):
        assert outcome(committed(follower)) == rows(tables, table)


def outcome(found: list[tuple[Position, list[Effect]]]) -> dict[str, str]:
    """What a table holds that was empty."""
    table: dict[str, str] = {}
    for _, effects_ in found:
        for effect in effects_:
            if effect.values is None:
                table.pop(effect.key, None)
            else:
                table[effect.key] = effect.values
    return table


def rows(database: Database, table: str) -> dict[str, str]:
    found = database.admin.rows(f"SELECT id, n FROM {database.name}.{table}")
    return {str(key): f"{key},{n}" for key, n in found}


@pytest.mark.parametrize("is_told", [True, False])
def test_what_stops_one_stops_no_other(tables: Database, is_told: bool) -> None:
    """By the statement in the log, or by rows of another shape where nobody was told of it."""
    start = here(tables)
    run = tables.admin.execute_raw
    with Followers(tables) as all_of_them:
        a, b = all_of_them.follow("a", start), all_of_them.follow("b", start)
        run(f"INSERT INTO {tables.name}.b VALUES (1,1)")
        wait_until(lambda: a.groups and b.groups and dumps(tables) == 1, "they do not read")
        run(f"SET SESSION sql_log_bin={int(is_told)}")
        run(f"ALTER TABLE {tables.name}.b ADD COLUMN m INT")
        run("SET SESSION sql_log_bin=1")
        run(f"INSERT INTO {tables.name}.b VALUES (2,2,2)")
        run(f"INSERT INTO {tables.name}.a VALUES (1,1)")
        wait_until(lambda: a.changes, "the other one stands still")
        assert isinstance(b.error, SourceChanged)
        assert f"{tables.name}.b" in str(b.error)
        assert f"{tables.name}.a" not in str(b.error)
        assert (a.error, len(b.changes)) == (None, 1)
        all_of_them.leave("b")
        c = all_of_them.follow("c", here(tables))
        run(f"INSERT INTO {tables.name}.c VALUES (1,1)")
        wait_until(lambda: c.changes and dumps(tables) == 1, "who comes after that is not followed")


def test_the_dump_ends_with_the_last_one(tables: Database) -> None:
    with Followers(tables) as all_of_them:
        all_of_them.follow("a", here(tables))
        all_of_them.follow("b", here(tables))
        all_of_them.leave("a")
        b_again = all_of_them.follow("a", here(tables))
        tables.admin.execute_raw(f"INSERT INTO {tables.name}.a VALUES (7,7)")
        wait_until(lambda: b_again.changes, "it is not followed again")
    wait_until(lambda: dumps(tables) == 0, "a dump is left")


def test_a_lost_dump_is_told_to_all_of_them(tables: Database) -> None:
    with Followers(tables) as all_of_them:
        a, b = all_of_them.follow("a", here(tables)), all_of_them.follow("b", here(tables))
        tables.admin.execute_raw(f"INSERT INTO {tables.name}.a VALUES (7,7)")
        wait_until(lambda: a.groups and b.groups and dumps(tables) == 1, "they do not read")
        sql = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
        for (number,) in tables.admin.rows(sql):
            tables.admin.kill(int(number))
        wait_until(lambda: a.error and b.error, "one of them is not told")
