"""Catch-up of tables with keys of text, beside other unique keys: what the application does to them comes out exactly.

Keys are spelled in ways that a collation holds for one, rows take each other's keys and each other's unique values, and
batches are shared between one to four connections, however small. `Run.result` asks that verification found nothing.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from sandbox.databases import Database
from tests.support.flow import Run, begin, contents, definition, paused_at, wait_reached, wait_until
from vreplication.apply import rounds
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.state import lease, markers, workflows
from vreplication.workflows import operate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("quick"), pytest.mark.either]

WORDS = (
    "a",
    "A",
    "a ",
    "ä",
    "Ä",
    "á",
    "b",
    "B",
    "ß",
    "ss",
    "SS",
    "ﬁ",
    "fi",
    "",
    " ",
    "æ",
    "ae",
    "ａ",
    "i",
    "İ",
    "ı",
    "c\t",
    "c",
)
FEW = ("a", "A", "b", "B", "c", "C", "d", "e")
TRANSACTIONS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table with a key `k` and unique values `u`; `w` is unique by what the application does alone."""

    columns: str
    alter: str = "ADD COLUMN added INT NOT NULL DEFAULT 7"
    words: tuple[str, ...] = WORDS


def text_key(kind: str, **more: str) -> Shape:
    columns = f"k {kind} NOT NULL, u VARCHAR(20), w INT, v INT NOT NULL DEFAULT 0, PRIMARY KEY (k), UNIQUE KEY (u)"
    return Shape(columns=columns, **more)  # type: ignore[arg-type]


SHAPES = {
    "varchar": text_key("VARCHAR(20)"),
    "char": text_key("CHAR(20)"),
    "latin1": text_key("VARCHAR(20) CHARACTER SET latin1", words=FEW),  # type: ignore[arg-type]
    "enum": text_key("ENUM('a','b','c','d','e','')", words=("a", "b", "c", "d", "e")),  # type: ignore[arg-type]
    "decimal": text_key("DECIMAL(6,2)", words=("0", "-0.00", "1", "1.00", "01", "-1", "2.5", "2.50")),  # type: ignore[arg-type]
    "datetime": text_key("DATETIME(3)", words=tuple(f"2026-01-0{i} 00:00:00" for i in range(1, 9))),  # type: ignore[arg-type]
    "several columns": Shape(
        columns="t INT NOT NULL DEFAULT 1, k VARCHAR(20) NOT NULL, u VARCHAR(20), w INT, v INT NOT NULL DEFAULT 0,"
        " PRIMARY KEY (t, k), UNIQUE KEY (u, v), UNIQUE KEY prefixed (k, u(3))"
    ),
    "new unique key": text_key("VARCHAR(20)", alter="ADD UNIQUE KEY one (w)"),
    "new unique key, several": text_key("VARCHAR(20)", alter="ADD UNIQUE KEY one (w), ADD UNIQUE KEY two (v, w)"),
    "another collation": Shape(
        columns="k VARCHAR(20) NOT NULL, u VARCHAR(20), w INT, v INT NOT NULL DEFAULT 0, PRIMARY KEY (k), UNIQUE (u)",
        alter="MODIFY k VARCHAR(20) COLLATE utf8mb4_bin NOT NULL",
        # No trailing spaces: the new collation does not tell them apart, and some of the old ones do.
        words=(*FEW, "ä", "Ä", "ß", "ss", "SS", "æ", "ae"),
    ),
}
COLLATIONS = {
    "mariadb": ("utf8mb4_general_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_unicode_nopad_ci", "utf8mb4_uca1400_as_cs"),
    "mysql": ("utf8mb4_0900_ai_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_as_cs", "utf8mb4_general_ci"),
}


@dataclass(slots=True, kw_only=True)
class History:
    """What the application does, drawn. Each number `w` belongs to one row at a time, at the end of a transaction."""

    draw: random.Random
    words: tuple[str, ...]
    numbers: int = 0
    last: list[str] = field(default_factory=list)

    def transaction(self) -> Iterator[str]:
        yield "BEGIN"
        for _ in range(self.draw.randint(1, 5)):
            yield from self.statements()
        yield self.draw.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))

    def word(self) -> str:
        return "'" + self.draw.choice(self.words).replace("'", "''") + "'"

    def value(self) -> str:
        return self.draw.choice((self.word(), self.word(), "NULL"))

    def fresh(self) -> int:
        self.numbers += 1
        return self.numbers

    def statements(self) -> list[str]:
        one, two, value = self.word(), self.word(), self.value()
        insert = f"INSERT INTO t (k,u,w) VALUES ({one},{value},{self.fresh()})"
        return self.draw.choice(
            (
                [insert],
                [insert],
                [f"REPLACE INTO t (k,u,w) VALUES ({one},{value},{self.fresh()}), ({two},NULL,{self.fresh()})"],
                [f"{insert} ON DUPLICATE KEY UPDATE k={two}, v=t.v+1"],
                [f"UPDATE IGNORE t SET k={one} WHERE k={two}"],
                [f"UPDATE IGNORE t SET u={value}, v=v+1 WHERE k={one}"],
                [f"UPDATE IGNORE t SET k={one}, u={value} WHERE k={two}"],
                ["UPDATE t SET v=v+1"],
                [f"DELETE FROM t WHERE k={one}"],
                [f"DELETE FROM t WHERE k={one}", insert],
                # Two rows exchange what is unique.
                [
                    f"SET @u=(SELECT u FROM t WHERE k={one} LIMIT 1), @v=(SELECT u FROM t WHERE k={two} LIMIT 1)",
                    f"UPDATE t SET u=NULL WHERE k IN ({one},{two})",
                    f"UPDATE IGNORE t SET u=@v WHERE k={one}",
                    f"UPDATE IGNORE t SET u=@u WHERE k={two}",
                ],
                [
                    "SET @a=(SELECT MIN(w) FROM t), @b=(SELECT MAX(w) FROM t)",
                    "UPDATE t SET w=@a+@b-w WHERE w IN (@a,@b)",
                ],
            )
        )


