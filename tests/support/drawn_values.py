"""Tables with a column of every type, and values for them: the edges of each type first, then drawn ones.

What must stay true: a value is SQL text that a session without strict mode takes for its column, or refuses as a whole;
types of which a reader may give up a whole event stand in a table of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.private_server import VECTORS, is_older
from vreplication.mysql.quoting import text
from vreplication.schema.literals import quoted

Values = st.SearchStrategy[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A column: its name says what it is. edges: values that every run has."""

    name: str
    sql: str
    edges: tuple[str, ...]
    values: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTable:
    name: str
    columns: tuple[Drawn, ...]

    def rows(self, count: int) -> list[tuple[str, ...]]:
        """Rows of values: the edges, which stand side by side, so many drawn ones, and one that is all NULL."""
        most = max(len(column.edges) for column in self.columns)
        edges = [tuple((*c.edges, *["NULL"] * most)[i] for c in self.columns) for i in range(most)]
        return [*edges, *self._drawn(count), ("NULL",) * len(self.columns)]

    def _drawn(self, count: int) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        several = st.tuples(*(st.one_of(c.values, c.values, c.values, st.just("NULL")) for c in self.columns))

        @settings(max_examples=count, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
        @given(several)
        def collect(row: tuple[str, ...]) -> None:
            found.append(row)

        collect()
        return found


def tables(flavor: str, charsets: Sequence[tuple[str, int]]) -> list[DrawnTable]:
    """charsets: names, and how many bytes a character may have."""
    found = [_INTEGERS, _BITS, _decimals(), _FLOATS, _TIMES, _BYTES, _LONG, _LABELS, _shapes()]
    found += [_charset(name, most) for name, most in charsets]
    own = _MARIADB if flavor == "mariadb" else _MYSQL
    return [*found, *(DrawnTable(name=c.name, columns=(c,)) for c in (*_ZEROES, *own))]


def _drawn(name: str, sql: str, edges: Sequence[Any], values: st.SearchStrategy[Any]) -> Drawn:
    return Drawn(name=name, sql=sql, edges=tuple(map(str, edges)), values=values.map(str))


def _integer(name: str, bits: int) -> list[Drawn]:
    low, high, top = -(1 << bits - 1), (1 << bits - 1) - 1, (1 << bits) - 1
    signed = _drawn(name, name, [low, -1, 0, 1, high], st.integers(low, high))
    unsigned = _drawn(f"{name}_unsigned", f"{name} UNSIGNED", [0, high, high + 1, top], st.integers(0, top))
    return [signed, unsigned, _drawn(f"{name}_zerofill", f"{name} ZEROFILL", [0, 7, top], st.integers(0, top))]


_SIZES = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
_YEAR = _drawn("YEAR", "YEAR", [1901, 2155, 2000], st.integers(1901, 2155))
_INTEGERS = DrawnTable(
    name="integers", columns=(*(column for name, bits in _SIZES.items() for column in _integer(name, bits)), _YEAR)
)
_BITS = DrawnTable(
    name="bits",
    columns=tuple(
        _drawn(f"BIT_{n}", f"BIT({n})", [0, 1, 1 << n - 1, (1 << n) - 1], st.integers(0, (1 << n) - 1))
        for n in range(1, 65)
    ),
)


def _decimal(digits: int, scale: int, option: str = "") -> Drawn:
    top = 10**digits - 1

    def shown(number: int) -> str:
        """Digits, however many: Python's Decimal would round to 28 of them."""
        whole = f"{abs(number):0{scale + 1}d}"
        return ("-" if number < 0 else "") + (f"{whole[:-scale]}.{whole[-scale:]}" if scale else whole)

    low = 0 if option else -top
    edges = [shown(n) for n in (low, min(0, low + top - 1), 0, 1, top)]
    name = f"DECIMAL_{digits}_{scale}{option.replace(' ', '_')}"
    return _drawn(name, f"DECIMAL({digits},{scale}){option}", edges, st.integers(low, top).map(shown))


def _decimals() -> DrawnTable:
    shapes = [
        (65, 30),
        (65, 0),
        (38, 10),
        (30, 30),
        (20, 2),
        (19, 9),
        (18, 18),
        (10, 0),
        (9, 9),
        (9, 0),
        (5, 3),
        (1, 1),
    ]
    columns = [_decimal(*shape) for shape in shapes]
    return DrawnTable(name="decimals", columns=(*columns, _decimal(12, 4, " UNSIGNED"), _decimal(12, 4, " ZEROFILL")))


def _approximate(value: float) -> str:
    shown = repr(value)
    return shown if "e" in shown else f"{shown}e0"


def _float(name: str, sql: str, width: int, edges: Sequence[str]) -> Drawn:
    finite = st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=True)  # type: ignore[arg-type]
    return _drawn(name, sql, edges, finite.map(_approximate))


