"""How our errors end an Airflow task: tried again, failed for good, with one sentence either way."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from vreplication.errors import Interrupted, Refused, Terminal, VReplicationError
from vreplication.phases import Phase

if TYPE_CHECKING:
    from vreplication.mysql.url import SourceUrl
    from vreplication.state.workflows import WorkflowRow

log = logging.getLogger(__name__)

CARRIED_OUT_SECONDS = 15.0
"""For a cancel that another process carries out: dropping a table in chunks may take longer, and then it says so."""
T = TypeVar("T")
RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(exception="vreplication.errors.Terminal", action=RetryAction.FAIL, reason="trying again is no help")
    ]
)


def cancelled_by(url: SourceUrl, workflow: str, *, is_left: bool = False) -> str | None:
    """Who has cancelled it, as far as the journal tells; None: nobody has, or it came to another end.

    is_left: a request is not enough; that all of it is removed is waited for, CARRIED_OUT_SECONDS at most.
    """
    from vreplication.mysql.session import connect
    from vreplication.state import journal, workflows

    try:
        with connect(url) as session:
            row, until = workflows.find(session, workflow), time.monotonic() + CARRIED_OUT_SECONDS
            while is_left and _is_being_cancelled(row) and time.monotonic() < until:
                time.sleep(0.2)
                row = workflows.find(session, workflow)
            if row is None or row.is_cut or row.phase is Phase.FAILED:
                return None
            if row.phase is not Phase.CANCELLED and (is_left or not row.is_cancel_requested):
                return None
            # The request first: it has the person's name, and `cancelled` that of the process that carried it out.
            events = ("cancel requested", "cancelled")
            told = next(filter(None, (journal.latest(session, workflow, event) for event in events)), None)
    except VReplicationError as error:
        log.warning("whether it was cancelled could not be read: %s", error)
        return None
    return str(told["actor"]) if told else "somebody"


def _is_being_cancelled(row: WorkflowRow | None) -> bool:
    return row is not None and row.is_cancel_requested and row.phase is not Phase.CANCELLED


def in_airflow(work: Callable[[], T]) -> T:
    """Airflow's exceptions for ours."""
    try:
        return work()
    # The first, for it is a Terminal as well, and has words of its own.
    except Refused as error:
        raise AirflowFailException(f"refused: {error}") from None
    # Before Terminal, which it is to us: a worker that is shut down interrupts its tasks, and Airflow has them done
    # elsewhere.
    except Interrupted as error:
        raise AirflowException(str(error)) from None
    except Terminal as error:
        raise AirflowFailException(f"failed: {error}") from None
    except VReplicationError as error:
        raise AirflowException(str(error)) from None
