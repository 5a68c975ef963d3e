"""Which source counts as lost, by what connecting to it says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from vreplication.errors import Refused
from vreplication.mysql import session
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


@pytest.mark.parametrize("answered", [0, 1])
def test_one_that_lets_us_in_and_says_no_more_is_not_lost(monkeypatch: pytest.MonkeyPatch, answered: int) -> None:
    """Its disk hangs, and its application goes on when that is over."""
    made = _Hanging(answered)
    monkeypatch.setattr(session, "_keep_alive", lambda sock: None)
    monkeypatch.setattr(lost_source, "connect", functools.partial(connect, connection_class=lambda **_: made))
    with pytest.raises(Refused, match="lets us in"):
        lost_source._answers(URL, MOVE)


class _Hanging:
    """A connection that answers so many statements, and no more."""

    open, _sock = True, None

    def __init__(self, answered: int) -> None:
        self._left = answered

    def thread_id(self) -> int:
        return 1

    def get_server_info(self) -> str:
        return "9.7.0"

    def query(self, sql: str) -> int:
        self._left -= 1
        if self._left < 0:
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query (timed out)")
        return 0

    def cursor(self, *_: object) -> Any:
        raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query (timed out)")

    def close(self) -> None: ...

    def _force_close(self) -> None: ...


def test_one_that_cannot_be_reached_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_source, "connect", _fails(2003))
    assert not lost_source._answers(URL, MOVE)
