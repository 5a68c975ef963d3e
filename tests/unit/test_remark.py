"""The comment in which a cut-over says by which ALTER: it comes back as it was, and ends nothing else."""

from __future__ import annotations

import pytest

from vreplication.binlog.control import Query
from vreplication.binlog.definitions import Definition, definition
from vreplication.binlog.grammar import Kind
from vreplication.binlog.statements import meaning
from vreplication.feed.catalog import Filter, Tables
from vreplication.mysql.remark import Altered, read_remark, with_remark
from vreplication.mysql.text import has_opened_comment, tokens

SWAP = "RENAME TABLE `s`.`t` TO `s`.`t__vr_old_0a1b2c`, `s`.`t__vr_new` TO `s`.`t`"
ODD = "COMMENT='*/ /*! /*M! ö \\\\ \" \U0001f600'"
ALTERS = ("ADD b INT", ODD, "ADD c INT -- x\n, DROP d", "COMMENT='/* vreplication {'")


@pytest.mark.parametrize("clauses", ALTERS)
def test_what_is_said_is_read_and_hides_nothing(clauses: str) -> None:
    said = (Altered(schema="s", table="t", clauses=clauses), Altered(schema="s", table="ü*", clauses="FORCE"))
    sql = with_remark(SWAP, said)
    assert read_remark(sql) == said
    assert (sql.isascii(), has_opened_comment(sql), tokens(sql)) == (True, False, tokens(SWAP))
    # Who copies the table, or follows another one, takes it as before.
    for watched, kind in (("t", Kind.STOP), ("u", Kind.PASS)):
        query = Query(schema="s", text=sql.encode(), collation=45, sql_mode=0)
        assert meaning(query, "utf-8", frozenset({("s", watched)})).kind is kind


def test_of_an_alter_that_is_too_long_nothing_is_said() -> None:
    assert with_remark(SWAP, [Altered(schema="s", table="t", clauses="x" * (300 << 10))]) == SWAP


OURS, GHOST = "t__vr_old_0a1b2c", "_t_gho"


@pytest.mark.parametrize(
    ("sql", "sent"),
    [
        (with_remark(SWAP, [Altered(schema="s", table="t", clauses="FORCE")]), ["ALTER TABLE `t` FORCE"]),
        (with_remark(SWAP, [Altered(schema="s", table="no", clauses="FORCE")]), []),
        # By an older version of ours, and by an operator who goes back: it is said, though nobody can run it.
        (SWAP, [SWAP]),
        (f"RENAME TABLE t TO x, {OURS} TO t", [f"RENAME TABLE t TO x, {OURS} TO t"]),
        (f"RENAME TABLES t WAIT 5 TO x, {OURS} NOWAIT TO t", [f"RENAME TABLES t WAIT 5 TO x, {OURS} NOWAIT TO t"]),
        (f"RENAME TABLE no TO x, {OURS} TO no", []),
        # A move's.
        ("RENAME TABLE t__vr_new TO t, u__vr_new TO u", []),
        (f"RENAME TABLE t TO {OURS}", []),
        ("CREATE TABLE t__vr_new LIKE t", []),
        (f"DROP TABLE {OURS}", []),
        (f"DROP TABLE t, {OURS}", ["DROP TABLE `s`.`t`"]),
        ("DROP TABLE if exists no, t, u", ["DROP TABLE IF EXISTS `s`.`t`, `s`.`u`"]),
        ("RENAME TABLE no TO t2, t TO x, x TO y", ["RENAME TABLE `s`.`t` TO `s`.`x`, `s`.`x` TO `s`.`y`"]),
        (f"DROP TABLE no, {OURS}", []),
        # Of other tools' tables those are sent that the patterns name.
        (f"RENAME TABLE t TO _t_del, {GHOST} TO t", [f"RENAME TABLE t TO _t_del, {GHOST} TO t"]),
        (f"ALTER TABLE {GHOST} ADD b INT", []),
    ],
)
def test_what_of_a_ddl_goes_into_a_feed(sql: str, sent: list[str]) -> None:
    query = Query(schema="s", text=sql.encode(), collation=45, sql_mode=0)
    found = definition(query, "utf-8")
    assert isinstance(found, Definition)
    tables = Following(filter=Filter(tables=("s.[tu]",)), connect=_no_server)
    assert [each.sql for each in tables.defined(found)] == sent


class Following(Tables):
    is_folded = False  # type: ignore[assignment]


def _no_server() -> None:  # type: ignore[return]
    raise AssertionError("nobody is asked")
