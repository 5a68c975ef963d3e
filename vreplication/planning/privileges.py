"""Which privileges of sql/grants/ the user lacks.

What must stay true: what is missing is listed as the GRANT that gives it; a grant by role or by a pattern of schema
names counts. What cannot be told from SHOW GRANTS (a partial revoke) shows when the statement is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vreplication.errors import Refused
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session
from vreplication.planning.facts import Check, Facts, ok, refuse
from vreplication.settings import SIDECAR

# Each right's use is said in sql/grants/. TRIGGER also for who has none: without it triggers are hidden, not absent,
# and one would pass unnoticed.
_ON_SCHEMA = frozenset(
    {"SELECT", "INSERT", "DELETE", "CREATE", "ALTER", "DROP", "CREATE TEMPORARY TABLES", "LOCK TABLES", "TRIGGER"}
)
_ON_SIDECAR = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "LOCK TABLES"})
_GLOBAL = {
    True: frozenset({"REPLICATION SLAVE", "BINLOG MONITOR", "REPLICATION MASTER ADMIN", "SLAVE MONITOR", "PROCESS"}),
    False: frozenset(
        {"REPLICATION SLAVE", "REPLICATION CLIENT", "PROCESS", "XA_RECOVER_ADMIN", "SESSION_VARIABLES_ADMIN"}
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a user of ours needs on one server: of the tables' schema, of our own, and globally."""

    on_schema: frozenset[str]
    on_sidecar: frozenset[str]
    is_global: dict[bool, frozenset[str]]


