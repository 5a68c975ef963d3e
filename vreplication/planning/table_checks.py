"""Checks of the table and of what the ALTER makes of it.

What must stay true: everything that would end with a table unlike that of a plain ALTER (docs/correctness.md, P1), or
with a lost write, is refused here by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from vreplication import names
from vreplication.mysql.quoting import qualified
from vreplication.mysql.session import Session
from vreplication.mysql.text import Token, tokens
from vreplication.planning import foreign, keeping
from vreplication.planning.duplicates import find_duplicates
from vreplication.planning.facts import Check, Facts, OfTable, looked, ok, refuse, warn
from vreplication.planning.foreign_checks import rebuilt
from vreplication.planning.numbering import numbering
from vreplication.planning.revert_checks import revert
from vreplication.planning.trigger_checks import triggers
from vreplication.planning.unlogged import generated_columns
from vreplication.schema import nulls, statistics
from vreplication.schema.fills import has_quoted_default
from vreplication.schema.introspect import definitions, exists
from vreplication.schema.keys import or_nullable, usable_keys
from vreplication.schema.model import Column, ColumnPair, Key, Table, TableMapping
from vreplication.schema.shadow import checks_of, new_names
from vreplication.settings import SIDECAR
from vreplication.state import ids, queue, workflows

SYSTEM_SCHEMAS = ("mysql", "sys", "information_schema", "performance_schema", SIDECAR)
# A literal, the current time, or nothing: what is the same in every row.
_PLAIN_DEFAULT = re.compile(r"(?:current_timestamp|now)\b.*|[^(]*", re.I | re.S)


def ours(facts: Facts) -> Check:
    if names.is_ours(facts.source.name) or facts.source.schema.lower() in SYSTEM_SCHEMAS:
        return refuse("table", f"{facts.name} is not a table of an application.", "Name one of your own tables.")
    return ok("table", f"{facts.name} is a base table.")


def engine(facts: Facts) -> Check:
    tables = [t for t in (facts.source, facts.target) if t is not None]
    other = next((t.engine for t in tables if t.engine.lower() != "innodb"), None)
    if other:
        return refuse(
            "engine", f"{facts.name} is or becomes {other}, not InnoDB.", "Only InnoDB tables can be changed online."
        )
    return ok("engine", "InnoDB.")


_CURE_OF_KEYS = "Take --foreign-keys rebuild, drop them first, or run a plain ALTER TABLE."


def foreign_keys(facts: Facts) -> Check:
    if facts.spec.foreign_keys == "rebuild":
        return rebuilt(facts)
    if own := own_foreign_keys(facts.source):
        words = f"{facts.name} has foreign keys ({', '.join(own)}), which would go on pointing from the retired table."
        return refuse("foreign keys", words + _acting(facts), _CURE_OF_KEYS)
    if found := sorted(children(facts)):
        return refuse(
            "foreign keys",
            f"{facts.name} is the parent of foreign keys in {', '.join(found[:5])}, which would go on pointing to the"
            " retired table: a row there that refers to a new one would be an error.",
            _CURE_OF_KEYS,
        )
    return ok("foreign keys", "No foreign keys from or to the table.")


def own_foreign_keys(table: Table) -> list[str]:
    """Their names."""
    # Both servers print CONSTRAINT and a name before it, also where they have made that up.
    return [parts[1].value for parts in definitions(table.create_sql) if _is_foreign(parts)]


def _acting(facts: Facts) -> str:
    """What would be lost besides."""
    acting = [parts[1].value for parts in definitions(facts.source.create_sql) if _is_foreign(parts) and _acts(parts)]
    if not acting:
        return ""
    unseen = ", which this server does not log" if facts.server.is_mariadb else ""
    return f" Rows are deleted or changed by {', '.join(acting)} (ON DELETE, ON UPDATE){unseen}."


def _acts(parts: list[Token]) -> bool:
    """CASCADE, SET NULL, SET DEFAULT."""
    pairs = pairwise(parts)
    return any(p.is_word("CASCADE") for p in parts) or any(
        one.is_word("SET") and two.is_word("NULL", "DEFAULT") for one, two in pairs
    )


def _is_foreign(parts: list[Token]) -> bool:
    return any(token.is_word("FOREIGN") for token in parts[:4])


def children(facts: OfTable) -> set[str]:
    """Tables with a foreign key to the source: InnoDB knows them all, information_schema what the user may see."""
    key = (facts.source.schema, facts.source.name)
    seen = facts.session.rows(
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE"
        " WHERE REFERENCED_TABLE_SCHEMA=%s AND REFERENCED_TABLE_NAME=%s",
        key,
    )
    every = foreign.foreign_keys(facts.session, is_mariadb=facts.server.is_mariadb)
    # A child in a schema that the user may not see would go on pointing to the retired table all the same.
    hidden = {".".join(each.child) for each in every if each.parent == key}
    return {".".join(map(str, row)) for row in seen} | hidden


def triggers_of(session: Session, schema: str, table: str) -> list[str]:
    """Their names, as far as the user may see them."""
    sql = "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA=%s AND EVENT_OBJECT_TABLE=%s"
    return [str(name) for (name,) in session.rows(sql, (schema, table))]


def features(facts: Facts) -> Check:
    """What a copy would lose, or what we do not read, by name."""
    for text, is_there in _FEATURES.items():
        if is_there(facts.source.create_sql):
            return refuse("features", f"{facts.name} {text}.", "Run a plain ALTER TABLE.")
    return ok("features", "Nothing that a copy would lose.")


def _says(*words: str) -> Callable[[str], bool]:
    """True for a text that has these words one behind the other, outside of comments, defaults and names."""

    def is_there(sql: str) -> bool:
        found = tokens(sql)
        places = range(len(found) - len(words) + 1)
        return any(all(found[at + i].is_word(word) for i, word in enumerate(words)) for at in places)

    return is_there


def _has_compressed_column(sql: str) -> bool:
    """A column's COMPRESSED: the same word behind ROW_FORMAT= is an option of the table."""
    return any(token.is_word("COMPRESSED") for parts in definitions(sql) for token in parts)


