"""A source and a target table, and users with the rights of sql/grants/backfill_*.sql and no more."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sandbox.databases import Database, grant_statements
from tests.support.local_spark import LocalSpark
from vreplication.backfill.job import Job
from vreplication.backfill.run import Result, run
from vreplication.mysql.url import SourceUrl

TABLE = "CREATE TABLE {} (id INT PRIMARY KEY, v VARCHAR(50), at DATETIME(6) NULL, KEY (at))"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


DAY = (utc("2026-03-01"), utc("2026-03-02"))
"""The interval of most tests."""


@dataclass(kw_only=True)
class Case:
    """Tables s and t, in the databases `source` and `target`."""

    source: Database
    target: Database
    create: str = TABLE
    given: dict[str, Any] = field(default_factory=dict)
    reader: SourceUrl = field(init=False)
    writer: SourceUrl = field(init=False)

    def __post_init__(self) -> None:
        self.reader = _user(self.source, "backfill_source")
        self.writer = _user(self.target, "backfill_target")
        self.source.admin.execute_raw(self.create.format("s"))
        self.target.admin.execute_raw(self.create.format("t"))

    def job(self, **given: Any) -> Job:
        fields = {"name": "j", "source": "a", "target": "b", "table": "s", "target_table": "t", "time_column": "at"}
        return Job(**{**fields, **self.given, **given})

    def run(self, start: datetime = DAY[0], end: datetime = DAY[1], *, spark: Any = None, **given: Any) -> Result:
        return run(self.job(**given), self.reader, self.writer, start, end, spark=spark or LocalSpark())

    def close(self) -> None:
        """Drop the users; `Database.drop` knows only its own."""
        for database, url in ((self.source, self.reader), (self.target, self.writer)):
            database.admin.execute_raw(f"DROP USER '{url.user}'@'%'")

    def write(self, *statements: str) -> None:
        for statement in statements:
            self.source.admin.execute_raw(statement)

    def rows(self, table: str = "t", columns: str = "*") -> list[tuple[Any, ...]]:
        database = self.source if table == "s" else self.target
        return database.admin.rows(f"SELECT {columns} FROM {table} ORDER BY 1")


def _user(database: Database, grants: str) -> SourceUrl:
    """The name begins with the database's own user's, so that whoever looks finds whose it is."""
    name, password = f"{database.user}{secrets.token_hex(2)}", secrets.token_hex(8)
    for statement in grant_statements(grants, user=name, host="%", password=password, schema=database.name):
        database.admin.execute_raw(statement)
    return database.server.url(database.name, user=name, password=password)


def counts(result: Result) -> tuple[int, int, int, int, int]:
    """read, inserted, updated, unchanged, deleted."""
    return (result.rows_read, result.inserted, result.updated, result.unchanged, result.deleted)
