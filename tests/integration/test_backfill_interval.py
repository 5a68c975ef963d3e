"""Backfilling one interval: what is copied, refreshed, removed and left alone, on one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from backfill_setup import DAY, TABLE, Case, counts, utc
from rowcopy_setup import wait_until

from sandbox.databases import Database
from tests.support.local_spark import LocalSpark
from vreplication.backfill import compare, run, slices
from vreplication.backfill.compare import Comparer
from vreplication.backfill.rows import Row
from vreplication.backfill.upsert import Upsert
from vreplication.errors import BadValue, Interrupted, Refused

pytestmark = pytest.mark.either

Make = Callable[..., Case]


@pytest.fixture
def make(database: Database) -> Iterator[Make]:
    made: list[Case] = []

    def case(create: str = TABLE, **given: Any) -> Case:
        made.append(Case(source=database, target=database, create=create, given=given))
        return made[-1]

    yield case
    for one in made:
        one.close()


FILL = (
    "INSERT INTO s VALUES (1,'before','2026-02-28 23:59:59.999999'),(2,'first','2026-03-01 00:00:00'),"
    "(3,NULL,'2026-03-01 12:00:00.5'),(4,'last','2026-03-01 23:59:59.999999'),(5,'after','2026-03-02'),(6,'none',NULL)"
)


def test_the_rows_of_the_interval_are_copied_and_a_second_run_changes_nothing(make: Make) -> None:
    case = make()
    case.write(FILL)
    first = case.run()
    assert counts(first) == (3, 3, 0, 0, 0)
    assert (first.verified, first.null_time_rows, first.extra_rows) == (True, 1, 0)
    assert [row[0] for row in case.rows()] == [2, 3, 4]
    assert case.rows() == case.rows("s")[1:4]
    again = case.run()
    assert counts(again) == (3, 0, 0, 3, 0)
    assert again.verified


def test_changed_rows_are_refreshed(make: Make) -> None:
    case = make()
    case.write(FILL)
    case.run()
    case.write(
        "UPDATE s SET v='new' WHERE id=2",
        "UPDATE s SET v=NULL WHERE id=4",
        "INSERT INTO s VALUES (7,'x','2026-03-01 1:00')",
    )
    assert counts(case.run()) == (4, 1, 2, 1, 0)
    assert case.rows() == [r for r in case.rows("s") if r[0] in (2, 3, 4, 7)]


def test_only_the_interval_is_touched(make: Make) -> None:
    """A row of the target outside the interval stays, changed as it may be, mirror or not."""
    case = make()
    case.write(
        FILL, "INSERT INTO t VALUES (1,'other','2026-02-28 23:59:59.999999'),(5,'other','2026-03-02'),(9,'x',NULL)"
    )
    case.run(mirror=True)
    assert [r[:2] for r in case.rows() if r[0] not in (2, 3, 4)] == [(1, "other"), (5, "other"), (9, "x")]


def test_mirror_deletes_what_the_source_no_longer_has(make: Make) -> None:
    case = make(batch_rows=2)
    case.write(FILL)
    case.run()
    case.write("DELETE FROM s WHERE id=3", "UPDATE s SET at=NULL WHERE id=4")
    case.write(*(f"INSERT INTO t VALUES ({i},'stale','2026-03-01 05:00')" for i in range(10, 15)))
    kept = case.run()
    assert (kept.extra_rows, kept.deleted, kept.verified) == (7, 0, True)
    mirrored = case.run(mirror=True)
    assert (mirrored.extra_rows, mirrored.deleted, mirrored.verified) == (0, 7, True)
    assert [row[0] for row in case.rows()] == [2]
    assert counts(case.run(mirror=True)) == (1, 0, 0, 1, 0)


@pytest.mark.parametrize("is_mirror", [False, True])
def test_a_row_that_moved_to_another_interval_goes_along(make: Make, is_mirror: bool) -> None:
    case = make(mirror=is_mirror)
    case.write(FILL)
    case.run()
    case.write("UPDATE s SET at='2026-03-05', v='moved' WHERE id=3")
    result = case.run()
    assert (result.verified, result.updated, result.deleted, result.extra_rows) == (True, 1, 0, 0)
    assert dict((r[0], r[1]) for r in case.rows()) == {2: "first", 3: "moved", 4: "last"}


def test_what_the_other_interval_has_written_meanwhile_is_left_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other interval's run takes a moved row between our look and our write."""
    case = make(mirror=True)
    case.write(FILL)
    case.run()
    case.write("UPDATE s SET at='2026-03-05', v='moved' WHERE id=3", "DELETE FROM s WHERE id=4")
    surplus = Comparer._surplus

    def late(self: Comparer, keys: Any) -> Any:
        case.write("UPDATE t SET at='2026-03-05', v='newest' WHERE id=3", "UPDATE t SET at='2026-03-06' WHERE id=4")
        return surplus(self, keys)

    monkeypatch.setattr(Comparer, "_surplus", late)
    assert case.run().verified
    assert [r[:2] for r in case.rows()] == [(2, "first"), (3, "newest"), (4, "last")]


