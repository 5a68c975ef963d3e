"""A DDL that leaves the collation of text to the server: the source's own are written into it.

Under another default two keys of the source's may be one to the target, and one row of them is gone without a word.

Only a new table's default and utf8mb4 are looked at: a new column takes its table's default, which is the source's by
then, and what other character sets have for a default is the same on both flavors (but for those of Unicode on MariaDB
11.5 and newer: docs/limits.md).

What must stay true: what the statement says itself is left as it is; where the target has no such collation, no table
gets a unique key of text under one that the server chose, be it with the table or later.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from vreplication.binlog.definitions import Definition
from vreplication.errors import Refused, Terminal
from vreplication.feed.consume.listener import Ddl
from vreplication.feed.consume.repeated import TRIAL, place_of_name
from vreplication.feed.consume.speaking import cut_of
from vreplication.feed.spoken import default_of_utf8mb4
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, SqlError, is_passing
from vreplication.mysql.text import Token, Unreadable
from vreplication.schema.carry import is_of_another_unicode
from vreplication.schema.introspect import introspect, introspect_temporary
from vreplication.schema.model import Column, Table
from vreplication.schema.written import cut_at_commas

_CHARSET = "utf8mb4"
"""The one whose default collation differs between the flavors, and may be set on MySQL."""
_BEHIND_OPTIONS = ("PARTITION", "AS", "SELECT", "VALUES", "IGNORE", "REPLACE", "START")
"""Not WITH: WITH SYSTEM VERSIONING (MariaDB) is an option, and a query that begins with it soon has an AS."""
_TEXTS = (
    *("CHAR", "VARCHAR", "CHARACTER", "VARCHARACTER", "NCHAR", "NVARCHAR", "NATIONAL", "ENUM", "SET", "LONG"),
    *("TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "CONVERT"),
)
_QUERY = ("SELECT", "WITH", "VALUES")
_CONVERTING = ("CAST", "CONVERT", "JSON_VALUE")
"""The character set in their parentheses takes no COLLATE (MySQL)."""
_NOT_OPTIONS = ("ADD", "MODIFY", "CHANGE", "CONVERT")
_NO_COLUMNS = ("KEY", "INDEX", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK", "PERIOD")
_OF_BYTES = ("_nopad_bin", "_0900_bin")
"""They tell apart all that any other does. Not _bin alone, to which 'a' and 'a ' are one."""
_REFUSED_TOO = frozenset({1050, 1054, 1060, 1061, 1068, 1091, 1146})
"""What the trial is refused with where the statement is, too: then nothing is made."""
_KNOWN = (
    "SELECT 1 FROM information_schema.COLLATIONS WHERE COLLATION_NAME=%s",
    "SELECT 1 FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY WHERE FULL_COLLATION_NAME=%s",
)


def as_the_source(session: Session, ddl: Ddl, said: Definition | None) -> Ddl:
    """With the source's collations in its text. Raises Terminal."""
    if said is None or said.what == "DATABASE" or said.verb not in ("CREATE", "ALTER") or not said.tables:
        return ddl
    _check_other_source(session, ddl, said)
    try:
        wanted = list(_wanted(session, ddl, said))
        told = (*(collation for _, collation in wanted), *_of_table(ddl, said))
        unknown = [each for each in told if not _is_known(session, each)]
        if unknown and not _makes_nothing(session, ddl, said) and _makes_a_key_of_text(session, ddl, said):
            raise _refused(ddl, unknown[0])
    except Unreadable:
        # What cannot be read here its server judges.
        return ddl
    sql = ddl.sql
    # From the end on: what is written in front of a place would move it.
    for place, collation in sorted(wanted, reverse=True):
        if collation not in unknown:
            sql = f"{sql[:place]} COLLATE {collation}{sql[place:]}"
    return ddl._replace(sql=sql)


def _is_new_table(said: Definition) -> bool:
    return (said.verb, said.what) == ("CREATE", "TABLE")


def _wanted(session: Session, ddl: Ddl, said: Definition) -> Iterator[tuple[int, str]]:
    """Where a collation is to be written that the target would not choose. Raises Unreadable."""
    told, cut = ddl.spoken, cut_of(ddl)
    _, end = place_of_name(cut, said)
    rest = [each for each in cut if each.start >= end]
    if _is_new_table(said) and told.collation and told.collation != _of_schema(session, said.tables[0][0]):
        place = _place_of_options(rest, end)
        if place is not None:
            yield place, told.collation
    if told.utf8mb4 and told.utf8mb4 != _of_charset(session):
        yield from ((each.end, told.utf8mb4) for each in _bare_charsets(rest))


def _of_table(ddl: Ddl, said: Definition) -> Iterator[str]:
    """Told of a table that is there, for a unique key that comes: its columns have it, or one that they name."""
    if not _is_new_table(said) and ddl.spoken.collation:
        yield ddl.spoken.collation