_FEATURES: dict[str, Callable[[str], bool]] = {
    "is system-versioned; a copy has no history": _says("WITH", "SYSTEM", "VERSIONING"),
    "has a period": _says("PERIOD", "FOR"),
    "has a DATA DIRECTORY, which CREATE TABLE … LIKE does not keep": _says("DATA", "DIRECTORY"),
    # Their values stand compressed in the log, too, where we do not read them.
    "has compressed columns": _has_compressed_column,
}


def check_names(facts: Facts) -> Check:
    """MySQL's CHECK names are unique in a schema, so the new table cannot have those of the old one."""
    if facts.server.is_mariadb or not checks_of(facts.source.create_sql):
        return ok("CHECK names", "They stay as they are.")
    source = facts.source
    # Whatever the id: names of retired tables are of one length.
    retired = names.retired_table(source.name, facts.spec.workflow or "w")
    # The constraints follow the table to its retired name, which is the longest that it has.
    if max(map(len, new_names(source, retired).values())) > names.MAX_NAME:
        return refuse(
            "CHECK names",
            f"The table's name is too long: its CHECK constraints are renamed with it, to more than {names.MAX_NAME}.",
            "Shorten the table's name, or run a plain ALTER TABLE.",
        )
    new = {old: n for old, n in new_names(source, source.name).items() if old != n.lower()}
    # Found by RENAME under the lock it would let each attempt at the cut-over fail.
    if taken := _of_others(facts, list(new.values())):
        return refuse(
            "CHECK names",
            f"Another table has a CHECK constraint {taken}, which one of {source.name} would be called.",
            f"Rename {taken} (drop it and add it under another name).",
        )
    return _told(new)


def _of_others(facts: Facts, wanted: list[str]) -> str | None:
    """A CHECK constraint of another table with one of these names."""
    sql = (
        "SELECT CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS WHERE CONSTRAINT_TYPE='CHECK' "
        "AND CONSTRAINT_SCHEMA=%s AND TABLE_NAME<>%s"
    )
    theirs = {str(r[0]).lower() for r in facts.session.rows(sql, (facts.source.schema, facts.source.name))}
    return next((name for name in wanted if name.lower() in theirs), None)


