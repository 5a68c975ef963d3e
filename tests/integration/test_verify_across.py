"""Verification between two servers: every type gives the same sums on both, what is wrong is found by its key, and the
state is looked for at home, wherever that is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from verify_setup import run_here

from tests.support.flow import wait_until
from tests.support.pairs import Pair
from tests.support.private_server import is_older
from vreplication import names
from vreplication.engine import recheck
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.session import Session, connect
from vreplication.schema import checksum
from vreplication.schema.alter import parse_alter
from vreplication.schema.checksum import source_side, target_side
from vreplication.schema.introspect import introspect
from vreplication.schema.mapping import map_tables
from vreplication.schema.model import ColumnPair, TableMapping
from vreplication.schema.soft import soft_pairs
from vreplication.settings import SIDECAR
from vreplication.state import keytables, layout, markers, since, source_marks, verdicts
from vreplication.verify import scan
from vreplication.verify import since as rounds
from vreplication.verify import verify as verification
from vreplication.verify.ranges import EVERYTHING
from vreplication.verify.rounds import Examiner, markers_of, read_keys
from vreplication.verify.scan import SpanScan
from vreplication.verify.since import SinceRounds, different

STREAM, TABLE = "wf-move", "wf-move.1"
SHADOW = names.shadow_table("t")

LABELS = ",".join(f"'l{i}'" for i in range(64))
# MySQL 8 reads more digits than a DOUBLE has off by its last bit.
LARGE = ("1e20", "1.0e20") if is_older("mysql", (9, 0)) else ("123456789012345678901", "1.2345678901234568e20")
KEY = {
    "id": "INT",
    "kl": "VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "ku": "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "kt": "DATETIME(6)",
    "kb": "BINARY(3)",
    "ke": "ENUM('a','é') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "kd": "DECIMAL(9,3)",
}
KEYS = (
    "1,'a','é','2020-02-29 01:02:03.000004',X'0100','a',-1.5",
    "2,'é','','0000-00-00',X'','é',0",
    "3,'','a\\t','9999-12-31 23:59:59.999999',X'FF00FF','a',999999.999",
    "4,'b','😀','2021-02-31',X'27','é',0.001",
    "5,'''','\\\\','1970-01-01',X'5C','a',1",
)
UTF8 = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
COLUMNS: dict[str, tuple[str, Sequence[str]]] = {
    "ti": ("TINYINT", ("-128", "127", "0")),
    "tu": ("TINYINT UNSIGNED", ("255", "0")),
    "si": ("SMALLINT", ("-32768", "32767")),
    "mu": ("MEDIUMINT UNSIGNED", ("16777215", "1")),
    "i": ("INT", ("-2147483648", "2147483646", "0")),
    "iz": ("INT(8) ZEROFILL", ("5", "123456789", "0")),
    "bs": ("BIGINT", ("-9223372036854775808", "9223372036854775807")),
    "bu": ("BIGINT UNSIGNED", ("18446744073709551615", "9223372036854775808", "0")),
    "de": ("DECIMAL(65,30)", ("-12345678901234567890123456789012345.000000000000000000000000000001", "0", "1e-30")),
    "dz": ("DECIMAL(8,2) UNSIGNED ZEROFILL", ("1.5", "0")),
    "fl": ("FLOAT", ("0.1", "3.4028234663852886e38", "-0e0", "1.401298464324817e-45", "16777217")),
    "fd": ("FLOAT(9,3)", ("0.1", "-7.125", "-0e0")),
    "db": ("DOUBLE", ("1e300", "0.1", "5e-324", "-0e0", "1.7976931348623157e308")),
    "dd": ("DOUBLE(15,4)", ("0.1", "-7.125", "12345678901.2345")),
    "b1": ("BIT(1)", ("b'1'", "b'0'")),
    "b9": ("BIT(9)", ("257", "65")),
    "b64": ("BIT(64)", ("18446744073709551615", "9223372036854775808", "0")),
    "ye": ("YEAR", ("0", "1901", "2155")),
    "da": ("DATE", ("'0000-00-00'", "'2021-02-31'", "'9999-12-31'", "'2020-00-00'")),
    "t0": ("TIME", ("'-838:59:59'", "'00:00:00'")),
    "t6": ("TIME(6)", ("'-00:00:00.000001'", "'838:59:59.000000'", "'00:00:00'")),
    "d0": ("DATETIME", ("'0000-00-00 00:00:00'", "'2020-02-29 23:59:59'")),
    "d3": ("DATETIME(3)", ("'2020-02-29 23:59:59.999'", "'0000-00-00 00:00:00'", "'0001-01-01'")),
    "d6": ("DATETIME(6)", ("'9999-12-31 23:59:59.999999'", "'0000-00-00 00:00:00'", "'2021-02-31 00:00:00.000001'")),
    "t3": ("TIMESTAMP(6) NULL", ("'2038-01-19 03:14:07.999999'", "'1970-01-01 00:00:01'", "'0000-00-00 00:00:00'")),
    "cl": ("CHAR(10) CHARACTER SET latin1", ("X'81E9'", "'a '", "''")),
    "cu": (f"CHAR(10) {UTF8}", ("'😀'", "'a  '", "''")),
    "vl": ("VARCHAR(10) CHARACTER SET latin1", ("'a '", "'a'", "''", "X'80FF'")),
    "vg": (f"VARCHAR(20) {UTF8}", ("'a '", "'A '", "''", "'N'", "'þ'")),
    "vb": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ("'é€'", "'e€'", "''")),
    "vu": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci", ("'ß'", "'ss'", "''")),
    "v3": ("VARCHAR(20) CHARACTER SET utf8mb3", ("'é'", "'è'", "''")),
    "v16": ("VARCHAR(20) CHARACTER SET utf16", ("'é😀'", "'a '", "''")),
    "u2": ("CHAR(5) CHARACTER SET ucs2", ("'é'", "'a '", "''")),
    "bn": ("BINARY(5)", ("X'0100'", "X'FFFEFFFEFF'", "''")),
    "vn": ("VARBINARY(9)", ("X'0100'", "X'01'", "''", "X'FEFF'")),
    "bl": ("BLOB", ("X'00FF'", "X'00'", "''")),
    "lb": ("LONGBLOB", ("REPEAT(X'00FF',100000)", "REPEAT(X'FF00',100000)", "''")),
    "tx": (f"TEXT {UTF8}", ("REPEAT('é',20000)", "'\\0\\n'", "''")),
    "tl": ("MEDIUMTEXT CHARACTER SET latin1", ("REPEAT('é',70000)", "'é '", "''")),
    "en": (f"ENUM('a','b''c','é') {UTF8}", ("'é'", "'b''c'", "'a'")),
    "se": (f"SET('x','y','é') {UTF8}", ("'x,é'", "''", "'y'")),
    "s64": (f"SET({LABELS}) CHARACTER SET latin1", ("'l0,l63'", "'l63'", "''")),
    "js": (
        "JSON",
        (
            '\'{"b": [1, 2.5, null, "é"], "aa": 1.0}\'',
            '\'{"b": [1, 2.5, null, "e"], "aa": 1.0}\'',
            f"'[1e2, -0.0, {LARGE[0]}, 18446744073709551615, \"\\\\u00e9\\\\u0000/\"]'",
            "'null'",
            "'\"\"'",
        ),
    ),
    "ge": ("GEOMETRY", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1)')")),
    "po": ("POINT", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(2 1)')")),
}
GENERATED = {
    "gi": ("BIGINT", "i + 1"),
    "gt": (f"VARCHAR(40) {UTF8}", "CONCAT(vg, 'x')"),
    "gd": ("DOUBLE", "db / 3"),
}


def create(pair: Pair) -> None:
    """Two equal tables of every type, each by its own server's literals."""
    parts = [f"{name} {kind} NOT NULL" for name, kind in KEY.items()]
    parts += [f"{name} {kind}" for name, (kind, _) in COLUMNS.items()]
    parts += [f"{name} {kind} AS ({expression}) STORED" for name, (kind, expression) in GENERATED.items()]
    parts.append(f"PRIMARY KEY ({','.join(KEY)})")
    for session, table in ((pair.source.admin, "t"), (pair.target.admin, SHADOW)):
        session.execute_raw(f"CREATE TABLE {table} ({','.join(parts)}) ENGINE=InnoDB ROW_FORMAT=DYNAMIC")
        for i, key in enumerate(KEYS):
            values = [texts[i] if i < len(texts) else "NULL" for _, texts in COLUMNS.values()]
            session.execute_raw(f"INSERT INTO {table} ({','.join([*KEY, *COLUMNS])}) VALUES ({key},{','.join(values)})")


