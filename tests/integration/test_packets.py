"""A server that takes shorter packets than it did: what does not fit any more is an error, or is found, never NULL."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rowcopy_setup import PATHS, make_case

from sandbox.databases import Database
from tests.support.flow import begin, paused_at, settings, wait_reached, wait_until
from vreplication.mysql import values
from vreplication.mysql.bulk import connect_bulk
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import SqlError, connect
from vreplication.rowcopy.paths import make_path
from vreplication.rowcopy.splits import key_range
from vreplication.schema.checksum import checksum, row_hashes, source_side, target_side
from vreplication.settings import SIDECAR
from vreplication.state import lease

pytestmark = pytest.mark.either

MIB = 1 << 20


def long_row(number: int, size: int) -> str:
    return f"({number},_utf8mb4 X'{'61' * size}')"


@pytest.mark.parametrize("told", [MIB, 16 * MIB])
def test_a_value_longer_than_the_sessions_packet_is_an_error(database: Database, told: int) -> None:
    """CONCAT would give NULL, with a warning."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    with settings(database, {"max_allowed_packet": MIB}), connect(database.url) as session:
        rows = [long_row(1, 10), long_row(2, 900_000), long_row(3, 1_200_000)]
        with pytest.raises(SqlError, match=rf"1,200,000 bytes.*{MIB:,}.* at row 3") as caught:
            values.write(session, "REPLACE INTO t (id, v)", rows, packet=told)
        assert caught.value.code == 1153
        found = session.rows("SELECT id, LENGTH(v), SHA2(v,256)=SHA2(REPEAT('a',LENGTH(v)),256) FROM t")
        assert found == [(1, 10, 1), (2, 900_000, 1)]


def test_rows_are_counted_through_all_statements(database: Database) -> None:
    """Who asks for the key of "row 3" means the third that he gave."""
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    rows = (f"({i},{'NULL' if i != 1002 else repr('much too long')})" for i in range(1100))
    with connect(database.url) as session, pytest.raises(SqlError, match=r"at row 1003\b"):
        values.write(session, "REPLACE INTO t (id, v)", rows, packet=MIB)


@pytest.mark.usefixtures("quick")
def test_catch_up_that_comes_back_to_a_shorter_packet_names_the_row(database: Database, pauses: Path) -> None:
    """The application's session has the longer one yet; the tables would be switched, for they have been verified."""
    with connect(database.app_url) as app:
        app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
        app.execute_raw("INSERT INTO t VALUES (1,'a'),(7,'b')")
        with paused_at(pauses, "workflow.gate_open"):
            run = begin(database, "t", "ADD COLUMN z INT")
            wait_reached(pauses, "workflow.gate_open", run)
            with settings(database, {"max_allowed_packet": MIB}):
                _lose_catch_up(database, run.workflow)
                app.execute_raw("UPDATE t SET v=REPEAT('y',3000000) WHERE id=7")
                wait_until(lambda: _phase(database, run.workflow) == "failed", "it does not end")
        result = run.result()
    assert result.event == "failed"
    assert re.search(r"key \(7\).*3,000,000 bytes", str(result.reason)), result.reason


def _phase(database: Database, workflow: str) -> str:
    return str(database.admin.value(f"SELECT phase FROM {SIDECAR}.workflow WHERE id=%s", (workflow,)))


def _lose_catch_up(database: Database, workflow: str) -> None:
    """Cut the connections of catch-up, and wait for others."""

    def ids() -> tuple[int, ...]:
        holder = lease.holder_of(database.admin, workflow, lease.REPLICATE)
        return holder.connections if holder else ()

    before = ids()
    for number in before:
        database.admin.kill(number)
    wait_until(lambda: ids() and not set(ids()) & set(before), "catch-up does not come back")


@pytest.mark.parametrize("told", [MIB, 16 * MIB])
@pytest.mark.parametrize("path", PATHS)
def test_the_copy_asks_its_own_session(database: Database, path: str, told: int) -> None:
    """A chunk's text is cut at the session's packet, whatever the workflow was told when it began."""
    fill = "INSERT INTO t VALUES " + ",".join(f"({i},REPEAT('é',{150_000 + i}))" for i in range(9))
    case = make_case(database, "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET utf8mb4)", fill=(fill,))
    bounds = key_range(case.session, case.mapping)
    assert bounds is not None
    with settings(database, {"max_allowed_packet": MIB}), connect_bulk(database.url) as session:
        copying = make_path(Ends.on(session), case.mapping, replace(case.job(path), packet=told))
        copying.read(bounds)
        done = copying.write(bounds)
    assert (done.rows_read, done.rows_copied) == (9, 9)
    case.assert_same("id, SHA2(v, 256)")


WIDE = "VARCHAR(5000) CHARACTER SET latin1"


@pytest.mark.parametrize("alter", ["ADD COLUMN z INT", "CONVERT TO CHARACTER SET utf8mb4"])
def test_rows_longer_than_a_packet_never_compare_as_equal(database: Database, alter: str) -> None:
    """CONCAT gives NULL of each, and BIT_XOR passes over NULL."""
    columns = ",".join(f"c{i} {WIDE}" for i in range(3))
    fill = f"INSERT INTO t VALUES (1,{','.join(['REPEAT(0xE9,5000)'] * 3)}),(2,'a',NULL,'c')"
    case = make_case(database, f"CREATE TABLE t (id INT PRIMARY KEY, {columns})", alter, (fill,))
    case.copy_all("server")
    with settings(database, {"max_allowed_packet": 12 << 10}), connect(database.url) as session:
        source, target = source_side(case.mapping), target_side(case.mapping)

        def compared() -> tuple[bool, bool]:
            """By ranges, and row by row."""
            one, other = (row_hashes(session, side, "id=1") for side in (source, target))
            assert [len(row.value) for row in (*one, *other)] == [64, 64]
            return checksum(session, source) == checksum(session, target), one == other

        assert compared() == (True, True)
        database.admin.execute_raw(f"UPDATE {case.shadow} SET c1=CONCAT(LEFT(c1,4999),'e') WHERE id=1")
        assert compared() == (False, False)
        database.admin.execute_raw(f"UPDATE {case.shadow} SET c1=NULL WHERE id=1")
        assert compared() == (False, False)
        database.admin.execute_raw(f"UPDATE {case.shadow} SET c1=c0, c2='' WHERE id=1")
        assert compared() == (False, False)