def _told(new: dict[str, str]) -> Check:
    if not new:
        return ok("CHECK names", "They follow the table.")
    listed = ", ".join(f"{old} becomes {name}" for old, name in new.items())
    return warn(
        "CHECK names",
        f"CHECK constraints lose the names that they were given: {listed}. MySQL lets no two tables of a schema have "
        "constraints of one name, and the retired table keeps its own.",
    )


def shared_key(facts: Facts) -> Check:
    """Where the target is known the mapping has found it, or has refused."""
    if facts.mapping is not None:
        columns = ", ".join(pair.source.name for pair in facts.mapping.key)
        if facts.mapping.may_have_null:
            return _nullable(facts.session, facts.mapping, columns)
        return ok("shared key", f"Rows are told apart by {facts.mapping.source_index} ({columns}).")
    if not usable_keys(facts.source, may_be_null=facts.spec.allow_nullable_key):
        return refuse(
            "shared key",
            f"{facts.name} has no unique key over NOT NULL columns of numbers, strings (no CHAR under a NOPAD "
            "collation), binaries or dates.",
            f"Add a primary key by a plain ALTER TABLE first{or_nullable(facts.source)}.",
        )
    return ok("shared key", "The table has a key; that the new definition shares it is checked at prepare.")


def primary_key(facts: Facts) -> Check:
    """Where MySQL asks for one (sql_require_primary_key), of the new table: a plain ALTER would be refused as well."""
    target = facts.target
    if target is not None and facts.server.is_on("sql_require_primary_key"):
        return needs_primary_key(facts.name, target)
    return ok("primary key", "The server asks for none." if target else "Whether the server takes it shows at prepare.")


def needs_primary_key(name: str, target: Table) -> Check:
    if any(key.is_primary for key in target.keys):
        return ok("primary key", "The server asks for one, and it is there.")
    return refuse(
        "primary key",
        f"sql_require_primary_key is ON, and {name} would have no primary key.",
        "Give it one (ADD PRIMARY KEY …), or SET GLOBAL sql_require_primary_key=OFF.",
    )


def _nullable(session: Session, mapping: TableMapping, columns: str) -> Check:
    if column := nulls.find(session, mapping):
        return refuse("shared key", nulls.words(mapping, column), nulls.ADVICE)
    return warn(
        "shared key",
        f"Rows are told apart by {mapping.source_index} ({columns}), which may be NULL. Of no row it is now; the first"
        " that is written with NULL in it ends the workflow.",
        "A primary key has no such risk.",
    )


def duplicates(facts: Facts) -> Check:
    if facts.spec.keeps_one:
        return keeping.check(facts)
    mapping = facts.mapping
    if mapping is None or not mapping.added_unique:
        return ok("unique keys", "No unique key is added or narrowed.")
    # Also one that is there already: a row may be in another's way by it as well, and then is not found.
    if hidden := next((key for key in mapping.target.keys if key.is_unique and key.has_expression), None):
        return _refuse_expression(hidden, mapping)
    for unique in mapping.added_unique:
        if found := find_duplicates(facts.session, mapping, unique):
            return refuse(
                "unique keys",
                f"Rows of {facts.name} are duplicates under the new unique key {unique.name}: {', '.join(found)}.",
                "Remove them first, or take --on-duplicate keep-first.",
            )
    listed = ", ".join(key.name for key in mapping.added_unique)
    return warn(
        "unique keys", f"Unique keys are added or narrowed ({listed}): rows in each other's way are copied again."
    )


def _refuse_expression(hidden: Key, mapping: TableMapping) -> Check:
    """Which row is in the way of another is found by comparing columns (apply/unique.py), and here there is none."""
    others = [key.name for key in mapping.added_unique if key.name != hidden.name]
    beside = f", while {', '.join(others)} is added or narrowed" if others else ""
    return refuse(
        "unique keys",
        f"The unique key {hidden.name} is over an expression{beside}: rows that are in each other's way under it"
        " cannot be told.",
        "Make the expression a generated column with a unique key over it, or run a plain ALTER TABLE.",
    )


