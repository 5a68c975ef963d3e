"""The tokenizer: cuts as the servers do, and refuses what it cannot finish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vreplication.mysql.text import Unreadable, has_opened_comment, tokens


def cut(sql: str, **options: bool) -> list[tuple[str, str]]:
    return [(t.kind, t.value) for t in tokens(sql, **options)]


def words(letters: str) -> list[tuple[str, str]]:
    return [("word", letter) for letter in letters]


def signs(characters: str) -> list[tuple[str, str]]:
    return [("punct", sign) for sign in characters]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a.b", [("word", "a"), ("punct", "."), ("word", "b")]),
        ("`a``b`.`c d`", [("quoted", "a`b"), ("punct", "."), ("quoted", "c d")]),
        ("db.1a", [("word", "db"), ("punct", "."), ("word", "1a")]),
        ("t.5e3", [("word", "t"), ("punct", "."), ("word", "5e3")]),
        (
            "1e5 .5 1.5e+3 0x4F",
            [("number", "1e5"), ("number", ".5"), ("number", "1.5e+3"), ("number", "0x4F")],
        ),
        ("1a é", [("word", "1a"), ("word", "é")]),
        (r"'x''y\'z\n\%'", [("string", "x'y'z\n\\%")]),
        (r"'a\''''", [("string", "a''")]),
        ("x'41' n'b' _utf8'c'", [("string", "41"), ("string", "b"), ("word", "_utf8"), ("string", "c")]),
        ("a -- b\nc # d\ne/--/f --", [*words("ace"), *signs("/--/"), *words("f")]),
        ("a--1", [("word", "a"), ("punct", "-"), ("punct", "-"), ("number", "1")]),
        ("a /* b */ c /*+ d */ e", [("word", "a"), ("word", "c"), ("word", "e")]),
        ("/*!50100 a */ b /*M!100100 c */ /*! d*/", [("word", w) for w in "abcd"]),
        ("a:=b<=>c", [("word", "a"), ("punct", ":="), ("word", "b"), ("punct", "<=>"), ("word", "c")]),
    ],
)
def test_cuts(sql: str, expected: list[tuple[str, str]]) -> None:
    assert cut(sql) == expected


@pytest.mark.parametrize("sql", ["'abc", '"abc', "`abc", "/* abc", "/*! abc", "'a\\'", "x'41"])
def test_unfinished_text_is_refused(sql: str) -> None:
    with pytest.raises(Unreadable):
        tokens(sql)


def test_ansi_quotes_make_names() -> None:
    assert cut('"a""b"') == [("string", 'a"b')]
    assert cut('"a""b"', ansi_quotes=True) == [("quoted", 'a"b')]


def test_no_backslash_escapes() -> None:
    assert cut("'a\\' b", backslash_escapes=False) == [("string", "a\\"), ("word", "b")]


def test_opened_comment_is_told() -> None:
    assert has_opened_comment("DROP /*!40000 x */ y")
    assert has_opened_comment("/*M! x */")
    assert not has_opened_comment("/* ! */")
    assert not has_opened_comment("DROP TABLE `a/*!b`, `c*/` /* '/*! */")
    assert has_opened_comment("DROP TABLE `a/*!b` /*!40000 CASCADE */")


def test_places_give_back_the_text() -> None:
    sql = "ALTER TABLE `t` ADD c INT"
    assert [sql[t.start : t.end] for t in tokens(sql)] == [t.text for t in tokens(sql)] == sql.split()


@given(st.text(alphabet="aé1. '\"`\\/*!-#\n(,x0e+", max_size=40))
def test_never_crashes_and_never_loses_a_place(sql: str) -> None:
    try:
        found = tokens(sql)
    except Unreadable:
        return
    ends = [0, *(t.end for t in found)]
    assert all(t.start >= end for t, end in zip(found, ends, strict=False))
    assert all(sql[t.start : t.end] == t.text for t in found)
