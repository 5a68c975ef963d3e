"""Triggers that go over to the new table: made there under the lock, before RENAME, while nobody writes to it.

RENAME takes a table's triggers along, and a schema has each name once: so the old table keeps its own, the new one gets
others, and with the one RENAME each write fires those of the table that it goes to (measured on both servers).

What must stay true:
- Before the first of them is made catch-up has lost its lease, durably: whatever dies, no row of ours is written to a
  table that has triggers. Catch-up does not begin on such a table (engine/job.py); the driver removes them first.
- They are removed from a table only by who knows that it is not in use, and that nobody makes more of them.
- What a table has is looked up, by the table, never by the names that were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vreplication.cutover.ahead import verb
from vreplication.cutover.sentry import patience
from vreplication.errors import Refused, SourceChanged, Terminal
from vreplication.mysql.processes import processes
from vreplication.mysql.quoting import text
from vreplication.mysql.session import LockWait, Session, SqlError, connect
from vreplication.mysql.text import Unreadable, scan
from vreplication.mysql.url import SourceUrl
from vreplication.pausepoints import reach
from vreplication.schema import triggers
from vreplication.schema.model import Table
from vreplication.schema.triggers import Trigger
from vreplication.state import lease
from vreplication.state.lease import Lease
from vreplication.state.workflows import WorkflowRow

_WAIT_SECONDS = 5


def is_asked(row: WorkflowRow) -> bool:
    return row.spec.get("triggers") == "preserve"


def used(session: Session, row: WorkflowRow) -> list[tuple[str, str]]:
    """Tables (schema, name) that the triggers name: LOCK TABLES takes those that they use along."""
    if not is_asked(row):
        return []
    schema, found = row.source_schema, triggers.read(session, row.source_schema, row.source_table)
    # By their words, whatever these mean: a table too many only names a session that was not in the way.
    said = {word for trigger in found for word in triggers.names_in(trigger)} - {row.source_table}
    sql = f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA={text(schema)} AND TABLE_NAME IN "
    rows = session.rows(f"{sql}({','.join(map(text, sorted(said)))})") if said else []
    return [(schema, str(name)) for (name,) in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A table's triggers, as they are under its lock. fenced: the lease of catch-up, which nobody holds."""

    row: WorkflowRow
    triggers: tuple[Trigger, ...]
    fenced: Lease


def fence_catch_up(locker: Session, observer: Session, row: WorkflowRow) -> Carried | None:
    """To be called under the table's lock, when catch-up holds. None: there is nothing to carry over.

    Raises what `refuse_others` does.
    """
    refuse_others(locker, observer, row)
    if not is_asked(row):
        return None
    found = triggers.read(locker, row.source_schema, row.source_table)
    if not found:
        return None
    # Before the first trigger stands, and in the sidecar: from here on nothing of ours writes to the new table, even if
    # we die. A row of catch-up's would fire the triggers a second time.
    token = lease.depose(observer, row.id, lease.REPLICATE)
    reach("cutover.catch_up_fenced")
    return Carried(row=row, triggers=found, fenced=Lease(workflow=row.id, role=lease.REPLICATE, token=token))


def refuse_others(locker: Session, observer: Session, row: WorkflowRow) -> None:
    """Under the table's lock, of which locker is the holder: so it sees what nobody can change any more.

    Raises Terminal for others' triggers, and SourceChanged for the table's own where none was to be carried over.
    """
    if strays := triggers.names_on(observer, row.source_schema, row.shadow_table):
        # Those of an attempt are removed before the next one; these would go live with the table.
        raise Terminal(
            f"Somebody has made triggers on {row.shadow_table}: {', '.join(strays)}.",
            cure="They may have changed its rows: begin again.",
        )
    if not is_asked(row):
        _refuse_any(locker, row)


