"""Writes after the verification, and odd settings of the server: the end is that of a plain ALTER, or its refusal.

Each case here lost or changed rows once, told as complete.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sandbox.databases import Database
from sandbox.servers import RunningServer
from tests.support.flow import begin, wait_until
from tests.support.oracle import application, at_the_gate, is_what_a_plain_alter_gives, settings, wait_at_gate
from vreplication.mysql.session import LockWait, connect
from vreplication.phases import Phase
from vreplication.progress import snapshot
from vreplication.workflows import operate

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.either]


def make(database: Database, *statements: str) -> None:
    with application(database) as app:
        for statement in statements:
            app.execute_raw(statement)


# -- the key's collation changes --------------------------------------------------------------------------------------

GENERAL = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
BIN = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def accent_folding(server: RunningServer) -> str:
    """A collation for which ß is ss."""
    return "utf8mb4_uca1400_ai_ci" if server.is_mariadb else "utf8mb4_0900_ai_ci"


@pytest.mark.parametrize("path", ["server", "rows"])
def test_a_delete_means_the_row_of_the_source(database: Database, server: RunningServer, path: str) -> None:
    make(database, f"CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, n INT) {GENERAL}")
    make(database, "INSERT INTO t VALUES ('straße',1),('b',2),('c',3)")
    to = accent_folding(server)
    alter = f"CONVERT TO CHARACTER SET utf8mb4 COLLATE {to}"
    at_the_gate(
        database, alter, ["INSERT INTO t VALUES ('strasse',4)", "DELETE FROM t WHERE k='straße'"], copy_path=path
    )


@pytest.mark.parametrize(
    "writes",
    [
        ("INSERT INTO t VALUES ('A',4)", "DELETE FROM t WHERE k='a'"),
        ("INSERT INTO t VALUES ('A',4)",),
        ("DELETE FROM t WHERE k='a'", "INSERT INTO t VALUES ('A',4)"),
        ("UPDATE t SET k='A' WHERE k='a'",),
        ("UPDATE t SET k='B' WHERE k='a'", "UPDATE t SET k='x' WHERE k='b'"),
    ],
)
@pytest.mark.in_turn
def test_keys_that_become_one(database: Database, writes: tuple[str, ...]) -> None:
    make(database, f"CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, n INT) {BIN}")
    make(database, "INSERT INTO t VALUES ('a',1),('b',2),('c',3)")
    at_the_gate(database, "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", writes)


def test_keys_that_become_two(database: Database) -> None:
    make(database, f"CREATE TABLE t (a INT, k VARCHAR(20), n INT, PRIMARY KEY (k, a)) {GENERAL}")
    make(database, "INSERT INTO t VALUES (1,'a',1),(1,'b',2),(2,'A ',3)")
    writes = ["UPDATE t SET k='A' WHERE k='a' AND a=1", "DELETE FROM t WHERE a=2", "INSERT INTO t VALUES (2,'a',9)"]
    at_the_gate(database, "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", writes)


def keep_writing(database: Database, stop: threading.Event, number: int) -> None:
    """Inserts, deletes, key changes and REPLACE on the unique key, each by itself: as many as catch-up can follow."""
    drawn = random.Random(number)
    with connect(database.app_url) as app:
        while not stop.wait(0.005):
            a, b, u = drawn.randrange(4), drawn.choice("aAbBcC") * drawn.randrange(1, 3), drawn.randrange(60)
            statement = drawn.choice(
                [
                    f"INSERT IGNORE INTO t VALUES ({a},'{b}',{u},1)",
                    f"DELETE FROM t WHERE a={a} AND b='{b}'",
                    f"UPDATE IGNORE t SET b='{b}' WHERE u={u}",
                    f"REPLACE INTO t VALUES ({a},'{b}',{u},2)",
                ]
            )
            with contextlib.suppress(LockWait):
                app.execute_raw(statement)


def test_a_busy_table_whose_key_is_compared_anew_comes_to_an_end(database: Database) -> None:
    """And its figures never go back, whatever is copied again."""
    columns = "a INT, b VARCHAR(20) CHARACTER SET latin1, u INT, n INT, PRIMARY KEY (a, b), UNIQUE KEY u (u)"
    make(database, f"CREATE TABLE t ({columns})")
    make(database, "INSERT IGNORE INTO t VALUES " + ",".join(f"({n % 4},'k{n}',{100 + n},0)" for n in range(3000)))
    stop = threading.Event()
    writers = [threading.Thread(target=keep_writing, args=(database, stop, n)) for n in range(4)]
    alter = "MODIFY b VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL"
    seen: list[tuple[bool, float]] = []
    try:
        for writer in writers:
            writer.start()
        run = begin(database, "t", alter, cutover="manual", chunk_rows=50)
        with connect(database.url) as session:

            def is_waiting() -> bool:
                assert run.is_going, run.result()
                found = snapshot.find(session, run.workflow)
                if found and found.percent is not None:
                    seen.append((found.is_rows_total_exact, found.percent))
                return found is not None and found.phase is Phase.WAITING

            wait_until(is_waiting, "it does not get to the gate")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert seen == sorted(seen)
    operate.release(database.url, run.workflow, "test")
    is_what_a_plain_alter_gives(database, run, alter)


# -- text that is narrowed --------------------------------------------------------------------------------------------


def no_pad(server: RunningServer) -> str:
    return "utf8mb4_nopad_bin" if server.is_mariadb else "utf8mb4_0900_bin"


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize(
    ("columns", "alter", "row"),
    [
        ("k VARCHAR(4) COLLATE {nopad} PRIMARY KEY", "MODIFY k VARCHAR(2) COLLATE {nopad} NOT NULL", "('ab ')"),
        ("id INT PRIMARY KEY, u VARCHAR(4), UNIQUE (u)", "MODIFY u VARCHAR(2)", "(2,'ab\\n')"),
        ("id INT PRIMARY KEY, u VARCHAR(9)", "MODIFY u VARCHAR(2)", "(2,'ab\\t\\n')"),
        ("id INT PRIMARY KEY, u VARCHAR(9)", "MODIFY u CHAR(2)", "(2,'ab  ')"),
        ("id INT PRIMARY KEY, u DATETIME", "MODIFY u DATE", "(2,'2024-01-01 23:59:59')"),
    ],
)
@pytest.mark.in_turn
def test_narrowed_text(
    database: Database, server: RunningServer, columns: str, alter: str, row: str, is_copied: bool
) -> None:
    first = "('ab')" if columns.startswith("k") else "(1,'ab')" if "UNIQUE" in columns else "(1,NULL)"
    given = {"nopad": no_pad(server)}
    make(database, f"CREATE TABLE t ({columns.format(**given)}) CHARACTER SET utf8mb4", f"INSERT INTO t VALUES {first}")
    if is_copied:
        make(database, f"INSERT INTO t VALUES {row}")
        run = begin(database, "t", alter.format(**given))
        is_what_a_plain_alter_gives(database, run, alter.format(**given))
    else:
        at_the_gate(database, alter.format(**given), [f"INSERT INTO t VALUES {row}"])


@pytest.mark.parametrize(
    ("column", "alter", "value"),
    [("TINYTEXT", "VARCHAR(2)", "'ab   '"), ("DECIMAL(9,3)", "DECIMAL(9,1)", "1.26")],
)
def test_what_a_plain_alter_cuts_with_a_note_is_refused(
    database: Database, column: str, alter: str, value: str
) -> None:
    """White space behind TEXT, or between character sets, and the last digits of a DECIMAL: docs/limits.md."""
    make(database, f"CREATE TABLE t (id INT PRIMARY KEY, u {column})", "INSERT INTO t VALUES (1,NULL)")
    run = begin(database, "t", f"MODIFY u {alter}", cutover="manual")
    wait_at_gate(database, run)
    make(database, f"INSERT INTO t VALUES (2,{value})")
    result = run.result()
    assert (result.event, "(2)" in str(result.reason), "1265" in str(result.reason)) == ("failed", True, True), result


@pytest.mark.parametrize("path", ["server", "rows"])
@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
@pytest.mark.in_turn
def test_what_a_generated_column_rounds_is_no_loss(database: Database, kind: str, path: str) -> None:
    """A price with tax: each write of it is noted by the server, and none is refused."""
    total = f"total DECIMAL(9,2) AS (net*1.0825) {kind}, KEY (total)"
    make(database, f"CREATE TABLE t (id INT PRIMARY KEY, net DECIMAL(9,2), {total})")
    make(database, "INSERT INTO t (id,net) VALUES (1,19.99)")
    at_the_gate(database, "ADD COLUMN x INT", ["INSERT INTO t (id,net) VALUES (2,9.95)"], copy_path=path)


# -- what depends on the session --------------------------------------------------------------------------------------

DATES = "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL, d DATE AS (DATE(ts)) STORED)"
TIMES = "INSERT INTO t (id,ts) VALUES (1,'2024-03-01 05:00:00'),(2,'2024-03-01 23:00:00')"
LATER = ["INSERT INTO t (id,ts) VALUES (3,'2024-05-05 01:00:00')", "UPDATE t SET ts='2024-06-06 02:00:00' WHERE id=1"]


@pytest.mark.parametrize("path", ["server", "rows"])
@pytest.mark.parametrize("zone", ["+09:00", "-05:00"])
@pytest.mark.in_turn
def test_generated_columns_by_the_servers_zone(database: Database, zone: str, path: str) -> None:
    with settings(database, time_zone=zone):
        make(database, DATES, TIMES)
        at_the_gate(database, "ADD COLUMN x INT", LATER, copy_path=path)


@pytest.mark.parametrize("taken", ["CAST(c AS DATETIME)", "CAST(MAKETIME(id,0,0) AS DATETIME)"])
def test_a_time_that_is_taken_for_a_date_is_of_the_servers_day(database: Database, taken: str) -> None:
    """One of two zones has another day than UTC now."""
    with settings(database, time_zone="+13:00" if datetime.now(UTC).hour >= 11 else "-12:00"):
        make(database, f"CREATE TABLE t (id INT PRIMARY KEY, c TIME, d DATETIME AS ({taken}) STORED)")
        make(database, "INSERT INTO t (id,c) VALUES (1,'10:00:00'),(2,NULL)")
        at_the_gate(database, "ADD COLUMN x INT", ["INSERT INTO t (id,c) VALUES (3,'11:00:00')"])


@pytest.mark.parametrize(
    "added",
    [
        "g TIMESTAMP AS (dt) STORED",
        "g TIMESTAMP NULL DEFAULT (dt)",
        pytest.param("g TIMESTAMP NOT NULL DEFAULT ('2024-01-01 00:00:00')", marks=pytest.mark.only_on("mysql")),
        pytest.param("g DATETIME AS (s) STORED", marks=pytest.mark.only_on("mysql")),
        pytest.param("g BIGINT AS (TO_SECONDS(s)) STORED", marks=pytest.mark.only_on("mysql")),
    ],
)
def test_a_date_that_becomes_a_time_of_the_servers_zone(database: Database, added: str) -> None:
    row = "'2024-03-01 05:00:00','2024-01-01 00:30:00+05:00'"
    with settings(database, time_zone="+02:00"):
        make(
            database,
            "CREATE TABLE t (id INT PRIMARY KEY, dt DATETIME, s VARCHAR(40))",
            f"INSERT INTO t VALUES (1,{row})",
        )
        at_the_gate(database, f"ADD COLUMN {added}", [f"INSERT INTO t (id,dt,s) VALUES (3,{row})"])


@pytest.mark.only_on("mysql")
def test_text_with_an_offset_becomes_no_date_in_another_zone(database: Database) -> None:
    """Brought into the server's zone by a plain ALTER, and into UTC by us."""
    make(database, "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(40))")
    with settings(database, time_zone="+02:00"):
        result = begin(database, "t", "MODIFY s DATETIME").result()
    assert (result.event, "text with an offset" in str(result.reason)) == ("refused", True), result
    make(database, "INSERT INTO t VALUES (1,'2024-01-01 00:30:00+05:00')")
    at_the_gate(database, "MODIFY s DATETIME", ["INSERT INTO t VALUES (2,'2024-01-01 00:30:00+05:00')"])


