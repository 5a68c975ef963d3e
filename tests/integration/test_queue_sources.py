"""What the DAG scheduled_migrations does at each look, on real servers, without Airflow around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.databases import Database
from tests.support.rows import workflow_row
from vreplication.airflow import claiming, connections, folder, migration_files
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.scheduler import due, queueing
from vreplication.state import journal, layout, queue, workflows


class Minute:
    """Calls of `look_after`, with connections of our own and files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.connections: dict[str, SourceUrl] = {}
        self.count = 0

    def source_url(self, conn_id: str) -> SourceUrl:
        if conn_id not in self.connections:
            raise Refused(f"There is no connection {conn_id!r}.")
        return self.connections[conn_id]

    def file(self, name: str, text: str) -> None:
        (self.folder / f"{name}.yaml").write_text(text)

    def pass_by(self, *sources: str, concurrency: int = 1) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What is started (id → conf), and what went wrong."""
        self.count += 1
        files = migration_files.read_files(str(self.folder))
        found, problems = claiming.look_after(
            files.sources | set(sources),
            files,
            concurrency=concurrency,
            by=f"run {self.count}",
            look_up=lambda _: due.RUNNING,
        )
        return {one["trigger_run_id"]: one["conf"] for one in found}, problems


@pytest.fixture
def minute(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Minute:
    made = Minute(tmp_path)
    made.connections["shop"] = database.url
    monkeypatch.delenv(folder.FOLDER, raising=False)
    monkeypatch.setattr(connections, "source_url", made.source_url)
    return made


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with connect(database.url) as opened:
        yield opened


def migration(workflow: str, conn_id: str = "shop", **more: object) -> str:
    given = {"source_conn_id": conn_id, "table": f"t_{workflow}", "alter": "ADD x INT", "workflow": workflow, **more}
    return "{" + ", ".join(f"{key}: {value}" for key, value in given.items()) + "}\n"


def test_a_file_goes_in_once_and_comes_out_as_a_run(minute: Minute, session: Session) -> None:
    minute.file("a", migration("w1", cutover="window", cutover_window="'Sat 02:00-04:00 UTC'", chunk_rows=9))
    started, problems = minute.pass_by()
    assert problems == []
    assert started == {
        "w1": {
            "source_conn_id": "shop", "table": f"{session.url.database}.t_w1", "alter": "ADD x INT", "workflow": "w1",
            "cutover": "window", "cutover_window": "Sat 02:00-04:00 UTC", "chunk_rows": 9,
        }
    }  # fmt: skip
    assert minute.pass_by() == ({}, [])
    [entry] = queue.entries(session)
    assert (entry.workflow, entry.conn_id, entry.submitted_by) == ("w1", "shop", "run 1 (a.yaml)")
    assert [e["event"] for e in journal.read(session, "w1")] == ["submitted", "started from the queue"]


def test_what_may_be_started_is_seen_without_a_claim(minute: Minute, database: Database) -> None:
    """And afterwards what was claimed and has not begun."""
    assert claiming.standing(["shop"], 1) == ([], False)
    minute.file("a", migration("w1", not_before="2999-01-01T00:00:00Z"))
    minute.pass_by()
    assert claiming.standing(["shop", "nowhere"], 1) == ([], False)
    with connect(database.url) as session:
        for name in ("w2", "w3"):
            given = {"table": f"t_{name}", "alter": "ADD x INT", "workflow": name}
            queueing.submit(session, queueing.make_entry(database.name, given), "ann")
    assert claiming.standing_at(database.url, 1) == (["w2"], False)
    assert claiming.standing(["shop"], 2) == (["w2", "w3"], False)
    assert list(minute.pass_by("shop")[0]) == ["w2"]
    assert claiming.standing(["shop"], 1) == ([], True)


def test_a_removed_migration_is_not_put_in_again(minute: Minute, session: Session) -> None:
    minute.file("a", migration("w1", not_before="2999-01-01T00:00:00Z"))
    assert minute.pass_by() == ({}, [])
    queueing.remove(session, "w1", "ann")
    minute.file("a", migration("w1"))
    assert minute.pass_by() == ({}, [])


def test_what_differs_from_its_file_is_not_started(minute: Minute) -> None:
    minute.file("a", migration("w1", not_before="2999-01-01T00:00:00Z"))
    minute.file("b", migration("w2", not_before="2999-01-01T00:00:00Z"))
    assert minute.pass_by() == ({}, [])
    minute.file("a", migration("w1"))
    started, [problem] = minute.pass_by()
    assert started == {}
    assert problem.startswith("a.yaml: workflow w1 is in the queue with other values than the file has.")


def test_an_id_that_was_used_for_something_else_is_said(minute: Minute, session: Session) -> None:
    """It would never be started: by hand, in the queue, or by the same file before it was edited."""
    layout.install(session)
    workflows.create(session, workflow_row("w1", source_table="T_w1", spec={"alter": "ADD x  INT"}))
    minute.file("a", migration("w1"))
    minute.file("b", migration("w2", not_before="2999-01-01T00:00:00Z"))
    assert minute.pass_by() == ({}, [])
    queueing.remove(session, "w2", "ann")
    minute.file("a", migration("w1", alter="DROP x"))
    minute.file("b", migration("w2", alter="ADD y INT"))
    minute.file("c", migration("w3"))
    started, problems = minute.pass_by()
    assert list(started) == ["w3"]
    assert problems == [
        f"{file}.yaml: workflow {name} was there before, for another table or ALTER. Give it a new id."
        for file, name in (("a", "w1"), ("b", "w2"))
    ]


def test_what_fails_keeps_nobody_waiting(minute: Minute, database: Database) -> None:
    """A file with a mistake, a connection that is not there, a server that does not answer; all are said."""
    minute.connections["down"] = database.server.url(database.name, user="nobody", password="wrong")
    minute.file("bad", "{tabel: x}")
    minute.file("good", "- " + migration("w1") + "- " + migration("w2", "down") + "- " + migration("w3", "missing"))
    started, problems = minute.pass_by("vreplication_source")
    assert list(started) == ["w1"]
    assert [problem.split(":")[0] for problem in problems] == [
        "bad.yaml",
        "Connection 'down'",
        "There is no connection 'missing'.",
    ]
    assert "wrong" not in " ".join(problems)


def test_two_connections_to_one_server(minute: Minute, session: Session) -> None:
    """Each starts its own, no more than there are places in all; one of a connection that is gone is not lost."""
    minute.connections["also"] = minute.connections["shop"]
    minute.file("a", "- " + migration("w1", "shop") + "- " + migration("w2", "also") + "- " + migration("w3", "gone"))
    started, _ = minute.pass_by(concurrency=2)
    assert {w: conf["source_conn_id"] for w, conf in started.items()} == {"w1": "shop", "w2": "also"}
    entry = queueing.make_entry(session.url.database, {"table": "t3", "alter": "x", "workflow": "w4"}, conn_id="gone")
    queueing.submit(session, entry, "ann")
    (minute.folder / "a.yaml").unlink()
    started, _ = minute.pass_by("also", concurrency=9)
    assert {w: conf["source_conn_id"] for w, conf in started.items()} == {"w4": "also"}
