"""Writers whose transactions are drawn, over tables that move: `words` (a key of text), `keyed` (a key of many types),
`wide` (a column of each type) and `done` (a row for each transaction). They go to the other server when one refuses.

What must stay true: a transaction that was committed, and no other, has its number in `committed`; what is drawn
depends on the seed alone. In which order the writers come does not.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from tests.support.pairs import Pair
from vreplication.errors import VReplicationError
from vreplication.mysql.session import LockWait, Session, SqlError, connect

TABLES = ("words", "keyed", "wide", "done")
WORDS = ("a", "A", "a ", "ä", "Ä", "á", "b", "B", "ß", "ss", "SS", "", " ", "æ", "ae", "c\t", "c", "o", "ö")
"""Of each letter the forms that some collation calls the same; all of them are in latin1."""
COLLATIONS = (
    "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_unicode_520_ci", "utf8mb4_german2_ci",
    "latin1_swedish_ci", "latin1_german2_ci", "utf8mb4_turkish_ci", "utf8mb3_general_ci", "utf16_unicode_ci",
    "utf32_bin", "gbk_chinese_ci", "cp1250_general_ci", "koi8r_general_ci", "sjis_japanese_ci",
)  # fmt: skip
MODES = (
    "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
    "",
    "ANSI_QUOTES,STRICT_ALL_TABLES",
    "NO_BACKSLASH_ESCAPES,ALLOW_INVALID_DATES",
    "PAD_CHAR_TO_FULL_LENGTH,STRICT_TRANS_TABLES",
    "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES",
)
_ODD = {
    "max_sort_length": (64, 1024),
    "low_priority_updates": (0, 1),
    "autocommit": (0, 1),
    "big_tables": (0, 1),
    "sql_buffer_result": (0, 1),
    "default_storage_engine": ("InnoDB", "MyISAM"),
    "innodb_strict_mode": (0, 1),
    "max_error_count": (0, 64),
    "group_concat_max_len": (4, 1024),
}
_ODD_OF = {
    "mysql": {
        "binlog_rows_query_log_events": (0, 1),
        "binlog_row_metadata": ("MINIMAL", "FULL"),
        "default_collation_for_utf8mb4": ("utf8mb4_general_ci", "utf8mb4_0900_ai_ci"),
        "cte_max_recursion_depth": (0, 1000),
    },
    "mariadb": {
        "binlog_annotate_row_events": (0, 1),
        "binlog_row_metadata": ("NO_LOG", "FULL"),
        "log_bin_compress": (0, 1),
        "old_mode": ("", "UTF8_IS_UTF8MB3"),
    },
}
"""Variables of a server that are no matter, and what they may be."""
ZONES = ("+00:00", "+09:30", "-05:00", "SYSTEM")
_WORDS = "k VARCHAR(20) NOT NULL, u VARCHAR(20), w INT, v INT NOT NULL DEFAULT 0, PRIMARY KEY (k), UNIQUE KEY (u)"
_KEYED = """bt BIT(9), fx BINARY(3), dm DATETIME(3), de DECIMAL(6,2), en ENUM('z','it''s','ü'), yr YEAR, tm TIME(2),
  ch CHAR(4), v INT, PRIMARY KEY (ch, bt, fx, dm, de, en, yr, tm), UNIQUE KEY (v, en)"""
_WIDE = """id INT AUTO_INCREMENT PRIMARY KEY, n INT, hidden INT INVISIBLE DEFAULT 4, bt BIT(20),
  en ENUM('x','it''s','ü') CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, st SET('a','b','c'),
  fl FLOAT, db DOUBLE, de DECIMAL(20,6), dt DATE,
  tm TIME(3), dm DATETIME(3), ts TIMESTAMP(3) NULL DEFAULT NULL, yr YEAR, ch CHAR(5), fx BINARY(4), vb VARBINARY(8),
  tx TEXT, bl BLOB, js JSON, pt POINT, more INT AS (n + 1) VIRTUAL, kept VARCHAR(40) AS (CONCAT(tm, '-', n)) STORED,
  made TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
  UNIQUE KEY (n, bt), KEY (more)"""
_DONE = "n INT PRIMARY KEY, writer VARCHAR(9)"
_DATES = ("2024-02-29", "0000-00-00", "2020-00-10", "2021-02-31", "9999-12-31", "1000-01-01")
_MISSED = frozenset(
    {1062, 1265, 1366, 1292, 1364, 1048, 1264, 1406, 1411, 1416, 1690, 1761, 3854, 1977, 1267, 1270, 3988}
)
"""What a drawn statement may be told; the transaction goes on without it."""
_REFUSED = frozenset({1290, 1146})


def odd_settings(draw: random.Random, flavor: str) -> dict[str, object]:
    known = {"time_zone": ZONES, "sql_mode": MODES, **_ODD, **_ODD_OF[flavor]}
    return {name: draw.choice(values) for name, values in known.items()}


def create(pair: Pair, draw: random.Random) -> None:
    admin = pair.source.admin
    admin.execute_raw(f"CREATE TABLE words ({_WORDS}) COLLATE {draw.choice(COLLATIONS)}")
    admin.execute_raw(f"CREATE TABLE keyed ({_KEYED}) COLLATE {draw.choice(COLLATIONS[:6])}")
    admin.execute_raw(f"CREATE TABLE wide ({_wide(collation := draw.choice(COLLATIONS))}) COLLATE {collation}")
    admin.execute_raw(f"CREATE TABLE done ({_DONE}) COLLATE latin1_bin")


def _wide(collation: str) -> str:
    """Without text in its expression where that has backslashes when it comes from MariaDB: MySQL reads those otherwise
    in sessions with NO_BACKSLASH_ESCAPES, which some writers have."""
    return _WIDE.replace("tm, '-', n", "tm, n") if collation.startswith(("utf16", "utf32")) else _WIDE


def literal(value: str) -> str:
    """As no SQL mode and no character set of the connection reads it in another way."""
    return f"_utf8mb4 X'{value.encode().hex()}'" if value else "''"


class Refused(Exception):
    """The other server is the one that takes writes."""


class Aborted(Exception):
    """The transaction is not there."""


@dataclass(slots=True)
class Drawn:
    """Statements."""

    draw: random.Random

    def word(self) -> str:
        return literal(self.draw.choice(WORDS))

    def number(self) -> int:
        return self.draw.randrange(60)

    def statements(self) -> list[str]:
        return self.draw.choice((self._of_words, self._of_words, self._of_keyed, self._of_wide, self._of_both))()

    def _of_words(self) -> list[str]:
        one, two, n = self.word(), self.word(), self.number()
        value = self.draw.choice((self.word(), self.word(), "NULL"))
        insert = f"INSERT INTO words (k,u,w) VALUES ({one},{value},{n})"
        return self.draw.choice(
            (
                [insert],
                [f"REPLACE INTO words (k,u,w) VALUES ({one},{value},{n}), ({two},NULL,{n})"],
                [f"{insert} ON DUPLICATE KEY UPDATE k={two}, v=words.v+1"],
                [f"UPDATE IGNORE words SET k={one}, u={value} WHERE k={two}"],
                [f"UPDATE IGNORE words SET k=CONCAT(k,'x') WHERE w<{n} AND LENGTH(k)<9 ORDER BY k DESC"],
                [f"UPDATE words SET v=v+1 WHERE w<{n}"],
                [f"DELETE FROM words WHERE k={one} OR w={n}"],
                [f"DELETE FROM words WHERE k={one}", insert],
                # Two rows exchange what is unique.
                [
                    f"SET @u=(SELECT u FROM words WHERE k={one} LIMIT 1)",
                    f"SET @v=(SELECT u FROM words WHERE k={two} LIMIT 1)",
                    f"UPDATE words SET u=NULL WHERE k IN ({one},{two})",
                    f"UPDATE IGNORE words SET u=@v WHERE k={one}",
                    f"UPDATE IGNORE words SET u=@u WHERE k={two}",
                ],
            )
        )

    def _of_keyed(self) -> list[str]:
        """Of each column of the key few values; some are one to the server and written in several ways."""
        values = {name: self.draw.choice(known) for name, known in _KEYS.items()}
        n, name = self.number(), self.draw.choice(list(_KEYS))
        other = self.draw.choice(_KEYS[name])
        row = ",".join(values.values())
        columns = ",".join(values)
        return self.draw.choice(
            (
                [f"INSERT IGNORE INTO keyed ({columns},v) VALUES ({row},{n})"],
                [f"REPLACE INTO keyed ({columns},v) VALUES ({row},NULL)"],
                [f"INSERT INTO keyed ({columns},v) VALUES ({row},{n}) ON DUPLICATE KEY UPDATE {name}={other}, v=NULL"],
                [f"UPDATE IGNORE keyed SET {name}={other} WHERE {name}={values[name]}"],
                [f"UPDATE IGNORE keyed SET {name}={other}, v={n} WHERE {name}={values[name]} LIMIT 1"],
                [f"DELETE FROM keyed WHERE {name}={values[name]} LIMIT 3"],
            )
        )

    def _of_wide(self) -> list[str]:
        id, n = self.number(), self.number()
        names = self.draw.sample(list(_VALUES), 4)
        values = [_VALUES[name](self) for name in names]
        sets = ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        columns, row = ",".join(names), ",".join(values)
        return self.draw.choice(
            (
                [f"INSERT INTO wide (n,{columns}) VALUES ({n},{row})"],
                [f"REPLACE INTO wide (id,n,hidden,{columns}) VALUES ({id},{n},{n},{row})"],
                [f"INSERT INTO wide (id,n,{columns}) VALUES ({id},NULL,{row}) ON DUPLICATE KEY UPDATE {sets}"],
                [f"UPDATE wide SET {sets} WHERE id={id}"],
                [f"UPDATE wide SET {sets} WHERE id BETWEEN {id} AND {id + 3}"],
                [f"UPDATE IGNORE wide SET id={n} WHERE id={id}"],
                [f"UPDATE IGNORE wide SET id=-id, {sets} WHERE id IN ({id},{-id},{n})"],
                [f"DELETE FROM wide WHERE id={id}"],
                [f"DELETE FROM wide WHERE id={id}", f"INSERT INTO wide (id,n,{columns}) VALUES ({id},{n},{row})"],
            )
        )

    def _of_both(self) -> list[str]:
        n = self.number()
        return self.draw.choice(
            (
                [f"UPDATE words, wide SET v=v+1, hidden=v WHERE words.w=wide.id AND wide.id<{n}"],
                [f"DELETE words, wide FROM words JOIN wide ON words.w=wide.id WHERE wide.id={n}"],
                [f"INSERT IGNORE INTO words (k,u,w) SELECT CONCAT('w',id), NULL, n FROM wide WHERE id<{n} LIMIT 2"],
            )
        )

    def _date(self) -> str:
        return self.draw.choice(_DATES)

    def _moment(self) -> str:
        """TIMESTAMP takes those of 1970 to 2038, in the zone of the session; twice the same hour in none of ZONES."""
        return f"20{self.draw.randrange(10, 37)}-03-{self.draw.randrange(10, 29)} 02:30:0{self.draw.randrange(10)}.125"

    def _bytes(self, most: int) -> str:
        return f"X'{self.draw.randbytes(self.draw.randrange(most + 1)).hex()}'"

    def _json(self) -> str:
        inner = {self.draw.choice("xyz"): self.draw.choice(WORDS)}
        deep = {"a": self.number(), "b": [None, True, "ü\\\"'", 2.5], "c": inner}
        document = self.draw.choice((deep, [], {}, "x", 0, [deep]))
        return literal(json.dumps(document, ensure_ascii=self.draw.random() < 0.5))

    def _double(self) -> str:
        drawn = repr(self.draw.uniform(-1e9, 1e9))
        return self.draw.choice(("0", "-0e0", "1e308", "5e-324", "0.1", "16777217", drawn, "NULL"))


_KEYS = {
    "bt": ("0", "b'111111111'", "39", "92"),
    "fx": ("X''", "X'00'", "X'275C'", "X'FF0A00'", "X'20'"),
    "dm": ("'0000-00-00'", "'2024-02-29 23:59:59.999'", "'2020-00-10'"),
    "de": ("0", "-0.00", "-9999.99", "1.10", "1.1"),
    "en": ("'z'", "'it''s'", "2"),
    "yr": ("0", "1901", "2155"),
    "tm": ("'-00:00:00.01'", "'-838:59:59'", "'00:00:00'"),
    "ch": ("''", "'a'", "'A '", "'ss'", literal("ß"), literal("\\'\"%")),
}

_VALUES: dict[str, Callable[[Drawn], str]] = {
    "bt": lambda d: str(d.draw.choice((0, 1, (1 << 20) - 1, d.draw.randrange(1 << 20)))),
    "en": lambda d: d.draw.choice((literal("x"), literal("it's"), literal("ü"), "NULL")),
    "st": lambda d: d.draw.choice(("'a'", "'a,c'", "''", "7", "NULL")),
    "fl": lambda d: d.draw.choice(("0.1", "16777217", "1e-38", "-3.4e38", "NULL")),
    "db": Drawn._double,
    "de": lambda d: d.draw.choice(("0", "-0.000001", "99999999999999.999999", "NULL")),
    "dt": lambda d: f"'{d._date()}'",
    "tm": lambda d: d.draw.choice(("'-838:59:59'", "'838:59:58.999'", "'00:00:00.001'", "'-00:00:00.5'", "NULL")),
    "dm": lambda d: f"'{d._date()} 23:59:58.999'",
    "ts": lambda d: d.draw.choice((f"'{d._moment()}'", "'0000-00-00 00:00:00'", "'1970-01-02 00:00:00'", "NULL")),
    "yr": lambda d: d.draw.choice(("0", "1901", "2155", "NULL")),
    "ch": lambda d: literal(d.draw.choice(WORDS)),
    "fx": lambda d: d._bytes(4),
    "vb": lambda d: d._bytes(8),
    "tx": lambda d: literal("".join(d.draw.choices((*WORDS, "\\", "'", '"', "\n", "\x1a", "%", "`", "\\'"), k=9))),
    "bl": lambda d: d._bytes(40),
    "js": Drawn._json,
    "pt": lambda d: f"ST_GeomFromText('POINT({d.number()} -{d.number()}.5)')",
}


@dataclass(slots=True)
class Writer:
    """One connection of the application. number: of the writer; it numbers its transactions."""

    pair: Pair
    drawn: Drawn
    number: int
    committed: set[int] = field(default_factory=set)
    counted: int = 0
    is_at_target: bool = False

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """With settings of its own, as applications have them."""
        database = self.pair.target if self.is_at_target else self.pair.source
        with connect(database.app_url, lock_wait_seconds=2) as session:
            mode, zone = self.drawn.draw.choice(MODES), self.drawn.draw.choice(ZONES)
            session.execute_raw(f"SET SESSION sql_mode='{mode}', time_zone='{zone}'")
            if not database.server.is_mariadb:
                is_compressed = self.drawn.draw.randrange(2)
                session.execute_raw(f"SET SESSION binlog_transaction_compression={is_compressed}")
            yield session

    def play(self, transactions: int) -> None:
        """Where it is refused it goes to the other server, with a transaction of its own drawing."""
        until = self.counted + transactions
        while self.counted < until:
            try:
                with self.session() as session:
                    while self.counted < until:
                        self._one(session)
            except Refused:
                self.is_at_target = not self.is_at_target

    def _one(self, session: Session) -> None:
        self.counted += 1
        number = self.counted * 10 + self.number
        run = self.drawn.draw.choice((self._plain, self._plain, self._plain, self._branch, self._single))
        with contextlib.suppress(Aborted):
            run(session, number)

    def _single(self, session: Session, number: int) -> None:
        """Each statement commits by itself."""
        for sql in self.drawn.statements():
            run(session, sql)

    def _plain(self, session: Session, number: int) -> None:
        run(session, "BEGIN")
        try:
            for sql in [*self._inside(), f"INSERT INTO done VALUES ({number},'w{self.number}')"]:
                run(session, sql)
        except (Refused, Aborted):
            run(session, "ROLLBACK")
            raise
        is_kept = self.drawn.draw.random() < 0.8
        run(session, "COMMIT" if is_kept else "ROLLBACK")
        if is_kept:
            self.committed.add(number)

    def _inside(self) -> Iterator[str]:
        for _ in range(self.drawn.draw.randint(1, 3)):
            yield from self.drawn.statements()
        if self.drawn.draw.random() < 0.4:
            yield "SAVEPOINT s"
            yield from self.drawn.statements()
            yield self.drawn.draw.choice(("ROLLBACK TO SAVEPOINT s", "ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s"))
            yield from self.drawn.statements()

    def _branch(self, session: Session, number: int) -> None:
        branch = Branch(session, f"{self.pair.source.name}-{number}")
        branch.prepare([*self.drawn.statements(), f"INSERT INTO done VALUES ({number},'x{self.number}')"])
        if branch.end(self.drawn.draw.random() < 0.7):
            self.committed.add(number)


@dataclass(frozen=True, slots=True)
class Branch:
    """Of an XA transaction."""

    session: Session
    name: str

    def prepare(self, statements: list[str]) -> None:
        run(self.session, f"XA START '{self.name}'")
        try:
            for sql in statements:
                run(self.session, sql)
            run(self.session, f"XA END '{self.name}'")
        except (Refused, Aborted):
            for sql in (f"XA END '{self.name}'", f"XA ROLLBACK '{self.name}'"):
                with contextlib.suppress(SqlError, LockWait):
                    self.session.execute_raw(sql)
            raise
        run(self.session, f"XA PREPARE '{self.name}'")

    def end(self, is_kept: bool) -> bool:
        run(self.session, f"XA {'COMMIT' if is_kept else 'ROLLBACK'} '{self.name}'")
        return is_kept


def run(session: Session, sql: str) -> None:
    """Raises Refused, Aborted."""
    try:
        session.execute_raw(sql)
    except LockWait:
        raise Aborted from None
    except SqlError as error:
        if error.code in _REFUSED:
            raise Refused from None
        if error.code not in _MISSED:
            raise AssertionError(sql) from error


@dataclass(slots=True)
class Writers:
    """Several at a time."""

    pair: Pair
    seed: int
    count: int = 2
    writers: list[Writer] = field(default_factory=list)
    around: dict[int, bool] = field(default_factory=dict)
    """Numbers of transactions beside theirs, and whether they were committed."""

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        for number in range(self.count):
            self.writers.append(Writer(self.pair, Drawn(random.Random(draw.random())), number))

    def play(self, transactions: int) -> None:
        """Each of them so many."""
        with self.playing(transactions):
            pass

    @contextlib.contextmanager
    def playing(self, transactions: int) -> Iterator[None]:
        """Beside the block. Raises what one of them has met."""
        errors: list[BaseException] = []
        threads = [threading.Thread(target=partial(_kept, errors, w.play, transactions)) for w in self.writers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    @property
    def committed(self) -> set[int]:
        kept = {number for number, is_kept in self.around.items() if is_kept}
        return kept.union(*(writer.committed for writer in self.writers))


def _kept(errors: list[BaseException], act: Callable[[int], None], given: int) -> None:
    try:
        act(given)
    except (VReplicationError, AssertionError) as error:
        errors.append(error)


_SEEN = {
    "words": "HEX(k), HEX(u), w, v",
    "keyed": "bt+0, HEX(fx), HEX(dm), de, HEX(en), yr+0, HEX(tm), HEX(ch), v",
    "wide": "id, n, hidden, bt+0, HEX(en), en+0, st+0, fl+0e0, db, de, HEX(dt), HEX(tm), HEX(dm), HEX(ts), yr+0,"
    " HEX(ch), HEX(fx), HEX(vb), HEX(tx), HEX(bl), js, HEX(ST_AsBinary(pt)), more, HEX(kept), HEX(made)",
    "done": "n, HEX(writer)",
}
_JSON = 20


def seen(session: Session, table: str) -> list[tuple[object, ...]]:
    """Every row of it; JSON as what it says, since MySQL does not keep how it is written."""
    rows = session.rows(f"SELECT {_SEEN[table]} FROM {table}")
    if table == "wide":
        rows = [(*r[:_JSON], None if r[_JSON] is None else json.loads(r[_JSON]), *r[_JSON + 1 :]) for r in rows]
    return sorted(rows, key=repr)


def difference(pair: Pair) -> str:
    """'' where both servers have the same rows."""
    for table in TABLES:
        there, here = seen(pair.source.admin, table), seen(pair.target.admin, table)
        if there != here:
            apart = [(a, b) for a, b in zip(there, here, strict=False) if a != b]
            return f"{table}: {len(there)} rows on the source, {len(here)} on the target, {apart[:3]}"
    return ""
