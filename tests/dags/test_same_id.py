"""One id in the queues of two servers, and one Airflow: a run's id is unique there, so one of the two is never run."""

from __future__ import annotations

import secrets

import pytest

from sandbox.databases import Database, create_database
from sandbox.deployment import Deployment
from tests.support.dag_runs import DagRun, trigger, unpause
from tests.support.flow import call
from tests.support.local_spark import WITHOUT
from tests.support.pairs import _pair_servers, server_of
from vreplication.mysql.session import connect
from vreplication.scheduler import due, queueing

__all__ = ["_pair_servers"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_pair_servers"), pytest.mark.timeout(600)]


def standing(database: Database) -> tuple[str, str]:
    with connect(database.url) as session:
        [found] = due.standings(queueing.look(session))
        return found.state, found.why


def test_one_of_them_fails_with_a_sentence(airflow: Deployment) -> None:
    databases = [create_database(server_of("mariadb", role)) for role in ("source", "target")]
    workflow = f"add-z-{secrets.token_hex(4)}"
    names = [f"shop_{database.name}" for database in databases]
    for name, database in zip(names, databases, strict=True):
        airflow.add_connection(name, database.url)
        with connect(database.app_url) as app:
            app.execute_raw("CREATE TABLE t (id INT PRIMARY KEY)")
        words = ("--table", "t", "--alter", "ADD z INT", "--workflow", workflow, "--spark-master", WITHOUT)
        assert call(database, "submit", *words).code == 0
    for dag in ("online_ddl", "scheduled_migrations"):
        unpause(airflow, dag)
    try:
        for _ in range(2):
            run = trigger(airflow, "scheduled_migrations", f"q-{secrets.token_hex(4)}", {"source_conn_ids": names})
            assert run.end() == "success", run.tasks()
            assert DagRun(airflow=airflow, dag_id="online_ddl", run_id=workflow).end() == "success"
        (first, _), (second, why) = sorted(map(standing, databases))
        assert (first, second) == ("done", "failed")
        assert "for another connection" in why
    finally:
        airflow.call("PATCH", "/api/v2/dags/scheduled_migrations", {"is_paused": True})
        for database in databases:
            database.drop()
