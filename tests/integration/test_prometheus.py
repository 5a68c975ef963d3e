"""A real Prometheus takes what a live run tells, and answers every query of the dashboard, and what the runbook's
alarms look at, with a series."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox import binaries, prometheus
from sandbox.databases import Database
from sandbox.kafka import free_ports
from tests.support.flow import begin, wait_until
from tests.support.private_server import missing
from tests.support.rows import make_consumers, make_feed, workflow_row
from vreplication.cli import metrics
from vreplication.engine import effort
from vreplication.mysql.ends import Route
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.progress import metrics as figures
from vreplication.state import forecasts, held, layout, progress, workflows

pytestmark = pytest.mark.usefixtures("quick")
DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD, RUNBOOK = DOCS / "grafana.json", DOCS / "runbook.md"
OF_GRAFANA = {"$server": ".*", "$workflow": ".*", "$__rate_interval": "1m"}


def queries() -> Iterator[str]:
    """Of all panels, as Grafana would ask them."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = str(target["expr"])
            for variable, value in OF_GRAFANA.items():
                text = text.replace(variable, value)
            yield text


def alarms() -> list[str]:
    """The expressions of the runbook."""
    part = RUNBOOK.read_text().partition("## Alarms")[2].partition("\n## ")[0]
    first = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
    return [found for cell in first for found in re.findall("`([^`]+)`", cell)]


def looked_at(alarm: str) -> str:
    """Without its limit: it has a series also while all is well."""
    return re.sub(r" (==|>|<) [\d.]+$", "", alarm)


def record(session: Session) -> Callable[[], None]:
    """A workflow in the middle of its copy, one that a session blocks, a feed and a group of consumers, as their
    processes would tell of them, and as they do with each call of what is returned."""
    layout.install(session)
    workflows.create(session, workflow_row("recorded", phase=Phase.COPYING))
    workflows.create(session, workflow_row("blocked", phase=Phase.WAITING))
    held.note(session, "blocked", held.GATE, [{"code": "blocked", "what": None, "value": None, "limit": None}])
    foretold = {"eta_seconds": 30.0, "eta_low_seconds": 20.0, "eta_high_seconds": 60.0, "eta_of": "complete"}
    forecasts.write(session, "recorded", **foretold)
    make_consumers(session)
    of_feed = make_feed(session, "feed", "shop", lag=0.4)

    def beat() -> None:
        progress.write_driver(session, "recorded", rows_copied=50, percent=25.0, rows_total=200)
        progress.write_replicate(session, "recorded", lag_seconds=0.5, backlog=7, events_applied=3, converging=1)
        progress.write_driver(session, "blocked", waiting_for="Connection 42 holds a lock")
        of_feed()

    return beat


@pytest.mark.only_on("mysql")
def test_every_query_of_the_dashboard_and_of_the_alarms_has_a_series(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held back first, then let through: the run is seen throttled by its option, and with what its cut-over took."""
    if binaries.prometheus() is None:
        missing("Prometheus is not here. Run: python3 -m sandbox.install prometheus")
    app = connect(database.app_url)
    app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
    app.execute_raw("INSERT INTO t VALUES (1),(2),(3)")
    where, stop = f"127.0.0.1:{free_ports(1)[0]}", threading.Event()
    monkeypatch.setenv(metrics.LISTEN, where)
    open_ones = list(dict.fromkeys(queries()))
    assert len(open_ones) > 20
    found = alarms()
    assert len(found) > 15
    assert set(re.findall(r"vreplication_(\w+)", " ".join(found))) <= figures._METRICS.keys()
    # Nobody tells of a lake here; whether it is filled the page alone tells.
    open_ones += [looked_at(each) for each in found if "lake_" not in each]
    with connect(database.url) as session, prometheus.running(where) as asked:
        run = begin(database, "t", "ADD COLUMN z INT", max_load="Threads_connected=1")
        metrics.of_catch_up(Route.within(database.url), stop)

        def is_answered(least: int) -> bool:
            beat()
            open_ones[:] = [query for query in open_ones if not asked.query(query)]
            return len(open_ones) <= least

        try:
            wait_until(lambda: workflows.find(session, run.workflow) is not None, "it does not begin")
            beat = record(session)
            throttled = f'vreplication_throttled{{workflow="{run.workflow}",by="max-load"}}'
            wait_until(lambda: bool(asked.query(throttled)), "what throttles is not told")
            for alarm in found:
                asked.query(alarm)
            # What writers waited, on the dashboard and as an alarm, is known when it has switched.
            wait_until(lambda: is_answered(2), f"no series: {open_ones}")
            effort.tune(database.url, run.workflow, "dba", {"max_load": "off"})
            assert run.result().event == "complete"
            wait_until(lambda: is_answered(0), f"no series: {open_ones}")
            complete = f'vreplication_workflow_info{{workflow="{run.workflow}",phase="complete"}}'
            wait_until(lambda: bool(asked.query(complete)), "its end is not told")
            assert [each["metric"]["table"] for each in asked.query(complete)] == [f"{database.name}.t"]
            assert prometheus.lint(metrics.text([database.url], with_process=True)) == ""
        finally:
            stop.set()