def play(app: Session, history: History, transactions: int) -> None:
    for _ in range(transactions):
        for sql in history.transaction():
            try:
                app.execute_raw(sql)
            except SqlError as error:
                if error.code not in (1062, 1265, 1366):
                    raise AssertionError(sql) from error


def is_prepared(database: Database, run: Run) -> bool:
    """What is written from here on comes by the log."""
    with connect(database.url) as session:
        row = workflows.find(session, run.workflow)
    assert run.is_going, run.result().reason
    return row is not None and row.rows_total is not None


def finish(database: Database, app: Session, run: Run, alter: str) -> None:
    def check() -> None:
        assert run.is_going, run.result().reason

    with connect(database.url) as session:
        marker = markers.write(session, run.workflow)
        markers.wait_applied(session, run.workflow, marker, timeout_seconds=180.0, check=check)
    operate.release(database.url, run.workflow, "test")
    result = run.result()
    assert result.event == "complete", result
    app.execute_raw(f"ALTER TABLE {ident(str(result.retired_table))} {alter}")
    assert contents(app, "t") == contents(app, str(result.retired_table))
    assert definition(app, "t") == definition(app, str(result.retired_table))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.in_turn
def test_keys_of_text_and_unique_values_come_out_exactly(
    database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(rounds, "_WORTH_SHARING", 1)
    shape, seed = SHAPES[name], secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    collations = COLLATIONS[database.server.flavor]
    for connections in sorted(draw.sample((1, 2, 3, 4), 2)):
        history = History(draw=draw, words=shape.words)
        # A CHAR under that one is refused: MariaDB sorts it otherwise than it compares.
        collation = collations[connections - 1].replace("_nopad", "" if name == "char" else "_nopad")
        with connect(database.app_url) as app:
            app.execute_raw("DROP TABLE IF EXISTS t")
            app.execute_raw(f"CREATE TABLE t ({shape.columns}) CHARACTER SET utf8mb4 COLLATE {collation}")
            play(app, history, 20)
            run = begin(database, "t", shape.alter, apply_parallelism=connections, cutover="manual", chunk_rows=3)
            play(app, history, TRANSACTIONS // 2)
            wait_until(partial(is_prepared, database, run), f"the workflow is not prepared: {run.said}")
            # Then many transactions in one batch.
            with paused_at(pauses, "apply.before_flush"):
                app.execute_raw(f"REPLACE INTO t (k,u,w) VALUES ({history.word()},NULL,{history.fresh()})")
                wait_reached(pauses, "apply.before_flush", run)
                play(app, history, TRANSACTIONS // 2)
            finish(database, app, run, shape.alter)


@pytest.mark.parametrize("point", ["apply.between_rounds", "apply.before_checkpoint"])
@pytest.mark.parametrize("name", ["varchar", "several columns", "new unique key"])
@pytest.mark.in_turn
def test_a_batch_that_was_written_in_part_is_written_again(
    database: Database, pauses: Path, monkeypatch: pytest.MonkeyPatch, name: str, point: str
) -> None:
    """Its connections are lost where its deletes are committed and its writes are not, or all but its checkpoint."""
    monkeypatch.setattr(rounds, "_WORTH_SHARING", 1)
    shape, seed = SHAPES[name], secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    history = History(draw=random.Random(seed), words=shape.words)
    with connect(database.app_url) as app:
        collation = COLLATIONS[database.server.flavor][0]
        app.execute_raw(f"CREATE TABLE t ({shape.columns}) CHARACTER SET utf8mb4 COLLATE {collation}")
        play(app, history, 20)
        run = begin(database, "t", shape.alter, apply_parallelism=2, cutover="manual", chunk_rows=3)
        wait_until(partial(is_prepared, database, run), f"the workflow is not prepared: {run.said}")
        for _ in range(3):
            play(app, history, 20)
            with paused_at(pauses, point):
                respell(app)
                wait_reached(pauses, point, run)
                play(app, history, 20)
                lose_connections(database, run)
        finish(database, app, run, shape.alter)


def respell(app: Session) -> None:
    """A row that is deleted under one key and written under another one, which is the same to the server."""
    with app.transaction():
        app.execute_raw("DELETE FROM t WHERE k='respelled'")
        app.execute_raw("INSERT INTO t (k,u,w) VALUES ('respelled',NULL,NULL)")
        app.execute_raw("UPDATE t SET k='RESPELLED', v=v+1 WHERE k='respelled'")


def lose_connections(database: Database, run: Run) -> None:
    """As a network does it: catch-up starts again from its checkpoint."""
    with connect(database.url) as session:
        holder = lease.holder_of(session, run.workflow, lease.REPLICATE)
    assert holder is not None
    for connection in holder.connections:
        database.admin.kill(connection)