def _makes_nothing(session: Session, ddl: Ddl, said: Definition) -> bool:
    """A CREATE TABLE of one that is there: how it was made is somebody else's care."""
    before = itertools.takewhile(lambda each: not each.is_word("TABLE"), cut_of(ddl))
    if not _is_new_table(said) or any(each.is_word("REPLACE") for each in before):
        return False
    sql = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
    return session.value(sql, said.tables[0]) is not None


def _check_other_source(session: Session, ddl: Ddl, said: Definition) -> None:
    """IF NOT EXISTS refuses nothing, and another source may have made the table. Raises Terminal."""
    if not ddl.spoken.keys:
        return
    # No such table yet: then the statement makes it, under the source's collations.
    with contextlib.suppress(Refused):
        table = introspect(session, *said.tables[0])
        for column in (column for column in table.columns if column.collation):
            wanted = ddl.spoken.keys.get(column.name)
            if wanted and not _tells_apart(str(column.collation), wanted):
                raise _refused_other(ddl, table, column, wanted)


def _tells_apart(found: str, wanted: str) -> bool:
    """Whatever the wanted collation does; one that is bare bytes but for spaces at the end does, unless they count."""
    if found == wanted or found.endswith(_OF_BYTES):
        return True
    return found.endswith("_bin") and not ("_0900_" in wanted or "_nopad_" in wanted)


def _place_of_options(rest: list[Token], end: int) -> int | None:
    """Where a table's options begin; None: it names a character set, or is made like another one."""
    if any(each.is_word("LIKE") for each in rest[:2]):
        return None
    behind = rest
    if rest and rest[0].is_punct("(") and not rest[1].is_word(*_QUERY):
        last = _closing(rest)
        end, behind = rest[last].end, rest[last + 1 :]
    options = list(itertools.takewhile(lambda each: not each.is_word(*_BEHIND_OPTIONS), behind))
    return None if any(each.is_word("COLLATE", "CHARSET", "CHARACTER", "CHAR") for each in options) else end


def _closing(rest: list[Token]) -> int:
    depth = 0
    for at, each in enumerate(rest):
        depth += each.is_punct("(") - each.is_punct(")")
        if depth == 0:
            return at
    raise Unreadable("a parenthesis is not closed")


def _bare_charsets(rest: list[Token]) -> Iterator[Token]:
    """Each utf8mb4 of CHARSET=utf8mb4 and CHARACTER SET utf8mb4 without a COLLATE of its own. Raises Unreadable."""
    clauses = list(_clauses(rest))
    is_collated = any(depth == 0 and _is_of_collation(clause) for depth, clause in clauses)
    for depth, clause in clauses:
        is_option = depth == 0 and not clause[0].is_word(*_NOT_OPTIONS)
        if any(each.is_word("COLLATE") for each in clause) or (is_option and is_collated):
            continue
        for at, each in enumerate(clause):
            if each.value.lower() == _CHARSET and _is_charset(clause[max(0, at - 3) : at]):
                yield each


def _clauses(rest: list[Token]) -> Iterator[tuple[int, list[Token]]]:
    """What stands between two commas, without what is in parentheses there, which comes as clauses of its own.

    Not what a function converts to. Raises Unreadable.
    """
    open_ones: list[tuple[list[Token], bool]] = [([], False)]
    for at, each in enumerate([*rest, None]):
        if each is not None and each.is_punct("("):
            open_ones.append(([], at > 0 and rest[at - 1].is_word(*_CONVERTING)))
        elif each is None or each.is_punct(")", ","):
            clause, is_converted = open_ones.pop()
            if clause and not is_converted:
                yield len(open_ones), clause
            if each is not None and each.is_punct(","):
                open_ones.append(([], is_converted))
            elif each is not None and not open_ones:
                raise Unreadable("a parenthesis is not opened")
        else:
            open_ones[-1][0].append(each)


def _is_of_collation(clause: list[Token]) -> bool:
    words = clause[1:] if clause[0].is_word("DEFAULT") else clause
    return bool(words) and words[0].is_word("COLLATE")


def _is_charset(before: list[Token]) -> bool:
    words = before[:-1] if before and before[-1].is_punct("=") else before
    if words and words[-1].is_word("CHARSET"):
        return True
    return len(words) > 1 and words[-1].is_word("SET") and words[-2].is_word("CHARACTER", "CHAR")


# What the target has.


def _of_schema(session: Session, schema: str) -> str:
    sql = "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME=%s"
    return str(session.value(sql, (schema,)))


def _of_charset(session: Session) -> str:
    return session.lasting("default of utf8mb4", lambda: default_of_utf8mb4(session))


def _is_known(session: Session, collation: str) -> bool:
    # From 11.8 on MariaDB knows these names, by other weights: two keys of the source could be one there.
    if is_mariadb(session) and is_of_another_unicode(collation):
        return False
    for sql in _KNOWN:
        # Only MariaDB has the second column.
        try:
            if session.value(sql, (collation,)) is not None:
                return True
        except SqlError as error:
            if is_passing(error):
                raise
    return False


