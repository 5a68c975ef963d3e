"""The shadow table: CREATE TABLE … LIKE, then the ALTER.

What must stay true: once the shadow has taken the table's name, SHOW CREATE TABLE is what a plain ALTER would have
given (AUTO_INCREMENT and the users' names of MySQL's CHECK constraints aside); what LIKE loses (DATA DIRECTORY, the
numbers of CHECK constraints) is put right or refused; the ALTER runs under the server's own SQL mode and time zone, so
that it is refused where a plain one is; a table that we did not make is never dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, qualified
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.text import Token
from vreplication.schema.alter import AlterClauses
from vreplication.schema.introspect import COUNTER, definitions, introspect
from vreplication.schema.model import Table

_EXISTS = 1050


_FOREIGN = re.compile(r"  CONSTRAINT `(?:[^`]|``)*` FOREIGN KEY ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A CHECK constraint of MySQL, where such names are unique in a whole schema."""

    name: str
    expression: str


def create_shadow(session: Session, table: Table, alter: AlterClauses, name: str) -> Table:
    """Make the shadow table `name` beside `table`. Raises Refused with the server's message; nothing is left then."""
    shadow = qualified(table.schema, name)
    try:
        with keys_not_asked_for(session, table):
            session.execute_raw(f"CREATE TABLE {shadow} LIKE {qualified(table.schema, table.name)}")
    except SqlError as error:
        cure = f"Drop {name} first if it is not needed." if error.code == _EXISTS else ""
        raise Refused(f"The shadow table cannot be made: {error.message}", cure=cure) from None
    try:
        return _altered(session, table, alter, name)
    # Only from here on is the table ours: where CREATE found one of that name (1050) nothing is dropped.
    except BaseException:
        session.execute_raw(f"DROP TABLE IF EXISTS {shadow}")
        raise


@contextlib.contextmanager
def keys_not_asked_for(session: Session, table: Table) -> Iterator[None]:
    """For a copy of what is there: whether the ALTER gives it the primary key that MySQL asks for, the ALTER says."""
    name = "sql_require_primary_key"
    if is_mariadb(session) or any(key.is_primary for key in table.keys):
        yield
        return
    asks = int(session.value(f"SELECT @@SESSION.{name}") or 0)
    if asks:
        # Of the session alone, by SESSION_VARIABLES_ADMIN: a server's setting is never changed (P3).
        session.execute_raw(f"SET SESSION {name}=OFF")
    try:
        yield
    finally:
        if asks:
            session.execute_raw(f"SET SESSION {name}=ON")


def _altered(session: Session, table: Table, alter: AlterClauses, name: str) -> Table:
    _mend_checks(session, table, name)
    _compare(table, introspect(session, table.schema, name))
    run_alter(session, table, alter, name)
    return introspect(session, table.schema, name)


def run_alter(session: Session, table: Table, alter: AlterClauses, name: str) -> None:
    """Run the ALTER on `name`, a copy of `table` made by LIKE. Raises Refused with the server's message."""
    names = constraint_names(session, table, name)
    try:
        with session.as_the_server():
            session.execute_raw(f"ALTER TABLE {qualified(table.schema, name)} {alter.with_constraints(names)}")
    except SqlError as error:
        raise Refused(
            f"The server refuses the ALTER: {error.message}", cure="Correct the clauses given by --alter."
        ) from None


def comparable(create_sql: str, table: str) -> str:
    """A CREATE TABLE without the table's name and its counter, for comparing two of them."""
    at = create_sql.rfind("\n)")
    body, options = create_sql[:at].partition("\n")[2], create_sql[at:]
    own = re.compile(rf"CONSTRAINT `{re.escape(table.replace('`', '``'))}_chk_(\d+)` ", re.I)
    return own.sub(r"CONSTRAINT `_chk_\1` ", body) + COUNTER.sub("", options)


def definition_digest(create_sql: str, table: str) -> str:
    """AUTO_INCREMENT aside."""
    return hashlib.sha256(comparable(create_sql, table).encode()).hexdigest()


