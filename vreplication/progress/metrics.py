"""Change feeds, their consumers and lakes as Prometheus reads them, in its text format (version 0.0.4).

What must stay true: names, labels and types are relied on from outside (docs/changefeed.md); a figure that is not known
has no sample, so that an alert can tell it from 0; a server that does not answer is said to be down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vreplication.mysql.session import Session
from vreplication.phases import OVER, Phase
from vreplication.progress import fed, snapshot
from vreplication.progress.fed import Consumers, Fed
from vreplication.progress.snapshot import Snapshot
from vreplication.settings import BY
from vreplication.state import workflows

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MICROS = 1e6
_HELD = frozenset({Phase.COPYING, Phase.VERIFYING})
_METRICS = {
    "up": ("gauge", "1 while the server answers."),
    "throttled": ("gauge", "1 while the copy or the verification is held back; by: the option, pause or apply."),
    "feed_up": ("gauge", "1 while a process works on the feed."),
    "feed_waiting": ("gauge", "1 while the feed waits for its broker or its source."),
    "feed_paused": ("gauge", "1 while the feed is paused by an operator."),
    "feed_lag_seconds": ("gauge", "Age of the oldest change that may not be committed to the topic yet."),
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
    "lake_manifest": ("counter", "Number of the newest manifest."),
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


def exposition(samples: Iterable[Sample]) -> str:
    """As Prometheus reads it: all of a name together."""
    found: dict[str, list[Sample]] = {name: [] for name in _METRICS}
    for sample in samples:
        found[sample.name].append(sample)
    return "".join(line for name, some in found.items() if some for line in _family(name, some))


def _family(name: str, samples: list[Sample]) -> Iterator[str]:
    kind, words = _METRICS[name]
    yield f"# HELP vreplication_{name} {words}\n# TYPE vreplication_{name} {kind}\n"
    for sample in samples:
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels.items())
        yield f"vreplication_{name}{{{labels}}} {sample.value!r}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def down(server: str) -> list[Sample]:
    return [Sample(name="up", value=0, labels={"server": server})]


def of_server(session: Session, server: str) -> list[Sample]:
    """Of feeds that have this server as their source, and of consumers that have it as their target."""
    rows = {row.id: row for row in workflows.load_all(session)}
    found = [Sample(name="up", value=1, labels={"server": server})]
    for name, one in fed.read(session).items():
        if name in rows and rows[name].phase not in OVER:
            found += _of_feed({"server": server, "workflow": name}, one, is_paused=rows[name].is_paused)
    found += [_throttled(server, seen) for seen in snapshot.read_all(session) if _why_held(seen)]
    for group in fed.consumers(session):
        if not group.is_forgotten:
            found += _of_consumers(server, group)
    return found


def _throttled(server: str, seen: Snapshot) -> Sample:
    labels = {"server": server, "workflow": seen.workflow, "by": _why_held(seen)}
    return Sample(name="throttled", value=1, labels=labels)


def _why_held(seen: Snapshot) -> str:
    """Without figures, so that a series lasts as long as its cause; '' where nothing holds."""
    if seen.has_ended or seen.phase not in _HELD:
        return ""
    if seen.is_paused:
        return "pause"
    said = seen.throttled or ""
    return said.removeprefix(BY).partition(":")[0] if said.startswith(BY) else said.partition(" ")[0]


def _of_feed(labels: dict[str, str], one: Fed, *, is_paused: bool) -> Iterator[Sample]:
    labels |= {"topic": one.topic or ""}
    values: dict[str, float | None] = {
        "feed_up": int(one.is_now),
        "feed_waiting": int(one.waiting_for is not None),
        "feed_paused": int(is_paused),
        "feed_lag_seconds": one.lag_seconds,
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
