"""A server whose zone is its system's, and that is called so in winter as UTC is elsewhere: as London's."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest

from sandbox import binaries
from sandbox.databases import create_database
from tests.support.oracle import application, at_the_gate
from tests.support.private_server import private_server


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("flavor", binaries.FLAVORS)
def test_a_zone_that_is_called_gmt_in_winter(flavor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its summer is one day, which is not today: the server tells GMT, and on that day it is an hour ahead."""
    summer = 300 if date.today().timetuple().tm_yday < 200 else 100
    monkeypatch.setenv("TZ", f"GMT0BST,J{summer}/0,J{summer + 1}/0")
    with private_server(flavor) as server:
        monkeypatch.delenv("TZ")
        database = create_database(server)
        assert database.admin.rows("SELECT @@global.time_zone, @@system_time_zone") == [("SYSTEM", "GMT")]
        noon = datetime(2023, 1, 1, 12) + timedelta(days=summer - 1)
        insert = f"INSERT INTO t (id,ts) VALUES ({{}},'{noon:%F %T}'),({{}},'{noon + timedelta(days=30):%F %T}')"
        with application(database) as app:
            app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NOT NULL, d DATE AS (DATE(ts)) STORED)")
            app.execute_raw(insert.format(1, 2))
        # In UTC.
        assert database.admin.rows("SELECT HOUR(ts) FROM t ORDER BY id") == [(11,), (12,)]
        at_the_gate(database, "MODIFY ts DATETIME NOT NULL", [insert.format(3, 4)])
