"""A row in the way that the server speaks of and nobody finds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.apply import unique
from vreplication.apply.unique import UniqueWriter
from vreplication.apply.writer import Marks
from vreplication.errors import BadValue
from vreplication.mysql.session import LockWait, SqlError


def test_one_that_is_never_there_ends_the_workflow_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gone a moment ago is tried again; not for ever."""
    target: Any = SimpleNamespace()
    session: Any = SimpleNamespace()
    writer = UniqueWriter(target=target, number=0)

    def insert(self: UniqueWriter, session: Any, rows: list[str]) -> None:
        raise SqlError("Duplicate entry '7' for key 'one'", code=1062)

    def push_out(self: UniqueWriter, session: Any, key: str, row: str, marks: Marks) -> int:
        return self.in_vain(key)

    monkeypatch.setattr(UniqueWriter, "_insert", insert)
    monkeypatch.setattr(UniqueWriter, "_push_out", push_out)
    monkeypatch.setattr(unique, "delete_keys", lambda *_: None)
    marks = Marks(number=1, batch=None, has_tombstones=False, has_suspects=False)
    errors: list[type[Exception]] = []
    while not errors or errors[-1] is LockWait:
        with pytest.raises((LockWait, BadValue), match="7") as caught:
            writer._write_row(session, "7", "7,1", marks)
        errors.append(caught.type)
    assert errors[-1] is BadValue
    assert 3 < len(errors) < 100
