"""Foreign keys as InnoDB knows them: all of them, also of tables that the user may not see. Needs PROCESS.

MariaDB's InnoDB does not log the rows that a key deletes or changes by itself, and MySQL's did not before 9.6 and does
not with innodb_native_foreign_keys.

What must stay true: names are those of the tables, whatever characters they have.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from vreplication.mysql.quoting import binary, text
from vreplication.mysql.server import Server
from vreplication.mysql.session import Session
from vreplication.schema.foreign import ForeignKey as PrintedKey
from vreplication.schema.foreign import keys_of

_LOGGED_SINCE = (9, 6, 0)
_NAME = r"`(?:[^`]|``)*`"
_ACTS_ITSELF = r" ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL)(?: ON UPDATE [A-Z ]+)?"
# A whole line: a comment, a CHECK or the name of a table may hold the same words.
_ACTING = re.compile(rf"^  CONSTRAINT {_NAME} FOREIGN KEY .*\)(?: ON DELETE [A-Z ]+?)?{_ACTS_ITSELF},?$", re.M)
_ACTS = 1 | 2 | 4 | 8
"""Bits of a key's type: ON DELETE CASCADE, SET NULL; ON UPDATE CASCADE, SET NULL."""
Named = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """child, parent: schema and table. acts: it deletes or changes rows of the child by itself."""

    child: Named
    parent: Named
    acts: bool


def are_logged(server: Server) -> bool:
    """The server logs what foreign keys do."""
    return not server.is_mariadb and server.version >= _LOGGED_SINCE and not server.is_on("innodb_native_foreign_keys")


def acts_on(create_sql: str) -> bool:
    """A key of this table, as SHOW CREATE TABLE prints it, deletes or changes its rows by itself."""
    return _ACTING.search(create_sql) is not None


def foreign_keys(session: Session, *, is_mariadb: bool, to: Named | None = None) -> list[ForeignKey]:
    """Of the whole server, or those that refer to one table: to take thousands apart costs a third of a second."""
    table = "INNODB_SYS_FOREIGN" if is_mariadb else "INNODB_FOREIGN"
    parts = [_part(column, which, is_mariadb) for column in ("FOR_NAME", "REF_NAME") for which in (1, -1)]
    # Under the lock, while writers wait: 6,000 keys of other schemas take 0.37 s of the deadline, this takes 0.03 s.
    where = f" WHERE REF_NAME=CONCAT({_stored(to[0], is_mariadb)},'/',{_stored(to[1], is_mariadb)})" if to else ""
    rows = session.rows(f"SELECT {','.join(parts)}, TYPE & {_ACTS} FROM information_schema.{table}{where}")
    apart = functools.partial(_apart, session, is_mariadb, to)
    found = (ForeignKey(child=apart(a, b), parent=apart(c, d), acts=bool(int(acts))) for a, b, c, d, acts in rows)
    # The server compares without regard to case.
    return [key for key in found if to is None or key.parent == to]


def _part(column: str, which: int, is_mariadb: bool) -> str:
    """MariaDB keeps names as the file system has them (a@002db), MySQL as they are: either may have a slash."""
    part = f"SUBSTRING_INDEX({column},'/',{which})"
    if is_mariadb:
        return f"CONVERT(CONVERT(CAST({part} AS BINARY) USING filename) USING utf8mb4)"
    return part if which == 1 else f"SUBSTRING({column},LOCATE('/',{column})+1)"


def _apart(session: Session, is_mariadb: bool, to: Named | None, schema: object, table: object) -> Named:
    """Cut at the first slash; where there is another one, the tables that are there tell which it was."""
    found = str(schema), str(table)
    if is_mariadb or "/" not in found[1]:
        return found
    whole = "/".join(found)
    if to is not None and "/".join(to) == whole:
        return to
    joined = "CAST(CONCAT(TABLE_SCHEMA,'/',TABLE_NAME) AS BINARY)"
    # Of a schema that the user may not see there is none.
    sql = f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE {joined}={binary(whole.encode())}"
    return next(((str(a), str(b)) for a, b in session.rows(sql)), found)


def _stored(name: str, is_mariadb: bool) -> str:
    """The other way round."""
    return f"CONVERT(CAST(CONVERT({text(name)} USING filename) AS BINARY) USING utf8mb4)" if is_mariadb else text(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """own: keys of the table. theirs: keys of other tables that refer to it."""

    own: tuple[PrintedKey, ...] = ()
    theirs: tuple[PrintedKey, ...] = ()

    @property
    def children(self) -> tuple[Named, ...]:
        return tuple(sorted({key.child for key in self.theirs}))

    @property
    def parents(self) -> tuple[Named, ...]:
        """Other tables than itself."""
        return tuple(sorted({key.parent for key in self.own if key.parent != key.child}))

    @property
    def relatives(self) -> tuple[Named, ...]:
        return tuple(sorted({*self.children, *self.parents}))

    @property
    def has_keys(self) -> bool:
        return bool(self.own or self.theirs)


def family(session: Session, table: Named, *, is_mariadb: bool) -> Family:
    return Family(own=keys_of(session, table), theirs=referring(session, table, is_mariadb=is_mariadb))


def referring(session: Session, table: Named, *, is_mariadb: bool) -> tuple[PrintedKey, ...]:
    """Keys of other tables that refer to this one: InnoDB knows them all."""
    theirs = foreign_keys(session, is_mariadb=is_mariadb, to=table)
    children = sorted({key.child for key in theirs if key.child != table})
    return tuple(key for child in children for key in keys_of(session, child) if key.parent == table)


def grandchildren(session: Session, table: Named, found: Family) -> tuple[Named, ...]:
    """Tables that refer to the children of this one: to alter a child MySQL wants the exclusive locks of those, too."""
    near = {table, *found.relatives}
    keys = (key for child in found.children for key in foreign_keys(session, is_mariadb=False, to=child))
    return tuple(sorted({key.child for key in keys} - near))
