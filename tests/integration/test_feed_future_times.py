"""A time in a source's log that is still to be: order and Resolved hold, and no lag is told that nobody knows."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

import pytest

from sandbox.databases import Database
from sandbox.kafka import Cluster
from tests.integration.test_feed_cli import _status, call, running, source, target
from tests.integration.test_feed_sources import begin, both, pulse
from tests.support.flow import wait_until
from tests.support.running_feed import Running, check_numbers, content, make_tables, sent
from vreplication.feed.messages import Kind
from vreplication.mysql.server import identity_of
from vreplication.workflows.changefeed.pulse import Pulse

__all__ = ["begin", "both", "pulse", "source", "target"]

THEN = 2_114_478_245
"""2037-01-02 03:04:05 UTC."""


@pytest.mark.only_on("mariadb")
def test_status_and_metrics_tell_no_lag(source: Database, target: Database, kafka: Cluster) -> None:
    """Of the feed, and of a group that has applied all of it; the output names the transaction."""
    feed = f"f{secrets.token_hex(3)}"
    sink = f"kafka://{kafka.bootstrap}/{feed}"
    source.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    target.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    with running("changefeed", "--sink", sink, "--workflow", feed, "--yes", source=source) as process:
        wait_until(lambda: "lag_seconds" in _status(source, feed), "the feed does not begin", 60, 0.5)
        assert _status(source, feed)["lag_seconds"] < 30
        with source.server.admin(source.name) as session:
            for at in (THEN, "DEFAULT"):
                session.execute_raw(f"SET timestamp={at}")
                session.execute_raw("INSERT INTO t SELECT 1+COUNT(*) FROM t")
        wait_until(lambda: _status(source, feed)["rows_sent"] == 2, "they are not sent", 60, 0.5)
        wait_until(lambda: _status(source, feed)["resolved_micros"] > THEN * 10**6, "nothing is resolved", 60, 0.5)
        found = _status(source, feed)
        assert (found["lag_seconds"], found["ahead_seconds"] > 10**8) == (None, True)
        assert "ahead of the source's clock" in " ".join(call("status", feed, source=source)[1].split())
        with running("consume", "--from", sink, target=target):
            wait_until(lambda: len(target.admin.rows("SELECT * FROM t")) == 2, "it is not applied", 60)
            text = call("metrics", source=source, target=target)[1]
        assert f'workflow="{feed}"' in next(
            line for line in text.splitlines() if line.startswith("vreplication_feed_ahead_seconds{")
        )
        for name in ("vreplication_feed_lag_seconds{", "vreplication_feed_consumer_lag_seconds{"):
            assert [line for line in text.splitlines() if line.startswith(name) and feed in line] == []
    said = " ".join(process.said.split())
    assert f"Source {identity_of(source.admin)} has committed transaction" in said
    assert "at 2037-01-02 03:04:05 UTC" in said
    told = json.loads(call("status", feed, "--json", source=source)[1])["journal"]
    assert [each["event"] for each in told].count("warning") == 1


def test_of_several_sources_the_one_that_waits_is_told_as_long_as_it_does(
    begin: Callable[..., Running], both: tuple[Database, Database], pulse: Pulse
) -> None:
    """And nothing says that its rows were sent."""
    my, maria = both
    for each in both:
        make_tables(each, "t")
    feed = begin()
    feed.wait_begun()
    with maria.server.admin(maria.name) as session:
        session.execute_raw(f"SET timestamp={THEN}")
        session.execute_raw("INSERT INTO t VALUES (1,'then',1)")
    wait_until(lambda: feed.error or (feed.status and feed.status.held), "nothing is told")
    assert feed.status is not None
    assert f"Source {identity_of(maria.admin)} is ahead" in feed.status.held
    my.admin.execute_raw("INSERT INTO t VALUES (2,'other',1)")
    feed.wait_sent(my)
    assert [after["id"] for _, _, after in sent(feed.feed)] == [2]
    resolved = [tags.t for each in content(feed.feed).values() for tags, _, _ in each if tags.kind is Kind.RESOLVED]
    assert max(resolved) < THEN * 10**6
    check_numbers(feed.feed)


def test_a_clock_that_is_ahead_is_told_once(
    begin: Callable[..., Running],
    both: tuple[Database, Database],
    pulse: Pulse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its transactions has a time that is still to be."""
    monkeypatch.setattr("vreplication.feed.future.AHEAD_MICROS", -(10**12))
    for each in both:
        make_tables(each, "t")
    feed = begin()
    feed.wait_begun()
    for number in range(5):
        for each in both:
            each.admin.execute_raw(f"INSERT INTO t VALUES ({number},'a',1)")
    for number, each in enumerate(both):
        feed.wait_sent(each, number=number)
    assert len(feed.warned) <= 2
    assert len({text.split()[1] for text in feed.warned}) == len(feed.warned)
