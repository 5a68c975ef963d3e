"""Workflows, change feeds, their consumers and lakes as Prometheus reads them, in its text format (version 0.0.4).

What must stay true: names, labels and types are relied on from outside (docs/observability.md, docs/grafana.json); a
figure that is not known has no sample, so that an alert can tell it from 0; a server that does not answer is said to be
down; what has ended is told for OVER_SECONDS and then no more, so that series do not pile up.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import exposition as text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vreplication import names
from vreplication.mysql.session import Session
from vreplication.phases import OVER, Phase
from vreplication.progress import fed, snapshot
from vreplication.progress.fed import Consumers, Fed
from vreplication.progress.snapshot import Snapshot
from vreplication.state import layout, lease, workflows

CONTENT_TYPE = text_format.CONTENT_TYPE_PLAIN_0_0_4
OVER_SECONDS = 3600.0
_FEED = "changefeed"
_PREFIX = "vreplication_"
_MICROS = 1e6
_HELD = frozenset({Phase.COPYING, Phase.VERIFYING})
_AT_GATE = frozenset({Phase.WAITING, Phase.CUTTING_OVER})
_METRICS = {
    "up": ("gauge", "1 while the server answers."),
    "workflow_info": ("gauge", "Always 1; phase and table."),
    "workflow_paused": ("gauge", "1 while an operator holds it."),
    "workflow_silent": ("gauge", "1 while it has no active worker and should have one."),
    "workflow_heartbeat_age_seconds": ("gauge", "Since the last sign of life of that role: driver or replicate."),
    "workflow_progress_ratio": ("gauge", "Share of the rows that is copied; 1 when it is complete."),
    "workflow_rows_copied_total": ("counter", "Rows that are copied."),
    "workflow_rows_expected": ("gauge", "Rows that there are to copy, as far as is known."),
    "workflow_rows_verified": ("gauge", "Rows that are compared."),
    "workflow_eta_seconds": ("gauge", "Time to the end or, with of=waiting, to the gate."),
    "workflow_eta_low_seconds": ("gauge", "The same where all goes well."),
    "workflow_eta_high_seconds": ("gauge", "The same where it goes badly."),
    "workflow_lag_seconds": ("gauge", "Age of the oldest change that is not applied."),
    "workflow_backlog_changes": ("gauge", "Changes that are read and not applied."),
    "workflow_changes_applied_total": ("counter", "Changes that are applied."),
    "workflow_converging": ("gauge", "0 while catch-up falls behind and cannot end."),
    "workflow_cutover_attempts_total": ("counter", "Attempts at the cut-over."),
    "workflow_write_stall_seconds": ("gauge", "How long writes waited at the cut-over."),
    "throttled": ("gauge", "1 while the copy or the verification is held back; by: the option, pause or apply."),
    "throttle_value": ("gauge", "Figure of what holds the copy back; what: of a status variable or a replica."),
    "throttle_limit": ("gauge", "Its limit."),
    "waiting": ("gauge", "1 for each reason that keeps the gate shut; for: its code."),
    "feed_up": ("gauge", "1 while a process works on the feed."),
    "feed_waiting": ("gauge", "1 while the feed waits for its broker or a source."),
    "feed_paused": ("gauge", "1 while the feed is paused by an operator."),
    "feed_lag_seconds": ("gauge", "Age of the oldest change that may not be committed to the topic yet."),
    "feed_ahead_seconds": ("gauge", "How far times of the log are ahead of the source's clock, where they are."),
    "feed_resolved_timestamp_seconds": ("gauge", "Everything up to this time is in the topic."),
    "feed_rows_sent_total": ("counter", "Rows sent since the feed's process was started."),
    "feed_messages_total": ("counter", "Rows, DDL and Admin in the topic, by their own number."),
    "feed_generation": ("gauge", "Generation of the topic's partitions."),
    "feed_partitions": ("gauge", "Partitions in use."),
    "feed_topics": ("gauge", "Topics; with more than one, partitions are those of each."),
    "feed_open_branches": ("gauge", "Prepared XA branches whose outcome is open."),
    "feed_consumer_members": ("gauge", "Processes of the group that were heard of in the last minute."),
    "feed_consumer_lag_seconds": ("gauge", "Age of the oldest change that may not be applied to the target yet."),
    "feed_consumer_resolved_timestamp_seconds": ("gauge", "Everything of the partition up to this time is applied."),
    "feed_consumer_messages_total": ("counter", "Number of the last message that was applied."),
    "feed_consumer_generation": ("gauge", "Generation whose partitions are read."),
    "feed_consumer_partitions": ("gauge", "Partitions that are read."),
    "lake_up": ("gauge", "1 while a process fills the lake."),
    "lake_resolved_timestamp_seconds": ("gauge", "The lake is the source at this time."),
    # A gauge, though it only grows: a counter's name has to end in _total.
    "lake_manifest": ("gauge", "Number of the newest manifest."),
    "lake_files": ("gauge", "Files that it names."),
    "lake_changes": ("gauge", "Changes that are in them."),
    "lake_bytes": ("gauge", "Bytes that they have."),
}
"""Name behind `vreplication_`: type and help, in the order in which they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A figure. name: as in _METRICS."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def exposition(samples: Iterable[Sample], *, with_process: bool = False) -> str:
    """As Prometheus reads it: all of a name together. with_process: this process's own memory, CPU and files, too."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(samples))
    if with_process:
        ProcessCollector(namespace="vreplication_catch_up", registry=registry)
    return text_format.generate_latest(registry).decode()


class _Families:
    """What is known, as a collector of the client library."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._found: dict[str, dict[Hashable, Sample]] = {name: {} for name in _METRICS}
        for sample in samples:
            # Two connections may lead to one server, and a series may have one sample only: the first.
            self._found[sample.name].setdefault(frozenset(sample.labels.items()), sample)

    def collect(self) -> Iterator[Metric]:
        return (_family(name, list(some.values())) for name, some in self._found.items() if some)