_FLOATS = DrawnTable(
    name="floats",
    columns=(
        _float("FLOAT", "FLOAT", 32, ["3.4028234e38", "-3.4028234e38", "1.17549435e-38", "1e-45", "-0e0", "1.1e0"]),
        _float("DOUBLE", "DOUBLE", 64, ["1.7976931348623157e308", "5e-324", "2.2250738585072014e-308", "-0e0"]),
        _drawn("FLOAT_9_3", "FLOAT(9,3)", ["-9999.999", "0.001"], st.integers(-(10**6), 10**6).map(lambda n: n / 1000)),
        _drawn("DOUBLE_20_5", "DOUBLE(20,5)", ["0.00001"], st.integers(-(10**15), 10**15).map(lambda n: n / 10**5)),
    ),
)  # fmt: skip


def _fraction(micros: int, digits: int) -> str:
    return f".{micros:06d}"[: digits + 1] if digits else ""


def _moment(value: datetime, digits: int) -> str:
    return f"'{value:%m-%d %H:%M:%S}{_fraction(value.microsecond, digits)}'".replace("'", f"'{value.year:04d}-", 1)


def _duration(value: timedelta, digits: int) -> str:
    micros = value // timedelta(microseconds=1)
    seconds, rest = divmod(abs(micros), 10**6)
    sign = "-" if micros < 0 else ""
    return f"'{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(rest, digits)}'"


_LONGEST = timedelta(hours=838, minutes=59, seconds=58)


def _times(digits: int) -> list[Drawn]:
    nines = _fraction(999999, digits)
    dates = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda d: _moment(d, digits))
    stamps = st.datetimes(datetime(1970, 1, 2), datetime(2038, 1, 18)).map(lambda d: _moment(d, digits))
    spans = st.timedeltas(-_LONGEST, _LONGEST).map(lambda d: _duration(d, digits))
    one = _fraction(111111, digits)
    return [
        _drawn(f"TIME_{digits}", f"TIME({digits})", [f"'838:59:58{nines}'", "'00:00:00'", f"'12:00:00{one}'"],
               spans.filter(lambda s: digits == 0 or not s.startswith("'-"))),
        _drawn(f"DATETIME_{digits}", f"DATETIME({digits})", [f"'9999-12-31 23:59:59{nines}'", "'0001-01-01'"], dates),
        _drawn(f"TIMESTAMP_{digits}", f"TIMESTAMP({digits}) NULL",
               [f"'2038-01-19 03:14:07{nines}'", f"'1970-01-01 00:00:01{one}'"], stamps),
        _drawn(f"negative_TIME_{digits}", f"TIME({digits})",
               [f"'-838:59:58{nines}'", f"'-00:00:00{one}'", f"'-01:02:03{one}'", "'-00:00:01'"], spans),
    ]  # fmt: skip


_DAYS = st.dates().map(lambda d: f"'{d.isoformat()}'")
_DATE = _drawn("DATE", "DATE", ["'0001-01-01'", "'9999-12-31'", "'2020-02-29'"], _DAYS)
_TIMES = DrawnTable(name="times", columns=(_DATE, *(column for digits in range(7) for column in _times(digits))))
_partial = st.tuples(st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))
_PARTIAL = _partial.map(lambda d: f"'{d[0]:04d}-{d[1]:02d}-{d[2]:02d}'")
_ZEROES = (
    _drawn("zero_DATE", "DATE", ["'0000-00-00'", "'2020-00-00'", "'2020-05-00'", "'0000-01-01'"], _PARTIAL),
    _drawn("zero_DATETIME_3", "DATETIME(3)", ["'0000-00-00'", "'2020-00-00 01:02:03.5'"], _PARTIAL),
    _drawn("zero_TIMESTAMP", "TIMESTAMP NULL", ["'0000-00-00'"], st.just("'0000-00-00'")),
    _drawn("zero_TIMESTAMP_6", "TIMESTAMP(6) NULL", ["'0000-00-00'"], st.just("'0000-00-00'")),
    _drawn("zero_YEAR", "YEAR", [0], st.just(0)),
    # ALLOW_INVALID_DATES takes these.
    _drawn("unreal_DATE", "DATE", ["'2021-02-31'"], st.just("'2021-04-31'")),
    _drawn("unreal_DATETIME", "DATETIME", ["'2021-02-31 10:11:12'"], st.just("'2021-04-31'")),
)


