"""The archive of the classes that Spark's JVM loads: made, used, and harmless when it does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vreplication.spark import daemon as spark_daemon
from vreplication.spark import start as spark_start

ROOT = Path(__file__).resolve().parents[2]
MAKE = """
import pathlib, sys
from vreplication.spark import start as spark_start
spark_start.ARCHIVE = pathlib.Path(sys.argv[1])
assert spark_start.write_archive() == spark_start.ARCHIVE
"""
USE = """
import pathlib, sys
from vreplication.spark import start as spark_start
spark_start.ARCHIVE = pathlib.Path(sys.argv[1])
java = [*spark_start._archive_options(), "-Xlog:class+load:file=" + sys.argv[2]]
spark = spark_start.spark_context("local[2]", 2, "test", java)
print(spark.parallelize(range(4), 2).map(lambda n: n + 1).collect())
"""
START_JVM = """
import pathlib, sys
from pyspark import SparkConf, java_gateway
from vreplication.spark import start as spark_start
spark_start.ARCHIVE = pathlib.Path(sys.argv[1])
java = [*spark_start._JAVA_OPTIONS, *spark_start._archive_options(), "-Xlog:class+load:file=" + sys.argv[2]]
gateway = java_gateway.launch_gateway(SparkConf().set("spark.driver.extraJavaOptions", " ".join(java)))
print(gateway.jvm.Math.abs(-4))
gateway.shutdown()
"""
AGAIN = """
from vreplication.spark.session import SparkStart
def run(spark):
    return spark.context().parallelize(range(4), 2).map(lambda n: n + 1).collect()
spark = SparkStart("local[2]", 2, at_once=False)
spark.release()
print(run(spark))
first = spark.context()
spark.release()
spark.release()
print(run(spark), spark.context() is first)
spark.release()
spark.release()
jvm = first._gateway.proc
jvm.kill()
jvm.wait()
print(run(spark))
spark.stop()
"""
FROM_ARCHIVE = "shared objects file (top)"


def python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.seldom
@pytest.mark.slow
@pytest.mark.spark
def test_what_spark_loads_comes_from_the_archive_if_there_is_one_that_fits(tmp_path: Path) -> None:
    archive, loaded = tmp_path / "a folder" / "spark.jsa", tmp_path / "loaded.txt"
    made = python(MAKE, archive)
    assert made.returncode == 0, made.stderr
    assert [p.name for p in archive.parent.iterdir()] == ["spark.jsa"]
    assert python(USE, archive, loaded).stdout == "[1, 2, 3, 4]\n"
    assert loaded.read_text().count(FROM_ARCHIVE) > 5_000

    archive.unlink()
    archive.write_bytes(b"cut short")
    assert python(START_JVM, archive, loaded).stdout == "4\n"
    assert FROM_ARCHIVE not in loaded.read_text()


@pytest.mark.slow
@pytest.mark.spark
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = python(MAKE, tmp_path / "file" / "spark.jsa")
    assert "Terminal: The archive of Spark's classes could not be written" in ended.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_released_it_is_started_again_for_who_asks() -> None:
    ended = python(AGAIN)
    assert ended.stdout.splitlines() == ["[1, 2, 3, 4]", "[1, 2, 3, 4] False", "[1, 2, 3, 4]"], ended.stderr


@pytest.mark.spark
def test_workers_are_forked_with_what_they_work_with(spark: Any) -> None:
    """In a worker that has been asked for nothing of ours before; and nothing of it was compiled anew."""

    def look(_: int) -> tuple[str, list[str], list[str]]:
        files = [str(getattr(module, "__file__", "")) for module in sys.modules.values()]
        with open(f"/proc/{os.getppid()}/cmdline") as words:
            loaded = [name for name in spark_daemon.LOADED if name in sys.modules]
            return words.read(), loaded, [file for file in files if ".zip/" in file]

    ((words, loaded, zipped),) = spark.parallelize([0], 1).map(look).collect()
    assert spark_start.DAEMON in words
    assert zipped == []
    assert loaded == list(spark_daemon.LOADED)
    assert spark_daemon.__name__ == spark_start.DAEMON
