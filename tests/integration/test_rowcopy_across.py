"""The row copy from one server to another: equal rows, the order of the chunk protocol, lost connections."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from across_setup import AcrossCase, another_table, make_across
from rowcopy_setup import WORKFLOW, Background, Held, wait_until
from test_rowcopy_copy import TYPES, VALUES

from tests.support.flow import settings
from tests.support.pairs import Pair, _pair_servers, pair  # noqa: F401
from vreplication.errors import BadValue, Superseded, Terminal
from vreplication.mysql.ends import Ends
from vreplication.mysql.processes import still_there
from vreplication.rowcopy import chunker
from vreplication.rowcopy.repair import copy_ranges
from vreplication.rowcopy.spark_job import run_copy
from vreplication.settings import SIDECAR
from vreplication.state import ledger, markers
from vreplication.state.ledger import KeyRange

MIB = 1 << 20
PLAIN = "CREATE TABLE {t} (id INT PRIMARY KEY, v INT)"
TEN = ("INSERT INTO t VALUES " + ",".join(f"({i * 10},{i})" for i in range(1, 11)),)
ALL = [(i * 10, i) for i in range(1, 11)]

each_flavor = pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)


def typed(create: str) -> str:
    return create.replace("TABLE t", "TABLE {t}").replace("CHARSET=utf8mb4", "CHARSET=utf8mb4 COLLATE=utf8mb4_bin")


def test_all_types(pair: Pair) -> None:  # noqa: F811
    pair.source.admin.execute_raw("SET SESSION sql_mode='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'")
    case = make_across(pair, typed(TYPES), VALUES)
    case.copy_all("rows", chunk_rows=1)
    # What a number is in hexadecimal is a matter of flavor.
    for name in (c.name for c in case.mapping.source.columns if c.name not in "dfgj"):
        case.assert_same(f"'{name}',HEX({name}),{name}")
    case.assert_same("d, f*1e0, g")
    assert [parsed(row) for row in case.rows(case.shadow, "j")] == [parsed(row) for row in case.rows("t", "j")]
    chunks = case.chunks()
    assert [chunk.state for chunk in chunks] == ["landed"] * 4
    assert case.marks() == [(0, 3, 1)]


def parsed(row: tuple[Any, ...]) -> Any:
    return None if row[0] is None else json.loads(row[0])


@each_flavor
def test_numbers_keep_their_last_bit(pair: Pair) -> None:  # noqa: F811
    doubles = [math.pi, 1 / 3, 2.2250738585072014e-308, 9007199254740993.0, 1e23, 0.1 + 0.2, 1.0000000000000002]
    rows = ",".join(f"({i},'{n!r}',{i}/7)" for i, n in enumerate(doubles))
    create = "CREATE TABLE {t} (id INT PRIMARY KEY, g DOUBLE, f FLOAT)"
    case = make_across(pair, create, (f"INSERT INTO t VALUES {rows}", "INSERT INTO t VALUES (99, 0, 16777217)"))
    case.copy_all("rows")
    assert [g for (g,) in case.rows("t__vr_new", "g")] == [*doubles, 0.0]
    case.assert_same("f*1e0")


KEYED = (
    "CREATE TABLE {t} (a VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci, b DATETIME(3),"
    " c VARBINARY(9), e ENUM('z','ü','m') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, v TIMESTAMP(6) NULL,"
    " PRIMARY KEY (a, b, c, e))"
)


def test_bounds_of_one_server_find_rows_of_the_other(pair: Pair) -> None:  # noqa: F811
    """Ranges are read on the source and cleared on the target."""
    rows = ",".join(f"('é{i % 3}','2024-01-0{i % 4 + 1}',X'00{i:02x}',{i % 3 + 1},'2020-01-01')" for i in range(40))
    case = make_across(pair, KEYED, (f"INSERT INTO t VALUES {rows}",))
    case.copy_all("rows", wanted=3, chunk_rows=7)
    case.assert_same()
    case.database.admin.execute_raw("UPDATE t__vr_new SET v=NULL WHERE a='é1'")
    case.database.admin.execute_raw("INSERT INTO t__vr_new VALUES ('é1','2024-01-02',X'FF',1,NULL)")
    first, last = case.chunks()[0].range.lower, case.chunks()[-1].range.upper
    whole = KeyRange(lower=first, upper=last, has_lower=True)
    with case.gate_kept_open():
        copy_ranges(case.route, case.driver, case.mapping, case.job("rows"), [whole], clear=True)
    case.assert_same()


@pytest.fixture
def case(pair: Pair) -> AcrossCase:  # noqa: F811
    return make_across(pair, PLAIN, TEN)


@each_flavor
def test_the_source_is_told_before_anything_is_read(case: AcrossCase, held: Held) -> None:
    case.cut()
    for point in ("copy.before_open", "copy.after_open", "copy.after_select", "copy.before_land"):
        held.hold(point)
    copying = Background(lambda: case.copy(0, "rows", chunk_rows=4))
    held.wait("copy.before_open")
    assert (case.chunks(), case.marks()) == ([], [])
    held.let_go("copy.before_open")
    held.wait("copy.after_open")
    assert [chunk.state for chunk in case.chunks()] == ["open"]
    assert case.marks() == [(0, 0, 1)]
    case.app.execute("UPDATE t SET v=100 WHERE id=10")
    held.let_go("copy.after_open")
    held.wait("copy.after_select")
    held.hold("copy.after_open")
    case.app.execute("UPDATE t SET v=200 WHERE id=20")
    held.let_go("copy.after_select")
    held.wait("copy.before_land")
    # Rows, "landed" and the next chunk's "open" come with one commit; then the source is told.
    assert (case.rows(case.shadow), case.marks()) == ([], [(0, 0, 1)])
    held.let_go("copy.before_land")
    held.wait("copy.after_open")
    assert case.rows(case.shadow) == [(10, 100), (20, 2), (30, 3), (40, 4)]
    assert [chunk.state for chunk in case.chunks()] == ["landed", "open"]
    assert case.marks() == [(0, 1, 1)]
    case.app.execute("UPDATE t SET v=500 WHERE id=50")
    held.let_go("copy.after_open")
    assert copying.result().error is None
    assert case.rows(case.shadow)[4] == (50, 500)


@each_flavor
def test_a_new_attempt_tells_the_source_again_and_the_old_one_writes_nothing(case: AcrossCase, held: Held) -> None:
    """a1 has read row 10 and sleeps; a2 takes the open chunk over; the row is deleted before a2 reads."""
    case.cut()
    held.hold("copy.after_select")
    first = Background(lambda: case.copy(0, "rows", chunk_rows=4))
    held.wait("copy.after_select")
    assert case.marks() == [(0, 0, 1)]
    held.hold("copy.after_open")
    second = Background(lambda: case.copy(0, "rows", chunk_rows=4))
    held.wait("copy.after_open")
    assert case.marks() == [(0, 0, 2)]
    case.app.execute("DELETE FROM t WHERE id=10")
    held.let_go("copy.after_select")
    assert isinstance(first.result().error, Superseded)
    assert case.rows(case.shadow) == []
    held.let_go("copy.after_open")
    assert second.result().error is None
    assert case.rows(case.shadow) == ALL[1:]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[Ends]:
    """The sessions of each task, in the order of their connecting."""
    found: list[Ends] = []
    connect = chunker._connected

    @contextmanager
    def noted(*given: Any) -> Iterator[Ends]:
        with connect(*given) as ends:
            found.append(ends)
            yield ends

    monkeypatch.setattr(chunker, "_connected", noted)
    return found


@each_flavor
@pytest.mark.parametrize("lost", ["home", "source"])
@pytest.mark.parametrize("point", ["copy.after_open", "copy.before_land"])
def test_a_lost_connection_loses_and_doubles_nothing(
    case: AcrossCase, held: Held, connected: list[Ends], lost: str, point: str
) -> None:
    case.cut()
    held.hold(point)
    copying = Background(lambda: case.copy(0, "rows", chunk_rows=4))
    held.wait(point)
    admin = (case.database if lost == "home" else case.source).admin
    gone = getattr(connected[0], lost).id
    admin.kill(gone)
    wait_until(lambda: not still_there(admin, (gone,)))
    held.let_go(point)
    assert copying.result().error is None
    case.assert_same()
    assert sum(chunk.rows_copied for chunk in case.chunks()) == len(ALL)
    assert len(connected) == 2
    assert ledger.find_split(case.session, case.table, 0).attempt == 2
    assert {attempt for _, _, attempt in case.marks()} == {2}


@each_flavor
def test_the_old_connection_is_ended_on_its_own_server(
    case: AcrossCase, held: Held, connected: list[Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line to the source broke, and the server there does not know yet."""
    case.cut()
    held.hold("copy.after_open")
    copying = Background(lambda: case.copy(0, "rows", chunk_rows=4))
    held.wait("copy.after_open")
    lost = connected[0].source
    left = lost._connection._sock
    # Our end is gone for us alone.
    monkeypatch.setattr(lost._connection, "_sock", None)
    monkeypatch.setattr(lost._connection, "_rfile", None)
    assert still_there(case.source.admin, (lost.id,))
    held.let_go("copy.after_open")
    assert copying.result().error is None
    assert not still_there(case.source.admin, (lost.id,))
    left.close()
    case.assert_same()


