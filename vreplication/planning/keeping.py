"""Can of several rows of one value under a new unique key one be kept (--on-duplicate)? And what does that mean here?

What must stay true: what passes here has one new unique key, over columns as they are, and a shared key that both sides
sort alike, so that "the lowest" is one row (docs/design/duplicates.md); what cannot be is refused by name.
"""

from __future__ import annotations

from vreplication.planning import privileges
from vreplication.planning.duplicates import find_duplicates
from vreplication.planning.facts import Check, Facts, refuse, warn
from vreplication.schema.model import Key, TableMapping

_NAME = "unique keys"
_CURE = "Leave --on-duplicate out and remove the duplicates first, or run a plain ALTER TABLE."


def check(facts: Facts) -> Check:
    mapping = facts.mapping
    if mapping is None:
        words = "its definition is only known when the tables are made, and --on-duplicate needs it before"
        return refuse(_NAME, f"Of {facts.name} no row can be left out: {words}.", _CURE)
    if not mapping.added_unique:
        return refuse(_NAME, "The ALTER adds no unique key and narrows none.", "Leave --on-duplicate out.")
    why = _why_not(facts, mapping)
    if why:
        return refuse(_NAME, f"Of {facts.name} no row can be left out (--on-duplicate): {why}.", _CURE)
    if not privileges.may_create_triggers(facts.session, is_mariadb=facts.server.is_mariadb):
        return refuse(
            _NAME,
            "--on-duplicate makes triggers on a copy of the table; the server writes a binary log and "
            "log_bin_trust_function_creators is off, so only a user with SUPER may create them.",
            "SET GLOBAL log_bin_trust_function_creators=ON until the workflow has ended, or GRANT SUPER ON *.* TO the "
            "user.",
        )
    return _told(facts, mapping)


def _why_not(facts: Facts, mapping: TableMapping) -> str:
    """Half a sentence; '' where nothing is in the way."""
    # Settling would have no bound: the end of one row may change what becomes of each other row
    # (docs/design/duplicates.md).
    if len(mapping.added_unique) > 1:
        listed = ", ".join(key.name for key in mapping.added_unique)
        return f"several unique keys are new ({listed}), so that one row may make many others stay or go"
    if why := _of_key(mapping.added_unique[0], mapping):
        return why
    if mapping.is_recollated or not mapping.has_same_order:
        return f"the ALTER changes how the key {mapping.source_index} is sorted, by which the lowest row is told"
    if mapping.may_have_null:
        return f"rows are told apart by {mapping.source_index}, which may be NULL"
    # A note of such a value would hold another moment than the row that it is of.
    if mapping.is_written_in_zone:
        return "values of the new definition may depend on the time zone of who computes them"
    return _of_options(facts)


def _of_key(key: Key, mapping: TableMapping) -> str:
    if key.is_primary:
        return "the new unique key is the primary key"
    if key.has_expression:
        return f"the unique key {key.name} is over an expression"
    if key.index_type != "BTREE" or any(part.prefix for part in key.parts):
        return f"the unique key {key.name} is over a prefix of a column, or a hash of it"
    if any(mapping.target.column(name).generated == "virtual" for name in key.columns):
        return f"the unique key {key.name} is over a virtual column"
    return ""


def _of_options(facts: Facts) -> str:
    if facts.spec.revert_window is not None:
        return "with --revert-window the original would have to keep rows that the new table has no place for"
    if facts.spec.triggers == "preserve":
        return "it cannot be done together with --triggers preserve"
    if facts.spec.foreign_keys == "rebuild":
        return "with --foreign-keys rebuild rows of other tables may refer to one that is left out"
    return ""


def _told(facts: Facts, mapping: TableMapping) -> Check:
    unique = mapping.added_unique[0]
    which = "lowest" if facts.spec.on_duplicate == "keep-first" else "highest"
    # For a person to look at: what stays is decided by the rows as they are at the cut-over.
    found = find_duplicates(facts.session, mapping, unique)
    now = f"Now: {', '.join(found)}." if found else "There are none now."
    columns = ", ".join(pair.source.name for pair in mapping.key)
    return warn(
        _NAME,
        f"Of rows with one value under the new unique key {unique.name} the one with the {which} {columns} stays, as "
        f"they are at the cut-over; the others are put into a side table. {now} The table is copied twice for that. A "
        "change feed has no message of the others: its targets have to copy the table again.",
    )