def test_intervals_side_by_side_hold_every_row_once(make: Make) -> None:
    case = make()
    values = ",".join(
        f"({i},'x','2026-03-01' + INTERVAL {i * 997} SECOND + INTERVAL {i} MICROSECOND)" for i in range(200)
    )
    case.write(f"INSERT INTO s VALUES {values}")
    read = [
        case.run(DAY[0] + timedelta(hours=h), DAY[0] + timedelta(hours=h + 7), mirror=True).rows_read
        for h in range(0, 63, 7)
    ]
    assert sum(read) == 200
    assert sum(n > 10 for n in read) > 5
    assert case.rows() == case.rows("s")


@pytest.mark.parametrize(
    ("kind", "bounds", "expected"),
    [
        ("DATETIME(6)", ("2026-03-01T10:00:00.000001", "2026-03-01T10:00:00.500000"), [2, 3]),
        ("DATETIME(1)", ("2026-03-01T10:00:00.000001", "2026-03-01T10:00:00.500000"), [3]),
        ("DATETIME", ("2026-03-01T09:59:59.5", "2026-03-01T10:00:00.5"), [1, 2, 3]),
        ("DATETIME", ("2026-03-01T10:00:00.5", "2026-03-01T10:00:01.5"), [4, 5]),
        ("TIMESTAMP(6) NULL", ("2026-03-01T10:00:00.000001", "2026-03-01T10:00:00.500000"), [2, 3]),
        ("DATE", ("2026-03-01T00:00:00", "2026-03-02T00:00:00"), [1, 2, 3, 4, 5]),
        ("DATE", ("2026-03-01T00:00:00.000001", "2026-03-02T00:00:00"), []),
    ],
)  # fmt: skip
def test_bounds_are_half_open_to_the_fraction(
    make: Make, kind: str, bounds: tuple[str, str], expected: list[int]
) -> None:
    case = make(f"CREATE TABLE {{}} (id INT PRIMARY KEY, at {kind}, KEY (at))")
    # What the column cannot hold is not left to the server's rounding.
    moments = {"DATETIME": ["00", "00", "00", "01", "01"], "DATETIME(1)": ["00", "00", "00.4", "00.5", "01.4"]}
    for i, moment in enumerate(moments.get(kind, ["00", "00.000001", "00.4", "00.5", "01.4"]), 1):
        case.write(f"INSERT INTO s VALUES ({i},'2026-03-01{'' if kind == 'DATE' else f' 10:00:{moment}'}')")
    result = case.run(utc(bounds[0]), utc(bounds[1]), mirror=True)
    assert result.verified
    assert [row[0] for row in case.rows()] == expected


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("2026-10-24T22:00", "2026-10-25T23:00", [1, 2, 3, 4, 5]),
        ("2026-10-24T23:00", "2026-10-25T00:00", [2]),
        ("2026-10-25T00:00", "2026-10-25T01:00", [3, 4]),
        ("2026-10-25T01:00", "2026-10-25T02:00", []),
        ("2026-10-25T02:00", "2026-10-25T03:00", [5]),
        ("2026-03-29T00:00", "2026-03-29T01:00", [11, 12]),
        ("2026-03-29T01:00", "2026-03-29T02:00", [13]),
    ],
)
def test_wall_time_and_the_changing_of_clocks(make: Make, start: str, end: str, expected: list[int]) -> None:
    """02:00 to 03:00 comes twice in autumn (first from 00:00 UTC) and never in spring."""
    case = make(time_zone=BERLIN)
    times = {1: "10-25 00:30", 2: "10-25 01:59:59", 3: "10-25 02:00", 4: "10-25 02:59:59.9", 5: "10-25 03:00",
             11: "03-29 01:30", 12: "03-29 02:30", 13: "03-29 03:00"}  # fmt: skip
    case.write(*(f"INSERT INTO s VALUES ({i},'x','2026-{at}')" for i, at in times.items()))
    assert case.run(utc(start), utc(end)).verified
    assert [row[0] for row in case.rows()] == expected