def _refuse_any(locker: Session, row: WorkflowRow) -> None:
    """The table had none when it was planned, and the log tells of none since: made with sql_log_bin=0."""
    if found := triggers.names_on(locker, row.source_schema, row.source_table):
        raise SourceChanged(
            f"{row.source_schema}.{row.source_table} has triggers by now ({', '.join(found)}), which would stay on the"
            " retired table.",
            cure=f"Run `vreplication cancel {row.id}` and start again with --triggers preserve, or without them.",
        )


def make(maker: Session, carried: Carried) -> None:
    """On the new table, in a session of their own: who holds the old table's lock cannot (1100).

    Raises Terminal when the server refuses one, LockWait when somebody uses the new table.
    """
    row = carried.row
    try:
        for _ in triggers.make(maker, row.source_schema, row.shadow_table, carried.triggers):
            reach("cutover.trigger_made")
        triggers.compare(maker, row.source_schema, row.shadow_table, carried.triggers)
    except (SqlError, Refused) as error:
        raise Terminal(f"The triggers of {row.source_table} cannot be carried over: {error}") from None


def try_on(session: Session, source: Table, shadow: str) -> None:
    """The same on the empty copy, and back. Raises Refused with what the server says of the first that cannot be."""
    wanted = triggers.read(session, source.schema, source.name)
    made = 0
    try:
        for _ in triggers.make(session, source.schema, shadow, wanted):
            made += 1
        triggers.compare(session, source.schema, shadow, wanted)
    except SqlError as error:
        words = f"Trigger {wanted[made].name} cannot be made on the new table: {error.message}"
        raise Refused(words, cure="Drop it, or make it so that it suits both definitions, then start again.") from None
    finally:
        triggers.drop_all(session, source.schema, shadow)


def remove(url: SourceUrl, row: WorkflowRow, our_lease: Lease) -> None:
    """From the new table, which is not in use: of an attempt that did not switch, whose connections are gone.

    Raises Superseded when the table is another driver's by now, LockWait when somebody uses it.
    """
    if not is_asked(row):
        return
    with connect(url) as session, connect(url) as other, other.transaction():
        # Kept locked in another session until the triggers have gone: they have the same names as those that the next
        # driver makes.
        lease.fence(other, our_lease)
        session.execute_raw(f"SET SESSION lock_wait_timeout={_WAIT_SECONDS}")
        triggers.drop_all(session, row.source_schema, row.shadow_table)


def drop_of_retired(session: Session, row: WorkflowRow) -> None:
    """Of the old table, which is out of use for good. Raises LockWait when somebody uses it."""
    if is_asked(row):
        with patience(session):
            triggers.drop_all(session, row.source_schema, row.retired_table)


def check_none(session: Session, row: WorkflowRow) -> None:
    """Before rows are written to the new table. Raises LockWait: its driver is about to remove them."""
    if is_asked(row) and (found := triggers.names_on(session, row.source_schema, row.shadow_table)):
        raise LockWait(f"{row.shadow_table} has triggers ({', '.join(found)}), so nothing is written to it now.")


def dropped_ahead(observer: Session, found: Sequence[Carried]) -> list[str]:
    """Of connections that wait to drop one of the triggers: they would be served before RENAME, by the old table."""
    wanted = {trigger.name.lower() for each in found for trigger in each.triggers}
    if not wanted:
        return []
    seen = processes(observer, is_full=True).values()
    return [
        f"connection {p.id} ({p.user}@{p.host}), running {p.statement[:200]!r}"
        for p in seen
        if p.id != observer.id and _drops(p.statement, wanted)
    ]


def _drops(statement: str, wanted: set[str]) -> bool:
    """As dumps have it, too: `/*!50032 DROP TRIGGER IF EXISTS x */`."""
    try:
        words = scan(statement)
        first = verb(words)
        rest = list(words) if first and first.is_word("DROP") else []
    except Unreadable:
        return True
    # What the server could not send in our character set it has replaced.
    is_trigger = bool(rest) and rest[0].is_word("TRIGGER")
    return is_trigger and ("\ufffd" in statement or any(word.value.lower() in wanted for word in rest[1:]))
