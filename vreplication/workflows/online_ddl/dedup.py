"""Where a new unique key is broken by rows of the table one row of each value stays: the steps of that.

A full copy has every row, and is copied, kept level and verified like any shadow table; the new table follows it
(apply/lowest.py, docs/design/duplicates.md). In the end what did not stay is put into a side table.

What must stay true: the new table gets its first row when the full copy is complete and its triggers stand; tables are
switched with no note left, and what was settled under the lock compared; the side table is made from the full copy
alone, which goes only when the side table is whole; each step may be begun again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vreplication.apply.lowest import Lowest
from vreplication.clock import SYSTEM
from vreplication.cutover.sentry import drop_if
from vreplication.engine import job
from vreplication.engine.driver import Driver
from vreplication.errors import BadValue, Refused, Terminal, Transient
from vreplication.mysql.quoting import ident, qualified, text
from vreplication.mysql.server import inspect
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.pausepoints import reach
from vreplication.planning.plan import Plan
from vreplication.planning.spec import Spec, spec_of
from vreplication.schema.alter import parse_alter
from vreplication.schema.checksum import target_side
from vreplication.schema.introspect import exists, introspect
from vreplication.schema.mapping import map_for
from vreplication.schema.model import Key, Table, TableMapping
from vreplication.schema.trial import trial_alter
from vreplication.settings import TABLE_SECONDS, WORK_SECONDS
from vreplication.state import journal, touched, workflows
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow
from vreplication.verify.ranges import EVERYTHING, Span, cut_off

RANGE_ROWS = 20_000
"""Rows of the full copy that one transaction looks at."""
FEW_NOTES = 300
"""With so few an attempt at the cut-over is begun."""
MOST_NOTES = 2_000
"""So many are applied under the lock, and no more: 10,000 took 2.2 to 8.8 s on two busy cores."""
_SLICE_SECONDS = 2.0
_LOOK_SECONDS = 30.0
"""Notes have to have become fewer within so long, or they come faster than they can be settled."""
_ALL = 1 << 62
_MOST_REST_SECONDS = 5.0
FILLED, _BEFORE = "filled", ("prepared",)
"""In the journal; and what makes it news again."""


# -- before the copy --------------------------------------------------------------------------------------------------


def make_full(session: Session, plan: Plan, row: WorkflowRow, mapping: TableMapping) -> TableMapping:
    """Make the full copy beside the empty new table, which `mapping` leads to; returns the mapping to it."""
    unique, new = mapping.added_unique[0], mapping.target
    if exists(session, row.source_schema, row.full_copy):
        raise Refused(f"There is a table {row.source_schema}.{row.full_copy} already.", cure="Drop it.")
    full, of_new = qualified(row.source_schema, row.full_copy), qualified(new.schema, new.name)
    # First: by them it is known that the table of this name is ours.
    touched.create(session, of_new, row.id, _names(mapping), touched.quoted(unique.columns))
    try:
        session.execute_raw(f"CREATE TABLE {full} LIKE {of_new}")
    except SqlError as error:
        touched.drop(session, row.id)
        raise Refused(f"The full copy cannot be made: {error.message}") from None
    try:
        # An index takes the key's place: settling looks for the rows of one value by it.
        session.execute_raw(
            f"ALTER TABLE {full} DROP KEY {ident(unique.name)}, ADD KEY {ident(unique.name)} ({_index(mapping)}),"
            f" COMMENT='{_full_comment(row)}'"
        )
    except SqlError as error:
        raise Refused(f"A copy without the unique key {unique.name} cannot be made: {error.message}") from None
    made = introspect(session, row.source_schema, row.full_copy)
    return map_for(plan.server, plan.source, made, plan.clauses, moment=row.created_at)


def _index(mapping: TableMapping) -> str:
    """The key's columns, and behind them those by which the lowest row is told: of a primary key they are there."""
    columns = list(mapping.added_unique[0].columns)
    if not next(key for key in mapping.target.keys if key.name == mapping.target_index).is_primary:
        columns += [p.target.name for p in mapping.key if p.target.name not in columns]
    return ",".join(map(ident, columns))


def _names(mapping: TableMapping) -> list[str]:
    return [ident(pair.target.name) for pair in mapping.key]


def _full_comment(row: WorkflowRow) -> str:
    return f"vreplication: full copy of workflow {row.id}"


def _side_comment(row: WorkflowRow) -> str:
    return f"vreplication: rows that workflow {row.id} left out"


def _comment_of(session: Session, place: tuple[str, str]) -> str | None:
    schema, name = map(text, place)
    sql = "SELECT table_comment FROM information_schema.tables"
    found = session.value(f"{sql} WHERE table_schema={schema} AND table_name={name}")
    return None if found is None else str(found)


def drop_full(session: Session, row: WorkflowRow) -> None:
    """With its triggers, and the notes."""
    place = (row.source_schema, row.full_copy)

    def is_ours() -> bool:
        return touched.is_there(session, row.id) or _comment_of(session, place) == _full_comment(row)

    drop_if(session, *place, is_ours)
    touched.drop(session, row.id)


# -- from the copy to the gate ----------------------------------------------------------------------------------------


