"""One id in the queues of two servers: of both, one run has it, and the other entry is told so instead of never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.airflow import claiming, connections, migration_files
from vreplication.errors import Refused
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.scheduler import due, queueing
from vreplication.state.queue import Entry

__all__ = ["_pair_servers", "pair"]

pytestmark = pytest.mark.parametrize("pair", ["mariadb-mysql"], indirect=True)


class Airflow:
    """Runs by their ids, each with the connection that it was made for."""

    def __init__(self, urls: dict[str, SourceUrl], folder: Path) -> None:
        self.urls, self.files = urls, migration_files.read_files(str(folder))
        self.runs: dict[str, str] = {}
        self.looks = 0

    def source_url(self, conn_id: str) -> SourceUrl:
        if conn_id not in self.urls:
            raise Refused(f"There is no connection {conn_id!r}.")
        return self.urls[conn_id]

    def look(self) -> list[tuple[str, str]]:
        """What is claimed. Of each id the first makes the run, as TriggerDagRunOperator does."""
        self.looks += 1
        found, problems = claiming.look_after(
            sorted(self.urls), self.files, concurrency=2, by=f"run {self.looks}",
            look_up=lambda entry: due.RUNNING if entry.workflow in self.runs else due.ABSENT,
            conn_of_run=self._conn,
        )  # fmt: skip
        assert problems == []
        claimed = [(one["conf"]["source_conn_id"], one["trigger_run_id"]) for one in found]
        for conn_id, workflow in claimed:
            self.runs.setdefault(workflow, conn_id)
        return claimed

    def _conn(self, entry: Entry) -> str | None:
        return self.runs.get(entry.workflow)


@pytest.fixture
def airflow(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    made = Airflow({"one": pair.source.url, "two": pair.target.url}, tmp_path)
    monkeypatch.setattr(connections, "source_url", made.source_url)
    return made


@pytest.fixture
def sessions(pair: Pair) -> Iterator[tuple[Session, Session]]:
    with connect(pair.source.url) as one, connect(pair.target.url) as two:
        yield one, two


def submit(session: Session, workflow: str) -> None:
    given = {"table": "t", "alter": "FORCE", "workflow": workflow}
    queueing.submit(session, queueing.make_entry(session.url.database, given), "ann")


def listed(session: Session) -> dict[str, tuple[str, str]]:
    return {s.entry.workflow: (s.state, s.why) for s in due.standings(queueing.look(session))}


def test_what_is_claimed_on_both_at_once(airflow: Airflow, sessions: tuple[Session, Session]) -> None:
    for session in sessions:
        submit(session, "add-z")
    submit(sessions[1], "next")
    assert airflow.look() == [("one", "add-z"), ("two", "add-z")]
    assert airflow.look() == [("two", "next")]
    assert listed(sessions[0])["add-z"][0] == "started"
    state, why = listed(sessions[1])["add-z"]
    assert (state, "for another connection" in why) == ("failed", True)


def test_what_is_submitted_when_the_run_is_there(airflow: Airflow, sessions: tuple[Session, Session]) -> None:
    submit(sessions[0], "add-z")
    assert airflow.look() == [("one", "add-z")]
    submit(sessions[1], "add-z")
    assert airflow.look() == []
    assert listed(sessions[1])["add-z"][0] == "failed"
    assert listed(sessions[0])["add-z"][0] == "started"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_two_connections_to_one_server(
    airflow: Airflow, sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The run of the one is the other's as well, also where they call the server by other names."""
    monkeypatch.setitem(airflow.urls, "two", replace(airflow.urls["one"], host=host))
    submit(sessions[0], "add-z")
    assert airflow.look() == [("one", "add-z")]
    assert airflow.look() == []
    assert listed(sessions[0])["add-z"][0] == "started"