def _makes_a_key_of_text(session: Session, ddl: Ddl, said: Definition) -> bool:
    """Under a collation that the target has chosen, or it cannot be told. Raises Unreadable."""
    _, end = place_of_name(cut := cut_of(ddl), said)
    rest, is_new = [each for each in cut if each.start >= end], _is_new_table(said)
    if is_new and not any(each.is_word(*_TEXTS) for each in rest):
        return False
    defaults = _of_schema(session, said.tables[0][0]), _of_charset(session)
    chosen = tuple(each for each in defaults if not each.endswith(_OF_BYTES))
    there: Table | None = None
    try:
        there = None if is_new else introspect(session, *said.tables[0])
        made = _text_keys(tried(session, ddl, said), chosen)
    except Refused:
        # No such table: its server says so.
        return False
    except SqlError as error:
        # No temporary table has foreign keys, partitions or a FULLTEXT index.
        # The statement itself may run all the same, so its words are looked at then.
        return error.code not in _REFUSED_TOO and _says_a_key_of_text(rest, said, there, chosen)
    return not made <= (_text_keys(there, chosen) if there else set())


def _text_keys(table: Table, chosen: tuple[str, ...]) -> set[tuple[str, str | None]]:
    """Columns of its unique keys, with a collation that is one of these."""
    names = {name for key in table.keys if key.is_unique for name in key.columns if name}
    found = (column for column in table.columns if column.name in names)
    return {(column.name, column.collation) for column in found if column.collation in chosen}


def _says_a_key_of_text(rest: list[Token], said: Definition, there: Table | None, chosen: tuple[str, ...]) -> bool:
    """By its words alone: whatever stands in a unique key by the name of a column of text is one. there: the table."""
    if there is not None:
        # What becomes of columns that it adds or changes is not looked at.
        if any(each.is_word(*_TEXTS) for each in rest):
            return True
        clauses = [each for each in cut_at_commas(rest) if each]
        texts = {column.name.lower() for column in there.columns if column.collation in chosen}
    elif rest and rest[0].is_punct("("):
        clauses = [each for each in cut_at_commas(rest[1 : _closing(rest)]) if each]
        texts = {name.value.lower() for name, *more in clauses if name.is_name and more and more[0].is_word(*_TEXTS)}
    else:
        return True
    unique = [each for each in clauses if said.what == "INDEX" or _is_unique(each)]
    return any(each.value.lower() in texts for clause in unique for each in clause)


def _is_unique(clause: list[Token]) -> bool:
    """A unique key, or a column with one: there KEY alone is the primary one."""
    if any(each.is_word("UNIQUE", "PRIMARY") for each in clause):
        return True
    return not clause[0].is_word(*_NO_COLUMNS) and any(each.is_word("KEY") for each in clause[2:])


def tried(session: Session, ddl: Ddl, said: Definition) -> Table:
    """What the statement makes: on a temporary table. Raises SqlError, Refused, Unreadable."""
    schema, table = said.tables[0]
    trial = qualified(schema, TRIAL)
    start, end = place_of_name(cut_of(ddl), said)
    try:
        if _is_new_table(said):
            session.execute_raw(f"CREATE TEMPORARY TABLE {trial}{ddl.sql[end:]}")
        else:
            session.execute_raw(f"CREATE TEMPORARY TABLE {trial} LIKE {qualified(schema, table)}")
            session.execute_raw(f"{ddl.sql[:start]}{trial}{ddl.sql[end:]}")
        return introspect_temporary(session, schema, TRIAL)
    finally:
        # TEMPORARY, for without the word a table of the target's own that has this name would go.
        session.execute_raw(f"DROP TEMPORARY TABLE IF EXISTS {trial}")


def _refused(ddl: Ddl, collation: str) -> Terminal:
    return Terminal(
        f"A DDL of the feed leaves the collation of a unique key to the server, on the source {collation}, which the"
        f" target does not have: two keys may be one there, and a row be lost. It is: {ddl.sql[:500]}",
        cure="Make the table, or that change, on the target by hand, under a collation that tells apart what the"
        " source's does; then start the consumer again: a table that is another one by then counts as done (ALTER TABLE"
        " … FORCE makes it one).",
    )


def _refused_other(ddl: Ddl, table: Table, column: Column, wanted: str) -> Terminal:
    return Terminal(
        f"Column {column.name} of {table.schema}.{table.name} is {column.collation} on the target and {wanted} on a"
        " source that has made its own table of that name: two keys of its may be one there, and a row be lost. It is:"
        f" {ddl.sql[:500]}",
        cure="Give the column on the target a collation that tells apart what each source's does (ALTER TABLE); then"
        " start the consumer again: a table that is another one by then counts as done.",
    )
