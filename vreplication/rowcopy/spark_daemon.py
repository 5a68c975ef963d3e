"""The process from which Spark forks its Python workers on this machine, with what they work with loaded once for all.

What must stay true: nothing is started here, for everything would be in each worker; a cluster's executors have
Spark's own, for there we may be no more than files that come along with a task.
"""

from __future__ import annotations

import gc
import importlib

# By name: what verifies stands on what copies, and is only brought along here.
LOADED = ("pyspark.worker", "vreplication.rowcopy.spark_job", "vreplication.verify.spark_job")


def main() -> None:
    from pyspark.daemon import manager

    for name in LOADED:
        importlib.import_module(name)
    # What is never written stays one and the same memory in all of them.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
