"""Keeps what children write (Spark's JVM talks on standard error) off the screen and out of the JSON, in the log.

What must stay true: what this process itself prints still goes where it went; streams that are not the process's own
(under a test) are left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def children_to(log: Path | None) -> Iterator[None]:
    """While this lasts, file descriptors 1 and 2, which children inherit, lead to the log."""
    if log is None or not _are_ours():
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_moved("stdout", 1, log))
        stack.enter_context(_moved("stderr", 2, log))
        yield


def _are_ours() -> bool:
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    except (OSError, ValueError):
        # Under a test they are none of the process.
        return False


@contextmanager
def _moved(name: str, descriptor: int, log: Path) -> Iterator[None]:
    old = getattr(sys, name)
    # What is buffered would come out behind the change, into the log.
    old.flush()
    # Children inherit 1 and 2 by number, so these become the log's; what this process prints goes to a copy of the
    # old one.
    kept = os.dup(descriptor)
    # Appending: this process's own log writes into the same file.
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(target, descriptor)
    os.close(target)
    mine = os.fdopen(kept, "w", encoding=old.encoding, errors=old.errors, buffering=1, closefd=False)
    setattr(sys, name, mine)
    try:
        yield
    finally:
        with suppress(OSError):
            mine.flush()
        os.dup2(kept, descriptor)
        setattr(sys, name, old)
        os.close(kept)