def map_pair(pair: Pair, new: str = SHADOW) -> TableMapping:
    """Columns by their names, stored generated ones too."""
    source = introspect(pair.source.admin, pair.source.name, "t")
    target = introspect(pair.target.admin, pair.target.name, new)
    alter, is_mariadb = parse_alter("ENGINE=InnoDB"), pair.target.server.flavor == "mariadb"
    mapping = map_tables(source, target, alter, is_mariadb=is_mariadb)
    stored = [c for c in target.columns if c.generated == "stored"]
    mapping = replace(mapping, kept=tuple(ColumnPair(source=source.column(c.name), target=c) for c in stored))
    return replace(mapping, soft=soft_pairs(mapping, is_foreign=not pair.is_one_flavor))


def turned(mapping: TableMapping) -> TableMapping:
    """The way back."""

    def turn(pairs: Sequence[ColumnPair]) -> tuple[ColumnPair, ...]:
        return tuple(ColumnPair(source=p.target, target=p.source) for p in pairs)

    return replace(
        mapping,
        source=mapping.target,
        target=mapping.source,
        pairs=turn(mapping.pairs),
        key=turn(mapping.key),
        soft=turn(mapping.soft),
    )


def across(pair: Pair) -> Ends:
    """As the administrator, who may plant faults on the target's session and take them back."""
    return Ends(source=pair.source.admin, target=pair.target.admin, home=pair.target.admin, is_across=True)


