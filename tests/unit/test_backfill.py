"""Jobs as values and files, intervals as wall times, and the command, without a server."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.local_spark import LocalSpark
from vreplication import masking
from vreplication.backfill import interval, run
from vreplication.backfill.interval import Walls, parts, wall, walls, within_sql
from vreplication.backfill.job import Job, find_job, load_jobs, make_job
from vreplication.backfill.run import Result
from vreplication.backfill.slices import Slice
from vreplication.backfill.spark_job import run_slices
from vreplication.cli import backfill, main, options
from vreplication.errors import Refused, Terminal, Transient
from vreplication.schema.model import Column
from vreplication.schema.soft import document, number
from vreplication.spark import jobs

GIVEN = {"name": "orders", "source": "a", "target": "b", "table": "t", "time_column": "at"}
YAML = """
jobs:
  - name: orders
    source: a
    target: b
    table: t
    time_column: at
"""


def test_a_job_has_defaults_and_holds_still() -> None:
    job = make_job(GIVEN)
    assert (job.written_table, job.time_zone, job.mirror, job.batch_rows) == ("t", "UTC", False, 1000)
    with pytest.raises(ValueError, match="frozen"):
        job.mirror = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"time_zone": "Berlin/Europe"}, "time_zone: 'Berlin/Europe' is no time zone of the IANA database"),
        ({"time_zone": "../etc/passwd"}, "is no time zone"),
        ({"mirror": "yes"}, "mirror: it has to be true or false."),
        ({"batch_rows": 0}, "batch_rows: it has to be at least 1."),
        ({"table": " "}, "table: it is empty."),
        ({"tabel": "x"}, "tabel: there is no such option."),
        ({"table": None}, "table: it has to be text."),
    ],
)
def test_a_wrong_value_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        make_job({**GIVEN, **change})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_jobs_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "backfills.yaml"
    path.write_text(YAML)
    assert find_job(load_jobs(path), "orders", path).table == "t"
    with pytest.raises(Refused, match=r"There is no job 'x' in .*; it has: orders"):
        find_job(load_jobs(path), "x", path)
    for empty in ("jobs: []", "jobs:"):
        path.write_text(empty)
        assert load_jobs(path) == {}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("jobs: [", "is not valid YAML at line 1"),
        ("jobs: !!python/object/apply:os.system [ls]", "is not valid YAML"),
        ("- a", "is not `jobs:` with a list of jobs"),
        ("jobs: {}", "is not a list"),
        ("jobs: [a]", "Job 1 in .* is not a list of fields"),
        (YAML + YAML.partition("jobs:\n")[2], "two jobs of the name 'orders'"),
        (YAML + "    mirror: 7\n", "Job 'orders' in .*: mirror"),
        (b"\xff", "is not text in UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "backfills.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Refused, match=sentence) as caught:
        load_jobs(path)
    assert "\n" not in str(caught.value)


def test_the_file_of_this_repository_is_whole_and_its_example_too(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "migrations" / "backfills.yaml").read_text()
    example = "\n".join(line[2:] for line in text.partition("#\n")[2].splitlines() if line.startswith("# "))
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(example)
    assert load_jobs(tmp_path / "a.yaml") == {}
    (job,) = load_jobs(tmp_path / "b.yaml").values()
    assert job.model_fields_set == set(Job.model_fields)


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]


@pytest.mark.parametrize("zone", ZONES)
@given(
    st.datetimes(datetime(2011, 1, 1), datetime(2027, 1, 1)), st.timedeltas(timedelta(0), timedelta(days=3)), st.data()
)
def test_walls_go_up_and_agree_with_the_zone(
    zone: str, naive: datetime, length: timedelta, data: st.DataObject
) -> None:
    """A value is in [start, end) exactly when its first coming is; so intervals side by side share none."""
    start = naive.replace(tzinfo=UTC)
    end = start + length
    low, high = wall(start, zone), wall(end, zone)
    assert low <= high
    value = data.draw(st.datetimes(low - timedelta(hours=3), max(low, high) + timedelta(hours=3)))
    instant = value.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    if instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == value:
        assert (low <= value < high) == (start <= instant < end)


def test_airflow_counts_in_moments_of_its_own() -> None:
    import pendulum

    moment = pendulum.datetime(2026, 10, 25, 1, 30, 0, 500)
    assert type(wall(moment, "Europe/Berlin")) is datetime
    assert wall(moment, "UTC") == datetime(2026, 10, 25, 1, 30, 0, 500)
    column = Column(name="at", ordinal=1, data_type="datetime", column_type="datetime", is_nullable=True)
    span = walls(moment, moment.add(days=1), "Europe/Berlin")
    assert within_sql(column, span) == "`at`>='2026-10-25 03:00:00' AND `at`<'2026-10-26 02:30:01'"


def test_the_clock_is_set_back_once() -> None:
    berlin = [wall(datetime(2026, 10, 25, 0, m, tzinfo=UTC), "Europe/Berlin") for m in (0, 59)]
    assert berlin == [datetime(2026, 10, 25, 2), datetime(2026, 10, 25, 2, 59)]
    for moment in (datetime(2026, 10, 25, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, 59, 59, 999999, tzinfo=UTC)):
        assert wall(moment, "Europe/Berlin") == datetime(2026, 10, 25, 3)
    assert wall(datetime(2026, 3, 29, 1, tzinfo=UTC), "Europe/Berlin") == datetime(2026, 3, 29, 3)
    local = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert wall(local, "Europe/Berlin") == datetime(2026, 10, 25, 3)


@pytest.mark.parametrize(
    ("kind", "fraction", "low"),
    [
        ("datetime", 0, "2026-01-31 10:00:01"),
        ("datetime", 3, "2026-01-31 10:00:00.001"),
        ("timestamp", 6, "2026-01-31 10:00:00.000001"),
        ("date", 0, "2026-02-01"),
    ],
)
def test_bounds_are_rounded_up_to_what_the_column_holds(kind: str, fraction: int, low: str) -> None:
    column = Column(name="a`t", ordinal=1, data_type=kind, column_type=kind, is_nullable=True, fraction=fraction)
    span = Walls(low=datetime(2026, 1, 31, 10, 0, 0, 1), high=datetime(2026, 2, 3))
    assert within_sql(column, span).startswith(f"`a``t`>='{low}' AND `a``t`<'2026-02-03")


def test_parts_tile() -> None:
    span = walls(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), "UTC")
    found = parts(span, 7)
    assert len(found) == 7
    assert (found[0].low, found[-1].high) == (span.low, span.high)
    assert all(a.high == b.low for a, b in pairwise(found))
    tiny = Walls(low=span.low, high=span.low + timedelta(microseconds=2))
    assert len(parts(tiny, 50)) == 2
    assert interval.Walls(low=span.low, high=span.low).is_empty


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("[1.0]", "[1]", False),
        ("[1e16]", "[1e+16]", True),
        ("[-0.0]", "[0.0]", True),
        ('{"b":1,"a":[true,null]}', '{"a": [true, null], "b": 1}', True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 18446744073709551616}', '{"a": 18446744073709551616.0}', True),
        ('"é"', b'"\xc3\xa9"', True),
        (None, "null", False),
        ("no json", "no json", True),
        # Beyond every DOUBLE: MariaDB takes it for JSON.
        ("1" + "0" * 400, "1" + "0" * 400, True),
        ("1" + "0" * 400, "1" + "0" * 401, False),
    ],
)
def test_one_text_for_a_value(one: Any, other: Any, is_same: bool) -> None:
    assert (document(one) == document(other)) is is_same


def test_one_number_for_what_the_flavors_print() -> None:
    assert number("[16777216.0]") == number(b"[16777216]") == 16777216.0
    assert number("[-0.0]") == number("[0]")
    assert number(None) is None


PASSWORD = "correct-horse"
DONE = Result(
    job="orders", start=datetime(2026, 1, 1, tzinfo=UTC), end=datetime(2026, 1, 2, tzinfo=UTC), rows_read=1234,
    inserted=1000, updated=200, unchanged=34, deleted=0, null_time_rows=5, extra_rows=6, verified=True,
)  # fmt: skip
ARGS = ["backfill", "orders", "--from", "2026-01-01", "--to", "2026-01-02T00:00+01:00"]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The engine replaced; a file with one job, and servers and passwords in the environment."""
    made: list[tuple[Any, ...]] = []
    (tmp_path / "backfills.yaml").write_text(YAML)
    monkeypatch.setattr(run, "run", lambda *args, **_: made.append(args) or DONE)
    for name, value in {
        backfill.FOLDER: str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        options.SOURCE: "mysql://joe@h/db",
        options.PASSWORD: PASSWORD,
        options.TARGET: "mysql://eve@g/db",
        options.TARGET_PASSWORD: PASSWORD + "2",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(masking, "_known", set())
    return made


def test_the_command_hands_on_what_it_was_given(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    import os

    assert main.run([*ARGS, "--mirror", "--spark-master", "local[3]"]) == 0
    job, source, target, start, end = calls[0]
    assert (job.name, job.mirror, job.spark_master) == ("orders", True, "local[3]")
    assert (source.host, source.password, target.host, target.password) == ("h", PASSWORD, "g", PASSWORD + "2")
    assert (start, end) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 23, tzinfo=UTC))
    out = capsys.readouterr().out
    assert "1,234 rows read, 1,000 inserted, 200 updated, 34 unchanged, 0 deleted; verified" in out
    assert "5 rows of the source have no time" in out
    assert not {options.PASSWORD, options.TARGET, options.TARGET_PASSWORD} & set(os.environ)