def test_a_timestamp_is_compared_in_utc(make: Make) -> None:
    case = make("CREATE TABLE {} (id INT PRIMARY KEY, at TIMESTAMP NULL, KEY (at))", time_zone=BERLIN)
    case.write("SET time_zone='+00:00'", "INSERT INTO s VALUES (1,'2026-03-01 00:00:00'),(2,'2026-03-01 23:30:00')")
    case.run()
    assert [row[0] for row in case.rows()] == [1, 2]


@pytest.mark.parametrize(("index", "by"), [(", KEY (at)", "time"), ("", "key")])
def test_many_slices(make: Make, monkeypatch: pytest.MonkeyPatch, index: str, by: str) -> None:
    monkeypatch.setattr(run, "cut", lambda *a: slices.cut(*a, slice_rows=40))
    monkeypatch.setattr(compare, "BUCKET_ROWS", 10)
    case = make(f"CREATE TABLE {{}} (id INT PRIMARY KEY, v INT, at DATETIME{index})", mirror=True, parallelism=3)
    values = ",".join(f"({i * 3},{i},'2026-03-01' + INTERVAL {i} MINUTE)" for i in range(400))
    case.write(f"INSERT INTO s VALUES {values}")
    case.write("INSERT INTO t VALUES (-5,1,'2026-03-01 00:00'),(9999,1,'2026-03-01 23:59:59'),(4,1,'2026-03-01 09:00')")
    first = case.run()
    assert (first.rows_read, first.inserted, first.deleted, first.verified) == (400, 400, 3, True)
    assert case.rows() == case.rows("s")
    case.write("UPDATE t SET v=-1 WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0")
    assert case.run().verified
    assert case.rows() == case.rows("s")


def test_rows_that_change_while_they_are_copied_are_mended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(mirror=True)
    case.write(FILL)

    class Busy(LocalSpark):
        """The source changes between the copy and the comparison."""

        jobs = 0

        def setJobGroup(self, *_: Any, **__: Any) -> None:
            self.jobs += 1
            if self.jobs == 2:
                case.write("UPDATE s SET v='late' WHERE id=2", "DELETE FROM s WHERE id=3",
                           "INSERT INTO s VALUES (8,'new','2026-03-01 08:00')")  # fmt: skip

    result = case.run(spark=Busy())
    assert (result.verified, result.inserted, result.updated, result.deleted) == (True, 4, 1, 1)
    assert case.rows() == [r for r in case.rows("s") if r[0] in (2, 4, 8)]