def load(driver: Driver) -> Lowest | None:
    """None where it was not asked for."""
    row = workflows.load(driver.session, driver.workflow)
    if not row.keeps_one:
        return None
    found = job.load(driver.session, driver.workflow)
    new = introspect(driver.session, row.source_schema, row.shadow_table)
    to_new = map_for(found.server, found.mapping.source, new, parse_alter(found.spec.alter), moment=row.created_at)
    return _lowest(driver.lease, found.spec, found.mapping, new, _of_full(to_new, found.mapping.target))


def _of_full(to_new: TableMapping, full: Table) -> Key:
    """The key that keeps one row of each value: in the full copy it is none."""
    # The plan takes one new key alone. Where an older version made it, there may be two by what is known today.
    plain = {key.name for key in full.keys if not key.is_unique}
    return next((key for key in to_new.added_unique if key.name in plain), to_new.added_unique[0])


def _lowest(ours: Lease, spec: Spec, mapping: TableMapping, new: Table, unique: Key) -> Lowest:
    return Lowest(
        workflow=ours.workflow,
        lease=ours,
        mapping=mapping,
        new=new,
        unique=unique,
        is_last=spec.on_duplicate == "keep-last",
    )


def fill(driver: Driver) -> None:
    """Fill the new table from the full copy, which is complete; once."""
    lowest = load(driver)
    if lowest is None or journal.is_told(driver.session, driver.workflow, FILLED, _BEFORE):
        return
    with connect(driver.url, read_timeout=WORK_SECONDS) as session:
        with session.patient(TABLE_SECONDS):
            # triggers_first, triggers_wait: a change that is not committed when these stand would be in no note.
            # CREATE TRIGGER waits for it, however long that takes.
            touched.make_triggers(session, lowest.place, lowest.workflow, lowest.key, lowest.values)
        reach("dedup.triggers_made")
        for span in _spans(driver, session, lowest, "the new table is filled"):
            lowest.fill(session, span.lower, span.upper)
            reach("dedup.filling")
    journal.once(driver.session, driver.lease, FILLED, f"{lowest.new.name} from {lowest.place[1]}", since=_BEFORE)
    driver.report(waiting_for=None)
    reach("dedup.filled")


def _spans(driver: Driver, session: Session, lowest: Lowest, what: str) -> Iterator[Span]:
    """Ranges of the full copy, at the pace that the server bears."""
    side, rest, number = target_side(lowest.mapping), EVERYTHING, 0
    while True:
        began = SYSTEM.monotonic()
        span, left = cut_off(session, side, rest, RANGE_ROWS)
        yield span
        number += 1
        driver.report(waiting_for=f"{what}: {number * RANGE_ROWS:,} rows")
        driver.check()
        if left is None:
            return
        rest = left
        if (pace := driver.pace()) is not None:
            driver.wait(min((SYSTEM.monotonic() - began) * pace.rest, _MOST_REST_SECONDS))


def compare(driver: Driver) -> None:
    """Compare the whole new table with what the full copy says. Raises BadValue naming rows that are wrong."""
    lowest = load(driver)
    if lowest is None:
        return
    # What is noted explains any difference, so as little as possible is to be noted while rows are compared. However
    # fast rows change: that ends no workflow, for it may be over at night.
    until_few(driver, lowest, is_patient=True)
    with connect(driver.url, read_timeout=WORK_SECONDS) as session:
        for span in _spans(driver, session, lowest, "the new table is compared with the full copy"):
            _refuse(lowest, lowest.wrong_in_range(session, span.lower, span.upper))
    driver.report(waiting_for=None)


def _refuse(lowest: Lowest, wrong: list[str]) -> None:
    if wrong:
        raise BadValue(
            f"The new table has not the rows that the full copy {lowest.place[1]} says, of the keys"
            f" {', '.join(f'({key})' for key in wrong)}.",
            cure="The source table is untouched. Cancel this workflow; if it happens again, report it.",
        )


def settle_some(driver: Driver, lowest: Lowest) -> None:
    """Settle what is noted, for a moment; what was settled is compared."""
    if not touched.count(driver.session, driver.workflow, 1):
        return
    until = SYSTEM.monotonic() + _SLICE_SECONDS
    with driver.session.patient(WORK_SECONDS):
        lowest.prepare(driver.session)
        while lowest.settle(driver.session):
            _refuse(lowest, lowest.wrong_in_batch(driver.session))
            if SYSTEM.monotonic() > until:
                return