def test_the_command_as_json_and_not_verified(
    calls: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    bad = replace(DONE, verified=False, differing=3, example="7")
    monkeypatch.setattr(run, "run", lambda *_, **__: bad)
    assert main.run([*ARGS, "--json"]) == 1
    captured = capsys.readouterr()
    line = json.loads(captured.out)
    assert (line["event"], line["rows_read"], line["verified"]) == ("failed", 1234, False)
    assert "3 rows still differ" in line["reason"]
    assert "key 7" in captured.err


@pytest.mark.parametrize(
    ("args", "environment", "sentence"),
    [
        (["backfill", "x", *ARGS[2:]], {}, "There is no job 'x'"),
        ([*ARGS[:3], "soon", *ARGS[4:]], {}, "--from 'soon' is not a time"),
        (ARGS, {options.TARGET: ""}, "No target is given"),
        (ARGS, {options.TARGET: "postgres://h/db"}, "The target's URL is of kind 'postgres'"),
        (ARGS, {options.SOURCE: ""}, "No source is given"),
        ([*ARGS, "--file", "/nowhere.yaml"], {}, "The file /nowhere.yaml cannot be read"),
        (ARGS[:4], {}, "Missing option"),
    ],
)
def test_refusals_exit_with_2(
    calls: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    args: list[str], environment: dict[str, str], sentence: str,
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main.run(args) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert len(captured.err.splitlines()) == 1
    assert calls == []


def test_an_error_of_the_work_is_one_sentence_without_the_password(
    calls: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Terminal(f"No with {PASSWORD}2.")

    monkeypatch.setattr(run, "run", fail)
    assert main.run([*ARGS, "--target", f"mysql://eve:{PASSWORD}2@g/db"]) == 1
    err = capsys.readouterr().err
    assert "warning: A password in --target" in err
    assert PASSWORD not in err


class Killed(LocalSpark):
    """As where the machine has no memory left."""

    def parallelize(self, *_: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


def test_airflow_may_try_again_where_spark_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal error fails the task for good: the interval would be left as it is."""
    monkeypatch.setattr(jobs, "SIGNAL_SECONDS", 0.1)
    # Spark's own asks a session that another test may have ended.
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    part: Any = Slice(span=Walls(low=datetime(2026, 1, 1), high=datetime(2026, 1, 2)))
    task: Any = None
    with pytest.raises(Transient, match="Spark could not run the backfill"):
        run_slices(Killed(), task, [part], 1, lambda: None)


def test_airflow_may_try_again_where_the_cluster_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise OSError("All masters are unresponsive! Giving up.")

    monkeypatch.setattr(run, "SIGNAL_SECONDS", 0.1)
    monkeypatch.setattr(run, "spark_context", away)
    with pytest.raises(Transient, match="Spark did not start: OSError: All masters"):
        run._start_spark(make_job(GIVEN), lambda: None)
