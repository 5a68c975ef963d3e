"""A note on a run of ours that was refused or cancelled, or had nothing to do, beside its state in Airflow's lists.

Airflow has no state for these: a run whose tasks are all skipped counts as a success, and a cancelled one as failed, so
that whoever waits for it does not go on.

What must stay true: importing this imports next to nothing, for every process of Airflow does; the hooks run in the
scheduler, in the middle of its transaction: whatever goes wrong there is rolled back to a savepoint and leaves that as
it was; what a person has noted stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from airflow.listeners import hookimpl

from vreplication.masking import mask

log = logging.getLogger(__name__)

REFUSED, CANCELLED, SKIPPED = "refused", "cancelled", "skipped"
"""Keys of the sentence with which a run ended, in Airflow's task state store."""
WORKFLOW = "workflow"
"""Key of which one a group of tasks in somebody's own DAG is, and where; found by the page."""
_OURS = frozenset({"online_ddl", "move_tables", "changefeed", "scheduled_migrations", "backfill"})
# As much as Airflow's column takes.
_MOST = 1000
"""Characters of a note."""


def store_end(context: Mapping[str, Any], key: str, sentence: str) -> None:
    """REFUSED, CANCELLED, or SKIPPED where there was nothing to do."""
    store(context, key, mask(sentence))


def store(context: Mapping[str, Any], key: str, value: Any, **more: Any) -> None:
    """For people to see; what cannot be stored troubles nobody."""
    found = context.get("task_state_store")
    if found is None:
        return
    try:
        found.set(key, value, **more)
    except Exception as error:
        log.info("%s was not stored: %s", key, error)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    _note(dag_run, (SKIPPED,))


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    _note(dag_run, (CANCELLED, REFUSED))


def _note(dag_run: Any, keys: tuple[str, ...]) -> None:
    try:
        if dag_run.dag_id in _OURS:
            _note_within(dag_run, keys)
    except Exception as error:
        log.warning("no note was put on run %s: %s", dag_run.run_id, type(error).__name__)


def _note_within(dag_run: Any, keys: tuple[str, ...]) -> None:
    """Not in a savepoint of the session: the scheduler forbids whatever looks like a commit of its own."""
    from airflow.settings import Session

    session = Session.object_session(dag_run) if Session else None
    if session is None:
        return
    # Nothing of the scheduler's that waits to be written is written by our question.
    with session.no_autoflush, session.connection().begin_nested():
        if sentence := _told(session, dag_run.id, keys):
            _add(session, dag_run.id, sentence)


def _told(session: Any, number: int, keys: tuple[str, ...]) -> str:
    """The sentence of the task that ended so, and still stands so."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.models.taskinstance import TaskInstance

    same = (TaskInstance.run_id == Stored.run_id) & (TaskInstance.dag_id == Stored.dag_id)
    found = session.query(Stored.key, Stored.value).join(TaskInstance, same & (TaskInstance.task_id == Stored.task_id))
    found = found.filter(Stored.dag_run_id == number, Stored.key.in_(keys))
    # A task that was cleared and has succeeded since has its old sentence in the store all the same.
    found = found.filter(TaskInstance.state.in_(("failed", "skipped")))
    told = found.order_by(Stored.updated_at.desc()).first()
    if told is None:
        return ""
    return f"{'Refused: ' if told.key == REFUSED else ''}{json.loads(told.value)}"


def _add(session: Any, number: int, sentence: str) -> None:
    """Behind what has been noted before."""
    from airflow.models.dagrun import DagRunNote

    notes = DagRunNote.__table__
    before = session.query(notes.c.content).filter(notes.c.dag_run_id == number).one_or_none()
    text = "\n".join(filter(None, [before.content if before else None, sentence]))[:_MOST]
    if before is None:
        session.connection().execute(notes.insert().values(dag_run_id=number, content=text))
    elif sentence not in (before.content or ""):
        session.connection().execute(notes.update().where(notes.c.dag_run_id == number).values(content=text))
