"""Spark's standalone master with workers of one core each, as processes of ours on this machine.

What must stay true: they are ended by their ids when the block ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
HOST = "127.0.0.1"
_START_SECONDS = 60.0
_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""They hand tasks to Python and do nothing else, on cores that the servers need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    master: str
    workers: tuple[int, ...]


@contextlib.contextmanager
def started(folder: Path, workers: int) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    master = f"spark://{HOST}:{_free_port()}"
    with contextlib.ExitStack() as stack:
        port = master.rpartition(":")[2]
        _, said = stack.enter_context(_daemon(folder / "master.log", "master.Master", "--port", port))
        _wait(lambda: "I have been elected leader" in said.read_text(), "no master of Spark's")
        found = [stack.enter_context(_worker(folder, number, master)) for number in range(workers)]
        for _, said in found:
            _wait(lambda said=said: "Successfully registered" in said.read_text(), "no worker of Spark's")  # type: ignore[misc]
        yield Cluster(master=master, workers=tuple(pid for pid, _ in found))


def _worker(folder: Path, number: int, master: str) -> contextlib.AbstractContextManager[tuple[int, Path]]:
    words = ("--cores", "1", "--memory", "1500m", "--work-dir", str(folder / f"work{number}"), master)
    return _daemon(folder / f"worker{number}.log", "worker.Worker", *words)


@contextlib.contextmanager
def _daemon(said: Path, name: str, *words: str) -> Iterator[tuple[int, Path]]:
    """Its process id, and the file of what it says."""
    command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", "--host", HOST, "--webui-port", "0"]
    environment = {**os.environ, **_JAVA, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*command, *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment
        )
    try:
        yield process.pid, said
    finally:
        process.terminate()
        process.wait(30)


def _wait(is_so: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(failure)
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
