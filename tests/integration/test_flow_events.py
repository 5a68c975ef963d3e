"""A whole online DDL over logs that others drop: compressed, told by file only, cut down by a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import orders
from sandbox.databases import Database
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from tests.support.flow import begin, contents, paused_at, settings, wait_reached
from vreplication.binlog import position
from vreplication.binlog.events import Position
from vreplication.mysql.session import Session, connect
from vreplication.settings import SIDECAR
from vreplication.workflows import operate

pytestmark = pytest.mark.usefixtures("quick")
ROWS = 3_000
COMPRESSION: dict[str, dict[str, object]] = {
    # MariaDB leaves small pieces as they are.
    "mariadb": {"log_bin_compress": "ON", "log_bin_compress_min_len": 10},
    "mysql": {"binlog_transaction_compression": "ON"},
}
COMPRESSED = {
    "mariadb": {
        "Query_compressed",
        "Write_rows_compressed_v1",
        "Update_rows_compressed_v1",
        "Delete_rows_compressed_v1",
    },
    "mysql": {"Transaction_payload"},
}


def events(database: Database, start: Position) -> set[str]:
    """Kinds of events that the log holds from `start` on."""
    files = [str(row[0]) for row in database.admin.rows("SHOW BINARY LOGS")]
    found: set[str] = set()
    for file in files[files.index(start.file) :]:
        found |= {str(row[2]) for row in database.admin.rows(f"SHOW BINLOG EVENTS IN '{file}'")}
    return found


@pytest.mark.slow
def test_compressed_logs_from_plan_to_switch(database: Database) -> None:
    """Every session compresses, ours too, under writers that do everything; every row is what they committed."""
    database.admin.execute_raw("FLUSH BINARY LOGS")
    start = position.current(database.admin, database.server.is_mariadb)
    with settings(database, COMPRESSION[database.server.flavor]):
        with connect(database.app_url) as app:
            orders.create(app, "orders")
            orders.fill(app, "orders", ROWS)
            keep_copy(app, "orders", "at_start")
        with Workload(database.app_url, "orders", rows=ROWS, writers=2, seed=5, rate=60, xa=True) as workload:
            workload.wait_for(10)
            result = begin(database, "orders", orders.ALTER, chunk_rows=150).result()
            assert result.event == "complete", result
            workload.wait_for(10)
        assert workload.stop().errors == ()
        found = events(database, start)
    with connect(database.app_url) as app:
        assert prove(app, "orders", "at_start", orders.ALTER, workload.expected).differences == ()
    assert result.events_applied
    assert COMPRESSED[database.server.flavor] <= found, found


TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, j JSON, b INT) ENGINE=InnoDB CHARACTER SET utf8mb4"
ROW = """({0},'v{0}','{{"long":"0123456789","n":{0}}}',{0})"""


@pytest.fixture
def app(database: Database) -> Iterator[Session]:
    with connect(database.app_url) as session:
        session.execute_raw(TABLE)
        session.execute_raw(f"INSERT INTO t VALUES {','.join(ROW.format(n) for n in range(1, 101))}")
        yield session


LESS = [
    ("binlog_row_image='MINIMAL'", "UPDATE t SET b=0 WHERE id=7", "binlog_row_image=FULL"),
    ("binlog_row_image='MINIMAL'", "DELETE FROM t WHERE id=7", "binlog_row_image=FULL"),
    ("binlog_row_image='NOBLOB'", "UPDATE t SET b=0 WHERE id=7", "binlog_row_image=FULL"),
    pytest.param(
        "binlog_row_value_options='PARTIAL_JSON'",
        "UPDATE t SET j=JSON_SET(j,'$.n',0) WHERE id=7",
        "binlog_row_value_options=''",
        marks=pytest.mark.only_on("mysql"),
    ),
]


@pytest.mark.parametrize(("setting", "statement", "cure"), LESS)
def test_a_session_that_logs_less_ends_the_workflow(
    app: Session, database: Database, pauses: Path, setting: str, statement: str, cure: str
) -> None:
    """The plan has seen the server's settings; any session may have others."""
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        with database.server.admin(database.name) as session:
            session.execute_raw(f"SET SESSION {setting}")
            session.execute_raw(statement)
        before = contents(app, "t")
    result = run.result()
    assert (result.event, result.exit_code) == ("failed", 1), result
    assert cure in str(result.reason)
    assert "(event at " in str(result.reason)
    assert contents(app, "t") == before
    assert app.row("SHOW COLUMNS FROM t LIKE 'z'") is None
    assert operate.cancel(database.url, result.workflow, "test").event == "cancelled"