NARROW = {
    "range": ("v INT", "v TINYINT", "(7,300)", r"id=7: Out of range value for column 'v'"),
    "null": ("v INT", "v INT NOT NULL", "(7,NULL)", r"id=7: Column 'v' cannot be null"),
    "text": ("v VARCHAR(9)", "v VARCHAR(3)", "(7,'long')", r"id=7: Data truncated for column 'v'"),
    "check": ("v INT", "v INT, CONSTRAINT few CHECK (v < 100)", "(7,300)", r"id=7: .*few"),
}


@pytest.mark.parametrize("kind", NARROW)
def test_a_value_that_the_target_cannot_hold_is_named(pair: Pair, kind: str) -> None:  # noqa: F811
    column, narrow, row, words = NARROW[kind]
    create = "CREATE TABLE {t} (id INT PRIMARY KEY, %s)"
    case = make_across(pair, create % column, (f"INSERT INTO t VALUES (1,1),{row},(9,2)",), create % narrow)
    case.cut()
    error = case.copy(0, "rows").error
    assert isinstance(error, BadValue)
    with pytest.raises(BadValue, match=f"The target of {pair.source.name}.t cannot hold the row with {words}"):
        raise error
    assert case.rows(case.shadow) == []


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_text_that_is_no_json_is_named(pair: Pair) -> None:  # noqa: F811
    create = "CREATE TABLE {t} (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET latin1)"
    fill = ("""INSERT INTO t VALUES (1,'{"a": "é"}'),(7,'{"a":')""",)
    case = make_across(pair, create, fill, create.replace("LONGTEXT CHARACTER SET latin1", "JSON"))
    case.cut()
    assert "id=7: Invalid JSON text" in str(case.copy(0, "rows").error)
    case.app.execute("DELETE FROM t WHERE id=7")
    assert case.copy(0, "rows").error is None
    assert case.rows(case.shadow, "v") == [('{"a": "é"}',)]


