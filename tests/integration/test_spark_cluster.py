"""A whole online DDL whose rows are copied and verified by the executors of a cluster: Spark's own standalone one.

What must stay true: master and worker are processes of ours, ended by their ids; every executor is a process of its
own, so that all a task needs travels with it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

import vreplication.__main__
from sandbox import orders
from sandbox.databases import Database
from sandbox.proof import keep_copy, prove
from sandbox.workload import Workload
from tests.support.flow import Ended, finish, wait_until
from tests.support.running_airflow import free_port
from vreplication.mysql.session import connect

pytestmark = pytest.mark.either

ROWS = 10_000
HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
# They only hand tasks to Python, on cores that the servers need: no optimizing compiler, no parallel collector.
JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One master and one worker of two cores. work: what the worker keeps of each application."""

    master: str
    work: Path

    def executors(self) -> int:
        """How many have been started for all applications so far."""
        return len(list(self.work.glob("app-*/*/stderr")))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    found = Cluster(master=f"spark://{HOST}:{free_port()}", work=folder / "work")
    port = found.master.rpartition(":")[2]
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(_deployed(folder, "master.Master", "--port", port))
        wait_until(lambda: "I have been elected leader" in said.read_text(), "no master")
        worker = ("worker.Worker", "--cores", "2", "--memory", "2g", "--work-dir", str(found.work), found.master)
        stack.enter_context(_deployed(folder, *worker))
        wait_until(lambda: "Registering worker" in said.read_text(), "no worker")
        yield found


@contextlib.contextmanager
def _deployed(folder: Path, name: str, *words: str) -> Iterator[Path]:
    """A daemon of Spark's; gives the file of what it says."""
    said = folder / f"{name}.log"
    command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", "--host", HOST, "--webui-port", "0"]
    with said.open("wb") as out:
        environment = {**os.environ, **JAVA, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(
            [*command, *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment
        )
    try:
        yield said
    finally:
        process.terminate()
        process.wait(30)


def _submitted(database: Database, cluster: Cluster, *words: str) -> Ended:
    """Handed to spark-submit as a file; each of the worker's cores is an executor."""
    environment = {"VREPLICATION_SOURCE": str(database.user_url), "VREPLICATION_PASSWORD": database.url.password}
    conf = ("--conf", "spark.executor.memory=600m", "--conf", "spark.executor.cores=1")
    command = [str(HOME / "bin/spark-submit"), *conf, vreplication.__main__.__file__]
    process = subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment, **JAVA, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
    )
    return finish(process)


@pytest.mark.seldom
@pytest.mark.only_on("mysql")
@pytest.mark.slow
@pytest.mark.spark
def test_executors_of_a_cluster_copy(database: Database, cluster: Cluster) -> None:
    """As a whole by spark-submit, on one that was there before, and rows travel through them."""
    before = cluster.executors()
    copy_live(
        database,
        lambda ddl: _submitted(database, cluster, *ddl, "--spark-master", cluster.master, "--copy-path", "rows"),
    )
    assert cluster.executors() == before + 2


def copy_live(database: Database, run: Callable[[tuple[str, ...]], Ended]) -> None:
    """Alter a table under writes with the command that is run so, and prove the result."""
    with connect(database.app_url) as app:
        orders.create(app, "orders")
        orders.fill(app, "orders", ROWS)
        keep_copy(app, "orders", "at_start")
    with Workload(database.app_url, "orders", rows=ROWS, writers=2, readers=1, seed=3, rate=30, xa=True) as workload:
        ended = run(("online-ddl", "--table", "orders", "--alter", orders.ALTER, "--json", "--yes"))
        assert ended.code == 0, (ended.out[-2000:], ended.err[-2000:])
        assert ended.last["event"] == "complete"
        assert ended.last["rows_copied"] > ROWS // 2
        workload.wait_for(20)
    assert workload.stop().errors == ()
    with connect(database.app_url) as app:
        assert prove(app, "orders", "at_start", orders.ALTER, workload.expected).differences == ()
