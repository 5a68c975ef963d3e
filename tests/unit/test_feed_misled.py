"""Whose DDL may have misled who asked for rows by their key: the asked server's own, and its successor's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from vreplication.binlog.definitions import Definition
from vreplication.errors import Terminal
from vreplication.feed.consume import misled
from vreplication.feed.consume.listener import Ddl
from vreplication.state import feed_asked
from vreplication.state.feed_asked import Asked
from vreplication.state.feed_offsets import Key

SQL = "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a"
SAID = Definition(schema="s", sql=SQL, verb="ALTER", what="TABLE", tables=(("s", "t"),))


@pytest.mark.parametrize(
    ("source", "gtid", "now", "is_misled"),
    [
        pytest.param("one", "0-1-301", {}, True, id="its own, before it was asked"),
        pytest.param("one", "0-1-1000001", {}, False, id="its own, later"),
        pytest.param("other", "0-1-301", {}, False, id="another source's, of the same domain"),
        pytest.param("new", "0-1-301", {"one": "new"}, True, id="its successor's"),
        pytest.param("", "0-1-301", {}, True, id="not told"),
    ],
)
def test_whose_ddl_counts(
    monkeypatch: pytest.MonkeyPatch, source: str, gtid: str, now: Mapping[str, str], is_misled: bool
) -> None:
    asked = Asked(schema="s", table="t", source="one", micros=10, gtids="0-1-1000000")
    monkeypatch.setattr(feed_asked, "load", lambda *_: [asked])
    session: Any = None
    ddl = Ddl(20, "s", SQL, gtid=gtid, source=source)
    try:
        misled.check(session, Key("g", "topic"), ddl, SAID, lambda: now)
    except Terminal:
        assert is_misled
    else:
        assert not is_misled