def hexed(value: bytes) -> str:
    return f"X'{value.hex()}'" if value else "''"


def _bytes(name: str, sql: str, most: int) -> Drawn:
    edges = [hexed(b) for b in (b"", b"\0", b" ", b"\\'\"", b"\xff" * most, b"a" + b"\0" * (most - 1), b"\x80\xfe")]
    return _drawn(name, sql, edges, st.binary(max_size=min(most, 300)).map(hexed))


_BYTES = DrawnTable(
    name="bytes",
    columns=(
        _bytes("BINARY_20", "BINARY(20)", 20), _bytes("BINARY_255", "BINARY(255)", 255),
        _bytes("VARBINARY_20", "VARBINARY(20)", 20), _bytes("VARBINARY_300", "VARBINARY(300)", 300),
        _bytes("TINYBLOB", "TINYBLOB", 255), _bytes("BLOB", "BLOB", 65535), _bytes("MEDIUMBLOB", "MEDIUMBLOB", 70000),
        _bytes("LONGBLOB", "LONGBLOB", 70000),
    ),
)  # fmt: skip
_LENGTHS = {"TINYTEXT": 63, "TEXT": 16383, "MEDIUMTEXT": 70000, "LONGTEXT": 70000, "VARCHAR(3000)": 3000}
_LONG = DrawnTable(
    name="long",
    columns=tuple(
        _drawn(f"long_{kind.partition('(')[0]}", f"{kind} CHARACTER SET utf8mb4",
               [f"REPEAT('{letter}',{n})" for letter in "a\U0001f600" for n in (most, most - 1)],
               st.integers(0, most).map(lambda n: f"REPEAT('é',{n})"))
        for kind, most in _LENGTHS.items()
    ),
)  # fmt: skip
ODD = ("x", "it's", 'a"b', "back\\slash", " led", "é", "", "☃", "%s", "{0}", "NULL")


def _labels(kind: str, labels: Sequence[str], edges: Sequence[str], values: st.SearchStrategy[str]) -> Drawn:
    sql = f"{kind}({','.join(map(quoted, labels))}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    return _drawn(f"{kind}_{len(labels)}", sql, [text(e) for e in edges], values.map(text))


def _some(labels: Sequence[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(labels), unique=True).map(",".join)


_MANY, _BITTEN = [f"l{i}" for i in range(300)], [f"s{i}" for i in range(64)]
_ODD_SET = [label for label in ODD if label]
_LABELS = DrawnTable(
    name="labels",
    columns=(
        _labels("ENUM", (*ODD, "a,b"), (*ODD, "a,b"), st.sampled_from(ODD)),
        _labels("ENUM", _MANY, ("l0", "l255", "l256", "l299"), st.sampled_from(_MANY)),
        _labels("SET", _ODD_SET, (_ODD_SET[0], ",".join(_ODD_SET)), _some(_ODD_SET).filter(bool)),
        _labels("SET", _BITTEN, ("s0", "s63", ",".join(_BITTEN)), _some(_BITTEN).filter(bool)),
        _drawn("empty_SET", "SET('x','y')", ["''"], st.just("''")),
        _drawn("latin1_ENUM", "ENUM('é','b') CHARACTER SET latin1", ["'é'", "'b'"], st.sampled_from(["'é'", "'b'"])),
    ),
)


def _shapes() -> DrawnTable:
    number = st.floats(-1e6, 1e6, allow_nan=False).map(lambda f: f"{f:.17g}")
    point = st.tuples(number, number).map(" ".join)
    points = st.lists(point, min_size=2, max_size=6).map(",".join)
    one = point.map(lambda p: f"ST_GeomFromText('POINT({p})')")
    lines = points.map(lambda p: f"ST_GeomFromText('LINESTRING({p})')")
    both = st.tuples(point, points).map(
        lambda p: f"ST_GeomFromText('GEOMETRYCOLLECTION(POINT({p[0]}),GEOMETRYCOLLECTION(LINESTRING({p[1]})))')"
    )
    ring = "ST_GeomFromText('POLYGON((0 0,9 0,9 9,0 0),(1 1,2 1,2 2,1 1))')"
    far = "ST_GeomFromText('POINT(1 2)',4326)"
    several = "ST_GeomFromText('MULTIPOLYGON(((0 0,1 0,1 1,0 0)),((5 5,6 5,6 6,5 5)))')"
    return DrawnTable(
        name="shapes",
        columns=(
            _drawn("POINT", "POINT", [far, "ST_GeomFromText('POINT(-0.0 1e-300)')"], one),
            _drawn("LINESTRING", "LINESTRING", [], lines),
            _drawn("POLYGON", "POLYGON", [ring], st.just(ring)),
            _drawn("MULTIPOLYGON", "MULTIPOLYGON", [several], st.just(several)),
            _drawn("GEOMETRY", "GEOMETRY", [far, ring], st.one_of(one, lines, both)),
        ),
    )


def _charset(name: str, most: int) -> DrawnTable:
    """Characters that the set does not have become '?' on the way in. Sets of single bytes get any of them, too."""
    typed = st.text(alphabet=st.characters(blacklist_categories=("Cs",)), max_size=20)
    written = typed.map(lambda s: f"_utf8mb4 X'{s.encode().hex()}'" if s else "''")
    letters = st.text(alphabet="aZ é ß ж Ω 日本 한 中 ｱ \\'\"%\0\n", max_size=20)
    values = st.one_of(written, letters.map(lambda s: f"_utf8mb4 X'{s.encode().hex()}'" if s else "''"))
    if most == 1:
        raw = st.binary(min_size=1, max_size=20).map(lambda b: f"_{name} X'{b.hex()}'")
        values = st.one_of(values, raw)
    edges = ["''", "' '", "'a '", "'a\\0'", "'''\\\\\"'", "REPEAT('z',20)"]
    if name == "ascii":
        edges.append("_ascii X'80'")
    elif most == 1 and name != "swe7":
        edges += [f"_{name} X'{bytes(range(start, start + 16)).hex()}'" for start in range(0x80, 0x100, 16)]
    kinds = {"CHAR": "CHAR(20)", "VARCHAR": "VARCHAR(300)", "TEXT": "TEXT"}
    columns = [_drawn(f"{kind}_{name}", f"{sql} CHARACTER SET {name}", edges, values) for kind, sql in kinds.items()]
    return DrawnTable(name=f"charset_{name}", columns=tuple(columns))


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=20),
)  # fmt: skip
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(st.characters(blacklist_categories=("Cs",)), max_size=8), inner, max_size=4),
    ),
    max_leaves=12,
)