@pytest.mark.only_on("mysql")
def test_a_key_over_what_depends_on_the_session_tells_no_rows_apart(database: Database) -> None:
    """Each session would find another row by it: with no other key the ALTER is refused, and nothing touched.

    On MariaDB a generated column may always be NULL, so no key over one is shared.
    """
    columns = "id INT, ts TIMESTAMP NOT NULL, d DATE AS (DATE(ts)) STORED NOT NULL, UNIQUE KEY by_day (d)"
    make(database, f"CREATE TABLE t ({columns})", "INSERT INTO t (id,ts) VALUES (1,'2024-03-01 05:00:00')")
    result = begin(database, "t", "ADD COLUMN x INT").result()
    assert (result.event, "share no unique key" in str(result.reason)) == ("refused", True), result


@pytest.fixture
def berlin(database: Database) -> Iterator[None]:
    """A named zone of one autumn, in which an hour comes twice. Without the servers' zone tables there is none."""
    admin = database.admin
    tables = ("time_zone", "time_zone_name", "time_zone_transition_type", "time_zone_transition")
    admin.execute_raw("INSERT INTO mysql.time_zone VALUES (900,'N')")
    admin.execute_raw("INSERT INTO mysql.time_zone_name VALUES ('Test/Berlin',900)")
    admin.execute_raw("INSERT INTO mysql.time_zone_transition_type VALUES (900,0,3600,0,'CET'),(900,1,7200,1,'CEST')")
    changes = "(900,-2000000000,0),(900,1711846800,1),(900,1729990800,0)"
    admin.execute_raw(f"INSERT INTO mysql.time_zone_transition VALUES {changes}")
    try:
        with settings(database, time_zone="Test/Berlin"):
            yield
    finally:
        for table in tables:
            admin.execute_raw(f"DELETE FROM mysql.{table} WHERE Time_zone_id=900")


