"""Where the source's collation is written into a statement, and what is a key of text by its words alone."""

from __future__ import annotations

import pytest

from vreplication.binlog.definitions import Definition
from vreplication.feed.consume import collated
from vreplication.mysql.text import tokens

BARE = (
    "(a CHAR(9) CHARACTER SET utf8mb4^ NOT NULL, b TEXT CHARSET 'utf8mb4'^ COMMENT 'x')",
    "(a CHAR(9) CHAR SET utf8mb4^) DEFAULT CHARSET = utf8mb4^ ENGINE=InnoDB",
    "(a CHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, b TEXT CHARSET utf8mb4^ AS (a COLLATE utf8mb4_bin))",
    "(a CHAR(9) AS (CAST(b AS CHAR(9) CHARSET utf8mb4)), KEY ((JSON_VALUE(c, '$' RETURNING CHAR CHARSET utf8mb4))))",
    "(a INT) COLLATE=utf8mb4_bin CHARSET=utf8mb4",
    "(a INT) CHARSET=utf8mb4, ENGINE=InnoDB, COLLATE utf8mb4_bin",
    " ADD a CHAR(9) CHARACTER SET utf8mb4^, CHARSET=utf8mb4, DEFAULT COLLATE utf8mb4_bin",
    " CONVERT TO CHARACTER SET utf8mb4^, ADD (b CHAR(9) CHARSET utf8mb4^, c CHAR(9) COLLATE utf8mb4_bin)",
)


@pytest.mark.parametrize("marked", BARE)
def test_a_character_set_without_a_collation_is_one_that_may_have_one(marked: str) -> None:
    sql = marked.replace("^", "")
    for place in sorted((each.end for each in collated._bare_charsets(tokens(sql))), reverse=True):
        sql = f"{sql[:place]}^{sql[place:]}"
    assert sql == marked


@pytest.mark.parametrize("options", ["WITH SYSTEM VERSIONING CHARSET=latin1", "ENGINE=InnoDB CHAR SET latin1"])
def test_a_table_whose_options_name_a_character_set_gets_no_other_one(options: str) -> None:
    assert collated._place_of_options(tokens(f"(a CHAR(9)) {options}"), 0) is None


KEYS = {
    "(a CHAR(9) KEY, FOREIGN KEY (a) REFERENCES p (a))": True,
    "(id INT, `A` TEXT, UNIQUE ((lower(a))))": True,
    "(id INT, a CHAR(9), PRIMARY KEY (id, a)) PARTITION BY KEY (a)": True,
    "(id INT PRIMARY KEY, a TEXT, FULLTEXT KEY (a), KEY (a(9)), FOREIGN KEY (id) REFERENCES a (id))": False,
    "(id INT KEY, a CHAR(9), b INT UNIQUE) PARTITION BY HASH (id)": False,
}


@pytest.mark.parametrize(("body", "has_key"), KEYS.items())
def test_keys_of_text_are_found_by_the_words_of_a_new_table(body: str, has_key: bool) -> None:
    new = Definition(verb="CREATE", what="TABLE", schema="s", sql="", tables=(("s", "t"),))
    assert collated._says_a_key_of_text(tokens(body), new, None, ()) is has_key
