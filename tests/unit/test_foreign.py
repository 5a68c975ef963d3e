"""Which foreign keys act by themselves, as both servers print them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vreplication.binlog.control import Query
from vreplication.binlog.definitions import definition
from vreplication.cutover import waiter
from vreplication.cutover.waiter import Waiter
from vreplication.errors import Refused, Transient
from vreplication.mysql.remark import of_keys
from vreplication.planning.foreign import acts_on
from vreplication.schema.foreign import Alters, ForeignKey, read_indexes, read_keys


@pytest.mark.parametrize(
    ("key", "acts"),
    [
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`)", False),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE CASCADE", True),
        ("FOREIGN KEY (`p`) REFERENCES `s`.`t` (`id`) ON UPDATE SET NULL", True),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE CASCADE ON UPDATE NO ACTION,", True),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE NO ACTION ON UPDATE CASCADE", True),
        ("FOREIGN KEY (`p`) REFERENCES `t` (`id`) ON DELETE RESTRICT ON UPDATE RESTRICT,", False),
        ("FOREIGN KEY (`p`) REFERENCES `x) ON DELETE CASCADE` (`id`)", False),
        ("CHECK (`a` <> ' FOREIGN KEY (p) ON DELETE CASCADE')", False),
    ],
)
def test_a_key_acts_by_its_clauses(key: str, acts: bool) -> None:
    lines = (
        "CREATE TABLE `k` (",
        "  `p` int COMMENT 'FOREIGN KEY () ON DELETE CASCADE',",
        f"  CONSTRAINT `a``b` {key}",
        ")",
    )
    assert acts_on("\n".join(lines)) is acts


def test_a_key_is_made_anew_as_it_was_printed() -> None:
    """Both servers' ways of printing it; what looks like one in a comment is none."""
    printed = (
        "CREATE TABLE `c` (",
        "  `a` int COMMENT '\\n  CONSTRAINT `n` FOREIGN KEY (`a`) REFERENCES `t` (`id`)',",
        "  CONSTRAINT `x``y` FOREIGN KEY (`a`, `b)`) REFERENCES `o``s`.`t` (`i`,`j`) ON DELETE SET NULL "
        "ON UPDATE CASCADE,",
        "  CONSTRAINT `z` FOREIGN KEY (`a`) REFERENCES `t` (`id`)",
        ") ENGINE=InnoDB",
    )
    both, plain = read_keys("\n".join(printed), "s", "c")
    assert (both.name, both.columns, both.parent, both.acts) == ("x`y", ("a", "b)"), ("o`s", "t"), True)
    assert (plain.parent, plain.referenced, plain.acts) == (("s", "t"), ("id",), False)
    assert Alters(table=both.child).moved([both], ("s", "n")) == (
        "ALTER TABLE `s`.`c` DROP FOREIGN KEY `x``y`, ADD CONSTRAINT `x``y__vr` FOREIGN KEY (`a`,`b)`) "
        "REFERENCES `s`.`n` (`i`,`j`) ON DELETE SET NULL ON UPDATE CASCADE, ALGORITHM=INSTANT"
    )


def test_on_mysql_an_index_of_the_keys_name_goes_with_it() -> None:
    """Else the server builds another one, if it had made that for the key."""
    key = ForeignKey(child=("s", "c"), name="x", columns=("a",), parent=("s", "t"), referenced=("id",))
    alters = Alters(table=key.child, indexes=read_indexes("  PRIMARY KEY (`id`),\n  KEY `x` (`a`),\n  KEY `y` (`b`)"))
    added = "ADD CONSTRAINT `x__vr` FOREIGN KEY (`a`) REFERENCES `s`.`n` (`id`), RENAME INDEX `x` TO `x__vr`"
    assert alters.added([key], ("s", "n")) == f"ALTER TABLE `s`.`c` {added}, ALGORITHM=INPLACE"
    assert alters.dropped([key]) == of_keys("ALTER TABLE `s`.`c` DROP FOREIGN KEY `x`, ALGORITHM=INPLACE")
    back = Alters(table=key.child, indexes=frozenset({"x__vr"})).dropped([replace(key, name="x__vr")])
    named = "DROP FOREIGN KEY `x__vr`, RENAME INDEX `x__vr` TO `x`"
    assert back == of_keys(f"ALTER TABLE `s`.`c` {named}, ALGORITHM=INPLACE")


def test_a_feed_passes_over_each_alter_of_a_key() -> None:
    """Of a key that a table has twice one is dropped: run on a target it would take the only one."""
    key = ForeignKey(child=("s", "c"), name="x", columns=("a",), parent=("s", "t"), referenced=("id",))
    alters = Alters(table=key.child, indexes=frozenset({"x"}))
    added, named = alters.added([key], ("s", "t__vr_new")), alters.moved([replace(key, name="x__vr")])
    for sql in (added, alters.dropped([key]), named):
        assert definition(Query(schema="s", text=sql.encode(), collation=45, sql_mode=0), "utf-8") is None


class Refusing:
    """A session whose server refuses what it is sent."""

    id = 7

    def execute_raw(self, sql: str) -> None:
        raise Refused("Access denied; you need the RELOAD privilege.")


def test_a_lock_that_was_refused_is_not_taken_for_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers of a relative would get in between RENAME and the end."""
    session: Any = Refusing()
    monkeypatch.setattr(waiter, "processes", lambda _: {})
    with pytest.raises(Transient, match="RELOAD"):
        Waiter(session, "FLUSH TABLES t WITH READ LOCK").wait_until_pending(session)