def names_free(facts: Facts) -> Check:
    schema, table = facts.source.schema, facts.source.name
    wanted = [names.shadow_table(table)]
    wanted += [names.retired_table(table, facts.spec.workflow)] if facts.spec.workflow else []
    if facts.spec.keeps_one and facts.spec.workflow:
        wanted += [name(table, facts.spec.workflow) for name in (names.full_copy, names.side_table)]
    # The retired name, too: the cut-over's sentry is made under it, and that should not fail when all is copied.
    taken = [name for name in wanted if exists(facts.session, schema, name)]
    if taken:
        return refuse(
            "names",
            f"There is a table {schema}.{taken[0]} already, where ours is to be.",
            "Cancel the workflow that made it (`vreplication status`), or drop it.",
        )
    return ok("names", f"{wanted[0]} is free.")


def workflow_id(facts: Facts) -> Check:
    workflow, place = facts.spec.workflow or "", facts.spec.table_parts(facts.session.url.database)
    why = ids.moving(facts.session, workflow)
    why = why or ids.queued(facts.session, workflow, queue.about(queue.ONLINE_DDL, *place, facts.spec.alter))
    return refuse("workflow", why, ids.CURE) if why else ok("workflow", "No other workflow keeps state under its id.")


def other_workflow(facts: Facts) -> Check:
    found = workflows.live_on_table(facts.session, facts.source.schema, facts.source.name)
    # A workflow that falls back to a copy is planned once more, with its own row there.
    found.pop(facts.spec.workflow or "", None)
    for other, phase in found.items():
        return refuse(
            "other workflows",
            f"Workflow {other} on {facts.name} has not ended (phase {phase}).",
            f"`vreplication resume {other}` goes on with it, `vreplication cancel {other}` removes it.",
        )
    return ok("other workflows", "None on this table.")


def new_columns(facts: Facts) -> Check:
    """Columns whose values a plain ALTER would not have given either way, but others."""
    known = {pair.target.name for pair in facts.mapping.pairs} if facts.mapping else set()
    added = [c for c in facts.target.columns if c.name not in known] if facts.target and facts.mapping else []
    if zero := [p.target.name for p in facts.mapping.pairs if _is_zero_day(facts, p)] if facts.mapping else []:
        if not facts.session.row(f"SELECT 1 FROM {qualified(facts.source.schema, facts.source.name)} LIMIT 1"):
            return refuse(
                "new columns",
                f"{zero[0]} is added NOT NULL without a default, and a row that is written meanwhile would have a date"
                " of zero, which the server's sql_mode forbids (NO_ZERO_DATE).",
                "The table is empty now: run a plain ALTER TABLE, or give the column a DEFAULT.",
            )
        return refuse(
            "new columns",
            f"{zero[0]} is added NOT NULL without a default, so existing rows would have a date of zero, which the"
            " server's sql_mode forbids (NO_ZERO_DATE).",
            "Give it a DEFAULT, or let it be NULL.",
        )
    if numbered := [c.name for c in added if c.is_auto_increment]:
        return warn(
            "new columns", f"{numbered[0]} is numbered in the order of copying, with gaps where rows change meanwhile."
        )
    if drawn := [c.name for c in added if facts.target and _is_drawn(facts.target, c)]:
        return warn(
            "new columns", f"The default of {drawn[0]} is drawn for each row, again when the row changes meanwhile."
        )
    return ok("new columns", "New columns take what a plain ALTER TABLE gives them.")


def _is_zero_day(facts: Facts, pair: ColumnPair) -> bool:
    """A plain ALTER is refused then, of these two types; our sessions take such days, for tables hold them."""
    modes = (facts.server.setting("sql_mode") or "").upper().split(",")
    is_forbidden = "NO_ZERO_DATE" in modes and not {"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"}.isdisjoint(modes)
    is_filled = pair.is_constant and not pair.target.has_default
    return is_forbidden and is_filled and pair.target.data_type in ("date", "datetime")


