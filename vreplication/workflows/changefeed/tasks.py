"""The stages of a change feed as processes of their own: what Airflow's tasks call.

What must stay true: as in workflows/stages.py. Where a feed goes on is said in Kafka and nowhere else, so a stage that
was killed is called again and nothing more; one that an operator has cancelled has ended well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from vreplication.engine.result import Result
from vreplication.errors import Terminal, VReplicationError
from vreplication.mysql.session import connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.settings import TABLE_SECONDS
from vreplication.state import workflows
from vreplication.workflows.changefeed import run
from vreplication.workflows.changefeed.driver import FeedDriver
from vreplication.workflows.changefeed.plan import FeedPlan, make_feed_plan
from vreplication.workflows.changefeed.spec import FeedSpec
from vreplication.workflows.stages import BaseStage, Ended, take_lease, told

log = logging.getLogger(__name__)


FURTHER = ("source_2", "source_3", "source_4")
"""Roles of the servers that are followed beside the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedStage(BaseStage[FeedSpec]):
    """What every stage of a feed is called with. further: sources behind the first; password: the broker's."""

    further: tuple[SourceUrl, ...] = ()
    password: str = field(default="", repr=False)

    @classmethod
    def at(
        cls,
        ends: Mapping[str, SourceUrl],
        spec: FeedSpec,
        stop: threading.Event,
        notify: Callable[[str], None],
        password: str = "",
    ) -> FeedStage:
        further = tuple(ends[name] for name in FURTHER if name in ends)
        return cls(url=ends["source"], further=further, spec=spec, stop=stop, notify=notify, password=password)

    @property
    def sources(self) -> tuple[SourceUrl, ...]:
        return (self.url, *self.further)

    def ended(self, driver: FeedDriver | None, error: VReplicationError) -> Result:
        return run.ended(self.spec, self.url, self.password, driver, error)

    def targets(self) -> list[tuple[str, str]]:
        return []


def plan(stage: FeedStage) -> FeedPlan | None:
    """Every check; touches nothing. None: the feed exists and goes on. Raises Ended."""
    with told(stage, None), ExitStack() as stack:
        with connect(stage.url, use_database=False) as session:
            row = workflows.find(session, stage.workflow)
            if row is not None:
                run.resumed(session, row)
                return None
        session, *others = (stack.enter_context(connect(url, read_timeout=TABLE_SECONDS)) for url in stage.sources)
        made = make_feed_plan([session, *others], stage.spec, stage.password)
        run.check(made)
        return made


def prepare(stage: FeedStage) -> None:
    """The feed's rows at its source; of one that is there nothing is done again."""
    with told(stage, None):
        run.create_or_resume(stage.spec, stage.sources, stage.password, stage.by)


def stream(stage: FeedStage) -> Result:
    """Until an operator cancels it; returns how it ended. Raises Ended for any other end."""
    driver = run.driver_of(stage.spec, stage.sources, stage.stop)
    try:
        with told(stage, lambda: driver):
            if _is_cancelled(stage):
                return Result(event="cancelled", workflow=stage.workflow, reason="It was cancelled.", exit_code=3)
            _serve(stage, driver)
            raise Terminal("The source's log ended.")
    except Ended as error:
        if error.result.event == "cancelled":
            return error.result
        raise
    finally:
        driver.close()


def _is_cancelled(stage: FeedStage) -> bool:
    """Between two tries, by an operator, while no process worked on it."""
    with connect(stage.url, use_database=False) as session:
        row = workflows.find(session, stage.workflow)
        return row is not None and row.phase is Phase.CANCELLED


def _serve(stage: FeedStage, driver: FeedDriver) -> None:
    try:
        spec = run.create_or_resume(stage.spec, stage.sources, stage.password, stage.by)
        if words := run.not_taken(stage.spec, spec):
            stage.notify(words)
        take_lease(driver, stage)
        run.serve(spec, stage.sources, stage.password, driver, stage.notify)
    except VReplicationError:
        raise
    except Exception as error:  # a fault of ours comes again: to begin anew for ever would hide it
        log.exception("feed %s ended by an unexpected error", stage.workflow)
        raise Terminal(f"Unexpected {type(error).__name__}: {error}") from error


TASKS: Mapping[str, Callable[[Any], Any]] = {"prepare": prepare, "stream": stream}
"""What a scheduler calls for the stages of changefeed/stages.py, by their names."""
