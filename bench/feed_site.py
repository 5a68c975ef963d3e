"""Where feeds are measured: one server, one broker, and stretches of the log that every contender reads.

What must stay true: a stretch is written once and read by all, each from the place before it; a contender reads alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from sandbox import kafka, servers
from sandbox.databases import Database, create_database
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session

SCHEMA = "bench"
_BATCH = 1_000
_GTIDS: dict[str, object] = {"gtid-mode": "ON", "enforce-gtid-consistency": "ON"}
# All that is compiled: the broker of the tests is quick to start instead.
_BROKER_JAVA = ("-Xmx1g", "-XX:TieredStopAtLevel=4")
NARROW = "id BIGINT NOT NULL PRIMARY KEY, sig VARCHAR(40) NOT NULL, c CHAR(8) NOT NULL"
WIDE = (
    "id BIGINT NOT NULL PRIMARY KEY, sig VARCHAR(40) NOT NULL, customer INT NOT NULL, made_at DATETIME NOT NULL, "
    "body VARCHAR(1000) NOT NULL"
)
_TEXT = "LEFT(SHA2({n}, 256), 40)"
_ROW = {
    NARROW: f"{{n}}, {_TEXT}, LEFT({_TEXT}, 8)",
    WIDE: f"{{n}}, {_TEXT}, {{n}}, '2026-01-01', REPEAT({_TEXT}, 24)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of the log, in the words of each: GTIDs; file, offset and GTIDs."""

    gtids: str
    file: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """rows of one table, in transactions of so many; start: before the first of them."""

    table: str
    rows: int
    start: Place


@dataclass(slots=True, kw_only=True)
class Site:
    flavor: str
    folder: Path
    server: servers.RunningServer
    cluster: kafka.Cluster
    database: Database
    session: Session = field(repr=False)

    def place(self) -> Place:
        is_mariadb = self.server.is_mariadb
        found = self.session.row("SHOW MASTER STATUS" if is_mariadb else "SHOW BINARY LOG STATUS")
        gtids = self.session.value("SELECT @@gtid_binlog_pos") if is_mariadb else (found or ("",) * 5)[4]
        assert found is not None
        return Place(gtids="".join(str(gtids).split()), file=str(found[0]), offset=int(found[1]))

    def make(self, table: str, columns: str) -> None:
        self.session.execute_raw(f"CREATE TABLE {ident(table)} ({columns})")

    def stretch(self, table: str, columns: str, rows: int, each: int) -> Stretch:
        """Written by the server itself: `each` rows a transaction."""
        self.make(table, columns)
        start, values = self.place(), _ROW[columns]
        into = f"INSERT INTO {ident(table)}"
        if each == 1:
            self._loop(f"{into} VALUES ({values.format(n='i')})", rows)
        else:
            fresh = values.format(n="(i + n)")
            self._loop(f"{into} SELECT {fresh} FROM numbers WHERE n < {each}", rows, step=each)
        return Stretch(table=table, rows=rows, start=start)

    def _loop(self, statement: str, rows: int, step: int = 1) -> None:
        self.session.execute_raw("DROP PROCEDURE IF EXISTS looped")
        self.session.execute_raw(
            f"CREATE PROCEDURE looped() BEGIN DECLARE i BIGINT DEFAULT 1;"
            f" WHILE i <= {rows} DO {statement}; SET i = i + {step}; END WHILE; END"
        )
        self.session.execute_raw("CALL looped()")

    def close(self) -> None:
        self.session.close()
        self.database.close()
        self.cluster.close()
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def server_options(flavor: str, **more: object) -> Mapping[str, object]:
    """Not as durable as it comes: what is measured reads the log, and writing it should not take long."""
    gtids = _GTIDS if flavor == "mysql" else {}
    return {"innodb-buffer-pool-size": "1G", "binlog-row-metadata": "FULL", **gtids, **more}


def opened(flavor: str, folder: Path, **more: object) -> Site:
    """Fresh ones. more: options of the server."""
    shutil.rmtree(folder, ignore_errors=True)
    server = servers.start(flavor, folder / "server", options=server_options(flavor, **more))
    try:
        cluster = kafka.start_cluster(folder / "broker", java=_BROKER_JAVA)
    except BaseException:
        server.stop()
        raise
    database = create_database(server, SCHEMA, grants="feed_source")
    session = server.admin(SCHEMA, read_timeout=3_600)
    session.execute_raw("CREATE TABLE numbers (n INT NOT NULL PRIMARY KEY)")
    session.execute_raw(f"INSERT INTO numbers VALUES {','.join(f'({n})' for n in range(_BATCH))}")
    return Site(
        flavor=flavor, folder=folder, server=server, cluster=cluster, database=database, session=session
    )  # fmt: skip


def described(site: Site, tools: dict[str, str]) -> dict[str, Any]:
    return machine.described(site.folder, (site.flavor,), tools)