def _family(name: str, samples: Sequence[Sample]) -> Metric:
    kind, words = _METRICS[name]
    of_kind = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family: Metric = of_kind(_PREFIX + name, words)
    for sample in samples:
        # By the full name: the library takes `_total` off a counter's family, and its samples have to bear it.
        family.add_sample(_PREFIX + name, dict(sample.labels), sample.value)
    return family


def down(server: str) -> list[Sample]:
    return [Sample(name="up", value=0, labels={"server": server})]


def of_server(session: Session, server: str, kinds: Collection[str] | None = None) -> list[Sample]:
    """Of feeds that have this server as their source, and of consumers that have it as their target.

    kinds: of these alone.
    """
    rows = {row.id: row for row in workflows.load_all(session) if kinds is None or row.kind in kinds}
    found = [Sample(name="up", value=1, labels={"server": server})]
    for name, one in fed.read(session).items():
        if name in rows and rows[name].phase not in OVER:
            found += _of_feed({"server": server, "workflow": name}, one, is_paused=rows[name].is_paused)
    for seen in snapshot.read_all(session, over_seconds=OVER_SECONDS):
        if kinds is None or seen.workflow in rows:
            found += _of_workflow({"server": server, "workflow": seen.workflow}, seen)
    for workflow, role, age in layout.look(session, lambda: lease.heartbeats(session)) or ():
        labels = {"server": server, "workflow": workflow, "role": role}
        # Of a later stream of a move, too, which has no row of its own.
        if kinds is None or workflow in rows or names.split_stream(workflow)[0] in rows:
            found.append(Sample(name="workflow_heartbeat_age_seconds", value=age, labels=labels))
    for group in fed.consumers(session):
        if not group.is_forgotten and (kinds is None or _FEED in kinds):
            found += _of_consumers(server, group)
    return found


def _of_workflow(labels: dict[str, str], seen: Snapshot) -> Iterator[Sample]:
    about = {"table": seen.source_table or "", "phase": str(seen.phase)}
    yield Sample(name="workflow_info", value=1, labels=labels | about)
    values: dict[str, float | None] = {
        "workflow_paused": int(seen.is_paused),
        "workflow_silent": int(seen.is_silent),
        "workflow_progress_ratio": None if seen.percent is None else seen.percent / 100,
        "workflow_rows_copied_total": seen.rows_copied,
        "workflow_rows_expected": seen.rows_total,
        "workflow_rows_verified": seen.verify_rows,
        "workflow_lag_seconds": seen.lag_seconds,
        "workflow_backlog_changes": seen.backlog,
        "workflow_changes_applied_total": seen.events_applied,
        "workflow_converging": None if seen.converging is None else int(seen.converging),
        "workflow_cutover_attempts_total": seen.cutover_attempts,
        "workflow_write_stall_seconds": None if seen.write_stall_millis is None else seen.write_stall_millis / 1000,
    }
    yield from _known(values, labels)
    etas = {"workflow_eta_seconds": seen.eta_seconds, "workflow_eta_low_seconds": seen.eta_low_seconds}
    yield from _known(etas | {"workflow_eta_high_seconds": seen.eta_high_seconds}, labels | {"of": str(seen.eta_of)})
    if by := _why_held(seen):
        yield Sample(name="throttled", value=1, labels=labels | {"by": by})
        yield from _figures(labels, seen)
    if seen.phase in _AT_GATE:
        # Each once: several sessions may block under one code, and a series may have one sample only.
        for code in dict.fromkeys(str(each["code"]) for each in seen.gate_reasons or ()):
            yield Sample(name="waiting", value=1, labels=labels | {"for": code})


