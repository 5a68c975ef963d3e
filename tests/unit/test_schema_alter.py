"""Reading ALTER clauses: who is renamed, dropped, added; what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.errors import Refused
from vreplication.schema.alter import parse_alter

COLUMNS = ("id", "a", "b", "C")


def follow(text: str) -> dict[str, str]:
    return parse_alter(text).sources(COLUMNS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ENGINE=InnoDB", {"id": "id", "a": "a", "b": "b", "c": "C"}),
        ("DROP a, DROP COLUMN b, DROP COLUMN IF EXISTS c", {"id": "id"}),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", {"id": "id", "b": "a", "a": "b", "c": "C"}),
        ("CHANGE a x INT COMMENT 'DROP b, RENAME COLUMN c TO d'", {"id": "id", "x": "a", "b": "b", "c": "C"}),
        ("CHANGE COLUMN IF EXISTS `a` `x y` DECIMAL(10,2) FIRST", {"id": "id", "x y": "a", "b": "b", "c": "C"}),
        ("DROP COLUMN a, ADD COLUMN a INT", {"id": "id", "b": "b", "c": "C"}),
        ("RENAME COLUMN a TO x, ADD COLUMN A INT NOT NULL", {"id": "id", "x": "a", "b": "b", "c": "C"}),
        ("DROP a, CHANGE b a BIGINT", {"id": "id", "a": "b", "c": "C"}),
        ("ADD COLUMN IF NOT EXISTS a INT", {"id": "id", "a": "a", "b": "b", "c": "C"}),
        (
            "ADD (x INT, y DECIMAL(4,2), KEY (x), CONSTRAINT q CHECK (y > 0))",
            {"id": "id", "a": "a", "b": "b", "c": "C"},
        ),
        ("DROP PRIMARY KEY, DROP INDEX a, DROP KEY b, DROP CONSTRAINT c", {"id": "id", "a": "a", "b": "b", "c": "C"}),
        (
            "ADD UNIQUE KEY a (a), ADD CONSTRAINT b UNIQUE (b), ADD INDEX c (c)",
            {"id": "id", "a": "a", "b": "b", "c": "C"},
        ),
        ("RENAME INDEX a TO b, RENAME KEY c TO d", {"id": "id", "a": "a", "b": "b", "c": "C"}),
        ("DROP `index`, DROP `primary`", {"id": "id", "a": "a", "b": "b", "c": "C"}),
        ("/* DROP a, */ drop -- b\n C", {"id": "id", "a": "a", "b": "b"}),
    ],
)
def test_columns_are_followed(text: str, expected: dict[str, str]) -> None:
    assert follow(text) == expected


def test_added_columns_are_listed() -> None:
    found = parse_alter(
        "ADD x INT, ADD COLUMN (y INT, `z,z` ENUM('a,b','c)')), ADD COLUMN IF NOT EXISTS w INT, ADD KEY (x)"
    )
    assert found.added == ("x", "y", "z,z")
    assert found.maybe_added == ("w",)


def test_partitions_behind_added_columns_are_no_columns() -> None:
    found = parse_alter(
        "ADD (x INT, y INT) PARTITION BY RANGE (id)"
        " (PARTITION p VALUES LESS THAN (3), PARTITION q VALUES LESS THAN (9))"
    )
    assert found.added == ("x", "y")
    assert found.sources(("id", "partition")) == {"id": "id", "partition": "partition"}


def test_a_column_that_lives_on_follows_its_own_whatever_is_added_if_it_is_missing() -> None:
    text = "DROP a, CHANGE b a INT, ADD COLUMN IF NOT EXISTS a INT"
    assert follow(text) == {"id": "id", "a": "b", "c": "C"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("  -- nothing\n", "empty"),
        ("ADD x INT; DROP TABLE t", "more than one statement"),
        ("RENAME TO other", "renames the table"),
        ("RENAME other", "renames the table"),
        ("RENAME AS `x`.`y`, ADD z INT", "renames the table"),
        ("RENAME `column`", "renames the table"),
        ("ADD x INT, EXCHANGE PARTITION p WITH TABLE u", "EXCHANGE PARTITION"),
        ("TRUNCATE PARTITION p0", "TRUNCATE PARTITION"),
        ("DROP PARTITION p0", "DROP PARTITION"),
        ("DISCARD TABLESPACE", "DISCARD TABLESPACE"),
        ("IMPORT PARTITION p TABLESPACE", "IMPORT PARTITION"),
        ("CONVERT PARTITION p TO TABLE u", "CONVERT PARTITION"),
        ("ADD SYSTEM VERSIONING", "ADD SYSTEM"),
        ("ADD FOREIGN KEY (a) REFERENCES u (a)", "foreign key"),
        ("ADD CONSTRAINT fk FOREIGN KEY (a) REFERENCES u (a)", "foreign key"),
        ("ADD COLUMN x INT REFERENCES u (id)", "foreign key"),
        ("ORDER BY a, b", "ORDER BY"),
        ("ADD x INT COMMENT 'open", "cannot be read"),
        ("ADD x INT /*!80000 INVISIBLE */", "comment"),
        ("ALTER TABLE t ADD x INT", "begins with ALTER TABLE"),
        ("ADD", "name is missing"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parse_alter(text)


def test_a_closing_semicolon_is_dropped() -> None:
    assert parse_alter(" ADD x INT ; ").text == "ADD x INT"


def test_constraints_are_renamed_in_place() -> None:
    found = parse_alter("DROP CHECK `t_chk_1`, ADD x INT, ALTER CONSTRAINT T_CHK_2 NOT ENFORCED, DROP CONSTRAINT uk")
    text = found.with_constraints({"t_chk_1": "s_chk_1", "t_chk_2": "s`2"})
    assert text == "DROP CHECK `s_chk_1`, ADD x INT, ALTER CONSTRAINT `s``2` NOT ENFORCED, DROP CONSTRAINT uk"


def test_a_check_that_is_dropped_and_added_again_keeps_one_name() -> None:
    found = parse_alter("DROP CHECK mine, ADD CONSTRAINT Mine CHECK (v > 1), ADD CONSTRAINT uk UNIQUE (v)")
    text = found.with_constraints({"mine": "s_chk_1", "uk": "x"})
    assert text == "DROP CHECK `s_chk_1`, ADD CONSTRAINT `s_chk_1` CHECK (v > 1), ADD CONSTRAINT uk UNIQUE (v)"


@given(st.text(alphabet="ADROPCHNGEUMab,();'`\"\\/*!-# \n0", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        clauses = parse_alter(text)
    except Refused:
        return
    assert clauses.text in text
