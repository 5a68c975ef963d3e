"""How an ALTER is done: in place by the server (ALGORITHM=INSTANT, or INPLACE), or online by copy and cut-over.

What must stay true: in place only where the server has proved it on an empty copy of the table, with the algorithm in
the statement, so that it never falls back to a copy under a lock; only where the definition afterwards is another one
than before, for by that a resume tells whether it has happened; why it is what it is, is said.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import pairwise

from vreplication.errors import Refused
from vreplication.mysql.quoting import qualified
from vreplication.mysql.server import Server
from vreplication.mysql.session import Session, SqlError
from vreplication.mysql.text import Unreadable, tokens
from vreplication.planning.facts import Check, Facts, looked, ok, refuse, warn
from vreplication.planning.spec import Spec
from vreplication.planning.stages import CUT_OVER, STAGES, Explained, Stage
from vreplication.schema.alter import parse_alter
from vreplication.schema.in_place import digest
from vreplication.schema.introspect import read_create_sql
from vreplication.settings import CUTOVER_DEADLINE_SECONDS
from vreplication.state.empty_copies import empty_copy

ONLINE = "online"
AUTO_VARIABLE = "VREPLICATION_AUTO_STRATEGY"
"""`online`: what `auto` takes without a look at what the server could do in place."""
_LIMITS = {
    # MySQL takes no LOCK beside it. With LOCK=NONE the server refuses what would keep writers waiting all the while (a
    # FULLTEXT index, say).
    "INSTANT": "ALGORITHM=INSTANT",
    "NOCOPY": "ALGORITHM=NOCOPY, LOCK=NONE",
    "INPLACE": "ALGORITHM=INPLACE, LOCK=NONE",
}
_MANY_VERSIONS = ((9, 1, 0), 255, 64)
"""MySQL: from that version on so many row versions a table, before that so many."""
_INDEXES = ("INDEX", "KEY", "UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "VECTOR")
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """name: instant, inplace or online. after: the definition's digest that it leaves (schema/in_place.py)."""

    name: str
    reason: str
    algorithm: str = ""
    after: str = ""
    is_known: bool = True
    is_refused: bool = False
    """What was asked for by name cannot be done."""

    @property
    def is_in_place(self) -> bool:
        return bool(self.algorithm)


class _No(Exception):
    """Why it cannot be done in place."""


def statement(schema: str, table: str, algorithm: str, text: str) -> str:
    """The algorithm stands first: a PARTITION clause takes nothing behind it."""
    return f"ALTER TABLE {qualified(schema, table)} {_LIMITS[algorithm]}, {text}"


def algorithms(strategy: str, *, is_mariadb: bool) -> tuple[str, ...]:
    """Which may be tried, the lightest first."""
    if strategy == "instant":
        return ("INSTANT",)
    # NOCOPY is INPLACE without making the table anew, which MariaDB alone lets one ask for.
    return ("NOCOPY", "INPLACE") if is_mariadb else ("INPLACE",)


def is_surely_online(spec: Spec) -> bool:
    """Known before the server is asked, so that Spark may start meanwhile. A wrong word of it costs time, no more."""
    if spec.strategy == ONLINE or spec.revert_window is not None or spec.keeps_one:
        return True
    return spec.strategy == "auto" and (os.environ.get(AUTO_VARIABLE) == ONLINE or _is_never_instant(spec.alter))


def _is_never_instant(alter: str) -> bool:
    """Neither server makes an index, or the table anew, in an instant."""
    try:
        words = tokens(alter)
    except Unreadable:
        return False
    makes_index = any(a.is_word("ADD") and b.is_word(*_INDEXES) for a, b in pairwise(words))
    return makes_index or any(word.is_word("ENGINE", "CONVERT", "FORCE") for word in words)


