"""The end of a switch's attempt: the other side is opened behind the decision, or the serving one again.

What must stay true: until `decided` all is undone, behind it nothing is; each step is repeatable, for a crash may come
behind any of them (W7, W8 and W10 of workflows/move_tables/switch.py).
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from vreplication.cutover import deny, hook
from vreplication.cutover.blockers import blockers
from vreplication.cutover.identity import table_identity
from vreplication.errors import Terminal
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import inspect, is_mariadb
from vreplication.mysql.session import LockWait, Session, SqlError
from vreplication.pausepoints import reach
from vreplication.schema.introspect import exists
from vreplication.settings import BEAT_SECONDS
from vreplication.state import gate, journal, lease, markers, moves, source_marks, workflows
from vreplication.state.moves import Decision, Move
from vreplication.state.workflows import TableRow
from vreplication.workflows.move_tables import left_behind, streams
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.sides import (
    impatient,
    persist,
    serving_session,
    serving_tables,
    session_on,
    tables_on,
)
from vreplication.workflows.move_tables.steps import Work

_HOOK_SECONDS = 30.0

_EXISTS = 1050


def give_up(work: Work, used: list[str], *, former: tuple[int, ...] = ()) -> bool:
    """Open the serving side again. False: the switch is decided, and has been brought to its end instead.

    former: connections there that may still be making triggers.
    """
    decision = moves.load(work.driver.session, work.driver.workflow).decision
    if decision in (Decision.DECIDED, Decision.OPENED):
        with work.route.open(read_timeout=BEAT_SECONDS) as ends:
            driver = work.driver
            driver.announce((ends.home.id,))
            impatient(ends)
            open_side(work, ends, None)
        return False
    # Nothing was denied, or all that follows has been done: it is noted last.
    if decision is Decision.RUNNING:
        return True
    driver = work.driver
    # In a step of its own: who finds it knows that triggers may still stand, and drops them whatever else has happened.
    moves.decide(driver.session, driver.lease, Decision.ABORTING)
    reach("switch.aborting")
    allow(work, former)
    # Before catch-up begins again, which would hold at them.
    with work.route.open() as ends:
        of = source_marks.markers_of(ends, work.stream)
        for marker in used:
            of.remove(marker)
        markers.remove_all(ends.home, work.stream, markers.CUTOVER)
    # Last: whoever finds ABORTING does all of this again, so nothing of it is left out.
    moves.decide(driver.session, driver.lease, Decision.RUNNING)
    driver.start_replicate()
    reach("switch.aborted")
    return True


def allow(work: Work, former: tuple[int, ...] = ()) -> None:
    """Drop the triggers on the serving side, whatever it takes: nothing else may be done before."""
    with serving_session(work) as session:
        _allow(work.driver, session, serving_tables(work), former)


def _allow(driver: MoveDriver, session: Session, tables: list[tuple[str, str]], former: tuple[int, ...] = ()) -> None:
    def act() -> None:
        try:
            deny.allow(session, tables, workflow=driver.workflow, former=former)
        except LockWait as error:
            raise LockWait(who_holds(driver, session, tables) or error.message) from None

    persist(driver, act)


_DENIED = "Writes stay denied until the triggers can be dropped"


def who_holds(driver: MoveDriver, session: Session, tables: list[tuple[str, str]], words: str = _DENIED) -> str:
    """DDL waits for whoever has read the table in a transaction, which no deadline of ours ends."""
    own, server = frozenset(driver.own_on(session)), inspect(session)
    found = [str(each) for table in tables for each in blockers(session, server, *table, own=own)]
    return f"{words}: {'; '.join(found)}" if found else ""


def open_side(work: Work, ends: Ends, began: float | None, opener: Session | None = None) -> None:
    """W7, behind `decided`: the other side takes writes. Repeatable; began: when writers began to wait, if known.

    opener: has its tables locked, where that is known.
    """
    driver, home = work.driver, ends.home
    move = moves.load(home, driver.workflow)
    # From here on a cancel has come too late: acted on, it would end us while writes are denied on both sides.
    driver.note_switched()
    if move.decision is Decision.DECIDED:
        if work.number == 1:
            persist(driver, lambda: rename(home, move, driver.workflow))
        else:
            _keep(driver, home)
            _allow_other(work, opener)
        reach("switch.before_opened")
        stall = None if began is None else round(1000 * (time.monotonic() - began))
        moves.decide(home, driver.lease, Decision.OPENED, stall_millis=stall)
        reach("switch.opened_at_home")
        words = "to the target" if streams.is_forward(work.number) else "back to the source"
        journal.write(home, driver.workflow, "switched", words, actor=lease.me())
        driver.report(write_stall_millis=stall, cutover_millis=stall)
    # Also where home says OPENED already: a crash may have come before what is noted here.
    driver.rest()
    _note_cut(work, home)
    reach("switch.opened")


def _note_cut(work: Work, home: Session) -> None:
    """A cancel that came behind the decision is over: kept, it would end the move once the tables are switched back."""
    workflow, is_forward = work.driver.workflow, streams.is_forward(work.number)
    if is_forward and workflows.load(home, workflow).is_cancel_requested:
        journal.write(home, workflow, "cancel came too late", "the tables are switched", actor=lease.me())
    late = {"cancel_requested": 0} if is_forward else {}
    workflows.set_fields(home, workflow, is_cut=int(is_forward), **late)


def _keep(driver: MoveDriver, home: Session) -> None:
    """The decision is to outlive a crash of home, before the other server takes a write by it.

    RENAME sees to that by itself. Where a backup forbids DDL, writes would be denied on both sides until it ends.
    """
    try:
        moves.make_durable(home)
    except LockWait as error:
        driver.notify(f"the target may forget the decision if it crashes now: {error}")


def _allow_other(work: Work, opener: Session | None) -> None:
    """On the side that is to serve, by a connection that is known to whoever takes over."""
    driver, side = work.driver, streams.serving(work.number).other
    tables = tables_on(driver.session, driver.workflow, side)
    # With the lock that was taken before the decision, so nobody is in the way.
    if opener is not None:
        _allow(driver, opener, tables)
        deny.unlock(opener)
        return
    with session_on(work, side) as session:
        _allow(driver, session, tables)


def rename(home: Session, move: Move, workflow: str) -> None:
    """The tables get their names, all at once; what is not there by its hidden name was renamed before."""
    left = []
    # F20: a RENAME before us may have been done and its answer lost.
    for table in _hidden(home, move, workflow):
        old, new = (qualified(move.target_schema, name) for name in (table.shadow_table, table.source_table))
        left.append(f"{old} TO {new}")
    try:
        home.execute_raw(f"RENAME TABLE {', '.join(left)}") if left else None
    except SqlError as error:
        if error.code != _EXISTS:
            raise
        raise Terminal(
            f"On the target somebody has made a table in the very moment of the switch: {error.message}",
            cure="Rename or drop it at once, then go on with the same command: writes are denied until then.",
        ) from None


def _hidden(home: Session, move: Move, workflow: str) -> list[TableRow]:
    """Tables that have not got their names. Raises Terminal where one of them is not what was verified."""
    left, here = [], is_mariadb(home)
    for table in workflows.tables(home, workflow):
        found = table_identity(home, move.target_schema, table.shadow_table, here)
        if found is not None:
            left.append(table)
        # A copy that is passed over here would be missing on the side that serves: OPTIMIZE gives it another
        # identity.
        is_lost = found is None and not exists(home, move.target_schema, table.source_table)
        if is_lost or found not in (None, table.shadow_identity):
            raise _not_verified(move, table)
    return left


def _not_verified(move: Move, table: TableRow) -> Terminal:
    name = f"{move.target_schema}.{table.shadow_table}"
    return Terminal(
        f"On the target somebody has dropped, truncated or rebuilt {name} in the very moment of the switch.",
        cure=f"Writes are denied until it is put right. Compare it with the source's {table.source_table}; if it is"
        f" whole, rename it to {table.source_table} yourself, then go on with the same command.",
    )


def settle(work: Work) -> bool:
    """Bring what a driver before us has left to its end (W10). True: the other side serves, and the hook is due."""
    decision = moves.load(work.driver.session, work.driver.workflow).decision
    if decision is Decision.RUNNING:
        with work.driver.ends() as ends:
            markers.remove_all(ends.home, work.stream, markers.CUTOVER)
        return False
    return not give_up(work, [])


def tell(work: Work) -> None:
    """W8: the hook is called until it says yes; then the other side is the one that serves. Repeatable."""
    driver = work.driver
    move = moves.load(driver.session, driver.workflow)
    # W8: as often as it takes, also by whoever comes after a crash. An answer that is lost is no "no": writes are
    # denied on the side that was left, and the application has to be told.
    if work.spec.on_switch:
        _call(work, move)
    reach("switch.told")
    left_behind.tell(driver, work.spec, work.number, work.look)
    # First: left behind, it would open the gate of the switch after the next one.
    gate.forget_release(driver.session, driver.workflow)
    moves.decide(
        driver.session,
        driver.lease,
        Decision.RUNNING,
        serving=str(move.serving.other),
        number=move.number + 1,
        asked=None,
        asked_by=None,
    )
    reach("switch.done")


def _call(work: Work, move: Move) -> None:
    driver = work.driver
    is_forward = streams.is_forward(work.number)
    old = hook.Place.of(driver.route.source)
    new = replace(hook.Place.of(driver.route.target), schema=move.target_schema)
    began = workflows.load(driver.session, driver.workflow).created_at
    event = hook.SwitchEvent(
        workflow=driver.workflow,
        direction="switch" if is_forward else "reverse",
        tables=tuple(t.source_table for t in workflows.tables(driver.session, driver.workflow)),
        source=old if is_forward else new,
        to=new if is_forward else old,
        # One that was cancelled and begun again under its old name is another one.
        number=work.number + (1000 * int(began.timestamp()) if began else 0),
    )
    driver.notify(f"calling the hook: the application is to write to the {streams.serving(work.number).other} now")
    hook.call(
        work.spec.on_switch or "",
        event,
        secret=os.environ.get(hook.SECRET_VARIABLE),
        timeout_seconds=_HOOK_SECONDS,
        check=driver.check,
        say=driver.notify,
    )
