"""The benchmark's table: ratios within a run, medians over the runs."""

from __future__ import annotations

from bench.report import FIGURES, RATIOS, table, with_ratios


def test_ratios_are_made_within_a_run() -> None:
    found = with_ratios({"copy": [2.0, 9.0], "insert_select": [4.0, 3.0], "verify": [1.0]})
    assert found["copy_ratio"] == [0.5, 3.0]
    assert found["verify_ratio"] == [0.5]
    assert found["drain_ratio"] == []


def test_every_ratio_has_a_target_on_both_servers() -> None:
    targets = {f.name: (f.target("mysql"), f.target("mariadb")) for f in FIGURES}
    assert all(None not in targets[name] for name in RATIOS)


def test_table_shows_median_and_span() -> None:
    text = table({"mysql": with_ratios({"copy": [3.0, 1.0, 2.0], "insert_select": [4.0, 4.0, 4.0]})})
    assert "| row copy ÷ INSERT … SELECT | **0.50** (0.25–0.75) | ≤ 0.75 |" in text
    assert "| drain ÷ REPLACE | – | ≤ 2.5 |" in text
