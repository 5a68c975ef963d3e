"""The two sides of a switch: which of them serves, its tables, and sessions there of which a successor knows.

What must stay true: a session that may make or drop triggers is announced before it does: whoever takes over ends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from vreplication.errors import Ambiguous, Transient
from vreplication.mysql.ends import Ends
from vreplication.mysql.session import ConnectionLost, Session, connect
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS
from vreplication.state import moves, workflows
from vreplication.state.moves import Side
from vreplication.workflows.move_tables import streams
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.steps import Work

T = TypeVar("T")

# Writers are denied meanwhile.
_PERSIST_SECONDS = 0.5


def persist(driver: MoveDriver, act: Callable[[], T]) -> T:
    """Do it, again and again: until it is done somebody's writes may be denied. Raises when a server is lost, and what
    `driver.check` raises."""
    while True:
        try:
            return act()
        except (ConnectionLost, Ambiguous):
            raise
        except Transient as error:
            driver.notify(f"{error} Trying again.")
            driver.report(waiting_for=error.message)
            driver.wait(_PERSIST_SECONDS)


def impatient(ends: Ends) -> None:
    """What waits for somebody's metadata lock makes everybody wait who comes behind it."""
    for session in {ends.home, ends.target}:
        session.execute_raw("SET SESSION lock_wait_timeout=1")


def serving_session(work: Work) -> contextlib.AbstractContextManager[Session]:
    """On the side that takes writes now."""
    return session_on(work, streams.serving(work.number))


@contextlib.contextmanager
def session_on(work: Work, side: Side) -> Iterator[Session]:
    """A session of its own, known to whoever takes over."""
    driver = work.driver
    if side is Side.SOURCE:
        with driver.at_source() as session:
            yield session
        return
    with connect(driver.route.home, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS) as session:
        driver.announce((session.id,))
        yield session


def serving_tables(work: Work) -> list[tuple[str, str]]:
    """(schema, name) of the tables that take writes now."""
    return tables_on(work.driver.session, work.driver.workflow, streams.serving(work.number))


def tables_on(home: Session, workflow: str, side: Side) -> list[tuple[str, str]]:
    """Under their own names."""
    move = moves.load(home, workflow)
    schema = None if side is Side.SOURCE else move.target_schema
    return [(schema or t.source_schema, t.source_table) for t in workflows.tables(home, workflow)]
