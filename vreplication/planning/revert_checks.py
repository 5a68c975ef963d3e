"""Can the change be taken back, once the application has written to the new table? Asked before anything is copied.

What must stay true: what passes here is reverted without losing a value that the original had: a row that nobody
changed is what it was, and one that changed is what the new table says, as far as the original has a place for it.
"""

from __future__ import annotations

from vreplication import names
from vreplication.planning.facts import Check, Facts, ok, refuse, warn
from vreplication.schema.conversions import family
from vreplication.schema.literals import APPROXIMATE, TEMPORALS
from vreplication.schema.mapping import map_back
from vreplication.schema.model import Column, ColumnPair, TableMapping
from vreplication.state import workflows

_NAME = "revert"
_CURE = "Leave --revert-window out."


def revert(facts: Facts) -> Check:
    if facts.spec.revert_window is None:
        return ok(_NAME, "No way back is asked for (--revert-window).")
    # For its refusal: the way back's id is longer than this one's.
    taken = names.way_back(facts.spec.workflow or "w")
    if facts.spec.workflow and workflows.existing(facts.session, [taken]):
        words = f"It could not be reverted: there is a workflow {taken} already."
        return refuse(_NAME, words, "Take another --workflow id.")
    # `check_prepared` runs this check once more, before a row is copied.
    if facts.target is None:
        return ok(_NAME, "Whether it can be taken back is checked at prepare.")
    if facts.mapping is not None and facts.mapping.may_have_null:
        why = "it would have to follow a key that may be NULL (--allow-nullable-key)"
        return refuse(_NAME, f"It could not be reverted: {why}.", _CURE)
    mapping = map_back(facts.server, facts.target, facts.source, facts.clauses)
    if why := _why_not(mapping):
        return refuse(_NAME, f"It could not be reverted: {why}.", _CURE)
    return _told(facts, mapping)


def _why_not(mapping: TableMapping) -> str:
    if mapping.added_unique:
        keys = ", ".join(key.name for key in mapping.added_unique)
        return f"rows may become equal under the unique key {keys}, which the new definition lacks or has wider"
    for column in mapping.spared:
        if why := _why_no_default(column, mapping):
            return f"a new row has no value for column {column.name}, which {why}"
    changed = (pair for pair in mapping.pairs if not _comes_back(pair))
    return next((_words(pair) for pair in changed), "")


def _why_no_default(column: Column, mapping: TableMapping) -> str:
    if column.is_auto_increment:
        return "numbers rows"
    if not (column.is_nullable or column.has_default):
        return "is NOT NULL without a default"
    if mapping.is_written_in_zone and column.data_type == "timestamp":
        return "is a TIMESTAMP, beside values that depend on the server's time zone"
    return ""


def _words(pair: ColumnPair) -> str:
    old, new = pair.target, pair.source
    return f"column {old.name}: {old.column_type} to {new.column_type} does not keep each value exactly"


def _comes_back(pair: ColumnPair) -> bool:
    """The new column shows each value of the old one as it was, so that a row is the same row on both sides."""
    old, new = pair.target, pair.source
    if bool(old.generated) != bool(new.generated) or family(old) != family(new):
        return False
    if old.data_type in APPROXIMATE:
        # A DOUBLE without a scale holds each FLOAT, and each rounded DOUBLE, to its last bit.
        return (old.data_type, old.column_type) == (new.data_type, new.column_type) or new.column_type == "double"
    if old.data_type in TEMPORALS:
        return old.data_type == new.data_type and new.fraction >= old.fraction
    # CHAR loses the spaces at the end of a VARCHAR's value. BINARY adds zero bytes to what is shorter, which a shorter
    # BINARY does not take back.
    is_padded = (new.data_type == "char" and old.data_type != "char") or (
        new.data_type == "binary" and old.column_type != new.column_type
    )
    return not is_padded and (new.scale or 0) >= (old.scale or 0)


def losses(mapping: TableMapping) -> list[str]:
    """What of the new definition the original has no place for, in sentences."""
    kept = {pair.source.name for pair in (*mapping.pairs, *mapping.key)}
    lost = [c.name for c in mapping.source.columns if c.name not in kept and not c.generated]
    found = [f"What is written into {', '.join(lost)} has no place in the original."] if lost else []
    return found + [_cut(pair) for pair in mapping.pairs if _is_cut(pair)]


def _is_cut(pair: ColumnPair) -> bool:
    """The original takes a longer value without an error, as a plain ALTER does."""
    old, new = pair.target, pair.source
    is_padded = old.data_type == "char" and new.data_type != "char"
    return is_padded or new.fraction > old.fraction or (old.data_type == "float" and new.data_type == "double")


def _cut(pair: ColumnPair) -> str:
    old, new = pair.target, pair.source
    return f"What {new.name} has beyond {old.column_type} is cut or rounded, as a plain ALTER TABLE does."


def _told(facts: Facts, mapping: TableMapping) -> Check:
    found = losses(mapping)
    if mapping.spared:
        spared = ", ".join(c.name for c in mapping.spared)
        found.append(f"Rows keep their {spared}; rows that are new by then have the default.")
    if found:
        return warn(_NAME, f"It can be reverted for {facts.spec.revert_window}. {' '.join(found)}")
    return ok(_NAME, f"It can be reverted for {facts.spec.revert_window}, with all that is written meanwhile.")
