"""A table that is changed and reverted while an application writes, and the application's own ledger of what it wrote.

What must stay true: a row and its entry in the ledger are one transaction, so the ledger is the truth, whichever table
carries the name by then.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

from sandbox.databases import Database
from tests.support.oracle import application
from vreplication.mysql.session import LockWait, Session, connect

COLUMNS = (
    "id INT PRIMARY KEY AUTO_INCREMENT, u INT, n INT NOT NULL DEFAULT 7, gone VARCHAR(9) NOT NULL DEFAULT 'new',"
    " UNIQUE (u)"
)
ALTER = "DROP COLUMN gone, ADD COLUMN note VARCHAR(9), MODIFY u BIGINT, RENAME COLUMN n TO amount"


def make(database: Database, *statements: str) -> None:
    with application(database) as app:
        for statement in statements:
            app.execute_raw(statement)


@contextlib.contextmanager
def writing(database: Database) -> Iterator[None]:
    """Writers that insert, delete, change keys and exchange unique values, under either definition."""
    stop = threading.Event()
    writers = [threading.Thread(target=_write, args=(database, stop, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def _write(database: Database, stop: threading.Event, number: int) -> None:
    """Row `id` has a ledger row for what this writer left in it: written in the same transaction."""
    drawn = random.Random(number)
    with connect(database.app_url) as app:
        while not stop.wait(0.003):
            key = drawn.randrange(50) * 3 + number + 1
            with contextlib.suppress(LockWait), app.transaction():
                _write_row(app, key, drawn)


def _write_row(app: Session, key: int, drawn: random.Random) -> None:
    execute = app.execute_raw
    if drawn.random() < 0.3:
        execute(f"DELETE FROM t WHERE id={key}")
        execute(f"DELETE FROM told WHERE id={key}")
        return
    u = drawn.randrange(1_000_000) * 200 + key
    execute(f"INSERT INTO t (id,u) VALUES ({key},{u}) ON DUPLICATE KEY UPDATE u={u}")
    execute(f"REPLACE INTO told VALUES ({key},{u})")


def fill(database: Database) -> None:
    make(database, f"CREATE TABLE t ({COLUMNS})", "CREATE TABLE told (id INT PRIMARY KEY, u BIGINT)")
    rows = ",".join(f"({n},{n},{n},'{n}')" for n in range(1001, 1101))
    make(database, f"INSERT INTO t (id,u,n,gone) VALUES {rows}")


def rows_of(database: Database) -> dict[int, tuple[object, ...]]:
    with connect(database.url) as session:
        return {int(key): tuple(row) for key, *row in session.rows("SELECT id,u,n,gone FROM t")}


def told(database: Database) -> dict[int, tuple[object, ...]]:
    """What the writers have left, as rows of the original."""
    with connect(database.url) as session:
        return {int(key): (u, 7, "new") for key, u in session.rows("SELECT id,u FROM told")}


def written(database: Database) -> dict[int, tuple[object, ...]]:
    """The rows that are theirs."""
    return {key: row for key, row in rows_of(database).items() if key <= 1000}
