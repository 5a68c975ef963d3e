"""How our errors end an Airflow task: tried again, failed for good, with one sentence either way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from vreplication.errors import Interrupted, Refused, Terminal, VReplicationError
from vreplication.phases import Phase

if TYPE_CHECKING:
    from vreplication.mysql.url import SourceUrl

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(exception="vreplication.errors.Terminal", action=RetryAction.FAIL, reason="trying again is no help")
    ]
)


def cancelled_by(url: SourceUrl, workflow: str) -> str | None:
    """Who has cancelled it, as far as the journal tells; None: nobody has, or it came to another end."""
    from vreplication.mysql.session import connect
    from vreplication.state import journal, workflows

    try:
        with connect(url) as session:
            row = workflows.find(session, workflow)
            if row is None or row.is_cut or row.phase is Phase.FAILED:
                return None
            if not (row.is_cancel_requested or row.phase is Phase.CANCELLED):
                return None
            events = ("cancel requested", "cancelled")
            told = next(filter(None, (journal.latest(session, workflow, event) for event in events)), None)
    except VReplicationError as error:
        log.warning("whether it was cancelled could not be read: %s", error)
        return None
    return str(told["actor"]) if told else "somebody"


def in_airflow(work: Callable[[], T]) -> T:
    """Airflow's exceptions for ours."""
    try:
        return work()
    except Refused as error:
        raise AirflowFailException(f"refused: {error}") from None
    except Interrupted as error:
        raise AirflowException(str(error)) from None
    except Terminal as error:
        raise AirflowFailException(f"failed: {error}") from None
    except VReplicationError as error:
        raise AirflowException(str(error)) from None