@pytest.mark.only_on("mysql")
@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("path", ["server", "rows"])
def test_the_hour_that_comes_twice(database: Database, path: str) -> None:
    """01:30 UTC is half past two for the second time. A plain ALTER that adds a column at once keeps it."""
    make(database, DATES)
    with connect(database.app_url) as utc:
        utc.execute_raw("INSERT INTO t (id,ts) VALUES (1,'2024-10-27 00:30:00'),(2,'2024-10-27 01:30:00')")
        run = begin(database, "t", "ADD COLUMN x INT", cutover="manual", copy_path=path)
        wait_at_gate(database, run)
        utc.execute_raw("INSERT INTO t (id,ts) VALUES (3,'2024-10-27 00:45:00'),(4,'2024-10-27 01:45:00')")
    operate.release(database.url, run.workflow, "test")
    is_what_a_plain_alter_gives(database, run, "ADD COLUMN x INT")


def test_a_unique_key_over_a_generated_date(database: Database) -> None:
    with settings(database, time_zone="+09:00"):
        make(database, DATES.replace("STORED", "STORED, UNIQUE (d)"))
        make(database, "INSERT INTO t (id,ts) VALUES (1,'2024-03-01 05:00:00'),(2,'2024-03-02 23:00:00')")
        at_the_gate(database, "ADD COLUMN x INT", ["INSERT INTO t (id,ts) VALUES (3,'2024-03-03 05:00:00')"])