def _is_drawn(table: Table, column: Column) -> bool:
    if column.generated or column.default is None or has_quoted_default(table, column):
        return False
    return _PLAIN_DEFAULT.fullmatch(column.default) is None


def null_timestamps(facts: Facts) -> Check:
    """Without explicit_defaults_for_timestamp NULL into TIMESTAMP NOT NULL is the time, without a warning."""
    setting = facts.server.setting("explicit_defaults_for_timestamp")
    if setting is None or facts.server.is_on("explicit_defaults_for_timestamp") or facts.mapping is None:
        return ok("NULL timestamps", "NULL stays NULL.")
    for pair in facts.mapping.pairs:
        if pair.source.is_nullable and pair.target.data_type == "timestamp" and not pair.target.is_nullable:
            return refuse(
                "NULL timestamps",
                f"{pair.target.name} becomes NOT NULL while explicit_defaults_for_timestamp is off:"
                " NULL would turn into the current time.",
                "Set explicit_defaults_for_timestamp=ON, or fill the NULLs first.",
            )
    return ok("NULL timestamps", "No column is concerned.")


def json_subtypes(facts: Facts) -> Check:
    has_json = any(column.data_type == "json" for column in facts.source.columns)
    if has_json and facts.copy_path == "rows":
        return warn(
            "JSON",
            "The copy carries JSON as text: DECIMAL and DATE values made by functions inside a document"
            " become numbers and strings.",
            "Use --copy-path server.",
        )
    return ok("JSON", "Documents keep their values." if has_json else "No JSON columns.")


def optimizer_statistics(facts: Facts) -> Check:
    """RENAME takes them along to the retired table."""
    is_mariadb, name = facts.server.is_mariadb, "optimizer statistics"
    found = statistics.collected(facts.session, facts.source.schema, facts.source.name, is_mariadb=is_mariadb)
    if found is None:
        return warn(
            name,
            "Persistent statistics cannot be read: those that the table may have stay with the retired table.",
            "".join(f"GRANT SELECT ON mysql.{table} TO the user; " for table in statistics.STAT_TABLES).strip(),
        )
    if not found:
        return ok(name, "None but those that InnoDB keeps.")
    what = "Persistent statistics" if is_mariadb else "Histograms"
    lost = statistics.lost(found, facts.mapping, is_mariadb=is_mariadb) if facts.mapping else []
    if lost:
        return warn(name, f"{what} of {', '.join(lost)} end with the old definition; others are collected again.")
    of = f" of {', '.join(sorted(found.columns))}" if found.columns else ""
    return ok(name, f"{what}{of} are collected again, on the new table, before the cut-over.")


_ALL: tuple[Callable[[Facts], Check], ...] = (
    ours,
    engine,
    features,
    foreign_keys,
    triggers,
    check_names,
    shared_key,
    primary_key,
    duplicates,
    new_columns,
    numbering,
    generated_columns,
    null_timestamps,
    json_subtypes,
    optimizer_statistics,
    revert,
    names_free,
    workflow_id,
    other_workflow,
)


_ON_TARGET = (
    engine,
    primary_key,
    duplicates,
    new_columns,
    numbering,
    generated_columns,
    null_timestamps,
    revert,
    triggers,
)
IN_PLACE: tuple[Callable[[Facts], Check], ...] = (ours, engine, workflow_id, other_workflow)
"""Those that hold where the server alters the table itself: it keeps its foreign keys, triggers and all."""


def run(facts: Facts, checks: tuple[Callable[[Facts], Check], ...] = _ALL) -> Iterator[Check]:
    """All of them, unless some are named; one that cannot be made refuses."""
    return (looked(_named(check), partial(check, facts)) for check in checks)


def run_on_target(facts: Facts) -> Iterator[Check]:
    """Those that need the new definition."""
    return (looked(_named(check), partial(check, facts)) for check in _ON_TARGET)


def _named(check: Callable[[Facts], Check]) -> str:
    return check.__name__.replace("_", " ")
