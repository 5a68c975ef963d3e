"""Keys that catch-up has written since the verification began, until they have been compared again.

Catch-up notes each key that it writes and puts them into a table of their own, with the number of the round: at a
marker, before there are too many to keep in memory, and now and then. The verifier compares the keys of past rounds;
one that is written meanwhile comes with a later round.

What must stay true: a key leaves the table only when its row has been seen equal on both sides after its last change,
or with a verification that has read all rows since; `collected` never lies behind a change whose key is missing here: a
restart reads the log again from there. What cannot be known makes the collection void, and with it the verification.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vreplication import names
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.model import TableMapping
from vreplication.settings import SIDECAR
from vreplication.state import keytables, rows, sidecar
from vreplication.state.keytables import KEYS_PER_STATEMENT, key_column, key_predicate

COUNTED_KEYS = 50_000
"""To count more each second would cost the server too much."""
_SLICE_KEYS = 100_000
"""So many are deleted in one statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """round: the number that keys get which are collected now. collected: a place in the log, as `Position.saved`.

    first_round: the number that the collection began with, and by which it is known.

    is_verified: a clean verification has read all rows since the collection began. keys_waiting: how many are still to
    be compared, as of catch-up's last beat.
    """

    first_round: int
    round: int
    collected: str
    is_void: bool
    is_verified: bool
    keys_waiting: int

    @property
    def vouches(self) -> bool:
        """True while a verification counts: all that has changed since it is known."""
        return self.is_verified and not self.is_void


def load(session: Session, workflow: str) -> Since | None:
    row = rows.find(session, sidecar.since, workflow=workflow)
    if row is None:
        return None
    return Since(
        first_round=int(row["first_round"]),
        round=int(row["round"]),
        collected=row["collected"],
        is_void=bool(row["is_void"]),
        is_verified=bool(row["is_verified"]),
        keys_waiting=int(row["keys_waiting"]),
    )


def begin(session: Session, workflow: str, collected: str) -> int:
    """By the applier, in the transaction of its checkpoint: from this place on keys are collected.

    Returns the round's number, which no round has had before: who began with another collection finds out by it.
    """
    found = load(session, workflow)
    number = found.round + 1 if found else 1
    # Few, behind `clear_slice`. No TRUNCATE, which would commit the transaction of the checkpoint.
    session.execute_raw(f"DELETE FROM {_table(workflow)}")
    fields = {"first_round": number, "round": number, "collected": collected}
    rows.put(session, sidecar.since, {"workflow": workflow}, **fields, is_void=0, is_verified=0, keys_waiting=0)
    return number


def clear_slice(session: Session, workflow: str) -> int:
    """Before `begin`: some of what is left of a collection that counts no more; returns how many keys these were."""
    return session.execute_raw(f"DELETE FROM {_table(workflow)} LIMIT {_SLICE_KEYS}")


def save(
    session: Session, workflow: str, keys: Collection[str], collected: str, *, number: int, next_number: int
) -> None:
    """By the applier: the keys of round `number`, all up to the place `collected`; later ones get `next_number`."""
    # Keys and place in the caller's one transaction: a place without its keys would be a change that nobody compares.
    keytables.put(session, names.since_table(workflow), list(keys), str(number))
    rows.change(session, sidecar.since, {"workflow": workflow}, round=next_number, collected=collected)


def put_aside(session: Session, workflow: str, keys: Sequence[str], number: int) -> None:
    """By the applier, whose round is the newest there is: the keys alone."""
    keytables.put(session, names.since_table(workflow), keys, str(number))


def add(session: Session, workflow: str, keys: Sequence[str], number: int) -> None:
    """Keys to be compared again although no change came for them: their rows were copied again."""
    for at in range(0, len(keys), KEYS_PER_STATEMENT):
        part = keys[at : at + KEYS_PER_STATEMENT]
        values = ",".join(f"({int(number)},{key})" for key in part)
        width = len(split_literals(part[0]))
        session.execute_raw(f"INSERT INTO {_table(workflow)} VALUES {values} {_newest(workflow, number, width)}")