def test_a_slice_that_lost_a_deadlock_is_done_again_whole(make: Make) -> None:
    """The server takes back all that the slice had written; no row is missing, and none is counted twice."""
    case = make(batch_rows=1)
    case.write(*(f"INSERT INTO s VALUES ({i},'x','2026-03-01')" for i in range(1, 6)))
    case.write(*(f"INSERT INTO t VALUES ({i},'old','2026-03-01')" for i in [3, *range(100, 150)]))
    with case.target.server.admin(case.target.name) as holder, ThreadPoolExecutor() as pool, holder.transaction():
        # The heavier transaction survives.
        holder.execute_raw("UPDATE t SET v='held' WHERE id=3 OR id>=100")
        running = pool.submit(case.run)
        wait_until(lambda: case.target.admin.value(_WAITING) > 0, 60, poll_seconds=0.3)
        holder.execute_raw("INSERT INTO t VALUES (1,'mine','2026-03-01')")
    result = running.result()
    assert (result.verified, *counts(result)) == (True, 5, 3, 2, 0, 0)
    assert [row[:2] for row in case.rows()[:5]] == [(i, "x") for i in range(1, 6)]


_WAITING = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"
UNIQUE = "CREATE TABLE {} (id INT PRIMARY KEY, v VARCHAR(50), at DATETIME(6) NULL, UNIQUE (v))"


def test_a_unique_value_never_pushes_a_change_into_another_row(make: Make) -> None:
    """The target's row outside the interval holds the value that a row of ours needs."""
    case = make(UNIQUE)
    case.write("INSERT INTO s VALUES (1,'a','2026-03-01')", "INSERT INTO t VALUES (9,'a','2026-02-01')")
    result = case.run()
    assert not result.verified
    assert "1 rows still differ" in result.reason
    assert (
        "key id=1): the target's row id=9, which the source does not have, is in the way of id=1 under" in result.reason
    )
    assert case.rows() == [(9, "a", datetime(2026, 2, 1))]


def test_a_stale_unique_value_of_the_interval_gives_way(make: Make) -> None:
    case = make(UNIQUE, mirror=True)
    case.write("INSERT INTO s VALUES (1,'a','2026-03-01'),(2,'b','2026-03-01')")
    case.run()
    case.write("DELETE FROM s WHERE id=1", "UPDATE s SET v='a' WHERE id=2", "INSERT INTO s VALUES (3,'b','2026-03-01')")
    assert case.run().verified
    assert case.rows() == case.rows("s")


def test_rows_are_found_again_by_composite_and_text_keys(make: Make) -> None:
    case = make(
        "CREATE TABLE {} (k VARCHAR(20) CHARACTER SET latin1, e ENUM('z','a'), n INT, at DATE, v INT,"
        " PRIMARY KEY (k,e,n))",
        mirror=True,
    )
    case.write(
        "INSERT INTO s VALUES ('é','z',1,'2026-03-01',1),('b','a',2,'2026-03-01',2),('C','a',3,'2026-03-01',3)",
        "INSERT INTO t VALUES ('é','z',1,'2026-03-01',9),('c','a',3,'2026-03-01',3),('x','z',1,'2026-03-01',9)",
    )
    result = case.run()
    assert result.verified
    assert (result.inserted, result.deleted) in ((1, 1), (2, 2))
    assert case.rows() == case.rows("s")


def test_a_key_that_holds_the_time(make: Make) -> None:
    case = make("CREATE TABLE {} (id INT, at DATETIME(3), PRIMARY KEY (at, id))", mirror=True)
    case.write("INSERT INTO s VALUES (1,'2026-03-01 01:00:00.123'),(2,'2026-03-01 02:00')")
    case.run()
    case.write("UPDATE s SET at='2026-03-03' WHERE id=2")
    result = case.run()
    assert (result.verified, result.deleted) == (True, 1)
    assert [row[0] for row in case.rows()] == [1]


def test_generated_and_additional_columns_of_the_target(make: Make) -> None:
    case = make("CREATE TABLE {} (id INT PRIMARY KEY, at DATETIME, v INT, g INT AS (v+1) STORED)")
    case.target.admin.execute_raw("ALTER TABLE t ADD seen TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, ADD note TEXT")
    case.write("INSERT INTO s (id,at,v) VALUES (1,'2026-03-01',4)")
    assert case.run().inserted == 1
    case.write("UPDATE t SET note='ours'")
    case.write("UPDATE s SET v=5")
    assert counts(case.run()) == (1, 0, 1, 0, 0)
    assert case.rows(columns="id,v,g,note") == [(1, 5, 6, "ours")]


