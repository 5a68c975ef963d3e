"""A table with triggers under live writes: what they fired, beside what the application knows that it wrote.

What must stay true: a write, what its trigger notes of it, and what the application notes of it are one transaction; so
the two notes are the same, if each write fired once.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator

from sandbox.databases import Database
from vreplication.mysql.session import LockWait, Session, connect
from vreplication.schema import triggers
from vreplication.schema.triggers import Trigger

ALTER = "ADD COLUMN z INT, MODIFY b VARCHAR(60)"
_TRIGGERS = (
    "CREATE TRIGGER born AFTER INSERT ON t FOR EACH ROW INSERT INTO fired (what,id) VALUES ('born',NEW.id)",
    "CREATE TRIGGER changed AFTER UPDATE ON t FOR EACH ROW INSERT INTO fired (what,id) VALUES ('changed',NEW.id)",
    "CREATE TRIGGER mark1 BEFORE INSERT ON t FOR EACH ROW SET NEW.b=CONCAT(NEW.b,'1')",
    "CREATE TRIGGER mark2 BEFORE INSERT ON t FOR EACH ROW SET NEW.b=CONCAT(NEW.b,'2')",
    "CREATE TRIGGER mark0 BEFORE INSERT ON t FOR EACH ROW PRECEDES mark1\nSET NEW.b=CONCAT(NEW.b,'0')",
)
_OTHERS = (
    'CREATE DEFINER="{}"@"%" TRIGGER "gone" AFTER DELETE ON "t" FOR EACH ROW\nBEGIN\n  -- "cafe"\n'
    "  SET @x='\xe9'; INSERT INTO fired (what,id) VALUES ('gone',\"OLD\".\"id\");\nEND"
)
"""Made by an administrator for the application's user, in another SQL mode, by a client in latin1."""


def fill(database: Database) -> None:
    admin = database.admin
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a INT, b VARCHAR(40)) ENGINE=InnoDB")
        for name in ("fired", "told"):
            app.execute_raw(f"CREATE TABLE {name} (n BIGINT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(9), id INT)")
        app.execute_raw("SET SESSION sql_mode='NO_ZERO_DATE'")
        for sql in _TRIGGERS:
            app.execute_raw(sql)
        for key in range(1, 101):
            _once(app, key)
    admin.execute_raw("SET SESSION sql_mode='ANSI_QUOTES', character_set_client=latin1")
    admin.execute_raw(_OTHERS.format(database.app_user).encode("latin1"))
    admin.execute_raw("SET SESSION sql_mode='', character_set_client=utf8mb4")


def _once(app: Session, key: int) -> None:
    with app.transaction():
        app.execute_raw(f"INSERT INTO t (id,a,b) VALUES ({key},0,'{key}:')")
        _tell(app, "born", key)


def _tell(app: Session, what: str, key: int) -> None:
    app.execute_raw(f"INSERT INTO told (what,id) VALUES ('{what}',{key})")


@contextlib.contextmanager
def writing(database: Database) -> Iterator[None]:
    stop, failed = threading.Event(), list[BaseException]()
    writers = [threading.Thread(target=_write, args=(database, stop, n, failed)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert failed == []


def _write(database: Database, stop: threading.Event, number: int, failed: list[BaseException]) -> None:
    drawn = random.Random(number)
    try:
        with connect(database.app_url) as app:
            while not stop.wait(0.003):
                with contextlib.suppress(LockWait), app.transaction():
                    _write_row(app, drawn.randrange(60) * 3 + number, drawn)
    except BaseException as error:
        failed.append(error)


def _write_row(app: Session, key: int, drawn: random.Random) -> None:
    if app.row(f"SELECT 1 FROM t WHERE id={key}") is None:
        app.execute_raw(f"INSERT INTO t (id,a,b) VALUES ({key},0,'{key}:')")
        _tell(app, "born", key)
    elif drawn.random() < 0.3 and app.execute_raw(f"DELETE FROM t WHERE id={key}"):
        _tell(app, "gone", key)
    elif app.execute_raw(f"UPDATE t SET a=a+1 WHERE id={key}"):
        _tell(app, "changed", key)


def prove(database: Database) -> None:
    """Each write has fired once."""
    with connect(database.url) as session:
        fired, told = (Counter(session.rows(f"SELECT what,id FROM {name}")) for name in ("fired", "told"))
        assert fired == told, (fired - told, told - fired)
        assert session.value("SELECT COUNT(*) FROM t WHERE b<>CONCAT(id,':012')") == 0


def on(database: Database, table: str = "t") -> tuple[Trigger, ...]:
    with connect(database.url) as session:
        return triggers.read(session, database.name, table)


def retired(database: Database) -> str:
    with connect(database.url) as session:
        ((name,),) = session.rows("SHOW TABLES LIKE 't\\_\\_vr\\_old%'")
        return str(name)
