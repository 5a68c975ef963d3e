"""What an operator is told where a table came back: after a revert an ALTER alone may leave the target wrong."""

from __future__ import annotations

import pytest

from vreplication.feed.consume import definitions
from vreplication.feed.consume.listener import Ddl
from vreplication.mysql.session import SqlError


@pytest.mark.parametrize(
    ("sql", "is_revert"),
    [
        ("RENAME TABLE s.t TO s.t__vr_old_d48ca3, s.t__vr_old_7931c3 TO s.t", True),
        ("RENAME TABLE t TO x, t__vr_old_7931c3 TO t", True),
        ("RENAME TABLE s.t TO s.t__vr_old_d48ca3, s.t__vr_new TO s.t", False),
        ("rename /* gh-ost */ table `t` to `_t_del`, `_t_gho` to `t`", False),
    ],
)
def test_only_a_table_that_came_back_is_to_be_copied_again(sql: str, is_revert: bool) -> None:
    ddl = Ddl(1, "s", sql)
    error = definitions._refused(ddl, definitions._definition(ddl), SqlError("no such table", code=1146))
    assert "place of s.t" in str(error)
    assert ("copy the table again" in str(error)) is is_revert
