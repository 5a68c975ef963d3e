"""Whole runs of the DAGs lake and lake_compact: filled from a feed, killed, seen on the page, ended and compacted."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_changefeed_run import _pair_servers, begin, fed_of, has_begun, killed, rows, sink, source, write

from sandbox.databases import Database
from sandbox.deployment import Deployment, is_there
from tests.support.dag_runs import DagRun, trigger, unpause
from tests.support.lakes import LakeServer, lake_server
from vreplication.feed.lake.manifest import Store

__all__ = ["_pair_servers", "sink", "source"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("airflow"), pytest.mark.timeout(900)]


@pytest.fixture
def lakes() -> Iterator[LakeServer]:
    with lake_server() as started:
        yield started


def lake_of(run: DagRun, directory: Path) -> dict[str, Any]:
    """As the page tells it."""
    status, found = run.airflow.call("GET", "/vreplication/api/lakes", user="viewer")
    assert status == 200, found
    return next((each for each in found["lakes"] if each["directory"] == str(directory)), {})


@pytest.mark.only_on("mariadb")
@pytest.mark.seldom
def test_filled_killed_shown_and_compacted(
    airflow: Deployment, source: Database, sink: str, lakes: LakeServer, tmp_path: Path
) -> None:
    for dag in ("lake", "lake_compact"):
        unpause(airflow, dag)
    feed, directory = begin(airflow, sink), tmp_path / "lake"
    feed.wait_for(has_begun(source, feed), "the feed does not begin")
    asked = {"topic": sink, "sink_conn_id": "brokers", "directory": str(directory), "every": 0.5}
    run = trigger(airflow, "lake", f"lake-{secrets.token_hex(4)}", asked)
    write(source, 0)
    come(run, directory, feed, source)
    killed(run, lambda: run.pid("fill"), lambda: run.stands("fill", "running", tries=2), "fill")
    write(source, 10)
    come(run, directory, feed, source)
    assert in_the_lake(lakes, directory, source) == rows(source)
    check_page(run, directory)
    pid = run.pid("fill")
    run.mark("success")
    run.wait_for(lambda: not is_there(pid), "it goes on in a run that was ended")
    before = Store(directory).open()
    assert before.size.files > 1
    made = trigger(airflow, "lake_compact", f"small-{secrets.token_hex(4)}", {"directory": str(directory)})
    assert made.end() == "success", made.story()
    assert made.result("compact")["files_after"] == Store(directory).open().size.files == 1
    assert in_the_lake(lakes, directory, source) == rows(source)
    assert lake_of(run, directory)["state"] == "ended"


def come(run: DagRun, directory: Path, feed: DagRun, source: Database) -> None:
    """Until all that the feed has sent by now is in the lake."""

    def has_come() -> bool:
        found = Store(directory).newest()
        return found is not None and found.size.changes >= len(rows(source)) and found.watermark >= resolved

    feed.wait_for(lambda: fed_of(source, feed).rows_sent >= len(rows(source)), "the feed does not send")
    resolved = fed_of(source, feed).resolved
    run.wait_for(has_come, "the lake does not come on")


def check_page(run: DagRun, directory: Path) -> None:
    run.wait_for(lambda: lake_of(run, directory).get("state") == "filled", "the page does not see it filled")
    found = lake_of(run, directory)
    assert (found["changes"], found["partitions"], found["generation"]) == ("20", 2, 1)
    assert found["lag_seconds"] is not None
    status, text = run.airflow.call("GET", f"/vreplication/runs/lake/{run.run_id}", user="viewer")
    assert (status, str(directory) in str(text)) == (200, True)
    status, text = run.airflow.call("GET", "/vreplication/metrics", user="viewer")
    assert status == 200
    assert f'vreplication_lake_changes{{directory="{directory}"' in str(text)


def in_the_lake(lakes: LakeServer, directory: Path, source: Database) -> list[Any]:
    return sorted(tuple(row.values()) for row in lakes.rows(directory, f"{source.name}.t"))
