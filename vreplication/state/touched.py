"""Notes of rows of a full copy that were touched, while another table is kept as that one says (apply/lowest.py).

    touched_*   id, key, values of the new unique key: of the row as it was, and as it is

What must stay true: a note is made by a trigger, in the transaction that changes the row, so that no way of writing
rows can forget it; a note goes by its number alone, for a lower one may be seen later than a higher one.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication import names
from vreplication.errors import Terminal
from vreplication.mysql.quoting import ident, qualified, text
from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR

# Both images of an UPDATE (old_noted, new_noted in tests/models/dedup_model.py): another row may be the lowest now of
# the value that was left, and of the one that was taken.
_EVENTS = {"INSERT": ("NEW",), "UPDATE": ("OLD", "NEW"), "DELETE": ("OLD",)}


def key_column(index: int) -> str:
    return f"k{index}"


def value_column(index: int) -> str:
    return f"v{index}"


def table(workflow: str) -> str:
    return qualified(SIDECAR, names.touched_table(workflow))


def columns(key: Sequence[str], values: Sequence[str]) -> list[str]:
    return [*map(key_column, range(len(key))), *map(value_column, range(len(values)))]


def create(session: Session, full: str, workflow: str, key: Sequence[str], values: Sequence[str]) -> None:
    """full: qualified name of the full copy; key, values: quoted columns of it."""
    # With an index each: a comparison looks every row up by its key and by its values (`noted`).
    notes = columns(key, values)
    picked = ",".join(f"{name} AS {note}" for name, note in zip((*key, *values), notes, strict=True))
    session.execute_raw(
        f"CREATE TABLE IF NOT EXISTS {table(workflow)} (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,"
        f" KEY by_key ({','.join(notes[: len(key)])}), KEY by_value ({','.join(notes[len(key) :])})) ENGINE=InnoDB"
        f" SELECT {picked} FROM {full} LIMIT 0"
    )


def is_there(session: Session, workflow: str) -> bool:
    sql = f"SELECT 1 FROM information_schema.tables WHERE table_schema={text(SIDECAR)}"
    return session.row(f"{sql} AND table_name={text(names.touched_table(workflow))}") is not None


def drop(session: Session, workflow: str) -> None:
    session.execute_raw(f"DROP TABLE IF EXISTS {table(workflow)}")


def make_triggers(
    session: Session, place: tuple[str, str], workflow: str, key: Sequence[str], values: Sequence[str]
) -> None:
    """Those that are missing. place: schema and name of the full copy. Waits for who has changed rows of it."""
    there = _triggers(session, place)
    into = f"INSERT INTO {table(workflow)} ({','.join(columns(key, values))}) VALUES "
    for event, images in _EVENTS.items():
        name = names.note_trigger(workflow, event)
        rows = ",".join(f"({','.join(f'{image}.{column}' for column in (*key, *values))})" for image in images)
        if name not in there:
            session.execute_raw(
                f"CREATE TRIGGER {qualified(place[0], name)} AFTER {event} ON {qualified(*place)} FOR EACH ROW"
                f" {into}{rows}"
            )


def check_triggers(session: Session, place: tuple[str, str], workflow: str) -> None:
    """Raises Terminal where one is missing, or where there are others."""
    # What was changed while one was missing is noted nowhere (noted_within), so making it anew would not help.
    wanted = {names.note_trigger(workflow, event) for event in _EVENTS}
    if (found := _triggers(session, place)) != wanted:
        raise Terminal(
            f"The triggers on {'.'.join(place)} are not ours: {', '.join(sorted(found ^ wanted))}.",
            cure="The source table is untouched. Cancel this workflow and start again.",
        )


def _triggers(session: Session, place: tuple[str, str]) -> set[str]:
    schema, name = map(text, place)
    sql = "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS"
    rows = session.rows(f"{sql} WHERE EVENT_OBJECT_SCHEMA={schema} AND EVENT_OBJECT_TABLE={name}")
    return {str(found) for (found,) in rows}


def count(session: Session, workflow: str, most: int) -> int:
    """Notes that are there, counted up to `most`."""
    return int(session.value(f"SELECT COUNT(*) FROM (SELECT 1 FROM {table(workflow)} LIMIT {int(most)}) counted"))


def take(session: Session, workflow: str, into: str, key: Sequence[str], values: Sequence[str], most: int) -> int:
    """Put some notes into a temporary table of the same columns; returns how many."""
    listed = ",".join(["id", *columns(key, values)])
    return session.execute_raw(
        f"INSERT INTO {into} ({listed}) SELECT {listed} FROM {table(workflow)} ORDER BY id LIMIT {int(most)}"
    )


def create_batch(session: Session, into: str, workflow: str) -> None:
    """That temporary table; outside of any transaction."""
    session.execute_raw(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {into} (PRIMARY KEY (id)) ENGINE=InnoDB"
        f" SELECT * FROM {table(workflow)} LIMIT 0"
    )


def remove(session: Session, workflow: str, taken: str) -> None:
    # By number, not by "up to the highest": a transaction with a lower one may have committed since
    # (only_read_removed).
    # The notes that were taken first: in the other order all that there are would be read.
    session.execute_raw(f"DELETE q FROM {taken} AS b STRAIGHT_JOIN {table(workflow)} AS q ON q.id=b.id")


def noted(workflow: str, row: str, key: Sequence[str], values: Sequence[str]) -> str:
    """Predicate: the key, where one is given, or the values of the row (an alias) are noted."""
    of_key = " AND ".join(f"q.{key_column(i)}={row}.{name}" for i, name in enumerate(key))
    of_value = " AND ".join(f"q.{value_column(i)}={row}.{name}" for i, name in enumerate(values))
    asked = filter(None, (of_key, of_value))
    parts = (f"EXISTS (SELECT 1 FROM {table(workflow)} AS q WHERE {same})" for same in asked)
    return f"({' OR '.join(parts)})"


def quoted(columns: Sequence[str]) -> list[str]:
    return [ident(name) for name in columns]
