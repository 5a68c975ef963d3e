"""Which privileges of sql/grants/ the user lacks.

What must stay true: what is missing is listed as the GRANT that gives it; a grant by role or by a pattern of schema
names counts, as far as the server lets it: of several for one schema the most specific one alone, and nothing that
MySQL has taken back for the schema (partial_revokes).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

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
_OWN = "SHOW GRANTS"
_EVERYTHING = frozenset({"ALL PRIVILEGES", "ALL"})
_LONGEST_NAME = 64
# Lines of routines (ON PROCEDURE …) do not match: no right of ours is one on a routine.
_NAME = r"`(?:[^`]|``)*`"
_LINE = re.compile(
    rf"(?P<verb>GRANT|REVOKE) (?P<what>.+?) ON (?:TABLE )?(?P<where>(?:{_NAME}|\*)\.(?:{_NAME}|\*)) (?:TO|FROM) "
    rf"(?P<whom>{_NAME}(?:@{_NAME})?|PUBLIC)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Privileges on everything ("*"), on the schemas that match a pattern, or on one table. whom: a user or a role.

    is_taken: those on everything do not hold for this schema (MySQL's partial_revokes). breadth: of the schema's
    pattern; of several that match a server takes the one with the least.
    """

    privileges: frozenset[str]
    schema: str
    table: str
    whom: str = ""
    is_taken: bool = False
    breadth: tuple[int, ...] = ()

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


def parse_grants(lines: list[str], *, is_mariadb: bool = False) -> list[Grant]:
    """Read SHOW GRANTS; lines of roles and proxies say nothing about tables."""
    found = []
    for line in lines:
        match = _LINE.match(line)
        if match and not line.startswith("GRANT PROXY"):
            found.append(_grant(match, _names_matched if is_mariadb else _first_wildcard))
    return found


def _grant(match: re.Match[str], breadth: Callable[[str], tuple[int, ...]]) -> Grant:
    # A list of columns behind a privilege, SELECT (a, b), has commas of its own.
    names = {name.strip().upper() for name in re.sub(r"\([^)]*\)", "", match["what"]).split(",")}
    schema, table = map(_plain, re.findall(rf"{_NAME}|\*", match["where"]))
    both = frozenset(names | {_ALIASES[name] for name in names if name in _ALIASES})
    is_taken = match["verb"] == "REVOKE"
    return Grant(
        privileges=both, schema=schema, table=table, whom=match["whom"], is_taken=is_taken, breadth=breadth(schema)
    )


def _plain(name: str) -> str:
    return name if name == "*" else name[1:-1].replace("``", "`")


def missing(grants: list[Grant], wanted: frozenset[str], schema: str, table: str = "*") -> list[str]:
    held = _held(grants, schema, table)
    # Both servers sum all rights on one schema up so; MySQL names them one by one where they are on all schemas.
    if held & _EVERYTHING:
        return []
    return sorted(wanted - held)


def _held(grants: list[Grant], schema: str, table: str) -> set[str]:
    found = [grant for grant in grants if not grant.is_taken and grant.covers(schema, table)]
    everywhere = {p for grant in found if grant.schema == "*" for p in grant.privileges}
    taken = {p for grant in grants if grant.is_taken and grant.schema == schema for p in grant.privileges}
    narrow = [grant for grant in found if grant.schema != "*"]
    on_table = {p for grant in narrow if grant.table != "*" for p in grant.privileges}
    return (everywhere - taken) | on_table | _on_schema([grant for grant in narrow if grant.table == "*"])


def _on_schema(grants: list[Grant]) -> set[str]:
    """Of each user, and on MariaDB of each role, the server takes the most specific one alone."""
    held: set[str] = set()
    for whom in {grant.whom for grant in grants}:
        own = [grant for grant in grants if grant.whom == whom]
        least = min(grant.breadth for grant in own)
        # Which of two it takes that are as broad as each other cannot be told.
        held |= _of_each([grant.privileges for grant in own if grant.breadth == least])
    return held


def _of_each(held: list[frozenset[str]]) -> frozenset[str]:
    """What all of them have."""
    some = [each for each in held if not each & _EVERYTHING]
    return frozenset.intersection(*some) if some else held[0]


def _first_wildcard(pattern: str) -> tuple[int, ...]:
    """MySQL sorts patterns by where the first wildcard stands, the latest first."""
    plain = re.match(r"(?:\\.|[^%_])*", pattern, re.S)
    end = plain.end() if plain else 0
    return (0,) if end == len(pattern) else (1, -end)


def _names_matched(pattern: str) -> tuple[int, ...]:
    """MariaDB sorts them by how many names they match: any with a % behind those with _ alone, but for long ones."""
    parts = re.findall(r"\\.|%+|.", pattern, re.S)
    many, one = sum(part[0] == "%" for part in parts), parts.count("_")
    rest = _LONGEST_NAME - (len(parts) - many) if many else 0
    return (2 * rest + 1, many, one) if rest > one else (2 * one, rest, many)


def read_grants(session: Session, *, is_mariadb: bool) -> list[Grant]:
    """The user's own grants and those of its active roles."""
    statement = _OWN
    if not is_mariadb:
        # MySQL lists a role by its name alone, unless it is told which ones to look into.
        roles = str(session.value("SELECT CURRENT_ROLE()") or "NONE")
        if roles.upper() != "NONE":
            statement = f"SHOW GRANTS FOR CURRENT_USER() USING {roles}"
    found = parse_grants([str(row[0]) for row in session.rows(statement)], is_mariadb=is_mariadb)
    if statement == _OWN:
        return found
    # With a role MySQL adds up all that match, and shows all of them as the user's own.
    return [replace(grant, whom=f"{grant.whom} {number}") for number, grant in enumerate(found)]


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