def wrong_ids(ends: Ends, mapping: TableMapping) -> set[str]:
    """Rows that are not the same, found in each of the ways in which they are looked for."""
    sides = (source_side(mapping), target_side(mapping))
    both = tuple(zip((ends.source, ends.target), sides, strict=True))
    one, other = (checksum.row_hashes(session, side, "1=1") for session, side in both)
    keys = set(scan.unequal_keys(one, other))
    assert (len({checksum.checksum(*of) for of in both}) == 1) is not bool(keys)
    sums = [checksum.buckets(*of, "1=1", 7) for of in both]
    assert bool(scan.differing(*sums)) is bool(keys)
    assert set(SpanScan(mapping=mapping, span_rows=3)(ends, EVERYTHING).keys) <= keys
    asked = [row.key for row in one]
    found = different(lambda asked: (read_keys(*both[0], asked), read_keys(*both[1], asked)), asked)
    assert set(found) <= keys
    assert bool(found) is bool(keys)
    return {key.split(",")[0] for key in keys}


@contextmanager
def undone(session: Session) -> Iterator[None]:
    session.execute_raw("BEGIN")
    try:
        yield
    finally:
        session.rollback()


FAULTS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "values swapped between two rows": (("UPDATE {u} SET db=IF(id=1,0.1,1e300) WHERE id IN (1,2)",), {"1", "2"}),
    "text swapped between two rows": (("UPDATE {u} SET vg=IF(id=1,'A ','a ') WHERE id IN (1,2)",), {"1", "2"}),
    "a truncated text": (("UPDATE {u} SET tx=LEFT(tx,19999) WHERE id=1",), {"1"}),
    "NULL for an empty text": (("UPDATE {u} SET vl=NULL WHERE id=3",), {"3"}),
    "an empty text for NULL": (("UPDATE {u} SET tx='' WHERE id=5",), {"5"}),
    "NULL for a JSON null": (("UPDATE {u} SET js=NULL WHERE id=4",), {"4"}),
    "0 for NULL": (("UPDATE {u} SET dd=0 WHERE id=5",), {"5"}),
    "a DOUBLE by its last bit": (("UPDATE {u} SET db=0.10000000000000002 WHERE id=2",), {"2"}),
    "the least DOUBLE": (("UPDATE {u} SET db=0 WHERE id=3",), {"3"}),
    "a FLOAT by its last bit": (("UPDATE {u} SET fl=0.10000000894069672 WHERE id=1",), {"1"}),
    "a trailing space less": (("UPDATE {u} SET vl='a' WHERE id=1",), {"1"}),
    "a row missing and another one too many": (("UPDATE {u} SET id=7 WHERE id=2",), {"2", "7"}),
    "a number in a document": (("UPDATE {u} SET js=JSON_SET(js,'$.aa',1.5) WHERE id=1",), {"1"}),
    "a microsecond": (("UPDATE {u} SET d6=d6 - INTERVAL 1 MICROSECOND WHERE id=1",), {"1"}),
    "a label of a large set": (("UPDATE {u} SET s64='l63' WHERE id=1",), {"1"}),
}
NO_FAULTS = {
    "-0 is 0": "UPDATE {u} SET db=0e0 WHERE id=4",
    "-0 is 0 in a FLOAT": "UPDATE {u} SET fl=0e0 WHERE id=3",
}
OTHER_TEXTS = (
    ('{"aa":1.0,"b":[1,2.5,null,"\\\\u00e9"]}', 1),
    ('{"b":7, "aa":1.0,  "b":[1,25e-1,null,"e"]}', 2),
    (f'[100.0,0.0,{LARGE[1]},18446744073709551615,"é\\\\u0000\\\\/"]', 3),
)


