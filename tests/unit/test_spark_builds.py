"""What a worker of Spark does whose package is of another build than its driver's: nothing, and it is said."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import vreplication
from tests.support.local_spark import LocalSpark
from vreplication.backfill.interval import Walls
from vreplication.backfill.slices import Slice
from vreplication.errors import Transient
from vreplication.spark.jobs import Jobs

SLICE = Slice(span=Walls(low=datetime(2026, 1, 1), high=datetime(2026, 1, 2)), first=100, last=200)
TASK = "import pickle, sys; act, item = pickle.load(sys.stdin.buffer); pickle.dump(act(item), sys.stdout.buffer)"
FIELDS = "    first: int | None = None\n    last: int | None = None\n"


class _Rdd:
    def __init__(self, folder: Path, items: Sequence[Any]) -> None:
        self._folder, self._items = folder, items

    def map(self, function: Callable[[Any], Any]) -> _Rdd:
        return _Rdd(self._folder, [self._done(function, item) for item in self._items])

    def _done(self, function: Callable[[Any], Any], item: Any) -> Any:
        words = [sys.executable, "-c", TASK]
        given = pickle.dumps((function, item))
        done = subprocess.run(words, cwd=self._folder, input=given, capture_output=True, check=True)
        return pickle.loads(done.stdout)

    def collect(self) -> list[Any]:
        return list(self._items)


class Executors(LocalSpark):
    """Each task in a process of its own, which has the package that is in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def parallelize(self, items: Sequence[Any], _: int = 1) -> Any:
        return _Rdd(self.folder, list(items))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Another place with the very same package."""
    shutil.copytree(Path(vreplication.__file__).parent, tmp_path / "vreplication")
    return tmp_path


def collect(installed: Path) -> list[Any]:
    return Jobs(context=Executors(installed), purpose="test").collect(str, [SLICE])


def test_the_same_build_elsewhere_does_the_work(installed: Path) -> None:
    assert collect(installed) == [str(SLICE)]


def test_another_build_reads_no_slice_with_its_bounds_exchanged(installed: Path) -> None:
    """A slice whose bounds are exchanged has no rows, which are neither copied nor missed."""
    source = installed / "vreplication/backfill/slices.py"
    exchanged = "".join(reversed(FIELDS.splitlines(keepends=True)))
    source.write_text(source.read_text().replace(FIELDS, exchanged))
    read = Executors(installed).parallelize([SLICE]).map(str).collect()
    assert "first=200" in read[0], "pickle tells fields by their names now"
    with pytest.raises(Transient, match="A worker of Spark's has another build of vreplication"):
        collect(installed)
