"""Whole runs of the DAGs changefeed, consume and scale_changefeed: killed, paused, scaled and ended, under writes."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.databases import Database, create_database
from sandbox.deployment import Deployment, is_there
from sandbox.kafka import Cluster
from sandbox.servers import RunningServer
from tests.support import feeds
from tests.support.dag_runs import DagRun, trigger, unpause
from tests.support.pairs import _pair_servers, server_of
from vreplication.feed.address import parse
from vreplication.feed.check import check
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.progress import fed
from vreplication.state import journal, workflows

__all__ = ["_pair_servers"]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(600), pytest.mark.either]
T = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"


@pytest.fixture
def source(airflow: Deployment, server: RunningServer) -> Iterator[Database]:
    made = create_database(server, grants="feed_source")
    feeds.describe_fully(made)
    made.admin.execute_raw(T)
    airflow.add_connection("source", made.url)
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def target(airflow: Deployment, server: RunningServer, source: Database, _pair_servers: None) -> Iterator[Database]:
    """On a server of the other flavor, under the same name."""
    other = server_of("mysql" if server.is_mariadb else "mariadb", "target")
    made = create_database(other, source.name)
    made.admin.execute_raw(T)
    airflow.add_connection("target", made.url)
    try:
        yield made
    finally:
        made.drop()


@pytest.fixture
def sink(airflow: Deployment, kafka: Cluster) -> str:
    """A topic's name; where the brokers are is said by the connection."""
    airflow.call("DELETE", "/api/v2/connections/brokers")
    extra = json.dumps({"bootstrap.servers": kafka.bootstrap})
    made = {"connection_id": "brokers", "conn_type": "kafka", "extra": extra}
    assert airflow.call("POST", "/api/v2/connections", made)[0] == 201
    for dag in ("changefeed", "consume", "scale_changefeed"):
        unpause(airflow, dag)
    return f"t{secrets.token_hex(3)}"


def begin(airflow: Deployment, sink: str, **more: Any) -> DagRun:
    conf = {"source_conn_id": "source", "sink": sink, "sink_conn_id": "brokers", "partitions": 2, **more}
    return trigger(airflow, "changefeed", f"feed-{secrets.token_hex(4)}", {"dispatch": "index-value", **conf})


def press(run: DagRun, act: str) -> int:
    path = f"/vreplication/api/workflows/{run.run_id}/{act}?conn_id=source"
    return run.airflow.call("POST", path, {}, user="editor")[0]


def page(run: DagRun) -> Any:
    status, found = run.airflow.call("GET", f"/vreplication/api/workflows/{run.run_id}?conn_id=source", user="viewer")
    return found if status == 200 else {}


def rows(database: Database) -> list[Any]:
    return list(database.admin.rows("SELECT * FROM t ORDER BY id"))


def write(source: Database, first: int, count: int = 10) -> None:
    values = ",".join(f"({number},'{secrets.token_hex(4)}')" for number in range(first, first + count))
    source.admin.execute_raw(f"INSERT INTO t VALUES {values}")


def fed_of(source: Database, run: DagRun) -> Any:
    with connect(source.url) as session:
        return fed.find(session, run.run_id)


def has_begun(source: Database, run: DagRun) -> Callable[[], bool]:
    return lambda: (found := fed_of(source, run)) is not None and found.topic is not None


def consumer(run: DagRun, number: int) -> dict[str, Any]:
    found = run._get("/taskInstances?limit=100")["task_instances"]
    return next((t for t in found if (t["task_id"], t["map_index"]) == ("consume", number)), {})


def killed(run: DagRun, pid: Callable[[], int | None], is_again: Callable[[], bool], what: str) -> None:
    run.wait_for(lambda: pid() is not None, f"{what} has no process")
    os.kill(pid() or 0, signal.SIGKILL)
    run.wait_for(is_again, f"{what} is not tried again")