def test_every_type_is_compared_between_two_servers(pair: Pair) -> None:
    create(pair)
    mapping = map_pair(pair)
    assert {p.source.name for p in mapping.soft} <= {"fl", "fd", "db", "dd", "gd", "js"}
    ends = across(pair)
    assert wrong_ids(ends, mapping) == set()
    for name in COLUMNS:
        with undone(ends.target):
            ends.target.execute_raw(f"UPDATE {SHADOW} a JOIN {SHADOW} b ON b.id=2 SET a.{name}=b.{name} WHERE a.id=1")
            assert wrong_ids(ends, mapping) == {"1"}, name
    for name, (statements, ids) in FAULTS.items():
        with undone(ends.target):
            for statement in statements:
                assert ends.target.execute_raw(statement.format(u=SHADOW)) > 0, name
            assert wrong_ids(ends, mapping) == ids, name
    for name, statement in NO_FAULTS.items():
        with undone(ends.target):
            ends.target.execute_raw(statement.format(u=SHADOW))
            assert wrong_ids(ends, mapping) == set(), name


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_documents_are_compared_by_their_values(pair: Pair) -> None:
    create(pair)
    mapping = map_pair(pair)
    ends = across(pair)
    with undone(ends.target):
        for text, number in OTHER_TEXTS:
            ends.target.execute_raw(f"UPDATE {SHADOW} SET js='{text}' WHERE id={number}")
        assert wrong_ids(ends, mapping) == set()


@pytest.mark.parametrize("pair", ["mysql-mariadb"], indirect=True)
def test_all_values_swapped_between_two_rows_are_seen(pair: Pair) -> None:
    """Hashes alone, folded by XOR, are the same then: each is weighted by its row's key."""
    for session, table in ((pair.source.admin, "t"), (pair.target.admin, SHADOW)):
        session.execute_raw(f"CREATE TABLE {table} (id INT PRIMARY KEY, d DOUBLE) ENGINE=InnoDB")
        session.execute_raw(f"INSERT INTO {table} VALUES (1,0.5),(2,0.25)")
    mapping = map_pair(pair)
    assert wrong_ids(across(pair), mapping) == set()
    pair.target.admin.execute_raw(f"UPDATE {SHADOW} SET d=0.75-d")
    assert wrong_ids(across(pair), mapping) == {"1", "2"}