@pytest.mark.parametrize(
    "alter",
    [
        "ADD COLUMN e DATE DEFAULT (DATE(ts))",
        "ADD COLUMN e DATE AS (DATE(ts)) STORED",
        "ADD COLUMN e DATE AS (DATE(ts)) VIRTUAL, ADD UNIQUE (e)",
        "ADD COLUMN e DATETIME DEFAULT (ts)",
        "ADD COLUMN e TIMESTAMP DEFAULT '2024-01-01 00:00:00'",
    ],
)
@pytest.mark.in_turn
def test_added_columns_by_the_servers_zone(database: Database, alter: str) -> None:
    with settings(database, time_zone="+09:00"):
        make(database, "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL)")
        make(database, "INSERT INTO t (id,ts) VALUES (1,'2024-03-01 05:00:00'),(2,'2024-03-02 23:00:00')")
        at_the_gate(database, alter, LATER)


def test_an_index_over_a_virtual_date_stays_whole(database: Database) -> None:
    """Its entries are found by what the session computes: deleted in another zone, they stop a MySQL server."""
    with settings(database, time_zone="+09:00"):
        make(database, "CREATE TABLE t (id INT PRIMARY KEY, u INT, ts TIMESTAMP NOT NULL)")
        make(database, "INSERT INTO t VALUES (1,1,'2024-03-01 05:00:00'),(2,2,'2024-03-01 23:00:00')")
        writes = [
            *(f"UPDATE t SET u=u+{n}, ts='2024-03-02 0{n}:00:00' WHERE id={1 + n % 2}" for n in range(8)),
            "DELETE FROM t WHERE id=2",
            "INSERT INTO t VALUES (2,99,'2024-03-02 05:00:00')",
        ]
        alter = "ADD COLUMN e DATE AS (DATE(ts)) VIRTUAL, ADD KEY by_day (e), ADD UNIQUE KEY one (u)"
        run = begin(database, "t", alter, cutover="manual")
        wait_at_gate(database, run)
        make(database, *writes)
        operate.release(database.url, run.workflow, "test")
        assert run.result().event == "complete"
        with application(database) as app:
            assert app.value("SELECT COUNT(*) FROM t FORCE INDEX (by_day) WHERE e='2024-03-02'") == 2
            assert app.rows("CHECK TABLE t")[-1][-1] == "OK"