@pytest.mark.only_on("mysql")
def test_killed_paused_scaled_and_cancelled(
    airflow: Deployment, source: Database, target: Database, sink: str, kafka: Cluster
) -> None:
    feed = begin(airflow, sink)
    feed.wait_for(has_begun(source, feed), "the feed does not begin")
    asked = {"topic": sink, "sink_conn_id": "brokers", "target_conn_id": "target", "mode": "row", "consumers": 2}
    eaters = trigger(airflow, "consume", f"eat-{secrets.token_hex(4)}", asked)
    write(source, 0)
    eaters.wait_for(lambda: rows(target) == rows(source), "the target is not level")
    killed(feed, lambda: feed.pid("stream"), lambda: feed.stands("stream", "running", tries=2), "stream")
    write(source, 10)
    first = consumer(eaters, 0)
    killed(
        eaters,
        lambda: consumer(eaters, 0)["pid"],
        lambda: (t := consumer(eaters, 0))["state"] == "running" and t["try_number"] > first["try_number"],
        "a consumer",
    )
    eaters.wait_for(lambda: rows(target) == rows(source), "the target is not level behind the kills")
    assert press(feed, "pause") == 200
    feed.wait_for(lambda: page(feed)["words"]["phase"] == "streaming, paused", "the page does not show the pause")
    scaled = trigger(airflow, "scale_changefeed", f"scale-{secrets.token_hex(4)}", {
        "workflow": feed.run_id, "source_conn_id": "source", "partitions": 4,
    })  # fmt: skip
    scaled.wait_for(lambda: "which is paused" in scaled.log("scale"), "it does not say what it waits for")
    write(source, 20)
    assert press(feed, "resume") == 200
    assert scaled.end() == "success", scaled.story()
    write(source, 30)
    eaters.wait_for(lambda: rows(target) == rows(source), "the target is not level behind the scaling")
    check_page(feed, source)
    eating = [consumer(eaters, number)["pid"] for number in (0, 1)]
    eaters.mark("success")
    feed.wait_for(lambda: not any(map(is_there, eating)), "consumers go on in a run that was ended")
    assert press(feed, "cancel") == 200
    assert feed.end() == "success", feed.story()
    assert feed.result("stream")["event"] == "cancelled"
    with connect(source.url) as session:
        assert workflows.load(session, feed.run_id).phase is Phase.CANCELLED
        assert {"paused", "resumed", "scaled", "cancelled"} <= {e["event"] for e in journal.read(session, feed.run_id)}
    report = check(parse(f"kafka://{kafka.bootstrap}/{sink}"))
    assert (report.rows, report.generations) == (40, 2)


def check_page(feed: DagRun, source: Database) -> None:
    def is_level() -> bool:
        found = page(feed)
        (group,) = found.get("consumers") or [{}]
        # The one that was killed counts for a minute.
        return (group.get("behind"), group.get("at_work")) == ("0 messages", "2 processes")

    feed.wait_for(is_level, "the page does not see the two consumers level")
    found = page(feed)
    assert (found["phase"], found["feed"]["generation"], found["feed"]["partitions"]) == ("streaming", 2, "4")
    assert (found["consumers"][0]["conn_id"], found["consumers"][0]["generation"]) == ("target", 2)
    assert found["feed"]["broker"].startswith("answers: last commit")
    assert found["run"]["log_url"].endswith("/tasks/stream")
    assert [len(point[-1]) for point in found["history"]["points"] if point[-1]][-1] == 4


@pytest.mark.seldom
@pytest.mark.only_on("mariadb")
def test_what_is_refused_and_what_a_marked_task_leaves(airflow: Deployment, source: Database, sink: str) -> None:
    """A plan refuses with the command's sentence; a stream that a person ends goes on when it is cleared."""
    source.admin.execute_raw("CREATE TABLE u (a INT)")
    refused = begin(airflow, sink, source_2_conn_id="source")
    assert refused.end() == "failed"
    assert "u has no unique key without NULLs" in refused.log("plan")
    assert "Two of the sources are one server" in refused.log("plan")
    source.admin.execute_raw("DROP TABLE u")
    feed = begin(airflow, sink)
    feed.wait_for(has_begun(source, feed), "the feed does not begin")
    feed.mark_task("stream", "success")
    assert feed.end() == "success", feed.story()
    feed.wait_for(lambda: page(feed)["is_driven"] is False, "its process goes on")
    write(source, 0)
    feed.clear("stream")
    feed.wait_for(lambda: feed.stands("stream", "running", tries=2), "it is not tried again")
    feed.wait_for(lambda: fed_of(source, feed).rows_sent == 10, "it does not go on from where it stood")
    feed.mark_task("stream", "success")
    feed.wait_for(lambda: page(feed)["is_driven"] is False, "its process goes on")
    assert press(feed, "cancel") == 200
    with connect(source.url) as session:
        assert workflows.load(session, feed.run_id).phase is Phase.CANCELLED
    feed.clear("stream")
    feed.wait_for_task("stream", "success")
    assert feed.result("stream")["reason"] == "It was cancelled."