def test_a_row_longer_than_a_packet_is_an_error_and_not_a_gap(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make("CREATE TABLE {} (id INT PRIMARY KEY, at DATETIME, v LONGTEXT)")
    case.write("INSERT INTO s VALUES (1,'2026-03-01',REPEAT('x',3000000))")
    tables = run.check
    monkeypatch.setattr(run, "check", lambda *a: _with_packet(tables(*a), 1 << 20))
    with pytest.raises(BadValue, match="max_allowed_packet"):
        case.run()


def _with_packet(tables: Any, packet: int) -> Any:
    return replace(tables, packet=packet)


def test_an_interrupt_stops_it(make: Make) -> None:
    import threading

    case = make()
    case.write(FILL)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        run.run(case.job(), case.reader, case.writer, *DAY, spark=LocalSpark(), stop=stop)


@pytest.mark.parametrize(
    ("statements", "given", "sentence"),
    [
        (["ALTER TABLE s DROP PRIMARY KEY"], {}, "has no primary key"),
        (["ALTER TABLE t DROP PRIMARY KEY"], {}, "has no primary key"),
        ([], {"time_column": "nope"}, "The time column nope is not a column of"),
        ([], {"time_column": "v"}, r"The time column v is varchar\(50\), not DATETIME, TIMESTAMP or DATE"),
        (["DROP TABLE t"], {}, "The target: There is no table .*t, or the user may not see it"),
        ([], {"table": "nope"}, "The source: There is no table .*nope"),
        (["ALTER TABLE t DROP v"], {}, "does not have the columns: v"),
        (["ALTER TABLE t ADD w INT NOT NULL"], {}, "columns w have no default and are not in the source"),
        (["ALTER TABLE t MODIFY at DATETIME"], {}, r"Column at is datetime\(6\) on the source and datetime on the"),
        (["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)"], {}, r"is \(id\) on the source and \(id, v\)"),
        ([], {"target_table": "s"}, "are the same table"),
    ],
)  # fmt: skip
def test_refusals(make: Make, statements: list[str], given: dict[str, Any], sentence: str) -> None:
    case = make()
    case.write(*statements)
    with pytest.raises(Refused, match=sentence):
        case.run(**given)


def test_an_interval_that_is_none_is_refused(make: Make) -> None:
    case = make()
    for start, end in ((DAY[0], DAY[0]), (DAY[1], DAY[0])):
        with pytest.raises(Refused, match="is not before its end"):
            case.run(start, end)
    with pytest.raises(Refused, match="has no time zone"):
        case.run(datetime(2026, 1, 1), DAY[0])


def test_counts_of_a_statement(make: Make) -> None:
    """Inserted, updated and unchanged are told apart in one statement, in single rows, and in many statements."""
    from vreplication.mysql.session import connect

    case = make()
    rows = [Row(text=f"({i},NULL,'2026-03-01 00:00:00')", ident="", key=(str(i),)) for i in range(10)]
    with connect(case.reader) as source, connect(case.writer) as target:
        tables = run.check(case.job(), source, target)
        assert Upsert(session=target, tables=tables, batch_rows=10, blocked=[]).write(rows[:4]).inserted == 4
        changed = [replace(row, text=str(row.text).replace("NULL", "'x'")) for row in rows[:2]]
        for size in (1, 3, 10):
            case.write("UPDATE t SET v=NULL", "DELETE FROM t WHERE id>3")
            upsert = Upsert(session=target, tables=tables, batch_rows=size, blocked=[])
            done = upsert.write([*changed, *rows[2:]])
            assert (done.read, done.inserted, done.updated, done.unchanged) == (10, 6, 2, 2)