MOVE_SOURCE = Role(
    on_schema=frozenset({"SELECT", "INSERT", "DELETE", "CREATE", "ALTER", "DROP", "LOCK TABLES", "TRIGGER"}),
    on_sidecar=frozenset({"CREATE", "DROP", "SELECT", "INSERT", "UPDATE", "DELETE"}),
    is_global=_GLOBAL,
)
MOVE_TARGET = Role(on_schema=_ON_SCHEMA, on_sidecar=_ON_SIDECAR, is_global=_GLOBAL)
ONLINE_DDL = Role(on_schema=_ON_SCHEMA, on_sidecar=_ON_SIDECAR, is_global=_GLOBAL)
# Older or wider names for the same right.
_ALIASES = {
    "REPLICATION CLIENT": "BINLOG MONITOR",
    "REPLICA MONITOR": "SLAVE MONITOR",
    "REPLICATION REPLICA": "REPLICATION SLAVE",
    "SYSTEM_VARIABLES_ADMIN": "SESSION_VARIABLES_ADMIN",
}
# Lines of routines (ON PROCEDURE …) do not match: no right of ours is one on a routine.
_LINE = re.compile(r"GRANT (?P<what>.+?) ON (?:TABLE )?(?P<where>(?:`(?:[^`]|``)*`|\*)\.(?:`(?:[^`]|``)*`|\*)) TO ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Privileges on everything ("*"), on the schemas that match a pattern, or on one table."""

    privileges: frozenset[str]
    schema: str
    table: str

    def covers(self, schema: str, table: str) -> bool:
        """True when it holds for the table; "*" asks for all tables of the schema, or for all schemas."""
        if self.table not in ("*", table):
            return False
        return self.schema == "*" or (schema != "*" and _matches(self.schema, schema))


def _matches(pattern: str, schema: str) -> bool:
    """A schema's name in a GRANT is a pattern: % and _ stand for others unless a backslash is before them."""
    parts = re.findall(r"\\.|.", pattern, re.S)
    wild = {"%": ".*", "_": "."}
    text = "".join(wild.get(part) or re.escape(part.removeprefix("\\") or part) for part in parts)
    return re.fullmatch(text, schema, re.S | re.I) is not None


def parse_grants(lines: list[str]) -> list[Grant]:
    """Read SHOW GRANTS; lines of roles and proxies say nothing about tables."""
    found = []
    for line in lines:
        match = _LINE.match(line)
        if match and not line.startswith("GRANT PROXY"):
            found.append(_grant(match["what"], match["where"]))
    return found


def _grant(what: str, where: str) -> Grant:
    # A list of columns behind a privilege, SELECT (a, b), has commas of its own.
    names = {name.strip().upper() for name in re.sub(r"\([^)]*\)", "", what).split(",")}
    schema, table = re.findall(r"`(?:[^`]|``)*`|\*", where)
    both = names | {_ALIASES[name] for name in names if name in _ALIASES}
    return Grant(privileges=frozenset(both), schema=_plain(schema), table=_plain(table))


def _plain(name: str) -> str:
    return name if name == "*" else name[1:-1].replace("``", "`")


def missing(grants: list[Grant], wanted: frozenset[str], schema: str, table: str = "*") -> list[str]:
    held = {p for grant in grants if grant.covers(schema, table) for p in grant.privileges}
    # Both servers sum all rights on one schema up so; MySQL names them one by one where they are on all schemas.
    if "ALL PRIVILEGES" in held or "ALL" in held:
        return []
    return sorted(wanted - held)


def read_grants(session: Session, *, is_mariadb: bool) -> list[Grant]:
    """The user's own grants and those of its active roles."""
    statement = "SHOW GRANTS"
    if not is_mariadb:
        # MySQL lists a role by its name alone, unless it is told which ones to look into.
        roles = str(session.value("SELECT CURRENT_ROLE()") or "NONE")
        if roles.upper() != "NONE":
            statement = f"SHOW GRANTS FOR CURRENT_USER() USING {roles}"
    return parse_grants([str(row[0]) for row in session.rows(statement)])


def may_create_triggers(session: Session, *, is_mariadb: bool) -> bool:
    """With binary logging both servers want SUPER or log_bin_trust_function_creators. TRIGGER is not looked at.

    MariaDB wants them for DROP TRIGGER as well.
    """
    is_logged, is_trusted = session.rows("SELECT @@GLOBAL.log_bin, @@GLOBAL.log_bin_trust_function_creators")[0]
    if not int(is_logged) or int(is_trusted):
        return True
    return not missing(read_grants(session, is_mariadb=is_mariadb), frozenset({"SUPER"}), "*")


def check(facts: Facts) -> Check:
    """One sentence with each GRANT that is missing."""
    try:
        demand(facts.session, facts.source.schema, facts.source.name, is_mariadb=facts.server.is_mariadb)
    except Refused as error:
        return refuse("privileges", error.message, error.cure)
    return ok("privileges", "The user has all that is needed.")


def demand(session: Session, schema: str, table: str, *, is_mariadb: bool) -> None:
    """Raises Refused with each GRANT that is missing to change the table."""
    if lacks := lacking(session, ONLINE_DDL, schema, is_mariadb=is_mariadb):
        words = f"The user lacks privileges to change {schema}.{table}."
        raise Refused(words, cure=" ".join(lacks) + " (sql/grants/ has all of them)")


def lacking(session: Session, role: Role, schema: str, *, is_mariadb: bool) -> list[str]:
    """Each GRANT that the user lacks for the role."""
    grants = read_grants(session, is_mariadb=is_mariadb)
    lacks = []
    for wanted, where, place in (
        (role.on_schema, schema, f"{ident(schema)}.*"),
        (role.on_sidecar, SIDECAR, f"{ident(SIDECAR)}.*"),
        (role.is_global[is_mariadb], "*", "*.*"),
    ):
        if names := missing(grants, wanted, where):
            lacks.append(f"GRANT {', '.join(names)} ON {place} TO the user;")
    return lacks + ([] if is_mariadb else _locks(grants))


def _locks(grants: list[Grant]) -> list[str]:
    """Who holds a lock is read from performance_schema on MySQL."""
    tables = ("metadata_locks", "threads")
    wanted = frozenset({"SELECT"})
    lacks = [t for t in tables if missing(grants, wanted, "performance_schema", t)]
    return [f"GRANT SELECT ON performance_schema.{table} TO the user;" for table in lacks]
