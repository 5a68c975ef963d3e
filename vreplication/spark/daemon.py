"""The process from which Spark forks its Python workers on this machine, with what they work with loaded once for all.

What must stay true: nothing is started here, for everything would be in each worker; a cluster's executors have
Spark's own, for there we may be no more than files that come along with a task.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from pathlib import Path

# By name: what verifies stands on what copies, and is only brought along here.
LOADED = (
    "pyspark.worker",
    "vreplication.rowcopy.spark_job",
    "vreplication.spark.builds",
    "vreplication.verify.spark_job",
)


def _prefer_installed() -> None:
    """Take Spark's Python code from where it is installed, when its archives, which come first, are part of that.

    They hold no bytecode, and compiling took longer than all else that a worker needs before its first row.
    """
    archives = [path for path in map(Path, sys.path) if path.suffix == ".zip" and path.is_file()]
    before, sys.path[:] = list(sys.path), [place for place in sys.path if Path(place) not in archives]
    found = [importlib.util.find_spec(name) for name in ("pyspark", "py4j")]
    home = Path(found[0].origin or "").parent if found[0] else None
    if not all(found) or home is None or not all(archive.is_relative_to(home) for archive in archives):
        sys.path[:] = before


def main() -> None:
    _prefer_installed()
    from pyspark.daemon import manager

    for name in LOADED:
        importlib.import_module(name)
    # What is never written stays one and the same memory in all of them.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
