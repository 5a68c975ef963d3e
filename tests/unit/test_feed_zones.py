"""Which DDL of a feed may make a value by its session's time zone, as far as its words tell."""

from __future__ import annotations

import pytest

from vreplication.feed.spoken import may_ask_for_a_zone

TEXT_OF_A_TIME = "(CONCAT(a))"


@pytest.mark.parametrize(
    ("sql", "may"),
    [
        ("ALTER TABLE t ADD COLUMN n INT DEFAULT 5, ADD INDEX by_n (n)", False),
        ("ALTER TABLE t ADD COLUMN d DECIMAL(9,2)", False),
        (f"ALTER TABLE t ADD COLUMN s CHAR(30) DEFAULT {TEXT_OF_A_TIME}", True),
        (f"ALTER TABLE t ADD COLUMN s CHAR(30) DEFAULT /* of a */ {TEXT_OF_A_TIME}", True),
        (f"ALTER TABLE t ADD COLUMN s CHAR(30) DEFAULT UPPER{TEXT_OF_A_TIME}", True),
        (f"ALTER TABLE t ADD INDEX by_a ({TEXT_OF_A_TIME})", True),
        ("ALTER TABLE t MODIFY a CHAR(30)", True),
        ("CREATE TABLE s SELECT CONCAT(a) FROM t", True),
    ],
)
def test_what_may_be_made_of_a_timestamp_asks_for_a_zone(sql: str, may: bool) -> None:
    assert may_ask_for_a_zone(sql) is may
