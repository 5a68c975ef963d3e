"""What a task does every few seconds beside its work: its progress into Airflow's store, its figures to OpenTelemetry.

What must stay true: trouble with it does not touch the work; it is done once more when the work is over, for what was
told last is what stays.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def beside(act: Callable[[], None], name: str, *, every: float, patience: float) -> Iterator[None]:
    """every: seconds between two times; patience: seconds that the last one may take when the block is over."""
    over = threading.Event()
    # A daemon, and waited for only so long: a store or a server that does not answer must not keep the task from
    # ending.
    thread = threading.Thread(target=_repeat, args=(act, name, every, over), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)


def _repeat(act: Callable[[], None], name: str, every: float, over: threading.Event) -> None:
    is_last = False
    while not is_last:
        is_last = over.wait(every)
        try:
            act()
        # Of whatever kind: who looks at it, or graphs it, goes without; the work that it tells of goes on.
        except Exception as error:
            log.info("%s: not done this time: %s", name, error)