def choose(facts: Facts) -> Choice:
    """Prove what is asked for. Raises Refused for a bad value of VREPLICATION_AUTO_STRATEGY."""
    asked: str = facts.spec.strategy
    # Asked for by name it is refused: to leave out one of two options without a word is worse.
    if facts.spec.revert_window is not None and asked != ONLINE:
        words = "--revert-window keeps the original, and there is one only where the table is copied."
        return Choice(name=ONLINE, reason=words, is_refused=asked != "auto")
    if facts.spec.keeps_one:
        words = "--on-duplicate leaves rows out, and that is done where the table is copied."
        return Choice(name=ONLINE, reason=words, is_refused=asked not in ("auto", ONLINE))
    if asked == "auto":
        asked, why = _auto()
        if asked == ONLINE:
            return Choice(name=ONLINE, reason=why)
    if asked == ONLINE:
        return Choice(name=ONLINE, reason="As asked for.")
    try:
        return _proved(facts, asked)
    except _No as no:
        is_refused = facts.spec.strategy != "auto"
        words = f"The server cannot do it with ALGORITHM={_last(facts, asked)}: {no}"
        return Choice(name=ONLINE, reason=words, is_refused=is_refused)


def not_tried() -> Choice:
    """Where our own schema is missing, in which an empty copy would be made."""
    return Choice(name=ONLINE, reason="What the server can do in place is tried when the run begins.", is_known=False)


def _auto() -> tuple[str, str]:
    # Never inplace: that is work for hours, and for replicas as long again.
    found = os.environ.get(AUTO_VARIABLE, "instant")
    if found not in ("instant", ONLINE):
        raise Refused(f"{AUTO_VARIABLE} is {found!r}.", cure="It is instant or online.")
    return found, f"{AUTO_VARIABLE} says so."


def _last(facts: Facts, asked: str) -> str:
    return algorithms(asked, is_mariadb=facts.server.is_mariadb)[-1]


def _proved(facts: Facts, asked: str) -> Choice:
    _check_text(facts)
    refusal = ""
    # The server tells what it can do by doing it: its own rules of what is instant change with each version.
    for algorithm in algorithms(asked, is_mariadb=facts.server.is_mariadb):
        try:
            after = _try(facts, algorithm)
        except SqlError as error:
            refusal = error.message
            continue
        # An empty copy has no row versions, so that it took the ALTER says nothing of these.
        _check_versions(facts, algorithm)
        reason = f"The server has done it with {_LIMITS[algorithm]} on an empty copy of the table."
        return Choice(name=asked, reason=reason, algorithm=algorithm, after=after)
    raise _No(refusal)


def _check_text(facts: Facts) -> None:
    try:
        # What it refuses the empty copy may take: DROP PARTITION finds no rows there, and takes those of the table.
        parse_alter(facts.clauses.text)
    except Refused as error:
        raise _No(error.message) from None
    if any(token.is_word("ALGORITHM", "LOCK") for token in tokens(facts.clauses.text)):
        raise _No("the ALTER names an algorithm or a lock of its own.")
    if facts.clauses.constraints and not facts.server.is_mariadb:
        raise _No("it names a constraint, and MySQL has each name once in a schema: a copy cannot try it.")
    if facts.server.is_on("wsrep_on"):
        raise _No("the server is a Galera node, where an ALTER stops all nodes.")
    if facts.source.engine.lower() != "innodb":
        raise _No(f"the table is {facts.source.engine}.")


def _try(facts: Facts, algorithm: str) -> str:
    """The digest that it leaves. Raises SqlError with the server's refusal, or _No."""
    session, source = facts.session, facts.source
    before = digest(source.create_sql, source.name)
    with empty_copy(session, source.schema, source.name) as (schema, name):
        # LIKE loses DATA DIRECTORY, say: what the server does to such a copy proves nothing of the table.
        if digest(read_create_sql(session, schema, name), name) != before:
            raise _No("an empty copy by CREATE TABLE … LIKE is not the same, so that it proves nothing.")
        # As a plain ALTER of a client's would run: under the server's own sql_mode and time_zone.
        with session.as_the_server():
            session.execute_raw(statement(schema, name, algorithm, facts.clauses.text))
        after = digest(read_create_sql(session, schema, name), name)
    if after == before:
        raise _No("it leaves the definition as it is, so that after a crash nobody could tell whether it was done.")
    return after