@dataclass(kw_only=True)
class MoveCase:
    """`t` on the source with its rows on the target, and what a test does in place of catch-up.

    at_marker: called when a marker has come with the source's log, before it counts as applied; the keys that it gives
    back have been written meanwhile. way: "there", or "back": the stream is turned round, and its home stays.
    """

    pair: Pair
    way: str
    mapping: TableMapping
    route: Route
    at_marker: Callable[[str], Sequence[str]] = lambda kind: ()
    kinds: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    @property
    def source(self) -> Session:
        return (self.pair.source if self.way == "there" else self.pair.target).admin

    @property
    def target(self) -> Session:
        return (self.pair.target if self.way == "there" else self.pair.source).admin

    @property
    def home(self) -> Session:
        return self.pair.target.admin

    @property
    def is_mariadb(self) -> bool:
        """The source, on this way."""
        return (self.pair.source if self.way == "there" else self.pair.target).server.flavor == "mariadb"

    def on_source(self, sql: str) -> None:
        assert self.source.execute_raw(sql.format(t=self.mapping.source.name)) > 0

    def on_target(self, sql: str) -> None:
        assert self.target.execute_raw(sql.format(t=self.mapping.target.name)) > 0

    @contextmanager
    def replicating(self) -> Iterator[None]:
        stop = threading.Event()
        failed: list[BaseException] = []
        thread = threading.Thread(target=self._replicate, args=(stop, failed), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]

    def _replicate(self, stop: threading.Event, failed: list[BaseException]) -> None:
        try:
            with connect(self.route.source) as source, connect(self.route.home) as home:
                while not stop.wait(0.005):
                    for marker, kind in source.rows(
                        f"SELECT id, kind FROM {SIDECAR}.stream_marker WHERE stream='{STREAM}'"
                    ):
                        if markers.find_applied(home, STREAM, marker) is None and markers.is_present(
                            home, STREAM, marker
                        ):
                            self._reach(home, marker, kind)
        except BaseException as error:
            failed.append(error)

    def _reach(self, home: Session, marker: str, kind: str) -> None:
        self.kinds.append(kind)
        keys = self.at_marker(kind)
        self.written |= set(keys)
        keytables.touch(home, TABLE, list(keys), 1)
        if kind == markers.SINCE:
            found = since.load(home, TABLE)
            number = found.round if found else since.begin(home, TABLE, "")
            since.save(home, TABLE, self.written, "", number=number, next_number=number + 1)
            self.written.clear()
        markers.record_applied(home, STREAM, marker, (), is_holding=False)

    def left_markers(self) -> int:
        return sum(
            int(session.value(f"SELECT COUNT(*) FROM {SIDECAR}.{table}"))
            for session, table in ((self.home, "marker"), (self.home, "marker_applied"), (self.source, "stream_marker"))
        )

    def verify(self, repair: Callable[[object], None] | None = None) -> verdicts.Verdict:
        with self.replicating():
            return verification.verify(
                None,  # type: ignore[arg-type]
                self.route,
                self.mapping,
                verification.Caller(),
                workflow=TABLE,
                stream=STREAM,
                is_mariadb=self.is_mariadb,
                repair=repair,
                parallelism=1,
            )

    @contextmanager
    def examining(self) -> Iterator[Examiner]:
        with self.replicating(), self.route.open() as ends:
            yield Examiner(
                ends=ends,
                mapping=self.mapping,
                table=TABLE,
                markers=markers_of(ends, STREAM),
                is_mariadb=self.is_mariadb,
                check=lambda: None,
            )


ROWS = 400
ACROSS_FLAVORS = pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)


@pytest.fixture(params=["there", "back"])
def case(request: pytest.FixtureRequest, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> MoveCase:
    """The table's name on the new server is its own again on the way back."""
    monkeypatch.setattr(verification, "run_all", run_here)
    way, new = request.param, SHADOW if request.param == "there" else "t"
    for database, table in ((pair.source, "t"), (pair.target, new)):
        database.admin.execute_raw(
            f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, d DOUBLE, w VARCHAR(9) {UTF8}, j JSON) ENGINE=InnoDB"
        )
        rows = ",".join(f"""({n},{n}/7e0,'w{n}','{{"n": {n}}}')""" for n in range(ROWS))
        database.admin.execute_raw(f"INSERT INTO {table} VALUES {rows}")
    there = map_pair(pair, new)
    route = Route(source=pair.source.url, target=pair.target.url, home=pair.target.url)
    with route.open() as ends:
        layout.install(ends.home)
        keytables.create_all(ends.home, there, TABLE)
        for session in (ends.source, ends.target):
            source_marks.install(session)
    if way == "there":
        return MoveCase(pair=pair, way=way, mapping=there, route=route)
    return MoveCase(pair=pair, way=way, mapping=turned(there), route=route.turned())


