"""What a feed puts aside on disk does not stay there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.binlog.events import Position
from vreplication.errors import Transient
from vreplication.feed.ahead import Ahead
from vreplication.feed.progress import Followed
from vreplication.feed.reading import Reading, Source

SENT = Followed(source="s", position="binlog.000001:4", assigned=900)


def source(home: Path, open_log: Any) -> Source:
    anything: Any = None
    return Source(tables=anything, dispatcher=anything, format=anything, open_log=open_log, home=home)


def ahead(of: Source) -> Ahead:
    tables: Any = SimpleNamespace(close=lambda: None)
    return Ahead(of, tables, "f", "7", SENT)


class _Silent:
    """A log of which nothing comes."""

    is_mariadb = False

    def __iter__(self) -> Any:
        return iter(())

    def join(self, _: object) -> None: ...

    def close(self) -> None: ...


def silent(_: Position) -> Any:
    return _Silent()


def test_a_run_that_was_killed_while_it_sent_ahead_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    killed = source(tmp_path, silent)
    first, beside = Reading("f", killed, SENT), ahead(killed)
    again = Reading("f", source(tmp_path, silent), SENT)
    again.open()
    assert list(tmp_path.iterdir()) == [again.sorter._folder]
    first.sorter.close()
    beside.close()
    again.remove()


def test_a_log_that_is_not_sent_leaves_nothing(tmp_path: Path) -> None:
    def refuses(_: Position) -> Any:
        raise Transient("It is away.")

    with pytest.raises(Transient):
        ahead(source(tmp_path, refuses))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