def _why_held(seen: Snapshot) -> str:
    """Without figures, so that a series lasts as long as its cause; '' where nothing holds."""
    if seen.has_ended or seen.phase not in _HELD:
        return ""
    if seen.is_paused:
        return "pause"
    return next((str(each["code"]) for each in seen.throttle_reasons or ()), "")


def _figures(labels: dict[str, str], seen: Snapshot) -> Iterator[Sample]:
    """Of all that holds the copy back, not of the strictest alone."""
    told: set[tuple[str, ...]] = set()
    for each in seen.throttle_reasons or ():
        about = {"by": str(each["code"]), "what": str(each["what"] or ""), "unit": str(each["unit"] or "")}
        # Both servers of a move may be over one limit, and a series may have one sample only: the one further beyond.
        if (series := tuple(about.values())) not in told:
            told.add(series)
            yield from _known({"throttle_value": each["value"], "throttle_limit": each["limit"]}, labels | about)


def _of_feed(labels: dict[str, str], one: Fed, *, is_paused: bool) -> Iterator[Sample]:
    labels |= {"topic": one.topic or ""}
    values: dict[str, float | None] = {
        "feed_up": int(one.is_now),
        "feed_waiting": int(one.waiting_for is not None),
        "feed_paused": int(is_paused),
        "feed_lag_seconds": one.lag_seconds,
        "feed_ahead_seconds": one.ahead_seconds,
        "feed_resolved_timestamp_seconds": _seconds(one.resolved),
        "feed_generation": one.generation,
        "feed_partitions": one.partitions,
        "feed_topics": one.topics,
        "feed_open_branches": one.open_branches,
    }
    yield from _known(values, labels)
    for name, each in (("feed_rows_sent_total", one.rows), ("feed_messages_total", one.ends)):
        for number, value in enumerate(each):
            yield Sample(name=name, value=value, labels=labels | {"partition": str(number)})
    for topic, found in one.tables.items():
        for number, value in enumerate(found["ends"]):
            each_of = labels | {"topic": topic, "partition": str(number)}
            yield Sample(name="feed_messages_total", value=value, labels=each_of)


def _of_consumers(server: str, group: Consumers) -> Iterator[Sample]:
    labels = {"server": server, "consumer_group": group.group, "topic": group.topic}
    values: dict[str, float | None] = {
        "feed_consumer_members": group.at_work,
        "feed_consumer_lag_seconds": group.lag_seconds,
        "feed_consumer_generation": group.generation,
        "feed_consumer_partitions": group.partitions,
    }
    yield from _known(values, labels)
    for each in group.state.offsets if group.generation else ():
        of_each: dict[str, float | None] = {
            "feed_consumer_resolved_timestamp_seconds": _seconds(each.resolved),
            "feed_consumer_messages_total": each.n,
        }
        yield from _known(of_each, labels | {"partition": str(each.number)})


def of_lake(directory: str, topic: str, told: Mapping[str, Any], *, is_up: bool | None = None) -> Iterator[Sample]:
    """told: watermark_micros, manifest, files, changes and nbytes. is_up: where that is known."""
    values: dict[str, float | None] = {
        "lake_up": None if is_up is None else int(is_up),
        "lake_resolved_timestamp_seconds": _seconds(told.get("watermark_micros")),
        "lake_manifest": told.get("manifest"),
        "lake_files": told.get("files"),
        "lake_changes": told.get("changes"),
        "lake_bytes": told.get("nbytes"),
    }
    yield from _known(values, {"directory": directory, "topic": topic})


def _known(values: Mapping[str, float | None], labels: Mapping[str, str]) -> Iterator[Sample]:
    return (Sample(name=name, value=value, labels=labels) for name, value in values.items() if value is not None)


def _seconds(micros: int | None) -> float | None:
    """A time of 1 is that of a feed which has resolved nothing yet."""
    return micros / _MICROS if micros is not None and micros > 1 else None