@ACROSS_FLAVORS
def test_keys_are_examined_behind_markers_of_both_servers(case: MoveCase) -> None:
    """1 is wrong, 2 was just behind, 3 is written to in each window, and 4 is equal."""
    case.on_target("UPDATE {t} SET d=d+1 WHERE id=1")
    case.on_source("UPDATE {t} SET d=-1 WHERE id=2")

    def write(kind: str) -> list[str]:
        if len(case.kinds) == 1:
            case.on_target("UPDATE {t} SET d=-1 WHERE id=2")
        if kind == markers.SUSPECTS_CLOSE:
            return ["3"]
        case.on_source("UPDATE {t} SET d=d+1 WHERE id=3")
        return []

    case.at_marker = write
    with case.examining() as examiner:
        found = examiner.examine(["1", "2", "3", "4"])
    assert (found.bad, found.hot, found.gave_way) == (("1",), ("3",), ())
    assert case.left_markers() == 0


@ACROSS_FLAVORS
@pytest.mark.parametrize("has_same_order", [True, False])
def test_faults_are_found_and_repaired_across(case: MoveCase, has_same_order: bool) -> None:
    case.mapping = replace(case.mapping, has_same_order=has_same_order)
    assert (case.verify().verdict, case.verify().rows_compared) == (verdicts.CLEAN, ROWS)
    case.on_target("UPDATE {t} SET d=d*(1+3e-16) WHERE id=7")
    case.on_target("UPDATE {t} SET w='w8' WHERE id=9")
    case.on_target("DELETE FROM {t} WHERE id=399")
    case.on_target("INSERT INTO {t} VALUES (1000,1,'more','1')")
    assert case.verify().verdict == verdicts.BAD
    repaired: list[object] = []

    def repair(ranges: object) -> None:
        repaired.append(ranges)
        case.on_target("REPLACE INTO {t} VALUES (7,7/7e0,'w7','{{\"n\": 7}}'),(9,9/7e0,'w9','{{\"n\": 9}}')")
        case.on_target("REPLACE INTO {t} VALUES (399,399/7e0,'w399','{{\"n\": 399}}')")
        case.on_target("DELETE FROM {t} WHERE id=1000")

    verdict = case.verify(repair)
    assert (verdict.verdict, verdict.mismatches, verdict.repaired) == (verdicts.CLEAN, 4, 4)
    assert len(repaired) == 1
    assert case.left_markers() == 0


@ACROSS_FLAVORS
def test_what_is_written_after_it_is_compared_to_the_last_key_under_the_lock(
    case: MoveCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_SAMPLES", 0)
    for session in (case.source, case.target):
        wait_until(lambda s=session: int(s.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]) > 5, "it does not run")
    assert case.verify().verdict == verdicts.CLEAN
    case.on_source("UPDATE {t} SET w='both' WHERE id IN (5,6)")
    case.on_target("UPDATE {t} SET w='both' WHERE id=5")
    case.written = {"5", "6"}
    with case.examining() as examiner:
        ends = examiner.ends
        assert recheck.vouches(ends, TABLE)
        with monkeypatch.context() as patched:
            patched.setattr(recheck, "_seconds_up", lambda session: 0.0)
            assert not recheck.vouches(ends, TABLE), "the other server has been started since"
        round_ = SinceRounds(examiner=examiner).compare()
        assert (round_.compared, round_.wrong) == (2, ("6",))
        with connect(case.route.source) as locked:
            locked.execute_raw(f"LOCK TABLES `{case.mapping.source.name}` WRITE")
            with pytest.raises(recheck.Mismatch, match=r"keys: \(6\)"):
                recheck.compare_locked(locked, ends, case.mapping, TABLE)
            case.on_target("UPDATE {t} SET w='both' WHERE id=6")
            assert recheck.compare_locked(locked, ends, case.mapping, TABLE) == 1