LONG = "CREATE TABLE {t} (id INT PRIMARY KEY, v LONGTEXT, w LONGBLOB, n INT) DEFAULT CHARSET=utf8mb4"
HASHES = "id, SHA2(v,256), SHA2(w,256), LENGTH(v), n"


def make_long(pair: Pair) -> AcrossCase:  # noqa: F811
    """Row 7 has a value of 20 MB, in 10 million characters."""
    case = make_across(pair, LONG, ("INSERT INTO t VALUES (1,'a','b',1),(9,'y','z',9)",))
    with settings(pair.source, {"max_allowed_packet": 64 * MIB}), pair.source.server.admin(pair.source.name) as wide:
        wide.execute_raw("INSERT INTO t VALUES (7,REPEAT('é',10000000),REPEAT(X'00FF',600000),7)")
    return case


def hashes(database: Any, table: str) -> list[tuple[Any, ...]]:
    with settings(database, {"max_allowed_packet": 64 * MIB}), database.server.admin(database.name) as wide:
        return list(wide.rows(f"SELECT {HASHES} FROM {table} ORDER BY id"))


@each_flavor
def test_a_row_longer_than_packets_goes_in_pieces(pair: Pair) -> None:  # noqa: F811
    case = make_long(pair)
    case.cut()
    sizes = [(pair.source, 16 * MIB), (pair.target, 32 * MIB)]
    with settings(sizes[0][0], {"max_allowed_packet": sizes[0][1]}):
        with settings(sizes[1][0], {"max_allowed_packet": sizes[1][1]}):
            assert case.copy(0, "rows").error is None
    assert hashes(pair.target, case.shadow) == hashes(pair.source, "t")


