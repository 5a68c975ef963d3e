"""What coalescing rests on (apply/batch.py): the log names a row by the bytes of its key, and deletes what it renames.

Under a collation 'a' and 'A' are one key. A row that is written as 'a' is deleted in the log as 'a' before it can be
written as 'A', by whatever statement. So at every place of the log the keys that were written last, and not deleted,
are the bytes of the rows that are there, each of them once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from tests.support.changes import Effect
from tests.support.tailing import changes, groups, here, watch
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect

SAME = [
    *("a", "A", "a ", "a  ", "A ", "ä", "Ä", "a\u0308", "á", "a\t", "a\0", "a\u200b", "\u00ada", "ａ", "ⓐ", "ª"),
    *("", " ", "\t", "\0", "\u200b", "ss", "SS", "ß", "ẞ", "s", "æ", "ae", "AE", "Æ", "i", "I", "ı", "İ", "ch", "CH"),
    *("o", "ö", "oe", "OE", "œ", "か", "カ", "ｶ", "が", "か\u3099", "Ω", "ω", "я", "Я", "🙂", "🙃", "ﬁ", "fi"),
]  # fmt: skip
"""One key or several: what the collation makes of them."""
PER_FLAVOR = {
    "mariadb": (
        *("utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci"),
        *("utf8mb4_general_nopad_ci", "utf8mb4_unicode_nopad_ci"),
        *("utf8mb4_uca1400_ai_ci", "utf8mb4_uca1400_as_cs", "utf8mb4_uca1400_nopad_as_ci", "utf8mb4_german2_ci"),
        *("utf8mb4_czech_ci", "utf8mb4_turkish_ci", "utf8mb4_danish_ci", "utf8mb3_general_ci", "utf8mb3_unicode_ci"),
    ),
    "mysql": (
        *("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_ja_0900_as_cs_ks", "utf8mb4_bin"),
        *("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_de_pb_0900_ai_ci"),
        *("utf8mb4_tr_0900_ai_ci", "utf8mb4_czech_ci", "utf8mb4_zh_0900_as_cs", "utf8mb3_general_ci"),
    ),
}  # fmt: skip
OTHERS = ("latin1_swedish_ci", "latin1_german2_ci", "latin1_general_cs", "ascii_general_ci", "ucs2_general_ci")
ROUNDS = 150


def statements(draw: random.Random, values: list[str]) -> Iterator[str]:
    """One transaction."""
    yield "BEGIN"
    for _ in range(draw.randint(1, 6)):
        yield statement(draw, *(draw.choice(values) for _ in range(3)), draw.randint(0, 9))
        if draw.random() < 0.2:
            yield draw.choice(("SAVEPOINT s", "ROLLBACK TO s"))
    yield draw.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))


def statement(draw: random.Random, one: str, two: str, three: str, n: int) -> str:
    return draw.choice(
        (
            f"INSERT IGNORE INTO t VALUES ({one},{n},0), ({two},{n + 1},0), ({three},NULL,0)",
            f"REPLACE INTO t VALUES ({one},{n},1), ({two},NULL,1)",
            f"INSERT INTO t VALUES ({one},{n},2) ON DUPLICATE KEY UPDATE k={two}, v=v+1",
            f"INSERT INTO t VALUES ({one},NULL,3), ({two},NULL,3) ON DUPLICATE KEY UPDATE k=VALUES(k)",
            f"UPDATE IGNORE t SET k={one} WHERE k={two}",
            f"UPDATE t SET k={one}, v=v+1 WHERE k={one}",
            f"UPDATE IGNORE t SET k=UPPER(k), u={n} WHERE u={n + 1}",
            "UPDATE IGNORE t SET k=LOWER(k) WHERE v < 2",
            f"UPDATE IGNORE t SET k=CONCAT(k,' ') WHERE k >= {one} ORDER BY k DESC LIMIT 2",
            f"UPDATE IGNORE t SET k=TRIM(k) WHERE k <= {one}",
            f"DELETE FROM t WHERE k={one}",
            f"DELETE FROM t WHERE u={n}",
            f"DELETE FROM t WHERE v={n % 4} ORDER BY v, u LIMIT 2",
            f"DELETE FROM t WHERE k={one} OR k={two}",
        )
    )


def quoted(collation: str, value: str) -> str | None:
    charset = collation.split("_")[0]
    try:
        raw = value.encode({"utf8mb4": "utf-8", "utf8mb3": "utf-8", "ucs2": "utf-16-be"}.get(charset, charset))
    except UnicodeEncodeError:
        return None
    if charset in ("utf8mb3", "ucs2") and any(ord(c) > 0xFFFF for c in value):
        return None
    return f"_{charset} X'{raw.hex()}' COLLATE {collation}"


def trial(database: Database, collation: str, kind: str, seed: int) -> None:
    charset = collation.split("_")[0]
    admin = database.admin
    admin.execute_raw("DROP TABLE IF EXISTS t")
    admin.execute_raw(
        f"CREATE TABLE t (k {kind} CHARACTER SET {charset} COLLATE {collation} PRIMARY KEY, u INT UNIQUE,"
        " v INT NOT NULL DEFAULT 0, KEY covering (v, u))"
    )
    start, draw = here(database), random.Random(seed)
    values = [text for value in SAME if (text := quoted(collation, value))]
    with connect(database.app_url) as app:
        for _ in range(ROUNDS):
            some = draw.sample(values, 12) if draw.random() < 0.5 else values[:12]
            for sql in statements(draw, some):
                run(app, sql)
    found = changes(groups(database, start, watch(database, "t", key=("k",))))
    assert len(found) > ROUNDS / 2
    assert alive(found) == present(admin, charset), (collation, kind, seed)


def run(app: Session, sql: str) -> None:
    try:
        app.execute_raw(sql)
    except SqlError as error:
        # A duplicate, a value beyond the length, no such savepoint.
        if error.code not in (1062, 1406, 1305):
            raise


def alive(found: list[Effect]) -> set[str]:
    """Keys by their bytes. Each delete is of a key that is there under these very bytes."""
    keys: set[str] = set()
    for change in found:
        if change.values is None:
            assert change.key in keys, change
            keys.remove(change.key)
        else:
            keys.add(change.key)
    return keys


def present(session: Session, charset: str) -> set[str]:
    rows = session.rows(f"SELECT HEX(CAST({ident('k')} AS BINARY)) FROM t")
    return {f"_{charset} X'{digits}'" if digits else "''" for (digits,) in rows}


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["VARCHAR(20)", "CHAR(20)"])
def test_the_log_deletes_a_row_by_the_bytes_that_it_was_written_with(database: Database, kind: str) -> None:
    for number, collation in enumerate((*PER_FLAVOR[database.server.flavor], *OTHERS)):
        trial(database, collation, kind, seed=20261123 + number)