def checks_of(create_sql: str) -> list[Check]:
    """Named CHECK constraints of the table, as SHOW CREATE TABLE lists them."""
    return [found for parts in definitions(create_sql) if (found := _check(parts))]


def _check(parts: list[Token]) -> Check | None:
    if len(parts) > 3 and parts[0].is_word("CONSTRAINT") and parts[2].is_word("CHECK"):
        return Check(name=parts[1].value, expression=" ".join(t.text for t in parts[3:]))
    return None


def is_generated_name(check: str, table: str) -> bool:
    """True for a name that MySQL gave (t_chk_1): it follows the table when that is renamed."""
    return re.fullmatch(re.escape(table) + r"_chk_\d+", check, re.I) is not None


def constraint_names(session: Session, table: Table, name: str) -> dict[str, str]:
    """Lower-case name of each CHECK of `table` → its name on `name`, a copy made by LIKE."""
    if _has_own_names(session):
        return {}
    wanted = new_names(table, name)
    theirs = [check.name for check in checks_of(_create_sql(session, table.schema, name))]
    if set(wanted.values()) == set(theirs):
        return wanted
    # A trial: it is as LIKE has made it, numbered anew from 1.
    return {check.lower(): f"{name}_chk_{i}" for i, check in enumerate(wanted, 1)}


def new_names(table: Table, name: str) -> dict[str, str]:
    """Lower-case name of each CHECK of MySQL's `table` → the one that it gets where the table is called `name`.

    t_chk_7 → name_chk_7, which becomes t_chk_7 again by RENAME. A name of the user's stays with the source, for names
    are unique in a schema; here it becomes the next such number.
    """
    mine = [check.name for check in checks_of(table.create_sql)]
    numbers = {check: int(check.rpartition("_")[2]) for check in mine if is_generated_name(check, table.name)}
    free = itertools.count(max(numbers.values(), default=0) + 1)
    return {check.lower(): f"{name}_chk_{numbers[check] if check in numbers else next(free)}" for check in mine}


def _has_own_names(session: Session) -> bool:
    """MariaDB's constraint names belong to the table: LIKE keeps them."""
    return is_mariadb(session)


def _mend_checks(session: Session, table: Table, name: str) -> None:
    """LIKE numbers MySQL's CHECK constraints anew; give them the numbers that they have on the table."""
    mine = checks_of(table.create_sql)
    if not mine or _has_own_names(session):
        return
    theirs = checks_of(_create_sql(session, table.schema, name))
    wanted = list(new_names(table, name).values())
    if [check.name for check in theirs] != wanted:
        clauses = [f"DROP CHECK {ident(check.name)}" for check in theirs]
        clauses += [f"ADD CONSTRAINT {ident(w)} CHECK {c.expression}" for w, c in zip(wanted, mine, strict=True)]
        session.execute_raw(f"ALTER TABLE {qualified(table.schema, name)} {', '.join(clauses)}")


def _compare(table: Table, shadow: Table) -> None:
    """Refuse a table of which LIKE makes something else (DATA DIRECTORY, say). CHECK names are compared apart.

    It never has foreign keys: what becomes of them has been asked by then (planning/table_checks.py).
    """
    before, after = (_without_checks(t) for t in (table, shadow))
    if before != after:
        lost = next((a for a, b in zip(before, after, strict=False) if a != b), "its options")
        raise Refused(
            f"A copy of {table.name} by CREATE TABLE … LIKE differs from it in: {lost.strip()}",
            cure="Only a plain ALTER TABLE keeps that.",
        )


def _without_checks(table: Table) -> list[str]:
    every = comparable(table.create_sql, table.name).splitlines()
    lines = [line for line in every if not _FOREIGN.match(line)]
    # Listed in the order of their names, which are not the same.
    return sorted(re.sub(r"^  CONSTRAINT `(?:[^`]|``)*` CHECK", "  CHECK", line).rstrip(",") for line in lines)


def _create_sql(session: Session, schema: str, table: str) -> str:
    return str((session.row(f"SHOW CREATE TABLE {qualified(schema, table)}") or ("", ""))[1])
