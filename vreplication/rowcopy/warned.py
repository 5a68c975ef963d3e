"""What the server said about a copying statement, row by row, and what it means.

What must stay true: INSERT IGNORE turns every error into a warning, so each warning is read; only a duplicate (1062)
may pass, and text that lost its end to a Note is a loss like any other (docs/correctness.md, F6 and F7). Anything else
ends the workflow with the table, the column and the row's key. Under a unique key that the source does not have, each
row that gave way is on the list of dirty keys when its chunk has landed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vreplication.errors import BadValue, Terminal, VReplicationError
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import DUPLICATE, Session, SqlError
from vreplication.mysql.values import readable
from vreplication.rowcopy.probes import first_null
from vreplication.schema.losses import loss
from vreplication.schema.model import TableMapping
from vreplication.state.ledger import KeyRange

log = logging.getLogger(__name__)

BAD_VALUES = frozenset(
    {1048, 1138, 1261, 1263, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1416, 1426, 1441, 1525, 1526, 1690}
    | {1300, 1748, 1903, 3140, 3141, 3156, 3616, 3617, 3618, 3752, 3819, 3903, 4025, 4161}
)
"""Errors that speak of a value and not of the statement: null, range, length, label, text, partition, JSON, check."""
_CURE = "Change the value or choose another definition and start again; the source table is untouched."
_CURE_ACROSS = "Change the value, or make the target another column for it, and start again; the source is untouched."
_ROW = re.compile(r"at row (\d+)")
_NULL = re.compile(r"Column '(.+)' cannot be null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a statement's rows come from.

    nth: gives the key of its n-th row as literals; first_refused: that of the first row which the target does not take,
    where that can be found out, by writing rows alone. Both are asked when the statement has failed.
    """

    source: Session
    bounds: KeyRange
    nth: Callable[[int], Sequence[str] | None]
    first_refused: Callable[[], Sequence[str] | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """duplicates: rows not inserted, of which `swallowed` gave way to another row and not to their own copy."""

    duplicates: int = 0
    swallowed: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            duplicates=self.duplicates + other.duplicates,
            swallowed=self.swallowed + other.swallowed,
        )


def run_copying(
    session: Session, mapping: TableMapping, insert: Callable[[], int], place: Place
) -> tuple[int, Outcome]:
    """Run an INSERT IGNORE on the target's session; returns the rows inserted and what happened to the others.

    Raises BadValue.
    """
    try:
        inserted = insert()
    except SqlError as error:
        if error.code in BAD_VALUES:
            raise bad_value(session, mapping, error.message, place) from None
        raise
    return inserted, _judge(session, mapping, place) if session.warning_count else Outcome()


def is_refused(session: Session, mapping: TableMapping, sql: str) -> bool:
    """Whether an INSERT IGNORE of one row fails by its values, or loses something of them."""
    try:
        session.execute_raw(sql)
    except SqlError as error:
        return error.code in BAD_VALUES
    return any(warning[1] != DUPLICATE and loss(mapping.target, warning) for warning in session.warnings())


def _judge(session: Session, mapping: TableMapping, place: Place) -> Outcome:
    """Read all warnings of the last statement."""
    warnings = session.warnings()
    # Counted beside those that are listed: the server lists max_error_count of them, and with its default of 64 a cut
    # value was hidden behind 64 duplicates (F6).
    total = int(session.value("SHOW COUNT(*) WARNINGS") or 0)
    for warning in warnings:
        if warning[1] != DUPLICATE and (lost := loss(mapping.target, warning)):
            raise bad_value(session, mapping, lost, place)
    if len(warnings) != total:
        raise Terminal(
            f"A copying statement gave {total} warnings and only {len(warnings)} of them can be read.",
            cure="Start again with a smaller --chunk-rows.",
        )
    return _count(mapping, [message for _, code, message in warnings if code == DUPLICATE])


def _count(mapping: TableMapping, messages: Sequence[str]) -> Outcome:
    """A duplicate of the copy's own key is the row itself, come by catch-up; unless the key is compared anew."""
    own = {mapping.target_index} - {key.name for key in mapping.added_unique}
    others = [message for message in messages if not _is_about(message, mapping, own)]
    # U3: no error. Of equal unique keys what was swallowed is stale, or its own event is still to come; under a new one
    # the key is noted as dirty.
    if others:
        log.info("%d rows met others under a unique key, the first: %s", len(others), others[0])
    return Outcome(duplicates=len(messages), swallowed=len(others))


def _is_about(message: str, mapping: TableMapping, names: set[str]) -> bool:
    """MariaDB ends the message with `for key 'name'`, MySQL with `for key 'table.name'`."""
    ends = (f" for key '{form}'" for n in names for form in (n, f"{mapping.target.name}.{n}"))
    return any(message.endswith(end) for end in ends)


def bad_value(
    session: Session, mapping: TableMapping, message: str, place: Place, *, cure: str = ""
) -> VReplicationError:
    """The target's words with the row's key: 'Out of range value for column c at row 7'."""
    key = _key_of(mapping, message, place)
    row = f"the row with {_shown(mapping, key)}" if key else "a row"
    table = f"{mapping.source.schema}.{mapping.source.name}"
    target = f"{qualified(mapping.target.schema, mapping.target.name)}."
    words = _ROW.sub("", message).replace(target, "").replace("  ", " ").strip()
    if place.source is session:
        return BadValue(f"The new definition of {table} cannot hold {row}: {words}.", cure=cure or _CURE)
    return BadValue(f"The target of {table} cannot hold {row}: {words}.", cure=cure or _CURE_ACROSS)


def _key_of(mapping: TableMapping, message: str, place: Place) -> Sequence[str] | None:
    """By the number of the row; a NULL or what breaks a constraint comes without one and is looked for."""
    if found := _ROW.search(message):
        return place.nth(int(found[1]))
    if found := _NULL.match(message):
        for pair in mapping.pairs:
            if pair.target.name.lower() == found[1].lower():
                return first_null(place.source, mapping, place.bounds, pair.source)
    return place.first_refused()


def _shown(mapping: TableMapping, key: Sequence[str]) -> str:
    pairs = zip(mapping.key, key, strict=True)
    return ", ".join(f"{pair.source.name}={readable(literal)}" for pair, literal in pairs)
