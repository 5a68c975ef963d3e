"""How our errors end an Airflow task: tried again, failed for good, with one sentence either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from vreplication.errors import Interrupted, Refused, Terminal, VReplicationError

T = TypeVar("T")
RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(exception="vreplication.errors.Terminal", action=RetryAction.FAIL, reason="trying again is no help")
    ]
)


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
