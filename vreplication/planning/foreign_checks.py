"""Can the table's foreign keys, and those that refer to it, go over to the new table? Asked where that was asked for.

What must stay true: each risk of it is said; what cannot be made right is refused by name, before anything is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident
from vreplication.planning import privileges
from vreplication.planning.facts import Check, Facts, ok, refuse, warn
from vreplication.planning.foreign import Family, are_logged, family, grandchildren
from vreplication.schema.alter import dropped_constraints
from vreplication.schema.foreign import ForeignKey, indexes_of, orphans
from vreplication.schema.mapping import follow_columns
from vreplication.schema.model import Column, Table
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.state import workflows

_NAME = "foreign keys"
_PLAIN = "Run a plain ALTER TABLE, or drop the key first and add it again afterwards."
MOST_RELATIVES = 10
"""Tables that are locked and altered with the table: each takes its time while writers wait."""
Why = Callable[[Facts, Family], Check | None]


def rebuilt(facts: Facts) -> Check:
    found = family(facts.session, _table(facts), is_mariadb=facts.server.is_mariadb)
    if not found.has_keys:
        return ok(_NAME, "No foreign keys from or to the table.")
    return next((check for look in _LOOKS if (check := look(facts, found))), None) or _told(facts, found)


def _in_turn(facts: Facts, found: Family) -> Check | None:
    """On MariaDB, where keys are moved by several sessions; on MySQL one has all the locks."""
    if not facts.server.is_mariadb:
        return None
    if any(key.parent == key.child for key in found.own):
        return refuse(_NAME, f"{facts.name} has a foreign key to itself, which cannot be carried over.", _PLAIN)
    if both := sorted(set(found.children) & set(found.parents)):
        words = f"{'.'.join(both[0])} is a parent of {facts.name} and a child of it."
        return refuse(_NAME, words, _PLAIN)
    return None


def _unique(facts: Facts, _: Family) -> Check | None:
    """What is in the way under a new unique key is noted in our own schema, which the holder of the locks cannot."""
    if facts.server.is_mariadb or facts.mapping is None or not facts.mapping.may_collide:
        return None
    words = "A unique key is added or narrowed, and with foreign keys that cannot go over within the cut-over on MySQL."
    return refuse(_NAME, words, _PLAIN)


def _locked(facts: Facts, found: Family) -> tuple[tuple[str, str], ...]:
    """With the table."""
    further = () if facts.server.is_mariadb else grandchildren(facts.session, _table(facts), found)
    return (*found.relatives, *further)


def _options(facts: Facts, _: Family) -> Check | None:
    if facts.spec.revert_window is not None:
        words = "With --revert-window the original would be kept level without its foreign keys."
        return refuse(_NAME, words, "Leave out --revert-window, or --foreign-keys rebuild.")
    if facts.spec.triggers == "preserve":
        words = "Foreign keys and triggers cannot both be carried over within one cut-over."
        return refuse(_NAME, words, "Leave out --triggers preserve, or --foreign-keys rebuild.")
    return None


def _shape(facts: Facts, found: Family) -> Check | None:
    if (number := len(_locked(facts, found))) > MOST_RELATIVES:
        words = f"Foreign keys tie {number} tables to {facts.name}, and {MOST_RELATIVES} is the most."
        return refuse(_NAME, words, _PLAIN)
    if facts.target is None:
        words = (
            "The new definition is only known at prepare (partitions, FULLTEXT), which is too late for foreign keys."
        )
        return refuse(_NAME, words, _PLAIN)
    return None


def _names(facts: Facts, found: Family) -> Check | None:
    for key in _keys(found):
        # Whoever puts keys back after a crash takes every key with such a name for ours.
        if key.is_moved:
            words = f"Foreign key {key.name} of {'.'.join(key.child)} is called as ours are within a cut-over."
            return refuse(_NAME, words, "Drop it and add it under another name.")
        try:
            other = names.moved_key(key.name)
        except Refused as error:
            return refuse(_NAME, error.message, error.cure)
        # MySQL: an index of the key's name gets the other one with it.
        if not facts.server.is_mariadb and other in indexes_of(facts.session, key.child):
            words = f"Index {other} of {'.'.join(key.child)} is called as ours are within a cut-over."
            return refuse(_NAME, words, "Give it another name: ALTER TABLE … RENAME INDEX.")
    return None


def _keys(found: Family) -> Iterator[ForeignKey]:
    yield from (*found.own, *found.theirs)


def _acting(facts: Facts, found: Family) -> Check | None:
    """What they do to rows of the table is to be carried over as any change."""
    # Of its own keys alone: those of other tables act on rows there, which are not copied.
    key = next((key for key in found.own if key.acts), None)
    if key is None or are_logged(facts.server):
        return None
    words = f"Foreign key {key.name} changes rows by itself ({key.actions}), which the server does not log."
    return refuse(_NAME, words, _PLAIN)


def _chained(facts: Facts, found: Family) -> Check | None:
    """Whoever dies within the cut-over leaves both tables with the keys. Of the one that is not in use a row would go
    with the parent that it had, and take rows of a child along that belong to the other (measured).
    """
    if facts.server.is_mariadb:
        return None
    own = next((key for key in found.own if key.deletes and key.parent != key.child), None)
    theirs = next((key for key in found.theirs if key.acts_on_delete), None)
    if own is None or theirs is None:
        return None
    words = (
        f"Foreign key {own.name} deletes rows of {facts.name}, and by {theirs} that deletes or changes rows of a child."
    )
    return refuse(_NAME, words, "Let one of the two not act meanwhile, or run a plain ALTER TABLE.")


def _dropped(facts: Facts, found: Family) -> Check | None:
    """A copy has no keys, so with IF EXISTS the server takes what says nothing there."""
    wanted = {name.lower() for name in dropped_constraints(facts.clauses.text)}
    key = next((key for key in found.own if key.name.lower() in wanted), None)
    if key is None:
        return None
    cure = "Drop it by a plain ALTER TABLE first, which is done in an instant."
    return refuse(_NAME, f"The ALTER drops foreign key {key}, which would be carried over all the same.", cure)


def _columns(facts: Facts, found: Family) -> Check | None:
    """As a plain ALTER, which refuses to change them, or takes a key along to the name that its column gets."""
    assert facts.target is not None
    came_from = follow_columns(facts.source, facts.target, facts.clauses)
    for key, is_child in _sides(found):
        columns = key.columns if is_child else key.referenced
        for name in columns:
            # Not by name and type alone: two columns that exchange their names look unchanged, and foreign_key_checks
            # is off when the key is made on the other's values.
            is_itself = name.lower() in came_from and came_from[name.lower()].name.lower() == name.lower()
            if not is_itself or _column(facts.source, name) != _column(facts.target, name):
                return refuse(_NAME, f"Column {name} of foreign key {key} is changed, renamed or dropped.", _PLAIN)
        if not (_has_index if is_child else _has_unique)(facts.target, columns):
            what = f"{'an index on' if is_child else 'a unique key of'} {', '.join(columns)}"
            return refuse(_NAME, f"The new definition lacks {what}, which foreign key {key} needs.", _PLAIN)
    return None


def _sides(found: Family) -> Iterator[tuple[ForeignKey, bool]]:
    """Each key by the side on which the table has it: True as the child, False as the parent; to itself as both."""
    yield from ((key, True) for key in found.own)
    yield from ((key, False) for key in (*found.theirs, *(key for key in found.own if key.parent == key.child)))


def _column(table: Table, name: str) -> tuple[object, ...] | None:
    found: Column | None = next((c for c in table.columns if c.name.lower() == name.lower()), None)
    return None if found is None else (found.column_type, found.collation, found.is_nullable, found.generated)


def _parts(table: Table) -> Iterator[tuple[bool, list[str]]]:
    for key in table.keys:
        if key.index_type == "BTREE" and not any(part.prefix or part.expression for part in key.parts):
            yield key.is_unique, [part.column.lower() for part in key.parts]


def _has_index(table: Table, columns: Sequence[str]) -> bool:
    wanted = [name.lower() for name in columns]
    return any(parts[: len(wanted)] == wanted for _, parts in _parts(table))


def _has_unique(table: Table, columns: Sequence[str]) -> bool:
    wanted = [name.lower() for name in columns]
    return any(is_unique and parts == wanted for is_unique, parts in _parts(table))


def _rights(facts: Facts, found: Family) -> Check | None:
    """RELOAD: writers of the relatives are held off by FLUSH TABLES … WITH READ LOCK, on MariaDB.

    REFERENCES: MySQL asks for it, on the parent's table.
    """
    is_mariadb = facts.server.is_mariadb
    grants = privileges.read_grants(facts.session, is_mariadb=is_mariadb)
    if is_mariadb and privileges.missing(grants, frozenset({"RELOAD"}), "*"):
        words = "The user lacks a privilege to hold off writers of the tables that foreign keys tie to it."
        return refuse(_NAME, words, "GRANT RELOAD ON *.* TO the user.")
    wanted = frozenset({"SELECT", "ALTER", "LOCK TABLES", *([] if is_mariadb else ["REFERENCES"])})
    # MySQL asks for REFERENCES in the new table's name as well (1142, measured), so in the table's own schema, too.
    for schema in sorted({schema for schema, _ in (*_locked(facts, found), *([] if is_mariadb else [_table(facts)]))}):
        if lacks := privileges.missing(grants, wanted, schema):
            cure = f"GRANT {', '.join(lacks)} ON {ident(schema)}.* TO the user."
            return refuse(_NAME, f"The user lacks privileges to carry foreign keys over in {schema}.", cure)
    return None


def _table(facts: Facts) -> tuple[str, str]:
    return facts.source.schema, facts.source.name


def _others(facts: Facts, found: Family) -> Check | None:
    for schema, table in found.relatives:
        for other in workflows.live_on_table(facts.session, schema, table):
            words = f"Workflow {other} is under way on {schema}.{table}, which a foreign key ties to {facts.name}."
            return refuse(_NAME, words, f"Wait for it, or `vreplication cancel {other}`.")
    return None


def _orphans(facts: Facts, found: Family) -> Check | None:
    """That are there before: afterwards they would look as if the switch had made them."""
    for key in _keys(found):
        if values := orphans(facts.session, key):
            words = f"Rows of {'.'.join(key.child)} have no parent by foreign key {key.name} now: {'; '.join(values)}."
            return refuse(_NAME, words, "Remove them, or add the parents.")
    return None


# In this order: `_shape` refuses where there is no new definition yet, which `_columns` reads; `_orphans` goes over
# whole tables, so it comes last.
_LOOKS: tuple[Why, ...] = (
    *(_in_turn, _options, _shape, _unique, _names, _acting, _chained, _dropped, _columns, _rights, _others, _orphans),
)


def _told(facts: Facts, found: Family) -> Check:
    listed = ", ".join(str(key) for key in _keys(found))
    words = risks(found, _locked(facts, found), is_mariadb=facts.server.is_mariadb)
    return warn(_NAME, f"Foreign keys go over to the new table within the cut-over: {listed}. {words}")


def risks(found: Family, locked: Sequence[tuple[str, str]], *, is_mariadb: bool) -> str:
    """Of what the table is: parent, child or both. locked: with it."""
    said = [*_of_waiting(locked, is_mariadb=is_mariadb), *_of_dying(found, is_mariadb=is_mariadb)]
    return " ".join([*said, "Afterwards each key is verified by a search for rows without a parent."])


def _of_waiting(locked: Sequence[tuple[str, str]], *, is_mariadb: bool) -> Iterator[str]:
    if locked:
        named = ", ".join(map(".".join, locked))
        who = (
            f"writers of {named}" if is_mariadb else f"readers and writers of {named}, and writers of their relatives,"
        )
        yield (
            f"Risks: {who} wait with those of the table, at most {CUTOVER_DEADLINE_SECONDS:.0f} s and what the ALTERs "
            "of the keys take; a transaction that has used one of these tables and goes on to another in that moment "
            "may get error 1213 (deadlock)."
        )


def _of_dying(found: Family, *, is_mariadb: bool) -> Iterator[str]:
    if found.children and is_mariadb:
        yield (
            "If the process or the server dies between those ALTERs and RENAME, rows that refer to new rows are "
            "refused (1452), and rows that are referred to can be deleted, until the same command is run again."
        )
    elif found.children:
        yield (
            "If the process or the server dies between those ALTERs, rows that refer to new rows are refused (1452), "
            "until the same command is run again."
        )
    if found.own:
        yield (
            "If it dies while both tables have the keys, rows of a parent to which a row of either refers cannot be "
            "deleted (1451), until then."
        )
