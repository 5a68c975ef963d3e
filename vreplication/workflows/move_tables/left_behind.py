"""Tables of the source's schema that have come since a move of all its tables was planned: they are not moved, and an
application that is sent to the target would not find them there.

What must stay true: nothing but a person's release lets the tables be switched without them, and only without those
that were told before it was given; what could not be looked at directly before the switch ends that try. The last look
that holds a switch is taken while writes are denied; what comes behind it is told once the tables are switched.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from vreplication import names
from vreplication.clock import SYSTEM
from vreplication.cutover.reasons import LEFT_BEHIND, Reason
from vreplication.engine import maintenance
from vreplication.errors import VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.schema.introspect import tables_of
from vreplication.settings import BEAT_SECONDS
from vreplication.state import gate, held, journal, workflows
from vreplication.state.lease import fence, me
from vreplication.workflows.move_tables import streams
from vreplication.workflows.move_tables.driver import MoveDriver
from vreplication.workflows.move_tables.facts import named
from vreplication.workflows.move_tables.spec import MoveSpec, plain_name

log = logging.getLogger(__name__)

_EVENT = "left behind"
# The look before the switch counts; this one is for people who watch.
_LOOK_SECONDS = 5.0
_MOST = 100
"""So many fit into what is noted of them: beyond that no release is enough."""


@dataclass(slots=True)
class Look:
    """What the last look has found (None: there was none), and when the next one is due: a gate is read ten times a
    second, for weeks.
    """

    found: tuple[str, ...] | None = None
    until: float = 0.0


def at_the_gate(driver: MoveDriver, spec: MoveSpec, number: int, look: Look) -> list[Reason]:
    """As of a look that may be some seconds old. Raises nothing for a source that does not answer."""
    if SYSTEM.monotonic() >= look.until:
        try:
            anew(driver, spec, number, look)
        except VReplicationError as error:
            # It is looked at anew before the switch, and said then: while a person is waited for nothing is lost.
            log.warning("the source was not asked for tables that have come: %s", error)
    return reasons(driver, spec, number, look)


def anew(driver: MoveDriver, spec: MoveSpec, number: int, look: Look) -> None:
    """Look at the source's schema now. On the way back there is nothing to be told: tables of the target that do not
    move were there before, and which is noted nowhere.
    """
    look.until = SYSTEM.monotonic() + _LOOK_SECONDS
    if not _is_due(spec, number):
        return
    with connect(driver.route.source, read_timeout=BEAT_SECONDS) as session:
        schema = driver.route.source.database
        there = tables_of(session, schema)
    stay = {plain_name(name, schema, there) for name in spec.exclude}
    known = {table.source_table for table in workflows.tables(driver.session, driver.workflow)} | stay
    look.found = tuple(name for name in there if name not in known and not names.is_ours(name))


def _is_due(spec: MoveSpec, number: int) -> bool:
    return spec.all_tables and streams.is_forward(number)


def reasons(driver: MoveDriver, spec: MoveSpec, number: int, look: Look) -> list[Reason]:
    """What of the last look holds the switch back."""
    is_known = look.found is not None and _is_due(spec, number)
    left = _not_waived(driver, number, look.found or ()) if is_known else []
    if not left:
        return []
    _note(driver, ", ".join(left))
    schema = driver.route.source.database
    let_go = (
        f"`vreplication release {driver.workflow}`, given from now on, switches without it."
        if len(look.found or ()) <= _MOST
        else "So many cannot be left by a release."
    )
    sentence = (
        f"{named(f'{schema}.{name}' for name in left)} came to the source after the plan and would be missing on the"
        f" target. Drop it or rename it into another schema. {let_go}"
    )
    return [Reason(code=LEFT_BEHIND, sentence=sentence, value=len(left), limit=0, unit="tables")]


def tell(driver: MoveDriver, spec: MoveSpec, number: int, look: Look) -> None:
    """Behind the switch: what has come since writes were denied, which holds no CREATE TABLE off.

    Raises nothing for a source that does not answer: the application is at the target by now.
    """
    if not _is_due(spec, number):
        return
    try:
        anew(driver, spec, number, look)
    except VReplicationError as error:
        driver.notify(f"whether tables came to the source within the switch is not known: {error}")
        return
    if left := _not_waived(driver, number, look.found or ()):
        _note(driver, ", ".join(left))
        driver.notify(f"left behind on the source, where they came within the switch: {', '.join(left)}")


def _note(driver: MoveDriver, tables: str) -> None:
    """In the journal, where it is news."""
    last = journal.latest(driver.session, driver.workflow, _EVENT, "released", "switched")
    if last is None or last["event"] != _EVENT or str(last["details"]) != tables:
        with driver.session.transaction():
            fence(driver.session, driver.lease)
            journal.write(driver.session, driver.workflow, _EVENT, tables, actor=me())


def _not_waived(driver: MoveDriver, number: int, found: Sequence[str]) -> list[str]:
    """Without those that somebody has released the switch for, having been told of them."""
    session, workflow = driver.session, driver.workflow
    told, release = _told(session, workflow, number), gate.release_of(session, workflow)
    which = release.which if release else ""
    # By the release that stood then, not by clocks. One that is gone and comes again is told again.
    now = {name: told.get(name, which) for name in found[:_MOST]}
    if now != told:
        held.note(session, workflow, held.LEFT, [{"number": number, "tables": now}])
    is_a_persons = release is not None and not maintenance.is_a_windows(release.by)
    return [name for name in found if not is_a_persons or now.get(name, which) == which]


def _told(session: Session, workflow: str, number: int) -> dict[str, str]:
    """Tables that were told before this switch, each with the release that stood when it was."""
    noted = held.read(session, workflow).get((workflow, held.LEFT), [])
    return {name: which for each in noted if each["number"] == number for name, which in each["tables"].items()}
