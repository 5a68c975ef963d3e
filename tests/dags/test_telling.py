"""A webhook out of a worker's environment, and figures to where Airflow's own go."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk.observability import stats
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from sandbox.databases import Database
from tests.support.flow import wait_until
from tests.support.rows import workflow_row
from vreplication.airflow import telling
from vreplication.airflow.telling import events_sent, figures_sent
from vreplication.engine import webhooks
from vreplication.errors import Refused
from vreplication.mysql.session import connect
from vreplication.mysql.url import parse
from vreplication.phases import Phase
from vreplication.state import layout, progress, workflows

URL = parse("mysql://u@127.0.0.1:1/d")


def test_a_bad_one_is_refused_at_first_and_a_good_one_sends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []

    class Made:
        def __init__(self, *_: Any) -> None: ...

        def start(self) -> None:
            acts.append("start")

        def end(self, _: float) -> None:
            acts.append("end")

    monkeypatch.setattr(webhooks, "Deliverer", Made)
    monkeypatch.setenv(webhooks.URL, "ftp://h/x")
    monkeypatch.setenv(webhooks.SECRET, "0123456789abcdef-secret")
    with pytest.raises(Refused, match="no http or https URL"), events_sent(URL, is_checked=True):
        pass
    with events_sent(URL):
        acts.append("work")
    monkeypatch.setenv(webhooks.URL, "https://h/x")
    with events_sent(URL, is_checked=True):
        acts.append("plan")
    with events_sent(URL):
        acts.append("work")
    assert acts == ["work", "plan", "start", "work", "end"]


@contextlib.contextmanager
def exported() -> Iterator[InMemoryMetricReader]:
    """Airflow's own way to OpenTelemetry, into memory."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    stats.initialize(factory=lambda: SafeOtelLogger(provider), export_legacy_names=False)
    try:
        yield reader
    finally:
        stats.initialize(factory=lambda: SafeOtelLogger(MeterProvider()), export_legacy_names=False)
        provider.shutdown()


def gauges(reader: InMemoryMetricReader) -> dict[str, list[tuple[dict[str, str], float]]]:
    data = reader.get_metrics_data()
    found = json.loads(data.to_json())["resource_metrics"] if data else []
    return {
        metric["name"]: [(point["attributes"], point["value"]) for point in metric["data"]["data_points"]]
        for resource in found for scope in resource["scope_metrics"] for metric in scope["metrics"]
    }  # fmt: skip


@pytest.mark.only_on("mariadb")
def test_figures_go_to_opentelemetry_where_airflow_has_it_on(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database.url) as session:
        layout.install(session)
        for workflow in ("ours", "another"):
            workflows.create(session, workflow_row(workflow, phase=Phase.COPYING))
        progress.write_replicate(session, "ours", lag_seconds=0.5, backlog=7)
    monkeypatch.setattr(telling, "_FIGURES_SECONDS", 0.05)
    before = threading.active_count()
    with figures_sent(database.url, "ours"):
        assert threading.active_count() == before, "nobody has asked for it"
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    with exported() as reader, figures_sent(database.url, "ours"):
        wait_until(lambda: "airflow.vreplication.workflow_lag_seconds" in gauges(reader), "nothing is sent")
        server = f"{database.url.host}:{database.url.port}"
        found = gauges(reader)
    assert found["airflow.vreplication.workflow_lag_seconds"] == [({"server": server, "workflow": "ours"}, 0.5)]
    assert "another" not in str(found)