@pytest.mark.parametrize("path", ["server", "rows"])
@pytest.mark.parametrize(
    ("check", "alter"),
    [(", CHECK (ts >= '2024-01-01 00:00:00')", "ADD COLUMN x INT"), ("", "ADD CHECK (ts < '2024-01-05 00:00:00')")],
)
@pytest.mark.parametrize("last", ["2024-01-02 12:00:00", "2024-01-05 04:00:00"])
@pytest.mark.in_turn
def test_checks_by_the_servers_zone(database: Database, check: str, alter: str, last: str, path: str) -> None:
    """In UTC the first row is one of the year before, and the last one of the day before."""
    with settings(database, time_zone="+09:00"):
        make(database, f"CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL{check})")
        make(database, "INSERT INTO t VALUES (1,'2024-01-01 03:00:00')")
        at_the_gate(database, alter, [f"INSERT INTO t VALUES (2,'2024-01-01 05:00:00'),(3,'{last}')"], copy_path=path)


def test_a_copied_row_is_checked_by_the_servers_zone(database: Database) -> None:
    with settings(database, time_zone="+09:00"):
        make(database, "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL)")
        make(database, "INSERT INTO t VALUES (1,'2024-01-05 04:00:00')")
        alter = "ADD CHECK (ts < '2024-01-05 00:00:00')"
        is_what_a_plain_alter_gives(database, begin(database, "t", alter), alter)


@pytest.mark.only_on("mysql")
def test_generated_names_in_the_servers_language(database: Database) -> None:
    with settings(database, lc_time_names="de_DE"):
        make(database, "CREATE TABLE t (id INT PRIMARY KEY, d DATE, m VARCHAR(20) AS (MONTHNAME(d)) STORED)")
        make(database, "INSERT INTO t (id,d) VALUES (1,'2024-03-01'),(2,'2024-05-02')")
        at_the_gate(database, "ADD COLUMN x INT", ["INSERT INTO t (id,d) VALUES (3,'2024-10-05')"])


@pytest.mark.only_on("mysql")
@pytest.mark.parametrize("is_copied", [True, False])
def test_generated_names_in_a_clients_language_are_never_changed_silently(database: Database, is_copied: bool) -> None:
    """They cannot be written again; a plain ALTER that adds a column keeps them."""
    make(database, "CREATE TABLE t (id INT PRIMARY KEY, d DATE, m VARCHAR(20) AS (MONTHNAME(d)) STORED)")
    insert = "INSERT INTO t (id,d) VALUES (1,'2024-03-01')"
    with application(database) as app:
        app.execute_raw("SET lc_time_names='de_DE'")
        if is_copied:
            app.execute_raw(insert)
        run = begin(database, "t", "ADD COLUMN x INT", cutover="auto" if is_copied else "manual")
        if not is_copied:
            wait_at_gate(database, run)
            app.execute_raw(insert)
            operate.release(database.url, run.workflow, "test")
        result = run.result()
        assert result.event != "complete"
        assert "m" in str(result.reason)
        assert app.rows("SELECT m FROM t") == [("März",)]


# -- generated columns over generated columns -------------------------------------------------------------------------