def test_by_file_and_position(app: Session, database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a server without GTIDs: it goes on after an interrupt, on the server that it began on and no other."""
    monkeypatch.setattr(position, "begin", lambda session, is_mariadb, _: position.current(session, is_mariadb))
    with paused_at(pauses, "workflow.copied"):
        run = begin(database, "t", "ADD COLUMN z INT")
        wait_reached(pauses, "workflow.copied", run)
        app.execute_raw("DELETE FROM t WHERE id < 10")
        run.stop.set()
    assert run.result().event == "interrupted"
    app.execute_raw("UPDATE t SET b=0 WHERE id=50")
    admin = database.admin
    saved = str(admin.value(f"SELECT position FROM {SIDECAR}.checkpoint"))
    assert Position.parse(saved).gtids is None
    here = str(admin.value(f"SELECT server_identity FROM {SIDECAR}.workflow"))
    admin.execute_raw(f"UPDATE {SIDECAR}.workflow SET server_identity='another'")
    refused = begin(database, "t", "ADD COLUMN z INT", workflow=run.workflow).result()
    assert refused.event == "failed"
    assert "of server another by file and position" in str(refused.reason)
    assert here in str(refused.reason)
    admin.execute(f"UPDATE {SIDECAR}.workflow SET server_identity=%s", (here,))
    result = begin(database, "t", "ADD COLUMN z INT", workflow=run.workflow).result()
    assert result.event == "complete", result
    assert app.value("SELECT COUNT(*) FROM t") == 91
    assert app.value("SELECT b FROM t WHERE id=50") == 0


@pytest.mark.parametrize("path", ["server", "rows"])
def test_a_row_whose_text_no_packet_holds(database: Database, pauses: Path, path: str) -> None:
    """An application can write more with functions than with words: 2.7 MB here, where a statement is 1 MiB at most."""
    made = ",".join(f"REPEAT({letters}, 300000)" for letters in ("X'00ff27'", "'ü'", "'a%s'", "X'5c'"))
    with settings(database, {"max_allowed_packet": 1 << 20}), connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a LONGBLOB, b LONGTEXT, c LONGTEXT, d LONGBLOB)")
        app.execute_raw(f"INSERT INTO t VALUES (1,{made}),(2,'','','','')")
        with paused_at(pauses, "workflow.copied"):
            run = begin(database, "t", "ADD COLUMN z INT", copy_path=path)
            wait_reached(pauses, "workflow.copied", run)
            app.execute_raw(f"INSERT INTO t VALUES (3,{made})")
            app.execute_raw("UPDATE t SET id=4, c=CONCAT(c, 'more') WHERE id=1")
            app.execute_raw("UPDATE t, (SELECT * FROM t WHERE id=3) u SET t.a=u.a, t.b=u.b, t.c=u.c WHERE t.id=2")
        assert run.result().event == "complete", run.result()
        with database.server.admin(database.name) as admin:
            retired = next(name for (name,) in admin.rows("SHOW TABLES") if "_vr_old_" in name)
            hashes = "SELECT id, SHA2(a, 256), SHA2(b, 256), SHA2(c, 256), SHA2(d, 256), LENGTH(a) FROM {} ORDER BY id"
            found = admin.rows(hashes.format("t"))
            assert found == admin.rows(hashes.format(f"`{retired}`"))
            assert [row[0] for row in found] == [2, 3, 4]
            assert found[0][-1] == 900_000
