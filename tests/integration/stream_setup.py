"""What tests of a real log share: a table t that is watched, the application beside it, and settings for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.changes import effects
from tests.support.tailing import watch
from vreplication.binlog.events import Group
from vreplication.binlog.watch import Watch
from vreplication.mysql.session import Session, connect

T = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4)"
A, B = "_utf8mb4 X'61'", "_utf8mb4 X'62'"


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    """The application's connection."""
    with connect(database.app_url) as session:
        yield session


@pytest.fixture
def source(database: Database) -> Watch:
    database.admin.execute_raw(T)
    database.admin.execute_raw("CREATE TABLE other (id INT PRIMARY KEY, v VARCHAR(20))")
    return watch(database, "t")


def run(session: Session, *statements: str) -> None:
    for statement in statements:
        session.execute_raw(statement)


def keys(found: list[Group]) -> list[list[str]]:
    """Keys of each group that has any."""
    return [[c.key for c in effects(g.items)] for g in found if g.items]


@contextlib.contextmanager
def setting(database: Database, name: str, value: str) -> Iterator[None]:
    """A global setting for the time of a block; sessions opened inside have it."""
    before = database.admin.value(f"SELECT @@global.{name}")
    database.admin.execute_raw(f"SET GLOBAL {name}={value}")
    try:
        yield
    finally:
        database.admin.execute_raw(
            f"SET GLOBAL {name}='{before}'" if isinstance(before, str) else f"SET GLOBAL {name}={before}"
        )


@pytest.fixture
def loose_gtids(database: Database) -> Iterator[None]:
    """MySQL's GTIDs forbid transactions that mix engines."""
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    mode = None if database.server.is_mariadb else database.admin.value("SELECT @@global.gtid_mode")
    if mode != "ON":
        yield
        return
    run(database.admin, *(f"SET GLOBAL gtid_mode={step}" for step in steps), "SET GLOBAL enforce_gtid_consistency=OFF")
    try:
        yield
    finally:
        run(database.admin, "SET GLOBAL enforce_gtid_consistency=ON")
        run(database.admin, *(f"SET GLOBAL gtid_mode={step}" for step in ["OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]))
