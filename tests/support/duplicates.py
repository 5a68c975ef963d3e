"""A table whose rows break a new unique key, writers that make and end duplicates, and what has to come of it.

What must stay true: the truth is the retired table, which holds what the source held at the cut-over; the column that
the ALTER drops is named by each statement of the writers, so that none of them writes to the new table.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sandbox.databases import Database
from tests.support.flow import wait_until
from vreplication import names
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import DUPLICATE, LockWait, Session, SqlError, connect

ALTER = "ADD UNIQUE KEY one (u), DROP COLUMN w"
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), u INT, w INT NOT NULL DEFAULT 0) CHARACTER SET utf8mb4"
ROWS = ",".join(f"({i * 3},'v{i}',{i % 5 or 'NULL'},0)" for i in range(1, 21))
UNKNOWN_COLUMN = 1054


def rows(app: Session, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in app.rows(f"SELECT id, v, u FROM {ident(table)} ORDER BY id")]


def ours(app: Session) -> list[str]:
    return sorted(name for (name,) in app.rows("SHOW TABLES") if names.is_ours(name))


def check(app: Session, workflow: str, keep: str) -> None:
    """The new table has f of the original's rows, the side table the others, and nothing else of ours is left."""
    retired, side = names.retired_table("t", workflow), names.side_table("t", workflow)
    source = rows(app, retired)
    groups: dict[Any, list[Any]] = {}
    for row in source:
        groups.setdefault(("of", row[0]) if row[2] is None else row[2], []).append(row)
    stays = sorted((min if keep == "keep-first" else max)(group) for group in groups.values())
    rest = sorted(set(source) - set(stays))
    assert rows(app, "t") == stays
    assert (rows(app, side) if rest else []) == rest
    assert ours(app) == sorted([retired, *([side] if rest else [])])


@dataclass(slots=True)
class Writers:
    """Connections that make and end duplicates until the table is another one."""

    database: Database
    seed: int
    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)

    @contextmanager
    def writing(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(30)
        assert self.errors == []

    def _write(self, number: int) -> None:
        drawn = random.Random(f"{self.seed} {number}")
        with connect(self.database.app_url) as session:
            while not self.stop.wait(0.002):
                try:
                    with session.transaction():
                        for _ in range(drawn.randint(1, 3)):
                            session.execute_raw(statement(drawn))
                    self.done += 1
                except LockWait:
                    continue
                except SqlError as error:
                    if error.code == DUPLICATE:
                        continue
                    if error.code != UNKNOWN_COLUMN:
                        self.errors.append(str(error))
                    return

    def some(self, is_going: Callable[[], bool] = lambda: True, transactions: int = 30) -> None:
        before = self.done
        wait_until(lambda: self.done > before + transactions or not is_going(), "nothing is written")


def statement(drawn: random.Random) -> str:
    one, other = drawn.randint(1, 60), drawn.randint(1, 60)
    value = drawn.choice(["NULL", *map(str, range(1, 9))])
    return drawn.choice(
        [
            f"INSERT INTO t (id,v,u,w) VALUES ({one},'n{drawn.randint(1, 999)}',{value},1)",
            f"INSERT INTO t (id,v,u,w) VALUES ({one},'n{drawn.randint(1, 999)}',{value},1)",
            f"DELETE FROM t WHERE id={one} AND w>=0",
            f"UPDATE t SET u={value} WHERE id={one} AND w>=0",
            f"UPDATE t SET v='c{drawn.randint(1, 999)}' WHERE id={one} AND w>=0",
            f"UPDATE t SET id={other} WHERE id={one} AND w>=0",
        ]
    )
