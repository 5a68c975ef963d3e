"""A webhook out of a worker's environment, and figures to where Airflow's own go; each in a process with an Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from alone import in_airflow

from sandbox.databases import Database
from tests.support.rows import workflow_row
from vreplication.mysql.session import connect
from vreplication.phases import Phase
from vreplication.state import layout, workflows

WEBHOOK = """
import os
from vreplication.airflow.telling import events_sent
from vreplication.engine import webhooks
from vreplication.errors import Refused
from vreplication.mysql.url import parse

acts, url = [], parse("mysql://u@127.0.0.1:1/d")

class Made:
    def __init__(self, *_): ...
    def start(self): acts.append("start")
    def end(self, _): acts.append("end")

webhooks.Deliverer = Made
os.environ[webhooks.SECRET] = "0123456789abcdef-secret"
os.environ[webhooks.URL] = "ftp://h/x"
try:
    with events_sent(url, is_checked=True):
        acts.append("begun")
except Refused as refused:
    acts.append(str(refused))
with events_sent(url):
    acts.append("work")
os.environ[webhooks.URL] = "https://h/x"
with events_sent(url, is_checked=True):
    acts.append("plan")
with events_sent(url):
    acts.append("work")
tell(acts)
"""
FIGURES = """
import json, os, sys, threading, time
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk.observability import stats
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from vreplication.airflow import telling
from vreplication.mysql.session import connect
from vreplication.mysql.url import parse
from vreplication.state import progress

url, reader = parse(sys.argv[1]), InMemoryMetricReader()
NAME = "airflow.vreplication.workflow_lag_seconds"

def gauges():
    data = reader.get_metrics_data()
    found = json.loads(data.to_json())["resource_metrics"] if data else []
    return {m["name"]: [(p["attributes"], p["value"]) for p in m["data"]["data_points"]]
            for r in found for s in r["scope_metrics"] for m in s["metrics"]}

telling._FIGURES_SECONDS = 0.05

def senders():
    before = threading.active_count()
    with telling.figures_sent(url, "ours"):
        return threading.active_count() - before

asked_by_none = [senders()]
os.environ["AIRFLOW__METRICS__OTEL_ON"] = os.environ["AIRFLOW__METRICS__STATSD_ON"] = "True"
asked_by_none.append(senders())
del os.environ["AIRFLOW__METRICS__STATSD_ON"]
stats.initialize(factory=lambda: SafeOtelLogger(MeterProvider([reader])), export_legacy_names=False)
found, until = {}, time.monotonic() + 30
with telling.figures_sent(url, "ours"):
    while NAME not in found and time.monotonic() < until:
        with connect(url) as session:
            # Lag is told for some seconds after it was written.
            progress.write_replicate(session, "ours", lag_seconds=0.5)
        found = gauges()
tell([asked_by_none, found.get(NAME), "another" in str(found)])
"""


def test_a_bad_webhook_is_refused_at_first_and_a_good_one_sends_later(tmp_path: Path) -> None:
    refused, *acts = in_airflow(tmp_path, WEBHOOK)
    assert "no http or https URL" in refused
    assert acts == ["work", "plan", "start", "work", "end"]


@pytest.mark.only_on("mariadb")
def test_figures_go_to_opentelemetry_where_airflow_has_it_on(database: Database, tmp_path: Path) -> None:
    with connect(database.url) as session:
        layout.install(session)
        for workflow in ("ours", "another"):
            workflows.create(session, workflow_row(workflow, phase=Phase.COPYING))
    url = database.url
    told = in_airflow(tmp_path, FIGURES, f"mysql://{url.user}:{url.password}@{url.host}:{url.port}/{url.database}")
    server = f"{url.host}:{url.port}"
    assert told == [[0, 0], [[{"server": server, "workflow": "ours"}, 0.5]], False]
