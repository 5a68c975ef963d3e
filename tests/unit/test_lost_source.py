"""Which source counts as lost, by what connecting to it says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from vreplication.errors import Refused
from vreplication.mysql.session import connect
from vreplication.mysql.url import parse
from vreplication.workflows.move_tables import lost_source

URL = parse("mysql://u:p@127.0.0.1:1/d")
MOVE: Any = SimpleNamespace(workflow="w", source_server="its name")


def _fails(code: int) -> Callable[..., Any]:
    def connection(**_: object) -> None:
        raise pymysql.err.OperationalError(code, "words of the server")

    return functools.partial(connect, connection_class=connection)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [1040, 1203, 1226])
def test_a_source_without_a_free_connection_is_not_lost(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """It serves its application, and the target would have taken writes beside it."""
    monkeypatch.setattr(lost_source, "connect", _fails(code))
    with pytest.raises(Refused, match="takes no connection"):
        lost_source._answers(URL, MOVE)


def test_one_that_cannot_be_reached_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_source, "connect", _fails(2003))
    assert not lost_source._answers(URL, MOVE)
