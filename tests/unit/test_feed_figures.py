"""What a feed tells of itself: counts over several runs, rates, and Prometheus' text."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from vreplication.cli.status import Seen
from vreplication.phases import Phase
from vreplication.progress import fed
from vreplication.progress.fed import Consumers
from vreplication.progress.metrics import Sample, down, exposition
from vreplication.progress.snapshot import Snapshot
from vreplication.state import feed_rates, history
from vreplication.workflows.changefeed.driver import Counts


def status(*by_partition: int) -> Any:
    return SimpleNamespace(rows=sum(by_partition), by_partition=by_partition)


def test_counts_go_on_when_a_run_begins_anew_and_when_partitions_come_and_go() -> None:
    """A counter that goes back would look like a restart of the process."""
    counts = Counts()
    for told in (status(5, 5), status(6, 8), status(1, 0), status(1, 2, 3)):
        counts.told(told)
    assert (counts.rows, counts.by_partition) == (14 + 6, [7, 10, 3])
    counts.told(status(0, 1))
    assert (counts.rows, counts.by_partition) == (21, [7, 11])


def test_figures_of_a_moment_go_when_their_writer_is_silent() -> None:
    found = {"rows_sent": 7, "lag_seconds": 0.5, "rates": [1.5], "is_held": False}
    assert fed.told(found, 3.0) == {**found, "age_seconds": 3.0}
    assert fed.told(found, 60.0) == {
        "rows_sent": 7, "lag_seconds": None, "rates": None, "is_held": None, "age_seconds": 60.0,
    }  # fmt: skip
    seen = Seen(snapshot=Snapshot(workflow="f", phase=Phase.STREAMING), fed=fed.told(found, 3.0))
    assert [seen.aged(60.0).as_json()["feed"][name] for name in ("lag_seconds", "age_seconds")] == [None, 63.0]


def test_rates_are_of_the_last_seconds() -> None:
    counts = Counts()
    assert counts.look(100.0) == (None, [])
    counts.told(status(10, 20))
    assert counts.look(110.0) == (3.0, [1.0, 2.0])
    for at in range(111, 125):
        rate, rates = counts.look(float(at))
    assert (rate, rates) == (0.0, [0.0, 0.0])


def test_rates_over_time_are_put_together_by_partition() -> None:
    """One that is not there for a while is not 0 then; nothing is lost where they are put together again."""
    minute = history.MINUTE
    first = 10 * history.TEN_MINUTES
    points = [feed_rates.Rates(slot=first + n, rates=(6.0, 2.0 * n) if n < 3 else (0.0,)) for n in range(minute)]
    once = history.thinned_by(feed_rates._together, points, first + 2 * history.HOUR)
    assert once == [feed_rates.Rates(slot=first, rates=(1.5, 2.0))]
    assert history.thinned_by(feed_rates._together, once, first + 2 * history.HOUR) == once


def test_a_group_is_gone_and_later_forgotten() -> None:
    group = partial(
        Consumers, group="g", topic="t", topic_id="x", mode="row", generation=1, partitions=1, resolved=None,
        lag_seconds=None, state=SimpleNamespace(offsets=()),
    )  # fmt: skip
    seen = {None: (False, False), 3_599.0: (False, False), 3_601.0: (True, False), 86_401.0: (True, True)}
    for seconds, said in seen.items():
        found = group(seen_seconds=seconds)
        assert (found.is_gone, found.is_forgotten) == said


def test_labels_are_escaped_and_each_name_comes_once() -> None:
    text = exposition([
        Sample(name="feed_generation", value=2, labels={"topic": 'a"\\\n'}),
        *down("h:1"),
        Sample(name="feed_generation", value=3, labels={"topic": "b"}),
    ])  # fmt: skip
    assert text == (
        "# HELP vreplication_up 1 while the server answers.\n# TYPE vreplication_up gauge\n"
        'vreplication_up{server="h:1"} 0.0\n'
        "# HELP vreplication_feed_generation Generation of the topic's partitions.\n"
        "# TYPE vreplication_feed_generation gauge\n"
        'vreplication_feed_generation{topic="a\\"\\\\\\n"} 2.0\nvreplication_feed_generation{topic="b"} 3.0\n'
    )
