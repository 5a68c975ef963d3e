"""The bench of feeds: rows are known in either format, ratios are made within rounds, failures are named."""

from __future__ import annotations

from bench.feed_contenders import ONCE, OURS
from bench.feed_reader import ids
from bench.feed_report import table


def _record(contender: str, number: int, **figures: float) -> dict[str, object]:
    return {"cell": "narrow", "contender": contender, "round": number, "figures": figures}


def test_a_row_is_known_by_its_id_in_both_formats() -> None:
    assert ids(b'{"before":null,"after":{"id":8,"sig":"x"},"op":"c"}') == 8
    assert ids(b'{"update":{"id":{"type":"LongLong","value":9,"unique":true}}}') == 9
    assert ids(b'{"before":{"id":8},"after":null,"op":"d"}') is None
    assert ids(None) is None


def test_a_ratio_is_of_two_runs_of_one_round() -> None:
    records = [
        _record(OURS, 1, rows_per_second=300),
        _record(ONCE, 1, rows_per_second=100),
        _record(OURS, 2, rows_per_second=100),
    ]
    assert "| narrow | rows_per_second | 200 | 100 | 3.00 | ≥ 3 |" in table(records)


def test_what_is_counted_has_no_ratio_and_what_failed_is_named() -> None:
    records = [_record(OURS, 1, duplicates=0), _record(ONCE, 1, duplicates=4), {**_record(ONCE, 1), "cell": "stuck"}]
    assert "| narrow | duplicates | 0 | 4 |  |  |" in table(records)
    assert f"| stuck | failed: {ONCE} |" in table(records)
