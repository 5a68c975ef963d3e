"""Spark where it does the work itself, on files and streams: a session for SQL, and the jars that it reads Kafka with.

What must stay true: times are UTC and names are told apart by case, whoever starts it; jars that are missing are one
sentence before anything is started.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vreplication.errors import Interrupted, Refused, Terminal
from vreplication.spark.jobs import Jobs, heed_signal
from vreplication.spark.start import end_context, spark_context

JARS = "VREPLICATION_SPARK_KAFKA_JARS"
_FOLDER = "~/.cache/vreplication/spark-kafka-4.2.0"
_POLL_SECONDS = 0.2
_LEAST_PARTITIONS = 4
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    # Of a header that comes twice the last one counts, as with our other readers; by default Spark fails.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    # By default Spark takes the value of a folder for a number or a date where it looks like one: 007 would be 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # By default Spark writes INT96, which Parquet itself calls deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.minBatchesToRetain": "3",
    "spark.sql.catalogImplementation": "in-memory",
}


def jars_folder() -> Path:
    """Where those of the Kafka connector are."""
    return Path(os.environ.get(JARS) or _FOLDER).expanduser()


def kafka_jars() -> tuple[str, ...]:
    """Of Spark's Kafka connector. Raises Refused."""
    folder = jars_folder()
    found = tuple(str(path) for path in sorted(folder.glob("*.jar")))
    if not any(Path(path).name.startswith("spark-sql-kafka-") for path in found):
        raise Refused(
            f"Spark's Kafka connector is not in {folder}.",
            cure=f"Run make install-kafka, or name the folder of its jars in {JARS}.",
        )
    return found


def sql_session(master: str, *, jars: tuple[str, ...] = (), check: Callable[[], None] = lambda: None) -> Any:
    """A SparkSession. `check` is called while it starts and may raise. Raises Terminal."""
    found: list[Any] = []
    starting = threading.Thread(target=_start, args=(found, master, jars), daemon=True)
    # Not in the main thread, where Spark would put a SIGINT handler of its own over ours.
    starting.start()
    while starting.is_alive():
        starting.join(_POLL_SECONDS)
        check()
    if not found or isinstance(found[0], Exception):
        words = str(found[0]).strip().splitlines() if found else []
        raise Terminal(
            f"Spark did not start: {words[0] if words else 'no reason is known'}.",
            cure="Look at --spark-master and at the Java installation, then run the same command again.",
        )
    return found[0]


@contextlib.contextmanager
def opened(master: str, stop: threading.Event, *, has_kafka: bool = False) -> Iterator[Callable[[], Any]]:
    """A function that starts it when it is needed; ended at the end. Raises Refused where jars are missing."""
    jars = kafka_jars() if has_kafka else ()
    started: list[Any] = []

    def start() -> Any:
        if not started:
            started.append(sql_session(master, jars=jars, check=lambda: _check(stop)))
        return started[0]

    try:
        yield start
    finally:
        for session in started:
            end_context(session.sparkContext)


@contextlib.contextmanager
def cut(stop: threading.Event, start: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """`start`, whose session's jobs are cancelled once `stop` is set; an error of theirs is an interrupt then."""
    started: list[Any] = []
    ended = threading.Event()

    def begin() -> Any:
        started[:] = [start()]
        return started[0]

    threading.Thread(target=_cancel, args=(stop, ended, started), daemon=True).start()
    try:
        yield begin
    except BrokenPipeError:
        # Of who reads what we print.
        raise
    except Exception as error:
        jvm = Jobs(context=started[0].sparkContext, purpose="lake").jvm if started else None
        heed_signal(error, lambda: _check(stop), jvm)
        raise
    finally:
        ended.set()


def _cancel(stop: threading.Event, ended: threading.Event, started: list[Any]) -> None:
    while not ended.wait(_POLL_SECONDS):
        if stop.is_set():
            # Again and again: another job may be submitted behind it.
            for session in started:
                with contextlib.suppress(Exception):
                    session.sparkContext.cancelAllJobs()


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("Interrupted.")


def _start(found: list[Any], master: str, jars: tuple[str, ...]) -> None:
    from pyspark.sql import SparkSession

    cores = os.cpu_count() or 1
    # A slot works here, where a copy's waits for a server: as many as there are cores.
    master = f"local[{cores}]" if master in ("local", "local[*]") else master
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(max(_LEAST_PARTITIONS, cores))}
    if jars:
        settings["spark.jars"] = ",".join(jars)
    try:
        context = spark_context(master, cores, "vreplication", is_sql=True, more=settings)
        found.append(SparkSession(context))
    except Exception as error:
        found.append(error)
