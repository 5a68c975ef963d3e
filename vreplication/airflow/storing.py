"""A workflow's progress in Airflow's own task state store, for the Storage tab of a task.

What must stay true: it is a copy for people to look at (the page shows a lake's) and nothing that is done follows from
it; trouble with it never troubles the work.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from vreplication.airflow.beside import beside
from vreplication.mysql.session import connect
from vreplication.progress import snapshot
from vreplication.state import feeds
from vreplication.workflows.stages import BaseStage

KEY = "progress"
PERIOD_SECONDS = 4.0


def stored(context: Mapping[str, Any], stage: BaseStage[Any]) -> AbstractContextManager[None]:
    """A workflow's."""
    return kept(context, functools.partial(_store, stage))


@contextlib.contextmanager
def kept(context: Mapping[str, Any], tell: Callable[[Any], None]) -> Iterator[None]:
    """Told into the store every few seconds, as long as the block runs, and at its end."""
    store = context.get("task_state_store")
    if store is None:
        yield
        return
    with beside(functools.partial(tell, store), "progress", every=PERIOD_SECONDS, patience=2 * PERIOD_SECONDS):
        yield


def _store(stage: BaseStage[Any], store: Any) -> None:
    with connect(stage.url) as session:
        fed = feeds.find(session, stage.workflow)
        # A feed's figures are in a table of its own.
        seen = None if fed else snapshot.find(session, stage.workflow)
    if fed is not None:
        store.set(KEY, fed[1])
    if seen is not None:
        store.set(KEY, {name: value for name, value in seen.as_status_json().items() if name != "event"})
