"""A whole online DDL whose rows are copied and verified by the executors of a cluster: Spark's own standalone one.

What must stay true: master and worker are processes of ours, ended by their ids.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

import vreplication.__main__
from sandbox import orders
from sandbox.databases import Database
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from tests.support.flow import Ended, call, finish, wait_until
from tests.support.running_airflow import free_port
from vreplication.mysql.session import connect

ROWS = 20_000
HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One master and one worker of two cores. work: what the worker keeps of each application."""

    master: str
    work: Path

    def executors(self) -> int:
        """How many have been started for all applications so far."""
        return len(list(self.work.glob("app-*/*/stderr")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    found = Cluster(master=f"spark://{HOST}:{free_port()}", work=folder / "work")
    port = found.master.rpartition(":")[2]
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(_deployed(folder, "master.Master", "--port", port))
        wait_until(lambda: "I have been elected leader" in said.read_text(), "no master")
        worker = ("worker.Worker", "--cores", "2", "--memory", "1g", "--work-dir", str(found.work), found.master)
        stack.enter_context(_deployed(folder, *worker))
        wait_until(lambda: "Registering worker" in said.read_text(), "no worker")
        yield found


@contextlib.contextmanager
def _deployed(folder: Path, name: str, *words: str) -> Iterator[Path]:
    """A daemon of Spark's; gives the file of what it says."""
    said = folder / f"{name}.log"
    command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", "--host", HOST, "--webui-port", "0"]
    with said.open("wb") as out:
        environment = {**os.environ, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(
            [*command, *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment
        )
    try:
        yield said
    finally:
        process.terminate()
        process.wait(30)


def _submitted(database: Database, cluster: Cluster, *words: str) -> Ended:
    """Handed to spark-submit as a file."""
    environment = {"VREPLICATION_SOURCE": str(database.url), "VREPLICATION_PASSWORD": database.url.password}
    command = [str(HOME / "bin/spark-submit"), "--conf", "spark.executor.memory=600m", vreplication.__main__.__file__]
    process = subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
    )
    return finish(process)


@pytest.mark.slow
@pytest.mark.spark
def test_the_executors_of_a_cluster_copy(database: Database, cluster: Cluster) -> None:
    """From the command line with --spark-master (MariaDB), and as a whole by spark-submit (MySQL)."""
    with connect(database.app_url) as app:
        orders.create(app, "orders")
        orders.fill(app, "orders", ROWS)
        keep_copy(app, "orders", "at_start")
    before = cluster.executors()
    words = ("online-ddl", "--table", "orders", "--alter", orders.ALTER, "--spark-master", cluster.master, "--json")
    with Workload(database.app_url, "orders", rows=ROWS, writers=2, readers=1, seed=3, rate=50, xa=True) as workload:
        if database.server.is_mariadb:
            ended = call(database, *words, "--yes")
        else:
            ended = _submitted(database, cluster, *words, "--yes")
        assert ended.code == 0, (ended.out[-2000:], ended.err[-2000:])
        assert ended.last["event"] == "complete"
        assert ended.last["rows_copied"] > ROWS // 2
        workload.wait_for(20)
    assert workload.stop().errors == ()
    assert cluster.executors() > before
    with connect(database.app_url) as app:
        assert prove(app, "orders", "at_start", orders.ALTER, workload.expected).differences == ()
