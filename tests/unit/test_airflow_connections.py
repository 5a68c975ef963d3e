"""Airflow connections become URLs of ours, whatever their passwords hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vreplication.airflow.connections import is_marked, to_url
from vreplication.errors import Refused


def connection(**fields: Any) -> SimpleNamespace:
    known = {"conn_id": "c", "login": "u", "password": "p", "host": "h", "port": 3307, "schema": "d"}
    return SimpleNamespace(**{**known, "extra_dejson": {}, **fields})


def test_all_fields() -> None:
    found = to_url(connection(password="a:b@c/d?e#f%20 é", extra_dejson={"vreplication": True, "ssl_ca": "/x y"}))
    assert (found.host, found.port, found.user, found.database) == ("h", 3307, "u", "d")
    assert found.password == "a:b@c/d?e#f%20 é"
    assert found.tls == (("ssl_ca", "/x y"),)
    assert "a:b" not in repr(found)


def test_refused_by_name_and_without_the_password() -> None:
    with pytest.raises(Refused, match="'c'") as caught:
        to_url(connection(schema=None, password="hidden"))
    assert "hidden" not in str(caught.value)


def test_marks() -> None:
    assert is_marked(connection(extra_dejson={"vreplication": True}))
    assert not is_marked(connection())
