"""A new unique key while the table is written to: legal swaps come out exactly, real duplicates end the workflow."""

from __future__ import annotations

import re

import pytest
from race_setup import Race

ALTER = "ADD UNIQUE KEY one (u)"
PATHS = ("rows", "server")

LEGAL = {
    "swapped": (
        "UPDATE t SET u=NULL WHERE id=10",
        "UPDATE t SET u=1 WHERE id=200",
        "UPDATE t SET u=20 WHERE id=10",
    ),
    "handed on to a new row": ("UPDATE t SET u=NULL WHERE id=30", "INSERT INTO t VALUES (35,'x',3)"),
    "of a deleted row": ("DELETE FROM t WHERE id=40", "INSERT INTO t VALUES (1000,'x',4)"),
    "handed on along the rows": tuple(f"UPDATE t SET u={100 + i} WHERE id={i * 10}" for i in range(1, 21))
    + tuple(f"UPDATE t SET u={i + 1} WHERE id={i * 10}" for i in range(1, 21)),
    "key changed": ("UPDATE t SET id=205 WHERE id=50", "UPDATE t SET u=5 WHERE id=205"),
}


@pytest.mark.parametrize("change", LEGAL)
@pytest.mark.parametrize(
    ("point", "path"), [("copy.after_select", "rows"), ("copy.after_open", "server"), ("workflow.copied", "server")]
)
def test_a_legal_change_comes_out_exactly(race: Race, change: str, point: str, path: str) -> None:
    race.make()
    with race.held(point, ALTER, copy_path=path, chunk_rows=7) as run:
        race.write(*LEGAL[change])
        race.applied(run)
    race.complete(run)


def test_an_old_image_does_not_come_back_behind_the_row_that_pushed_it_out(race: Race) -> None:
    """U4 (b): row 10 is changed, a new row takes the changed value; the copy holds the first image of row 10."""
    race.make()
    with race.held("copy.after_select", ALTER, copy_path="rows") as run:
        race.write("UPDATE t SET u=500 WHERE id=10")
        race.applied(run)
        race.write("UPDATE t SET u=501 WHERE id=10", "INSERT INTO t VALUES (11,'x',500)")
        race.applied(run)
    race.complete(run)


@pytest.mark.parametrize("path", PATHS)
def test_a_real_duplicate_that_comes_by_the_log(race: Race, path: str) -> None:
    race.make()
    with race.held("workflow.copied", ALTER, copy_path=path) as run:
        race.write("INSERT INTO t VALUES (500,'twice',5)")
    failed_by_name(race, run.result())


@pytest.mark.parametrize("path", PATHS)
def test_a_real_duplicate_that_comes_by_the_copy(race: Race, path: str) -> None:
    """Written after the plan has looked for duplicates and before the log is read."""
    race.make()
    with race.held("prepare.tables_made", ALTER, copy_path=path) as run:
        race.write("INSERT INTO t VALUES (500,'twice',5)")
    failed_by_name(race, run.result())


def failed_by_name(race: Race, result: object) -> None:
    assert (result.event, result.exit_code) == ("failed", 1), result  # type: ignore[attr-defined]
    reason = result.reason  # type: ignore[attr-defined]
    assert "one" in reason
    assert "5" in reason
    assert race.app.value("SELECT COUNT(*) FROM t") == 21
    assert race.app.row("SHOW INDEX FROM t WHERE key_name='one'") is None


def test_duplicates_before_the_start_are_refused_with_up_to_ten(race: Race) -> None:
    rows = ",".join(f"({i},'v',{i % 15})" for i in range(1, 31))
    race.make(rows=rows)
    result = race.begin(ALTER).result()
    assert (result.event, result.exit_code) == ("refused", 2), result
    named = re.findall(r"\((\d+)\) 2 times", result.reason or "")
    assert len(set(named)) == 10, result.reason
    assert race.ours() == []
