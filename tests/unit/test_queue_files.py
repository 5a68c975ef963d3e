"""Files under migrations/: what they ask for, and the sentence for each mistake."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from vreplication.airflow import claiming, folder, migration_files
from vreplication.airflow.migration_files import read_files

ROOT = Path(__file__).resolve().parents[2]
GOOD = "{source_conn_id: shop, table: orders, alter: ADD x INT, workflow: w1}"


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(folder.FOLDER, raising=False)


def write(into: Path, **files: str) -> str:
    for name, text in files.items():
        (into / f"{name}.yaml").write_text(text)
    return str(into)


def test_a_mapping_a_list_and_connections(tmp_path: Path) -> None:
    written = write(
        tmp_path,
        a=GOOD,
        b="- {source_conn_id: other, table: t, alter: x, workflow: w2, chunk_rows: 5, priority: -1, after: w1,\n"
        "   not_before: 2026-12-24 02:00:00+01:00}\n- source_conn_ids: [third]",
        empty="# nothing yet",
        backfills="jobs: [{name: x}]",
    )
    found = read_files(written)
    assert (found.problems, found.sources) == ((), {"shop", "other", "third"})
    one, two = (w.entry("db") for w in found.wanted)
    assert (one.workflow, one.conn_id, one.spec) == ("w1", "shop", {"table": "db.orders", "alter": "ADD x INT"})
    assert (two.after, two.priority, two.not_before) == ("w1", -1, datetime(2026, 12, 24, 1, 0))
    assert two.spec == {"table": "db.t", "alter": "x", "chunk_rows": 5}


def test_a_window(tmp_path: Path) -> None:
    window = "Sat 02:00-04:00 Europe/Berlin"
    written = write(tmp_path, a=GOOD[:-1] + f", cutover: window, cutover_window: '{window}'}}")
    [one] = read_files(written).wanted
    assert one.entry("db").spec == {
        "table": "db.orders", "alter": "ADD x INT", "cutover": "window", "cutover_window": window,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "{source_conn_id: s, table: t, alter: x, workflow: w, tabel: t}",
            "key 'tabel' is not known. There are source",
        ),
        ("{source_conn_id: s, table: t, alter: x, workflow: w, spark: x}", "key 'spark' is not known."),
        ("{source_conn_id: s, table: t, alter: x, workflow: w, apply_parallelism: 0}", "apply_parallelism: "),
        ("{source_conn_id: s, table: t, alter: x}", "a migration has no workflow."),
        ("{table: t, alter: x, workflow: w}", "a migration has no source_conn_id."),
        ("{source_conn_id: s, alter: x, workflow: w}", "table: it is missing."),
        ("{source_conn_id: s, table: t, alter: x, workflow: w, chunk_rows: 0}", "chunk_rows: "),
        ("{source_conn_id: s, table: t, alter: x, workflow: w, cutover: window}", "cutover_window: '' is no window."),
        ("{source_conn_id: s, table: t, alter: x, workflow: w, cutover_window: x}", "with `cutover: window` only"),
        ("{source_conn_id: s, table: t, alter: x, workflow: w, not_before: 2026-12-24}", "does not say in which time"),
        ("[1]", "1 is not a migration."),
        ("just words", "'just words' is not a migration."),
        ("{source_conn_ids: shop}", "source_conn_ids is not a list of connection ids."),
        ("{a: [", "it cannot be read: "),
        ("!!python/object/apply:os.getcwd []", "it cannot be read: "),
    ],
)
def test_a_mistake_is_one_sentence_with_the_files_name_and_asks_for_nothing(
    tmp_path: Path, text: str, words: str
) -> None:
    both = f"- {GOOD}\n- {text}" if text.startswith("{source") else text
    found = read_files(write(tmp_path, bad=both, good=GOOD.replace("w1", "w2")))
    [problem] = found.problems
    assert problem.startswith("bad.yaml: ")
    assert words in problem
    assert [w.given["workflow"] for w in found.wanted] == ["w2"]


def test_a_missing_folder_is_an_empty_one_and_the_environment_may_name_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_files(str(tmp_path / "none")) == migration_files.Files()
    monkeypatch.setenv(folder.FOLDER, write(tmp_path, a=GOOD))
    assert len(read_files("elsewhere").wanted) == 1


def test_the_example_is_right_and_is_not_picked_up(tmp_path: Path) -> None:
    example = ROOT / "migrations" / "example.yaml.txt"
    assert read_files(str(example.parent)) == migration_files.Files()
    found = read_files(write(tmp_path, a=example.read_text()))
    assert found.problems == ()
    assert len(found.wanted) > 2


MOVE = "{kind: move_tables, source_conn_id: old, target_conn_id: new, workflow: m1"


def test_a_move_waits_where_its_state_is_and_its_run_is_told_both_servers(tmp_path: Path) -> None:
    window = "Sat 02:00-04:00 Europe/Berlin"
    asked = f"tables: [orders, items], replica_conn_id: r, reverse: false, cutover: window, cutover_window: '{window}'"
    found = read_files(write(tmp_path, a=f"{MOVE}, {asked}, after: w1}}"))
    assert (found.problems, found.sources) == ((), {"new"})
    [entry] = (w.entry("shop") for w in found.wanted)
    assert (entry.kind, entry.conn_id, entry.schema, entry.table, entry.after) == (
        "move_tables", "new", "shop", "orders", "w1",
    )  # fmt: skip
    assert claiming.conf_of(entry, "new") == {
        "source_conn_id": "old", "target_conn_id": "new", "replica_conn_id": "r", "workflow": "m1",
        "tables": ["orders", "items"], "reverse": False, "cutover": "window", "cutover_window": window,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{MOVE}}}", "no table is named"),
        (f"{MOVE}, tables: [t], alter: x}}", "key 'alter' is not known"),
        ("{kind: move_tables, target_conn_id: new, workflow: m, tables: [t]}", "a migration has no source_conn_id"),
        ("{kind: reshard, source_conn_id: s, workflow: m}", "kind: 'reshard' is none of online_ddl, move_tables"),
        ("{kind: changefeed, source_conn_id: s, sink: x}", "kind: a changefeed has no end, and is not queued"),
    ],
)
def test_a_mistake_in_a_move_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    found = read_files(write(tmp_path, a=text))
    assert found.wanted == ()
    [problem] = found.problems
    assert problem.startswith("a.yaml: ")
    assert words in problem