@pytest.mark.parametrize("quoting", [1, 0])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_unique_key_over_what_is_generated_of_a_changed_column(database: Database, quoting: int, depth: int) -> None:
    columns = "id INT PRIMARY KEY, a DOUBLE, b DOUBLE AS (a) STORED, c DOUBLE AS (b) STORED"
    key = "b" if depth == 1 else "c"
    with settings(database, sql_quote_show_create=quoting):
        make(database, f"CREATE TABLE t ({columns}, UNIQUE ({key}))", "INSERT INTO t (id,a) VALUES (1,1.1),(2,2.2)")
        alter = "MODIFY a INT"
        at_the_gate(database, alter, ["INSERT INTO t (id,a) VALUES (3,1.2)"])


# -- settings of the server that reach into our sessions ---------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [{"completion_type": 1}, {"completion_type": 2}, {"sql_quote_show_create": 0}, {"sql_select_limit": 1},
     {"sql_safe_updates": 1}, {"unique_checks": 0}, {"sql_notes": 0}, {"sql_auto_is_null": 1},
     {"autocommit": 0}],
    ids=lambda v: next(iter(v)) + str(next(iter(v.values()))),
)  # fmt: skip
def test_a_servers_defaults_for_sessions(database: Database, values: dict[str, int]) -> None:
    make(database, "CREATE TABLE t (id INT PRIMARY KEY, u VARCHAR(9), UNIQUE (u))")
    make(database, "INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'c')")
    with settings(database, **values):
        at_the_gate(database, "MODIFY u VARCHAR(8)", ["DELETE FROM t WHERE id=2", "INSERT INTO t VALUES (9,'b')"])


def test_a_servers_limit_of_plain_alters_or_of_ranges(database: Database, server: RunningServer) -> None:
    values = {"alter_algorithm": "INPLACE"} if server.is_mariadb else {"range_optimizer_max_mem_size": 1}
    make(database, "CREATE TABLE t (id INT PRIMARY KEY, u VARCHAR(9))", "INSERT INTO t VALUES (1,'a'),(2,'b')")
    with settings(database, **values):
        run = begin(database, "t", "MODIFY u VARBINARY(9)")
        assert run.result().event == "complete", run.result()


def test_the_alter_is_tried_under_the_servers_mode(database: Database) -> None:
    make(database, "CREATE TABLE t (id INT PRIMARY KEY, dt DATETIME)", "INSERT INTO t VALUES (1,'2024-01-01')")
    alter = "CHANGE dt dt DATETIME NOT NULL DEFAULT '1970-00-00 00:00:00'"
    with settings(database, sql_mode="STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE"):
        run = begin(database, "t", alter)
        assert run.result().event == "refused"
        assert "1067" in str(run.result().reason)


def test_a_fraction_is_cut_where_the_server_cuts(database: Database, server: RunningServer) -> None:
    make(
        database, "CREATE TABLE t (id INT PRIMARY KEY, dt DATETIME(3))", "INSERT INTO t VALUES (1,'2024-01-01 1:1:1.9')"
    )
    cutting = "TIME_ROUND_FRACTIONAL" if server.is_mariadb else "TIME_TRUNCATE_FRACTIONAL"
    with settings(database, sql_mode=f"STRICT_TRANS_TABLES,{cutting}"), connect(database.url):
        at_the_gate(database, "MODIFY dt DATETIME", ["INSERT INTO t VALUES (2,'2024-01-01 1:1:1.7')"])


@pytest.mark.only_on("mysql")
def test_a_primary_key_that_the_server_made_keeps_its_numbers(database: Database) -> None:
    """Also where the server shows it to nobody: rows would be told apart by another key, and numbered anew."""
    with settings(database, show_gipk_in_create_table_and_information_schema=0):
        make(
            database,
            "SET SESSION sql_generate_invisible_primary_key=1",
            "CREATE TABLE t (a INT NOT NULL)",
            "INSERT INTO t VALUES (5),(3),(1)",
            "ALTER TABLE t ADD UNIQUE KEY (a)",
        )
        assert begin(database, "t", "ADD COLUMN z INT").result().event == "complete"
        assert database.admin.rows("SELECT my_row_id, a FROM t ORDER BY 1") == [(1, 5), (2, 3), (3, 1)]
