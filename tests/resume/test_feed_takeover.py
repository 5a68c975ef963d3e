"""A feed's process that stands still (SIGSTOP) while another takes over, and wakes up: it sends nothing any more.

It stands in the middle of a transaction of Kafka's, and behind the commit of one whose outcome it has not heard.
"""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.integration.test_feed_cli import _is_driven, _phase, _rows, _status, running, source
from tests.support.flow import paused_at, pauses, wait_until
from vreplication import pausepoints
from vreplication.feed.address import parse
from vreplication.feed.check import check

__all__ = ["pauses", "source"]

pytestmark = pytest.mark.either
WAIT_SECONDS = 180.0


@pytest.mark.parametrize("point", ["feed.before_commit", "feed.after_commit"])
def test_one_that_wakes_up_behind_a_takeover_sends_nothing(
    source: Database, kafka: Cluster, pauses: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    feed = f"f{secrets.token_hex(3)}"
    sink = f"kafka://{kafka.bootstrap}/{feed}"
    asked = ("changefeed", "--sink", sink, "--workflow", feed, "--yes", "--json")
    monkeypatch.setenv(pausepoints.VARIABLE, str(pauses))
    with running(*asked, source=source) as first:
        wait_until(lambda: _status(source, feed).get("topic") or None, "the feed does not begin", WAIT_SECONDS, 0.5)
        with paused_at(pauses, point):
            source.admin.execute_raw("INSERT INTO t VALUES (1,1),(2,2)")
            wait_until((pauses / f"{point}.reached").exists, "nothing is sent", WAIT_SECONDS)
            os.kill(first.pid, signal.SIGSTOP)
        wait_until(lambda: not _is_driven(source, feed), "its lease is kept", WAIT_SECONDS)
        with running(*asked, source=source):
            source.admin.execute_raw("UPDATE t SET a=a+1")
            wait_until(lambda: _sent(sink) >= 4, "the second does not go on", WAIT_SECONDS, 0.5)
            os.kill(first.pid, signal.SIGCONT)
            assert first.wait(WAIT_SECONDS) == 1
            source.admin.execute_raw("DELETE FROM t WHERE id=1")
            wait_until(lambda: _sent(sink) >= 5, "the second has ended", WAIT_SECONDS, 0.5)
            assert (_phase(source, feed), _is_driven(source, feed)) == ("streaming", True)
    assert _sent(sink) == 5
    assert _rows(source) == [(2, 3)]
    assert "Another process has taken over the feed." in first.said, first.said


def _sent(sink: str) -> int:
    """Rows in the topic, by a reader who sees every one that is there twice. Raises what it finds wrong."""
    return check(parse(sink)).rows