def _document(value: Any) -> str:
    return f"_utf8mb4 X'{json.dumps(value, ensure_ascii=False).encode().hex()}'"


_EDGES = [
    True, [], {}, "", "é\U0001f600\"\\\n\0", 32767, 32768, 65536, -32769, 1 << 31, 1 << 63, (1 << 64) - 1,
    -(1 << 63), 1.5, -0.0, 1e300, 5e-324, [[[[]]]], {"": {"": ""}}, {"é\U0001f600": [1, 2.5, None, False, "x" * 200]},
    ["x" * 70000, {"k": 70000}], list(range(300)),
]  # fmt: skip
_JSON = Drawn(
    name="JSON",
    sql="JSON",
    edges=tuple(map(_document, _EDGES)),
    values=_DOCUMENTS.filter(lambda value: value is not None).map(_document),
)  # type: ignore[arg-type]
_OPAQUE = (
    "JSON_ARRAY(CAST('1.50' AS DECIMAL(10,2)))", "JSON_ARRAY(CAST('2020-02-29' AS DATE))",
    "JSON_ARRAY(CAST('10:11:12.5' AS TIME(6)))", "JSON_ARRAY(CAST('2020-01-02 03:04:05.6' AS DATETIME(6)))",
)  # fmt: skip
_VECTORS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=16)
_MYSQL = (
    _JSON,
    _drawn("null_JSON", "JSON", ["'null'"], st.just("'null'")),
    _drawn("typed_JSON", "JSON", _OPAQUE, st.sampled_from(_OPAQUE)),
    *(() if is_older("mysql", VECTORS) else (
        _drawn("VECTOR", "VECTOR(16)", ["TO_VECTOR('[1]')"], _VECTORS.map(lambda v: f"TO_VECTOR('{json.dumps(v)}')")),
    )),
)  # fmt: skip
_MARIADB = (
    _JSON,
    _drawn("UUID", "UUID", ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-7fff-bfff-ffffffffff20'"],
           st.uuids().map(lambda u: f"'{u}'")),
    _drawn("INET6", "INET6", ["'::'", "'::ffff:1.2.3.4'", "'2001:db8::'"],
           st.ip_addresses(v=6).map(lambda a: f"'{a}'")),
    _drawn("INET4", "INET4", ["'0.0.0.0'", "'32.32.32.32'", "'1.2.3.0'"],
           st.ip_addresses(v=4).map(lambda a: f"'{a}'")),
)  # fmt: skip