def until_few(driver: Driver, lowest: Lowest, *, is_patient: bool = False) -> None:
    """Settle until few notes are left. Raises Transient when they come faster than that; is_patient: waits instead."""
    waiting = _Waiting(driver=driver)
    while touched.count(driver.session, driver.workflow, FEW_NOTES + 1) > FEW_NOTES:
        if waiting.is_outrun():
            if not is_patient:
                raise Transient(waiting.words)
            waiting.tell()
        # Each time: what has not been written for some seconds is not shown.
        driver.report(waiting_for=waiting.words)
        settle_some(driver, lowest)
        driver.check()
    driver.report(waiting_for=None)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """How many notes there are, counted now and then."""

    driver: Driver
    words: str = ""
    found: int | None = None
    looked: float = -_LOOK_SECONDS
    is_told: bool = False

    def is_outrun(self) -> bool:
        """They have just been counted, and have not become fewer."""
        if SYSTEM.monotonic() - self.looked < _LOOK_SECONDS:
            return False
        # All of them: after hours of filling and verifying they may be millions, and become fewer all the same.
        before, self.found, self.looked = self.found, _left(self.driver), SYSTEM.monotonic()
        is_outrun = before is not None and self.found >= before
        self.words = f"{self.found:,} changed rows are applied to the new table"
        if is_outrun:
            self.words = f"Rows change faster than the new table can follow: {self.found:,} wait."
        return is_outrun

    def tell(self) -> None:
        if not self.is_told:
            self.driver.notify(f"waiting: {self.words}")
        self.is_told = True


def _left(driver: Driver) -> int:
    with driver.session.patient(WORK_SECONDS):
        return touched.count(driver.session, driver.workflow, _ALL)


# -- the cut-over -----------------------------------------------------------------------------------------------------


def settle_locked(session: Session, lowest: Lowest) -> None:
    """Under the lock and behind the barrier, where the full copy changes no more: settle and compare the rest."""
    # Rows that were changed without them are in no note, and would be missing in the new table.
    touched.check_triggers(session, lowest.place, lowest.workflow)
    if touched.count(session, lowest.workflow, MOST_NOTES + 1) > MOST_NOTES:
        raise Transient(f"More than {MOST_NOTES:,} changed rows are still to be applied to the new table.")
    lowest.prepare(session)
    while lowest.settle(session, MOST_NOTES):
        _refuse(lowest, lowest.wrong_in_batch(session))
    reach("dedup.settled")


# -- behind it --------------------------------------------------------------------------------------------------------


def set_aside(driver: Driver, row: WorkflowRow) -> None:
    """Put what did not stay into the side table, then drop the full copy."""
    if not row.keeps_one or not exists(driver.session, row.source_schema, row.full_copy):
        return
    lowest = _load_switched(driver, row)
    side, full = qualified(row.source_schema, row.side_table), lowest.full
    with connect(driver.url, read_timeout=WORK_SECONDS) as session:
        if not exists(session, row.source_schema, row.side_table):
            session.execute_raw(f"CREATE TABLE {side} LIKE {full}")
        # Not within the `if`: LIKE has taken the full copy's comment along, and a crash may come between the two.
        session.execute_raw(f"ALTER TABLE {side} COMMENT='{_side_comment(row)}'")
        for span in _spans(driver, session, lowest, "rows that did not stay are put aside"):
            lowest.set_aside(session, side, span.lower, span.upper)
            reach("dedup.setting_aside")
        with session.patient(TABLE_SECONDS):
            rows = int(session.value(f"SELECT COUNT(*) FROM {side}"))
        if not rows:
            session.execute_raw(f"DROP TABLE {side}")
    journal.once(driver.session, driver.lease, journal.SET_ASIDE, f"{rows} rows in {row.side_table}", since=_BEFORE)
    driver.report(waiting_for=None)
    reach("dedup.set_aside")
    # copy_kept_whole: it is the only place of the rows that did not stay until the side table is whole.
    drop_full(driver.session, row)
    reach("dedup.full_dropped")


def _load_switched(driver: Driver, row: WorkflowRow) -> Lowest:
    """As `load`, of tables that have been switched. The one in use is the application's: it may be another by now."""
    session, spec = driver.session, spec_of(row.spec)
    if not exists(session, row.source_schema, row.retired_table):
        raise Terminal(
            f"The original {row.source_schema}.{row.retired_table} is not there any more, so that the rows which did"
            f" not stay cannot be put aside. The full copy {row.full_copy} has all rows.",
            cure="Take what is needed from it, and drop it.",
        )
    source = introspect(session, row.source_schema, row.retired_table)
    server, clauses = inspect(session), parse_alter(spec.alter)
    full = introspect(session, row.source_schema, row.full_copy)
    mapping = map_for(server, source, full, clauses, moment=row.created_at)
    altered = trial_alter(session, source, clauses)
    if altered is None:
        raise Terminal(f"The ALTER cannot be tried on {row.retired_table}, to see which key is new.")
    return _lowest(driver.lease, spec, mapping, full, _of_full(map_for(server, source, altered, clauses), full))


def told(session: Session, row: WorkflowRow) -> tuple[str, int] | None:
    """The side table and its rows, as they were put aside; None: not yet, or there is none (any more)."""
    found = journal.latest(session, row.id, journal.SET_ASIDE, journal.SIDE_DROPPED)
    return journal.put_aside(str(found["details"])) if found else None


def drop_side(session: Session, row: WorkflowRow, by: str) -> bool:
    """Asked for by name. False: there is none, or it is another table."""
    place = (row.source_schema, row.side_table)
    if not drop_if(session, *place, lambda: _comment_of(session, place) == _side_comment(row)):
        return False
    journal.write(session, row.id, journal.SIDE_DROPPED, actor=by)
    return True
