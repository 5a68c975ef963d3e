"""The bench beside the peers: what is made of its records, its writers' figures, its files."""

from __future__ import annotations

import json
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from bench import load, results
from bench.peers import latencies
from bench.report import table
from bench.results import Result, in_words, samples
from bench.scenarios import RATIOS, SCENARIOS, USUAL
from bench.tools import COMMANDS, FLAVORS, OURS, Outcome
from sandbox import peers
from vreplication.mysql.url import SourceUrl

MACHINE = {
    "at": "2026-11-23 02:00 UTC",
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 24,
    "fsync_millis": {"median": 0.2, "p99": 0.5},
    "kernel": "Linux",
    "python": "3.11",
    "java": 17,
    "commit": "abc",
    "servers": {"mysql": "9.7.4"},
    "tools": {},
    "load_before": 0.1,
}


def record(
    contender: str, number: int, *, failed: str = "", scenario: str = "whole", **figures: float
) -> dict[str, Any]:
    return {"scenario": scenario, "contender": contender, "round": number, "failed": failed, "figures": figures}


def test_a_ratio_is_made_of_the_two_sides_of_one_round() -> None:
    found = samples(
        [
            record("ours", 0, seconds=6.0),
            record("gh-ost", 0, failed="it fell over", seconds=1.0),
            record("ours", 1, seconds=8.0),
            record("gh-ost", 1, seconds=10.0),
        ]
    )
    assert found["whole.ours.seconds"] == [6.0, 8.0]
    assert found["whole.gh-ost.seconds"] == [10.0]
    assert found["whole.ours.seconds ÷ whole.gh-ost.seconds"] == [0.8]


def test_ratios_name_scenarios_and_contenders_that_there_are() -> None:
    names = {f"{s.name}.{c.name}" for s in SCENARIOS.values() for c in s.contenders}
    for ratio in RATIOS:
        for figure in (ratio.over, ratio.under):
            assert figure.rpartition(".")[0] in names, figure
    assert set(USUAL) <= SCENARIOS.keys()
    assert FLAVORS.keys() - {OURS} == COMMANDS.keys() == set(peers.NAMES)


def test_a_wanted_least_is_told_from_a_wanted_most() -> None:
    figures = [ratio.figure() for ratio in RATIOS if ratio.at_least]
    (name,) = (figure.name for figure in figures)
    assert "| **2.50** (2.00–3.00) | ≥ 2 |" in table({"mysql": {name: [2.0, 3.0]}}, figures)


def test_an_update_counts_from_when_it_was_due() -> None:
    """Due at 1, 2, 3, 4 s; the server stood still from 2 to 5."""
    written = load.Written(
        due=array("d", [1.0, 2.0, 3.0, 4.0]), done=array("d", [1.5, 5.0, 5.0, 5.0]), retries=1, errors=(), lost=0
    )
    found = latencies(written, Outcome(began=2.0, ended=6.0), 0.0)
    assert found["alone_p50"] == 500.0
    assert (found["p50"], found["longest"]) == (2000.0, 3000.0)
    assert found["rate"] == 0.75


def test_what_was_due_and_never_sent_is_late_too() -> None:
    """The server stands still from the first update on; the writers are stopped after that."""
    url = SourceUrl(host="nowhere.invalid", port=1, user="u", password="p", database="d")
    writer = load._Writer(url=url, name="t", ids=[1], offset=0.0, interval=0.01)
    writer._give_up(time.monotonic() - 1.0, 10)
    assert len(writer.due) in (90, 91)
    assert max(done - due for due, done in zip(writer.due, writer.done, strict=True)) > 0.89


def test_a_named_result_grows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    first = Result.of("named", 1_000, 5)
    first.records["mysql"] = [record("ours", 0, seconds=6.0)]
    first.save()
    assert Result.of("named", 1_000, 5).records == first.records
    assert Result.of("", 1_000, 5).records == {}


def test_a_missing_peer_is_named_with_the_reason() -> None:
    text = in_words(Result(name="x", rows=1, runs=1, machine=MACHINE, missing={"spirit": "not today"}))
    assert "Without spirit: not today" in text


def test_results_are_whole_after_each_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    result = Result(name="named", rows=1_000, runs=1, machine=MACHINE)
    result.records["mysql"] = [record("ours", 0, seconds=6.0), record("spirit", 0, failed="it fell over")]
    result.save()
    assert json.loads((tmp_path / "named" / "results.json").read_text())["records"]["mysql"][0]["figures"]
    text = in_words(result)
    assert "| ours: whole | **6.0** s |  |" in text
    assert "- whole, spirit, round 0: it fell over" in text
