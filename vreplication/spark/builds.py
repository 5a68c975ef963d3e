"""Which build of this package a process has, so that Spark's workers do nothing of a driver with another one.

What must stay true: neither a task nor an item of it is unpickled where the builds differ: pickle fills a value's
fields by their order, so what another build reads is another value, without an error. A process is of the build that
was there when it began: a driver may wait for long, and the package be upgraded meanwhile, under local workers too.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from vreplication.errors import Transient

Packed = Callable[[bytes], tuple[str, Any]]
# Of the wheel alone: DAG files, which no task has anything of.
_NOT_OURS = frozenset({"_dags", "__pycache__"})


def _digest() -> str:
    """Of its source, for a version stands for many builds; of its bytecode where it comes without."""
    found, package = hashlib.sha256(), resources.files("vreplication")
    for name, content in list(_files(package, ".py")) or list(_files(package, ".pyc")):
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _files(folder: Traversable, ending: str, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Also where the package is a zip file that came along with the task."""
    for each in sorted(folder.iterdir(), key=lambda one: one.name):
        if each.is_dir() and each.name not in _NOT_OURS:
            yield from _files(each, ending, f"{path}{each.name}/")
        elif each.name.endswith(ending):
            yield f"{path}{each.name}", each.read_bytes()


OWN = _digest()
"""Of what this process began with, not of what lies there by now."""


def packed(work: Callable[[Any], Any]) -> Packed:
    """What an executor calls with each packed item."""
    # A function with plain arguments, not a value with fields: it has to be understood by other builds.
    return functools.partial(_run, OWN, _pack(work))


def pack(items: Sequence[Any]) -> list[bytes]:
    return [_pack(item) for item in items]


def _pack(value: Any) -> bytes:
    from pyspark import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps(value)


def _run(build: str, work: bytes, item: bytes) -> tuple[str, Any]:
    """On the executor: its build, and what the work gives where that is the driver's."""
    return OWN, pickle.loads(work)(pickle.loads(item)) if build == OWN else None


def results(answers: Sequence[tuple[str, Any]]) -> list[Any]:
    """Raises Transient, for it passes where it comes of an upgrade under way."""
    if any(build != OWN for build, _ in answers):
        raise Transient(
            "A worker of Spark's has another build of vreplication than this process, and has done nothing.",
            cure="Install the same one on all of the cluster's workers and here, then run the same command again.",
        )
    return [found for _, found in answers]
