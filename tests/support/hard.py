"""Draws what loses rows in other tools: collations that join or part keys, text that loses its end, values that depend
on the session, keys over generated columns, settings of the server, writes by every way and at every moment.

What must stay true: a case is plain data and can be repeated; most draws are legal for the server, and who runs them
counts those that are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

SHARED_COLLATIONS = (
    "utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_swedish_ci",
    "utf8mb4_turkish_ci", "utf8mb4_german2_ci", "latin1_swedish_ci", "latin1_bin", "latin1_general_cs",
)  # fmt: skip
OWN_COLLATIONS = {
    "mysql": ("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_ja_0900_as_cs_ks"),
    "mariadb": ("utf8mb4_nopad_bin", "utf8mb4_general_nopad_ci", "uca1400_ai_ci", "uca1400_nopad_as_cs"),
}
# Of each letter the forms that some collation calls the same; all of them are in latin1.
WORDS = (
    "a", "A", "á", "Å", "a ", "A  ", "ae", "æ", "ss", "ß", "s", "S", "i", "I", "ÿ", "", " ", "b", "B", "b\t", "o", "ö",
)  # fmt: skip
ZONES = ("+00:00", "+09:00", "-05:00", "SYSTEM")
MODES = (
    "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
    "",
    "ANSI_QUOTES,STRICT_ALL_TABLES",
    "NO_BACKSLASH_ESCAPES,STRICT_TRANS_TABLES",
    "NO_UNSIGNED_SUBTRACTION,STRICT_TRANS_TABLES",
)
WAYS = ("directly", "by a view", "by a trigger", "by a procedure", "by an event")


@dataclass(frozen=True, slots=True)
class Write:
    """A statement with {t} for the table. way: one of WAYS. format: of the session's log; "" is the server's."""

    sql: str
    way: str = "directly"
    format: str = ""


@dataclass(frozen=True, slots=True)
class Hard:
    """phases: writes before, beside the copy, at the gate, and between the last comparison and the lock. statement: one
    at the gate in statement format, for a group that has them: it ends every workflow of the server."""

    create: str
    alter: str
    rows: tuple[str, ...]
    phases: tuple[tuple[Write, ...], ...]
    statement: Write
    path: str
    apply_parallelism: int


@dataclass(frozen=True, slots=True)
class Setting:
    """Global variables under which a group of cases runs."""

    variables: tuple[tuple[str, Any], ...]
    has_statements: bool


def word() -> Any:
    """Of one or two of WORDS, as a literal that no SQL mode reads in another way."""
    parts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map("".join)
    return parts.map(lambda s: f"_utf8mb4 X'{s.encode().hex()}'" if s else "''")


def time_literal() -> Any:
    return st.tuples(st.integers(1, 28), st.integers(0, 23)).map(lambda d: f"'2024-03-{d[0]:02} {d[1]:02}:30:00'")


def settings(flavor: str) -> Any:
    """Of a group."""
    names: dict[str, Any] = {
        "time_zone": st.sampled_from(ZONES),
        "sql_mode": st.sampled_from(MODES),
        "sql_quote_show_create": st.sampled_from([1, 1, 0]),
        "completion_type": st.sampled_from([0, 0, 1]),
        "sql_notes": st.sampled_from([1, 0]),
        "explicit_defaults_for_timestamp": st.sampled_from([1, 1, 0]),
    }
    variables = st.tuples(*(values.map(lambda v, n=name: (n, v)) for name, values in names.items()))
    return st.builds(Setting, variables, st.integers(0, 11).map(lambda n: n == 7))


def cases(flavor: str) -> Any:
    return _cases(SHARED_COLLATIONS + OWN_COLLATIONS[flavor])


@st.composite
def _cases(draw: st.DrawFn, collations: tuple[str, ...]) -> Hard:
    before, after = draw(st.sampled_from(collations)), draw(st.sampled_from(collations))
    key_type = draw(st.sampled_from(["VARCHAR(12)", "VARCHAR(12)", "CHAR(12)"]))
    has_text_key = draw(st.booleans())
    key, key_columns = ("`k`, `n`", ("k",)) if has_text_key else ("`n`, `k`", ("n",))
    if draw(st.booleans()):
        key = "`k`" if has_text_key else "`n`"
    extras = draw(st.lists(st.sampled_from(_EXTRAS), max_size=2, unique=True))
    create = (
        f"(`n` INT NOT NULL, `k` {key_type} {_collate(before)} NOT NULL, `u` VARCHAR(12) {_collate(before)},"
        f" `ts` TIMESTAMP NOT NULL DEFAULT '2024-01-01 12:00:00', `x` DOUBLE"
        f"{''.join(', ' + e for e in extras)}, PRIMARY KEY ({key})) ENGINE=InnoDB CHARACTER SET utf8mb4"
    )
    alter = ", ".join(draw(_alters(key_type, after, before)))
    number = st.integers(0, 12)

    def row() -> str:
        text = draw(st.one_of(st.just("NULL"), word()))
        return f"{draw(number)},{draw(word())},{text},{draw(time_literal())},{draw(number)}.25"

    def where() -> str:
        return f"`k`={draw(word())}" if key_columns == ("k",) else f"`n`={draw(number)}"

    def sql() -> str:
        return draw(
            st.sampled_from(
                [
                    f"INSERT IGNORE INTO {{t}} ({_COLUMNS}) VALUES ({row()})",
                    f"REPLACE INTO {{t}} ({_COLUMNS}) VALUES ({row()})",
                    f"DELETE FROM {{t}} WHERE {where()}",
                    f"UPDATE IGNORE {{t}} SET `k`={draw(word())} WHERE {where()}",
                    f"UPDATE IGNORE {{t}} SET `u`={draw(word())} WHERE {where()}",
                    f"UPDATE IGNORE {{t}} SET `x`=`x`+1, `ts`={draw(time_literal())} WHERE {where()}",
                    f"UPDATE IGNORE {{t}} SET `n`={draw(number)} WHERE {where()}",
                ]
            )
        )

    def write() -> Write:
        return Write(sql(), draw(st.sampled_from(("directly",) * 12 + WAYS[1:])))

    phases = [tuple(write() for _ in range(draw(st.integers(0, 6)))) for _ in range(4)]
    by = draw(st.sampled_from(("by a view", "by a trigger", "by a procedure", "by an event", "directly")))
    return Hard(
        create=create,
        alter=alter,
        rows=tuple(row() for _ in range(draw(st.integers(0, 20)))),
        phases=tuple(phases),
        statement=Write(f"DELETE FROM {{t}} WHERE {where()}", by, "STATEMENT"),
        path=draw(st.sampled_from(["auto", "server", "rows"])),
        apply_parallelism=draw(st.integers(1, 4)),
    )


_COLUMNS = "`n`,`k`,`u`,`ts`,`x`"
_EXTRAS = (
    "`g1` DOUBLE AS (`x`) STORED",
    "`d` DATE AS (DATE(`ts`)) STORED",
    "`w` VARCHAR(30) AS (CONCAT(`u`,'!')) VIRTUAL",
    "UNIQUE KEY `one` (`u`)",
    "UNIQUE KEY `two` (`u`,`x`)",
    "`y` DOUBLE AS (`x`) STORED, `z` DOUBLE AS (`y`) STORED, UNIQUE KEY `deep` (`z`,`n`)",
)


def _collate(name: str) -> str:
    charset = "latin1" if name.startswith("latin1") else "utf8mb4"
    return f"CHARACTER SET {charset} COLLATE {name}"


def _alters(key_type: str, after: str, before: str) -> Any:
    """One to three clauses on different columns."""
    key = [f"MODIFY `k` {key_type} {_collate(after)} NOT NULL"]
    text = [
        f"MODIFY `u` VARCHAR(12) {_collate(after)}",
        f"MODIFY `u` VARCHAR(3) {_collate(before)}",
        f"MODIFY `u` CHAR(12) {_collate(before)}",
        f"CHANGE `u` `uu` VARCHAR(20) {_collate(before)}",
        f"ADD UNIQUE KEY `fresh` (`u`), MODIFY `u` VARCHAR(12) {_collate(after)}",
    ]
    more = [
        "ADD COLUMN `a1` INT NOT NULL DEFAULT 7",
        "ADD COLUMN `a2` DATE AS (DATE(`ts`)) STORED",
        "ADD COLUMN `a3` DATE DEFAULT (DATE(`ts`))",
        "ADD COLUMN `a4` DATE AS (DATE(`ts`)) VIRTUAL, ADD KEY `by_day` (`a4`)",
        "ADD COLUMN `a5` TIMESTAMP DEFAULT '2024-06-01 00:00:00'",
        "ADD COLUMN `a6` DATETIME NOT NULL DEFAULT '2024-06-01 00:00:00'",
        "MODIFY `x` INT",
        "MODIFY `ts` DATETIME NOT NULL",
        "ENGINE=InnoDB",
    ]
    return st.tuples(
        st.one_of(st.just([]), st.sampled_from(key).map(lambda c: [c])),
        st.one_of(st.just([]), st.sampled_from(text).map(lambda c: [c])),
        st.sampled_from(more).map(lambda c: [c]),
    ).map(lambda groups: [clause for group in groups for clause in group])
