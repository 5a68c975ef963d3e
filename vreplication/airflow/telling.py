"""What a task tells the world while it runs: what comes into the journal to a webhook, figures to OpenTelemetry.

What must stay true: the worker's environment says where events go to (docs/observability.md); a wrong one is refused
before a workflow begins, and holds nothing up later. Figures go where Airflow's own go, and trouble with them troubles
nobody.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from vreplication.airflow.beside import beside
from vreplication.engine import webhooks
from vreplication.engine.webhooks import Hook
from vreplication.errors import Refused
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.progress import metrics

log = logging.getLogger(__name__)
_FIGURES_SECONDS = 10.0
_END_SECONDS = 3.0
"""Another task comes next, in most cases."""


@contextlib.contextmanager
def events_sent(url: SourceUrl, *, is_checked: bool = False) -> Iterator[None]:
    """is_checked: raises Refused where it is configured wrongly, and sends nothing: nothing has begun."""
    # A webhook that is wrong now was right when the workflow began, or it was refused: it is no reason to stop.
    hook = _hook(is_checked)
    with webhooks.delivering(None if is_checked else hook, url, _END_SECONDS):
        yield


def _hook(is_checked: bool) -> Hook | None:
    try:
        return webhooks.configured(os.environ)
    except Refused as error:
        if is_checked:
            raise
        log.warning("no events are sent: %s", error)
        return None


@contextlib.contextmanager
def figures_sent(url: SourceUrl, workflow: str) -> Iterator[None]:
    """Those that Prometheus is told of this workflow, as gauges, where Airflow's own metrics go to OpenTelemetry.

    Not to StatsD, whose names would be those of all workflows together.
    """
    if not _is_otel():
        yield
        return
    send = functools.partial(send_figures, url, workflow)
    with beside(send, "figures", every=_FIGURES_SECONDS, patience=_END_SECONDS):
        yield


def _is_otel() -> bool:
    """Where several are on, Airflow takes the others."""
    others = ("statsd_datadog_enabled", "statsd_on")
    is_on = functools.partial(conf.getboolean, "metrics", fallback=False)
    return is_on("otel_on") and not any(map(is_on, others))


def send_figures(url: SourceUrl, workflow: str) -> None:
    with connect(url, use_database=False) as session:
        found = metrics.of_server(session, url.place)
    for sample in found:
        if sample.labels.get("workflow") == workflow:
            stats.gauge(f"vreplication.{sample.name}", sample.value, tags=dict(sample.labels))