def add_dirty(session: Session, workflow: str) -> None:
    """The same for all keys on the list of dirty ones, which have the same columns."""
    found = load(session, workflow)
    if found is not None:
        dirty = qualified(SIDECAR, names.dirty_table(workflow))
        columns = session.rows(f"SHOW COLUMNS FROM {dirty}")
        listed = [str(row[0]) for row in columns if str(row[0]) != "seen"]
        keys, newest = ",".join(listed), _newest(workflow, found.round, len(listed))
        session.execute_raw(
            f"INSERT INTO {_table(workflow)} (round,{keys}) SELECT {found.round},{keys} FROM {dirty} {newest}"
        )


def _newest(workflow: str, number: int, width: int) -> str:
    """Of a key that is there. Lowered, a change of a later round would be taken for one that was compared before."""
    table = ident(names.since_table(workflow))
    # The key to itself, as in `keytables.touch`.
    keys = (f"{table}.{key_column(i)}={table}.{key_column(i)}" for i in range(width))
    newest = f"{table}.round=GREATEST({table}.round,{int(number)})"
    return f"ON DUPLICATE KEY UPDATE {','.join((newest, *keys))}"


def make_void(session: Session, workflow: str) -> None:
    rows.change(session, sidecar.since, {"workflow": workflow}, is_void=1)


def mark_verified(session: Session, workflow: str, began_at: int) -> None:
    """All rows have been read since round `began_at` began: what was collected before it need not be compared.

    Does nothing where another collection has begun meanwhile.
    """
    where = "workflow=%s AND NOT is_void AND first_round <= %s"
    session.execute(f"UPDATE {SIDECAR}.since SET is_verified=1 WHERE {where}", (workflow, began_at))
    # Asked for anew: an UPDATE of a row that is verified already counts no row as changed.
    if session.row(f"SELECT 1 FROM {SIDECAR}.since WHERE {where}", (workflow, began_at)) is None:
        return
    # In no transaction with it: there may be tens of millions, and catch-up's heartbeat writes to that row each second.
    # Those that a crash leaves are compared without need. Another collection's have higher numbers.
    while session.execute_raw(f"DELETE FROM {_table(workflow)} WHERE round < {int(began_at)} LIMIT {_SLICE_KEYS}"):
        pass


def note_waiting(session: Session, workflow: str, in_memory: int) -> None:
    """By catch-up's heartbeat: how many keys are still to be compared; of the table's no more than `COUNTED_KEYS`."""
    counted = f"SELECT COUNT(*) FROM (SELECT 1 FROM {_table(workflow)} LIMIT {COUNTED_KEYS}) some"
    sql = f"UPDATE {SIDECAR}.since SET keys_waiting={int(in_memory)}+({counted}) WHERE workflow=%s"
    session.execute(sql, (workflow,))


def count(session: Session, workflow: str) -> int:
    """Of the table's keys."""
    return int(session.value(f"SELECT COUNT(*) FROM {_table(workflow)}"))


def keys(session: Session, mapping: TableMapping, workflow: str, before: int | None, limit: int) -> list[str]:
    """Keys of the rounds before `before` (None: of all), as comma lists of literals."""
    where = "1=1" if before is None else f"round < {int(before)}"
    sql = f"SELECT {keytables.literal_sql(mapping)} FROM {_table(workflow)} WHERE {where} LIMIT {int(limit)}"
    return [x.decode() if isinstance(x, bytes) else str(x) for (x,) in session.rows(sql)]


def written_since(
    session: Session, mapping: TableMapping, workflow: str, asked: Sequence[str], number: int
) -> set[str]:
    """Those of the keys for which a change came in round `number` or later; the server compares them."""
    return keytables.listed(session, mapping, names.since_table(workflow), f"round >= {int(number)}", asked)


def forget(session: Session, mapping: TableMapping, workflow: str, compared: Sequence[str], before: int) -> None:
    """Take these keys off, unless a change came for them in round `before` or later."""
    columns = [key_column(i) for i in range(len(mapping.key))]
    for at in range(0, len(compared), KEYS_PER_STATEMENT):
        # By its round: a key that was written while it was being compared was put back under a later one, and stays.
        predicate = key_predicate(columns, compared[at : at + KEYS_PER_STATEMENT])
        session.execute_raw(f"DELETE FROM {_table(workflow)} WHERE round < {int(before)} AND ({predicate})")


def _table(workflow: str) -> str:
    return qualified(SIDECAR, names.since_table(workflow))
