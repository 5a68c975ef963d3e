"""Three tables that foreign keys tie together, under live writes of whole families: homes, people in them, their pets.

What must stay true: each transaction leaves every row with its parent, and what it has done is noted behind its commit;
so at any moment the tables have exactly what was noted, and an error other than a deadlock is one that we have made.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator

from sandbox.databases import Database
from vreplication.mysql.session import LockWait, Session, SqlError, connect
from vreplication.schema.foreign import ForeignKey, keys_of

HOMES, PEOPLE, PETS = "homes", "people", "pets"
_TABLES = (
    f"CREATE TABLE {HOMES} (id INT PRIMARY KEY, v INT) ENGINE=InnoDB",
    f"CREATE TABLE {PEOPLE} (id INT PRIMARY KEY, home INT NOT NULL, v INT, CONSTRAINT lives FOREIGN KEY (home) "
    f"REFERENCES {HOMES} (id)) ENGINE=InnoDB",
    f"CREATE TABLE {PETS} (id INT PRIMARY KEY, person INT NOT NULL, KEY by_person (person, id), v INT, "
    f"CONSTRAINT owned FOREIGN KEY (person) REFERENCES {PEOPLE} (id) {{}}) ENGINE=InnoDB",
)
_WRITERS = 3


def grant(database: Database) -> None:
    """What carrying keys over takes beside sql/grants/."""
    right, where = ("REFERENCES", f"{database.name}.*") if database.server.flavor == "mysql" else ("RELOAD", "*.*")
    database.admin.execute_raw(f"GRANT {right} ON {where} TO '{database.user}'@'%'")


class Families:
    """One of each for each number: a person of number n lives in home n and has pet n."""

    def __init__(self, database: Database, action: str = "ON DELETE CASCADE") -> None:
        self.database = database
        self.action = action
        self.alive: set[int] = set()
        self.deadlocks = 0
        self.refused: list[str] = []
        self.done = 0
        self._lock = threading.Lock()
        with connect(database.app_url) as app:
            for sql in _TABLES:
                app.execute_raw(sql.format(action))
            for number in range(60):
                self._come(app, number)

    def _come(self, app: Session, number: int) -> None:
        with app.transaction():
            app.execute_raw(f"INSERT INTO {HOMES} (id,v) VALUES ({number},0)")
            app.execute_raw(f"INSERT INTO {PEOPLE} (id,home,v) VALUES ({number},{number},0)")
            app.execute_raw(f"INSERT INTO {PETS} (id,person,v) VALUES ({number},{number},0)")
        self._note(number, is_alive=True)

    def _go(self, app: Session, number: int) -> None:
        """A pet goes with its person, by its foreign key where that acts."""
        with app.transaction():
            if not self.action:
                app.execute_raw(f"DELETE FROM {PETS} WHERE id={number}")
            app.execute_raw(f"DELETE FROM {PEOPLE} WHERE id={number}")
            app.execute_raw(f"DELETE FROM {HOMES} WHERE id={number}")
        self._note(number, is_alive=False)

    def _change(self, app: Session, number: int) -> None:
        with app.transaction():
            for table in (HOMES, PEOPLE, PETS):
                app.execute_raw(f"UPDATE {table} SET v=v+1 WHERE id={number}")
        self._note(number, is_alive=True)

    def _note(self, number: int, *, is_alive: bool) -> None:
        with self._lock:
            (self.alive.add if is_alive else self.alive.discard)(number)
            self.done += 1

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        stop, failed = threading.Event(), list[BaseException]()
        writers = [threading.Thread(target=self._write, args=(stop, n, failed)) for n in range(_WRITERS)]
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert failed == []

    def _write(self, stop: threading.Event, number: int, failed: list[BaseException]) -> None:
        """Each writes families of its own, so that a deadlock is one with us."""
        draw = random.Random(number)
        fresh = itertools.count(1000 + number, _WRITERS)
        try:
            with connect(self.database.app_url, lock_wait_seconds=30) as app:
                while not stop.wait(0.003):
                    self._once(app, draw, number, fresh)
        except BaseException as error:
            failed.append(error)

    def _once(self, app: Session, draw: random.Random, number: int, fresh: Iterator[int]) -> None:
        mine = [each for each in sorted(self.alive) if each % _WRITERS == number]
        act, of = draw.choice((self._come, self._go, self._change, self._change)), draw.choice(mine or [-1])
        if act == self._come or len(mine) < 5:
            act, of = self._come, next(fresh)
        try:
            act(app, of)
        except LockWait:
            self.deadlocks += 1
        except SqlError as error:
            self.refused.append(f"{act.__name__}: {error.message}")

    def prove(self) -> None:
        """Every row that was committed is there, and no other; each key is as it was, and at work."""
        with connect(self.database.url) as session:
            for table in (HOMES, PEOPLE, PETS):
                found = {int(number) for (number,) in session.rows(f"SELECT id FROM {table}")}
                assert found == self.alive, (table, found ^ self.alive)

    def foreign_keys(self) -> list[ForeignKey]:
        """Of all tables of the schema, the old ones too."""
        with connect(self.database.url) as session:
            tables = [str(name) for (name,) in session.rows("SHOW TABLES")]
            return [key for table in tables for key in keys_of(session, (self.database.name, table))]