def _check_versions(facts: Facts, algorithm: str) -> None:
    """Where a copy tells nothing: a table of MySQL's bears so many columns that were added or dropped in an instant."""
    text = facts.clauses
    if facts.server.is_mariadb or algorithm != "INSTANT" or not (text.added or text.maybe_added or text.dropped):
        return
    found, most = row_versions(facts.session, facts.source.schema, facts.source.name), most_versions(facts.server)
    if found is not None and found >= most:
        raise _No(f"the table has {found} row versions by instant ALTERs, and {most} is the most.")


def most_versions(server: Server) -> int:
    since, many, few = _MANY_VERSIONS
    return many if server.version >= since else few


def row_versions(session: Session, schema: str, table: str) -> int | None:
    """None: not known (an older server, or a name that InnoDB spells otherwise): then the ALTER itself tells."""
    if not (_PLAIN.fullmatch(schema) and _PLAIN.fullmatch(table)):
        return None
    # Each partition counts its own. A `_` in a name has LIKE find other tables as well: then the number may be too
    # high, and the table is copied.
    sql = "SELECT MAX(TOTAL_ROW_VERSIONS) FROM information_schema.INNODB_TABLES WHERE NAME=%s OR NAME LIKE %s"
    try:
        found = session.value(sql, (f"{schema}/{table}", f"{schema}/{table}#p#%"))
    except SqlError:
        return None
    return None if found is None else int(found)


# -- in a plan --------------------------------------------------------------------------------------------------------


def check(choice: Choice) -> Check:
    if choice.is_refused:
        return refuse("strategy", choice.reason, "Take --strategy online, or auto.")
    return ok("strategy", f"{choice.name}: {choice.reason}" if choice.is_known else choice.reason)


def check_replicas(facts: Facts, choice: Choice) -> Check:
    """What replicas make of it."""
    return looked("replicas", lambda: _replicas(facts, choice))


def _replicas(facts: Facts, choice: Choice) -> Check:
    name = "replicas"
    found = facts.session.rows("SHOW SLAVE HOSTS" if facts.server.is_mariadb else "SHOW REPLICAS")
    if not found:
        return ok(name, "None is connected.")
    words = (
        f"{len(found)} are connected and run the same ALTER with ALGORITHM={choice.algorithm}: one that cannot "
        "(an older version, a table there with too many row versions) stops with an error"
    )
    if choice.algorithm == "INSTANT":
        return warn(name, f"{words}.", "See that they are of this version; --strategy online has no such risk.")
    return warn(name, f"{words}, and the others apply nothing else for as long as it takes.", "Or --strategy online.")


def stages(facts: Facts, choice: Choice) -> tuple[tuple[Stage[Facts], Explained], ...]:
    """What is left of an online DDL's, in their order."""
    sql = statement(facts.source.schema, facts.source.name, choice.algorithm, facts.clauses.text)
    bound = f"; writers wait at most {CUTOVER_DEADLINE_SECONDS:.0f} s" if choice.algorithm == "INSTANT" else ""
    words = {
        "prepare": Explained(sentence="Take the lease, and note the definition before and after."),
        CUT_OVER: Explained(
            sentence=f"Alter the table in place, its lock waited for 1 s at a time{bound}.", statements=(sql,)
        ),
        "clean_up": Explained(sentence="Nothing is left behind: there is no copy, and no original to keep."),
    }
    kept = [stage for stage in STAGES if stage.name in words or stage.name == "gate"]
    return tuple((stage, words.get(stage.name) or _gate(facts.spec)) for stage in kept)


def _gate(spec: Spec) -> Explained:
    if not spec.needs_release:
        return Explained(sentence="Nothing in the way? Go on.")
    until = f"the window {spec.cutover_window}, or " if spec.cutover_window else ""
    return Explained(sentence=f"Hold until {until}`vreplication release {spec.workflow or 'ID'}`.")
