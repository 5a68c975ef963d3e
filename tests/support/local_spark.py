"""A stand-in for Spark's session where a test is about something else: tasks run in the submitting thread.

What must stay true: it does what `rowcopy.spark_job` and `verify.spark_job` ask of a SparkContext and nothing more;
tests of the copy itself use the real one.
"""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

WITHOUT = "spark://without:7077"
"""In the place of a master's address, where `install_where_asked` was called."""


class _Rdd:
    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def map(self, function: Callable[[Any], Any]) -> _Rdd:
        # Through pickle, as Spark does it: what cannot travel fails here too.
        function = pickle.loads(pickle.dumps(function))
        return _Rdd([pickle.loads(pickle.dumps(function(item))) for item in self._items])

    def collect(self) -> list[Any]:
        return list(self._items)


class LocalSpark:
    """What `SparkStart.context()` gives."""

    master, defaultParallelism = "local[64]", 64

    def setJobGroup(self, *_: Any, **__: Any) -> None: ...

    def cancelJobGroup(self, *_: Any) -> None: ...

    def parallelize(self, items: Sequence[Any], _: int = 1) -> _Rdd:
        return _Rdd(list(items))

    def stop(self) -> None: ...


class LocalStart:
    """In the place of spark.session.SparkStart."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def context(self, *_: Any) -> LocalSpark:
        return LocalSpark()

    def is_starting(self) -> bool:
        return False

    def release(self) -> None: ...

    def stop(self) -> None: ...


def install() -> None:
    """Replace Spark in this process."""
    import pyspark

    from vreplication.workflows import operate
    from vreplication.workflows.move_tables import operate as moving
    from vreplication.workflows.move_tables import run
    from vreplication.workflows.online_ddl import group
    from vreplication.workflows.online_ddl import run as online_ddl

    pyspark.InheritableThread = threading.Thread  # type: ignore[misc,assignment]
    for module in (group, online_ddl, operate, moving, run):
        module.SparkStart = LocalStart  # type: ignore[attr-defined]


@functools.cache
def install_where_asked() -> None:
    """Replace Spark in this process for whoever names WITHOUT as its master; all others get the real one."""
    from vreplication.spark import session as spark
    from vreplication.spark import start as spark_start

    real = spark_start.spark_context

    def context(master: str, *more: Any, **words: Any) -> Any:
        return _without_jvm() if master == WITHOUT else real(master, *more, **words)

    # Where it is, and where it was imported to; backfills import it when they begin.
    spark_start.spark_context = spark.spark_context = context


def _without_jvm() -> LocalSpark:
    import pyspark

    pyspark.InheritableThread = threading.Thread  # type: ignore[misc,assignment]
    return LocalSpark()
