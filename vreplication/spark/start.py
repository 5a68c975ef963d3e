"""Starting Spark: its properties, its JVM's options, and an archive of the JVM's classes that makes it quick.

What must stay true: no property holds anything of a connection; nothing of the JVM's gets into our output; an archive
that is missing, of another Java or of another Spark costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vreplication.errors import Terminal
from vreplication.settings import MOST_PARALLELISM

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

MAX_FAILURES = 4
"""Attempts at a task, the first included."""
ARCHIVE = Path(sys.prefix) / "var" / "vreplication" / "spark.jsa"
"""Beside the installation whose Spark it is of; about 70 MB."""
DAEMON = "vreplication.spark.daemon"
_PROPERTIES = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A second attempt beside the first would supersede it by the ledger, and gain nothing.
    "spark.speculation": "false",
    "spark.task.maxFailures": str(MAX_FAILURES),
    "spark.log.level": "ERROR",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker inside a statement does not notice that its task was killed; Spark ends it after this long.
    "spark.python.task.killTimeout": "500ms",
}
# The JVM only hands tasks to Python workers: its optimizing compiler and parallel collector would take the cores
# that the servers need, and starting took 11 s instead of 8 beside other work. What it has to say of an archive
# that does not fit would go to standard output.
_JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xlog:disable",
)
_JAVA_OPTIONS_OF_SQL = tuple(option for option in _JAVA_OPTIONS if "TieredStopAtLevel" not in option)
_JVM_END_SECONDS = 120.0


def spark_context(
    master: str,
    parallelism: int,
    app_name: str,
    java: Sequence[str] | None = None,
    *,
    is_sql: bool = False,
    more: Mapping[str, str] | None = None,
) -> SparkContext:
    """Spark for `run_copy`. local[*] has as many slots as may be asked for, and binds to this machine alone.

    Without an SQL session, which we do not need and which takes as long again to start.
    java: options of the JVM instead of the archive's. is_sql: the JVM itself works on rows. more: properties.
    """
    from pyspark import SparkConf, SparkContext

    _forget_dead_jvm()
    # Spark would take the python3 of PATH for its workers, which may be another one, without this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    fixed = _JAVA_OPTIONS_OF_SQL if is_sql else _JAVA_OPTIONS
    options = " ".join([*fixed, *(_archive_options() if java is None else java)])
    conf = SparkConf().setMaster(local_master(master, parallelism)).setAppName(app_name)
    conf.set("spark.driver.extraJavaOptions", options)
    for name, value in {**_PROPERTIES, **_local_properties(master), **(more or {})}.items():
        conf.set(name, value)
    # A process has one at most; where a second is made PySpark raises.
    context = SparkContext.getOrCreate(conf)
    context.setLogLevel("ERROR")
    _log_errors(context)
    return context


def _forget_dead_jvm() -> None:
    """PySpark keeps its JVM for the next context, also one that was killed meanwhile."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None


def _log_errors(context: SparkContext) -> None:
    """What breaks when the JVM goes is a traceback on standard error otherwise."""
    if server := context._accumulatorServer:
        server.handle_error = lambda *_: log.info("Spark's JVM cut a connection", exc_info=True)  # type: ignore[method-assign]


def end_context(spark: SparkContext) -> None:
    """End it, also when its JVM has gone; then the first call gives up halfway and the second does the rest."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            spark.stop()
            return


def warm_up(spark: SparkContext, parallelism: int) -> None:
    """Start Spark's Python workers and have them import what a copying task needs, before there is anything to copy."""
    # What is wrong with the cluster will be said by the copy, in its own words.
    with contextlib.suppress(Exception):
        spark.parallelize(range(parallelism), parallelism).map(_imported).collect()


def _imported(number: int) -> int:
    """By name: what copies stands on this room, and is only brought along here."""
    importlib.import_module("vreplication.rowcopy.spark_job")
    return number


def local_master(master: str, parallelism: int) -> str:
    """local[*] with a slot for every task that may be asked for, and with retries, which a plain local[n] does not do.

    A slot that is not used costs nothing; how many are used, `run_copy` and verification decide.
    """
    # Every other master, `local[2,4]` and a cluster's too, says itself how many slots and retries there are.
    found = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    if not found:
        return master
    slots = max(parallelism, MOST_PARALLELISM) if found[1] == "*" else int(found[1] or 1)
    return f"local[{max(1, slots)},{MAX_FAILURES}]"


def _local_properties(master: str) -> dict[str, str]:
    if not master.startswith("local"):
        return {}
    here = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    # The executors of a `local-cluster` are processes of their own, as a cluster's are.
    return here if master.startswith("local-cluster") else {**here, "spark.python.daemon.module": DAEMON}


def _archive_options() -> list[str]:
    # In quotes, for Spark parts the options at spaces, and a path may have one.
    return [f'"-XX:SharedArchiveFile={ARCHIVE}"'] if ARCHIVE.exists() else []


def write_archive() -> Path:
    """Start Spark once, to no other end than that its JVM archives the classes that it loaded (JEP 350).

    Whole or not at all: written beside its place and renamed. Raises Terminal when nothing comes of it.
    """
    written = ARCHIVE.with_suffix(f".{os.getpid()}")
    try:
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        _run_once([f'"-XX:ArchiveClassesAtExit={written}"'])
        written.replace(ARCHIVE)
    except OSError as error:
        raise Terminal(
            f"The archive of Spark's classes could not be written: {error}.",
            cure="Spark starts without it too, in twice the time.",
        ) from None
    finally:
        # Also behind a JVM that was killed while it wrote.
        written.unlink(missing_ok=True)
    return ARCHIVE


def _run_once(java: Sequence[str]) -> None:
    """What a copy does, without rows, until the JVM has ended."""
    context = spark_context("local[*]", 2, "vreplication archive", java)
    jvm = context._gateway.proc  # type: ignore[union-attr]
    context.setJobGroup("archive", "classes that a copy needs")
    warm_up(context, 2)
    # These two for their classes alone, which go into the archive with the others.
    context.statusTracker().getActiveJobsIds()
    context.cancelJobGroup("archive")
    context.stop()
    # PySpark's JVM ends when its standard input does, and writes the archive as it exits.
    jvm.stdin.close()
    jvm.wait(_JVM_END_SECONDS)
