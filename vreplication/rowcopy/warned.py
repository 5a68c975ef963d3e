"""What the server said about a copying statement, row by row, and what it means.

What must stay true: INSERT IGNORE turns every error into a warning, so each warning is read; only a duplicate (1062)
may pass, and a duplicate under a unique key that the source does not have marks the chunk dirty (docs/correctness.md,
F6 and F7). Anything else ends the workflow with the table, the column and the row's key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vreplication.errors import BadValue, Terminal, VReplicationError
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session, SqlError
from vreplication.rowcopy.probes import first_null
from vreplication.schema.model import TableMapping
from vreplication.state.ledger import KeyRange

log = logging.getLogger(__name__)

DUPLICATE = 1062
BAD_VALUES = frozenset(
    {1048, 1138, 1261, 1263, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1416, 1426, 1441, 1525, 1526, 1690}
    | {1748, 1903, 3140, 3141, 3156, 3617, 3618, 3752, 3819, 3903, 4025, 4161}
)
"""Errors that speak of a value and not of the statement: null, range, length, label, text, partition, JSON, check."""
DEPRECATIONS = frozenset({1287, 1681, 4095})
_CURE = "Change the value or choose another definition and start again; the source table is untouched."
_ROW = re.compile(r"at row (\d+)")
_NULL = re.compile(r"Column '(.+)' cannot be null")
_HEX = re.compile(r"(?:_(\w+) )?X'([0-9A-Fa-f]*)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a statement's rows come from: the range, and a function that gives the key of its n-th row as literals."""

    bounds: KeyRange
    nth: Callable[[int], Sequence[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """duplicates: rows not inserted, of which `swallowed` gave way to another row and not to their own copy."""

    duplicates: int = 0
    swallowed: int = 0
    is_dirty: bool = False

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            duplicates=self.duplicates + other.duplicates,
            swallowed=self.swallowed + other.swallowed,
            is_dirty=self.is_dirty or other.is_dirty,
        )


def run_copying(
    session: Session, mapping: TableMapping, insert: Callable[[], int], place: Place
) -> tuple[int, Outcome]:
    """Run an INSERT IGNORE; returns the rows inserted and what happened to the others. Raises BadValue."""
    try:
        inserted = insert()
    except SqlError as error:
        if error.code in BAD_VALUES:
            raise _bad_value(session, mapping, error.message, place) from None
        raise
    return inserted, _judge(session, mapping, place) if session.warning_count else Outcome()


def _judge(session: Session, mapping: TableMapping, place: Place) -> Outcome:
    """Read all warnings of the last statement."""
    warnings = session.warnings()
    total = int(session.value("SHOW COUNT(*) WARNINGS") or 0)
    for level, code, message in warnings:
        # A note (a time cut off a date by definition) and a deprecated delimiter pass a plain ALTER, too.
        if code != DUPLICATE and level != "Note" and code not in DEPRECATIONS:
            raise _bad_value(session, mapping, f"{message} ({code})", place)
    if len(warnings) != total:
        raise Terminal(
            f"A copying statement gave {total} warnings and only {len(warnings)} of them can be read.",
            cure="Start again with a smaller --chunk-rows.",
        )
    return _count(mapping, [message for _, _, message in warnings])


def _count(mapping: TableMapping, messages: Sequence[str]) -> Outcome:
    added = {key.name for key in mapping.added_unique}
    dirty = [m for m in messages if _is_about(m, mapping, added)]
    own = {mapping.target_index} - added
    swallowed = len(messages) - sum(_is_about(m, mapping, own) for m in messages)
    if swallowed:
        log.info("%d rows gave way to others under a unique key, the first: %s", swallowed, (dirty or messages)[0])
    return Outcome(duplicates=len(messages), swallowed=swallowed, is_dirty=bool(dirty))


def _is_about(message: str, mapping: TableMapping, names: set[str]) -> bool:
    """MariaDB ends the message with `for key 'name'`, MySQL with `for key 'table.name'`."""
    ends = (f" for key '{form}'" for n in names for form in (n, f"{mapping.target.name}.{n}"))
    return any(message.endswith(end) for end in ends)


def _bad_value(session: Session, mapping: TableMapping, message: str, place: Place) -> VReplicationError:
    """The server's words with the row's key: 'Out of range value for column c at row 7'."""
    key = _key_of(session, mapping, message, place)
    row = f"the row with {_shown(mapping, key)}" if key else "a row"
    table = f"{mapping.source.schema}.{mapping.source.name}"
    target = f"{qualified(mapping.target.schema, mapping.target.name)}."
    words = _ROW.sub("", message).replace(target, "").replace("  ", " ").strip()
    return BadValue(f"The new definition of {table} cannot hold {row}: {words}.", cure=_CURE)


def _key_of(session: Session, mapping: TableMapping, message: str, place: Place) -> Sequence[str] | None:
    """By the number of the row; a NULL comes without one and is looked up."""
    if found := _ROW.search(message):
        return place.nth(int(found[1]))
    if found := _NULL.match(message):
        for pair in mapping.pairs:
            if pair.target.name.lower() == found[1].lower():
                return first_null(session, mapping, place.bounds, pair.source)
    return None


def _shown(mapping: TableMapping, key: Sequence[str]) -> str:
    pairs = zip(mapping.key, key, strict=True)
    return ", ".join(f"{pair.source.name}={readable(literal)}" for pair, literal in pairs)


def readable(literal: str) -> str:
    """A literal as a person writes it, where that is plain."""
    found = _HEX.fullmatch(literal)
    if not found:
        return literal
    codecs = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252", "ascii": "ascii"}
    try:
        text = bytes.fromhex(found[2]).decode(codecs[found[1] or ""])
    except (KeyError, UnicodeDecodeError):
        return literal
    return repr(text) if text.isprintable() else literal
