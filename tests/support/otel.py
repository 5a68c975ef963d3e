"""Figures of a live task to OpenTelemetry: a collector in the test's process, and what turns them on in the task's.

What must stay true: a task sends by Airflow's own exporter, which is made as Airflow's task runner makes it; tasks of
tests that do not ask have none of it, and importing this costs them nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.deployment import Deployment

_ASKED = "opentelemetry"
"""Below AIRFLOW_HOME: where the collector is, for as long as a test wants figures."""
Received = dict[tuple[str, str], float]
"""The last value of each of our gauges, by its name and workflow."""


def begin_where_asked() -> None:
    """In a task's process, as the task runner does it where `[metrics] otel_on` is set when it begins."""
    try:
        endpoint = (Path(os.environ["AIRFLOW_HOME"]) / _ASKED).read_text()
    except OSError:
        return
    os.environ |= {"AIRFLOW__METRICS__OTEL_ON": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)


@contextlib.contextmanager
def received(airflow: Deployment) -> Iterator[Received]:
    """What tasks that are started meanwhile send, as OTLP over HTTP."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    found: Received = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/metrics" and b"vreplication" in body:
                found.update(_gauges(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    asked = airflow.home / _ASKED
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked.write_text(f"http://127.0.0.1:{server.server_port}")
        try:
            yield found
        finally:
            asked.unlink()
            server.shutdown()


def _gauges(body: bytes) -> Iterator[tuple[tuple[str, str], float]]:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    told = ExportMetricsServiceRequest.FromString(body)
    for metric in (m for r in told.resource_metrics for s in r.scope_metrics for m in s.metrics):
        for point in metric.gauge.data_points:
            labels = {each.key: each.value.string_value for each in point.attributes}
            value = getattr(point, point.WhichOneof("value") or "as_int")
            yield (metric.name, labels.get("workflow", "")), float(value)