@each_flavor
def test_a_value_longer_than_the_targets_packet_is_refused(pair: Pair) -> None:  # noqa: F811
    case = make_long(pair)
    case.cut()
    with settings(pair.source, {"max_allowed_packet": 64 * MIB}):
        with settings(pair.target, {"max_allowed_packet": 16 * MIB}):
            error = case.copy(0, "rows").error
    assert isinstance(error, BadValue)
    assert "the row with id=7: column v has 20,000,000 bytes, and max_allowed_packet is 16,777,216 there" in str(error)
    assert "Set max_allowed_packet of the target to 20,000,000 or more" in str(error)
    assert case.rows(case.shadow, "id") == []


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_json_that_the_source_cannot_show_is_refused(pair: Pair) -> None:  # noqa: F811
    """MySQL gives an empty text of it, and a warning."""
    create = "CREATE TABLE {t} (id INT PRIMARY KEY, v %s)"
    case = make_across(pair, create % "JSON", (), create % "LONGTEXT CHARACTER SET utf8mb4")
    with settings(pair.source, {"max_allowed_packet": 4 * MIB}), pair.source.server.admin(pair.source.name) as wide:
        wide.execute_raw("""INSERT INTO t VALUES (7,CONCAT('["',REPEAT('x',2000000),'"]'))""")
    case.cut()
    with settings(pair.source, {"max_allowed_packet": MIB}):
        error = case.copy(0, "rows").error
    assert isinstance(error, BadValue)
    assert "id=7: the source does not give column v: max_allowed_packet is 1,048,576 there" in str(error)


@pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)
def test_a_prepared_branch_of_the_source_holds_the_read(case: AcrossCase) -> None:
    """Until catch-up, which is told so on the source, holds its rows or it has ended."""
    case.cut()
    for statement in ("XA START 'g'", "UPDATE t SET v=99 WHERE id=10", "XA END 'g'", "XA PREPARE 'g'"):
        case.app.execute(statement)
    copying = Background(lambda: case.copy(0, "rows"))
    sql = f"SELECT id FROM {SIDECAR}.stream_marker WHERE kind='plain'"
    wait_until(lambda: case.source.admin.value(sql) is not None)
    assert case.session.value(f"SELECT id FROM {SIDECAR}.marker") == case.source.admin.value(sql)
    assert (copying.is_running, case.rows(case.shadow)) == (True, [])
    marker, branch = case.source.admin.value(sql), f"X'{b'g'.hex()}',X'',1"
    markers.record_applied(case.session, WORKFLOW, marker, (branch,), is_holding=False)
    assert copying.result().error is None
    assert case.rows(case.shadow) == ALL
    assert case.source.admin.value(sql) is None
    case.app.execute("XA ROLLBACK 'g'")


@pytest.mark.parametrize("pair", ["mysql-mysql"], indirect=True)
def test_a_unique_key_that_only_the_target_has_is_refused(pair: Pair) -> None:  # noqa: F811
    case = make_across(pair, PLAIN, TEN, PLAIN.replace("v INT", "v INT UNIQUE"))
    case.cut()
    error = case.copy(0, "rows").error
    assert isinstance(error, Terminal)
    assert "has a unique key, v, that the source has not" in str(error)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_two_tables_on_spark_at_a_time(spark: Any, pair: Pair) -> None:  # noqa: F811
    many = " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1000) SELECT i,i FROM n"
    case = make_across(pair, PLAIN, (f"INSERT INTO t{many}",))
    other = another_table(case, pair, "u", PLAIN, (f"INSERT INTO u{many} WHERE i > 100",))
    assert all(len(each.cut(4)) > 2 for each in (case, other))

    def copy(each: AcrossCase) -> None:
        run_copy(
            spark, each.route, each.driver, each.mapping, each.job("rows", chunk_rows=100), on_tick=lambda: None,
            tick_seconds=0.05,
        )  # fmt: skip

    with case.gate_kept_open():
        for copying in [Background(lambda each=each: copy(each)) for each in (case, other)]:
            copying.result()
    for each in (case, other):
        each.assert_same()
        totals = ledger.totals(case.session, each.table)
        assert totals.splits_done == totals.splits
        assert {split for split, _, _ in each.marks()} == {s.number for s in ledger.splits(case.session, each.table)}
    passwords = {url.password for url in (case.route.source, case.route.home)}
    assert not any(password in repr(spark.getConf().getAll()) for password in passwords)
