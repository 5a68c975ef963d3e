"""The flow of a workflow, cut into stages that run as processes of their own, one after the other: what all kinds
share. What each does: online_ddl/tasks.py, move_tables/tasks.py, changefeed/tasks.py.

What must stay true: a stage is the same functions that the command calls; it takes the driver's lease, waiting for who
had it before, and gives it back; nothing passes from stage to stage but the workflow's id, so that any of them can be
killed and called again. A server that goes away and comes back does not end a stage that drives, as it does not end the
command. A stage that ends badly raises `Ended` with the Result that the command would have shown.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from vreplication.clock import SYSTEM
from vreplication.engine.child import CatchUp, CatchUpAway
from vreplication.engine.driver import Driver, through_outages
from vreplication.engine.result import Result
from vreplication.errors import LeaseHeld, Terminal, Transient, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.phases import Phase
from vreplication.spark.session import Spark
from vreplication.state import gate, queue, workflows
from vreplication.workflows import operate


class Asked(Protocol):
    """What every kind's spec has."""

    @property
    def workflow(self) -> str | None: ...


class Beating(Protocol):
    """What every kind's driver does first."""

    def start(self) -> None: ...


T = TypeVar("T")
R = TypeVar("R", bound=Asked)
CATCH_UP_SECONDS = 6.0
"""A stage that needs catch-up gives up after this long without it: ten seconds with all that is around it."""
COPY_PATIENCE_SECONDS = 20.0
"""A copy keeps its place so long while catch-up is away, which may have to wait for a place of its own."""
REOPEN_SECONDS = 30.0
# Three times as long as a heartbeat counts (LEASE_STALE_SECONDS): what is held for longer has a holder that lives.
_LEASE_SECONDS = 30.0


class Ended(Exception):
    """A stage ended badly. `may_retry`: calling it again may help. `lacks_catch_up`: when catch-up runs again."""

    def __init__(self, result: Result, *, may_retry: bool, lacks_catch_up: bool = False) -> None:
        super().__init__(result.reason or result.event)
        self.result, self.may_retry, self.lacks_catch_up = result, may_retry, lacks_catch_up


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseStage(Generic[R]):
    """What every stage is called with. `spec.workflow` is set. url: of the server where the state is.

    by: who triggered it, for the journal; '' where that is not known. claimant: who has claimed it from the queue; ''
    where it is not from there.
    """

    url: SourceUrl
    spec: R
    stop: threading.Event
    notify: Callable[[str], None]
    by: str = ""
    claimant: str = ""

    @property
    def workflow(self) -> str:
        return self.spec.workflow or ""

    def driver(self, child: CatchUp | None) -> Driver:
        return Driver(self.url, self.workflow, self.stop, self.notify, child)

    def ended(self, driver: Any, error: VReplicationError) -> Result:
        """As the command would end."""
        raise NotImplementedError

    def targets(self) -> list[tuple[str, str]]:
        """(schema, table) of what the workflow has changed."""
        raise NotImplementedError


def wait_reopened(stage: BaseStage[Any]) -> None:
    """Going on after a failure is for the stage beside this one to begin, which was called again at the same time."""
    deadline = SYSTEM.monotonic() + REOPEN_SECONDS
    with connect(stage.url) as session:
        # A catch-up that came first would find the workflow ended and end with it, and the copy would wait for it in
        # vain.
        while workflows.load(session, stage.workflow).phase is Phase.FAILED and SYSTEM.monotonic() < deadline:
            if stage.stop.wait(0.2):
                return


def check_claim(stage: BaseStage[Any], session: Session) -> None:
    """Raises Refused where it was claimed from the queue by another one meanwhile."""
    # An early look. The one that counts is in the transaction that begins the workflow: this one may be late.
    if stage.claimant and queue.is_there(session):
        with session.transaction():
            queue.check_claim(session, stage.workflow, stage.claimant)


def check_end(stage: BaseStage[Any], is_cut: Callable[[Session], bool]) -> None:
    """Catch-up also ends when the workflow does, or when this process is to: then it has not succeeded."""
    with connect(stage.url) as session:
        row = workflows.load(session, stage.workflow)
        is_released = gate.released_by(session, stage.workflow) is not None
        is_over = is_cut(session)
    # Behind a release this stage is done: the switch begins a catch-up of its own, which takes the lease from this
    # one.
    if is_over or row.phase is Phase.COMPLETE or (is_released and row.phase in (Phase.WAITING, Phase.CUTTING_OVER)):
        return
    # Terminal, so that no scheduler calls it again; what merely stopped it is Transient, and it is called again.
    if row.is_cancel_requested or row.phase in (Phase.FAILED, Phase.CANCELLED):
        raise Terminal(row.reason or "The workflow was cancelled.")
    raise Transient("Catch-up was stopped.")


def release(stage: BaseStage[Any], by: str) -> None:
    """Open the gate unless somebody has."""
    with told(stage, None):
        operate.release_once(stage.url, stage.workflow, by)


def drive(stage: BaseStage[Any], child: CatchUp | None, act: Callable[[Driver], T], spark: Spark | None = None) -> T:
    """Do it under the driver's lease, and again from where it stands when the server was away. Raises Ended."""
    with driven(stage, child, spark) as driver:
        return through_outages(driver, functools.partial(act, driver))


@contextlib.contextmanager
def driven(stage: BaseStage[Any], child: CatchUp | None, spark: Spark | None = None) -> Iterator[Driver]:
    """A driver that holds the lease for the time of a block. Raises Ended."""
    driver: Driver | None = None
    try:
        # Within the lease, under which the end is noted. By a function, for the error may come before there is a
        # driver.
        with told(stage, lambda: driver):
            driver = stage.driver(child)
            take_lease(driver, stage)
            yield driver
    finally:
        if driver:
            driver.close()
        if spark:
            spark.stop()


def take_lease(driver: Beating, stage: BaseStage[Any]) -> None:
    """The stage before may have been killed: its heartbeat has to grow old first."""
    deadline = SYSTEM.monotonic() + _LEASE_SECONDS
    while True:
        try:
            return driver.start()
        except LeaseHeld:
            if SYSTEM.monotonic() > deadline or stage.stop.wait(0.5):
                raise


@contextlib.contextmanager
def told(stage: BaseStage[Any], driver: Callable[[], Any] | None) -> Iterator[None]:
    """Turn an error into Ended, as the command would end; what may be tried again leaves the workflow as it is."""
    try:
        yield
    except VReplicationError as error:
        # For the command a held lease is a refusal. Here the holder is a stage that was killed, or ends in a moment.
        if not isinstance(error, Terminal):
            result = Result(event="interrupted", workflow=stage.workflow, reason=str(error), exit_code=1)
            raise Ended(result, may_retry=True, lacks_catch_up=isinstance(error, CatchUpAway)) from error
        result = stage.ended(driver() if driver else None, error)
        raise Ended(result, may_retry=result.event == "interrupted") from error
