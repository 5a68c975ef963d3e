"""Triggers of a table, as values that can be made again on another table.

What must stay true: a trigger is carried byte for byte, with its definer, SQL mode, character sets and its place among
those of the same event, or it is refused by name; what was made is read back and compared.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from vreplication import names
from vreplication.errors import Refused
from vreplication.mysql.quoting import ident, qualified, text
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import ConnectionLost, Session, SqlError
from vreplication.mysql.text import Token, Unreadable, tokens

_EXISTS = 1359
# The servers' latin1 is Windows-1252. Five bytes of that are no letters to Python, and a text with one is refused.
_CODECS = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252", "ascii": "ascii"}
"""Of the client that made it. Of any other one the text has to be ASCII, which all of them have in them."""
_COLUMNS = (
    "TRIGGER_NAME,ACTION_TIMING,EVENT_MANIPULATION,ACTION_ORDER,DEFINER,SQL_MODE,CHARACTER_SET_CLIENT,"
    "COLLATION_CONNECTION,DATABASE_COLLATION"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """order: among those of the same time and event. body: what follows FOR EACH ROW."""

    name: str
    time: str
    event: str
    order: int
    definer: str
    sql_mode: str
    client: str
    collation: str
    of_database: str
    body: str

    @property
    def words(self) -> list[Token]:
        """Of its body. Raises Unreadable."""
        modes = self.sql_mode.upper().split(",")
        return tokens(self.body, backslash_escapes="NO_BACKSLASH_ESCAPES" not in modes)

    def is_as(self, other: Trigger) -> bool:
        """It does the same; only the name may differ."""
        return replace(self, name="") == replace(other, name="")


def read(session: Session, schema: str, table: str) -> tuple[Trigger, ...]:
    """In the order in which they are to be made, as far as the user may see them (TRIGGER).

    Raises Refused for one that could not be made again just as it is.
    """
    rows = session.rows(f"SELECT {_COLUMNS} FROM information_schema.TRIGGERS WHERE {_of(schema, table)}")
    found = sorted((_trigger(row) for row in rows), key=lambda each: (each.event, each.time, each.order))
    # Numbered anew: where one was dropped MySQL leaves a gap.
    ranked, counted = list[Trigger](), Counter[tuple[str, str]]()
    for trigger in found:
        counted[trigger.event, trigger.time] += 1
        rank = counted[trigger.event, trigger.time]
        ranked.append(replace(trigger, order=rank, body=_body(session, schema, trigger)))
    return tuple(ranked)


def _of(schema: str, table: str) -> str:
    # With both names given MariaDB reads the files of that table, and no others.
    return f"EVENT_OBJECT_SCHEMA={text(schema)} AND EVENT_OBJECT_TABLE={text(table)}"


def _trigger(row: Sequence[object]) -> Trigger:
    name, time, event, order, definer, sql_mode, client, collation, of_database = map(str, row)
    return Trigger(
        name=name,
        time=time,
        event=event,
        order=int(order),
        definer=definer,
        sql_mode=sql_mode,
        client=client,
        collation=collation,
        of_database=of_database,
        body="",
    )


def names_on(session: Session, schema: str, table: str) -> list[str]:
    found = session.rows(f"SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE {_of(schema, table)}")
    return [str(name) for (name,) in found]


def taken(session: Session, schema: str) -> set[str]:
    """Names of a schema's triggers, in lower case; on MariaDB but for those of tables that somebody has locked."""
    sql = f"SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA={text(schema)}"
    return {str(name).lower() for (name,) in session.rows(sql)}


def names_in(trigger: Trigger) -> set[str]:
    """All that may be a name in its text."""
    try:
        return {word.value for word in trigger.words if word.is_name}
    except Unreadable:
        return set()


def columns_of(trigger: Trigger) -> set[str]:
    """Those that it reads as OLD.name or NEW.name, in lower case; none where its text cannot be read."""
    try:
        words = trigger.words
    except Unreadable:
        return set()
    rows = (at for at, word in enumerate(words[:-2]) if word.value.upper() in ("NEW", "OLD") and word.is_name)
    return {words[at + 2].value.lower() for at in rows if words[at + 1].is_punct(".")}


def _body(session: Session, schema: str, trigger: Trigger) -> str:
    """As its client wrote it: in information_schema a server converts it, and a comment may lose what it says."""
    # As bytes: what a server cannot convert is a question mark.
    session.execute_raw("SET character_set_results=NULL")
    try:
        found = session.bytes_rows(f"SHOW CREATE TRIGGER {qualified(schema, trigger.name)}")
    finally:
        session.execute_raw("SET character_set_results=utf8mb4")
    try:
        whole = bytes(found[0][2]).decode(_CODECS.get(trigger.client, "ascii"))
        return whole[_begin(whole, trigger) :]
    except UnicodeDecodeError:
        raise _odd(trigger, f"its text, written by a client in {trigger.client}, cannot be carried") from None
    except Unreadable as error:
        raise _odd(trigger, f"its text cannot be read: {error}") from None


def _begin(whole: str, trigger: Trigger) -> int:
    """Where the body begins. Nothing may be between event and table: servers to come have UPDATE OF columns."""
    modes = trigger.sql_mode.upper().split(",")
    cut = tokens(whole, ansi_quotes="ANSI_QUOTES" in modes, backslash_escapes="NO_BACKSLASH_ESCAPES" not in modes)
    at = next((i for i, word in enumerate(cut) if word.is_word("ON")), 0)
    row = next((i for i, word in enumerate(cut) if i > at and word.is_word("ROW")), 0)
    if at < 3 or not (row and cut[at - 1].is_word(trigger.event) and cut[at - 2].is_word(trigger.time)):
        raise _odd(trigger, "its events are written in a way that we do not know")
    behind = row + 1
    if behind < len(cut) and cut[behind].is_word("FOLLOWS", "PRECEDES"):
        # FOLLOWS and PRECEDES name a trigger of the old table; made in their order they get the same places without
        # it.
        behind += 4 if cut[behind + 2].is_punct(".") else 2
    return cut[behind].start


def _odd(trigger: Trigger, why: str) -> Refused:
    return Refused(
        f"Trigger {trigger.name} cannot be made again just as it is: {why}.",
        cure="Drop it and make it again with a client in utf8mb4, or drop it for the time of the change.",
    )


def make(session: Session, schema: str, table: str, wanted: Iterable[Trigger]) -> Iterator[Trigger]:
    """Make each on the table, under the first name that is free, and hand it on. They were made in that order.

    Raises SqlError with the server's refusal, LockWait.
    """
    for trigger in wanted:
        with _as_its_client(session, trigger):
            yield _create(session, schema, table, trigger)


@contextlib.contextmanager
def _as_its_client(session: Session, trigger: Trigger) -> Iterator[None]:
    before = session.rows("SELECT @@sql_mode,@@character_set_client,@@collation_connection")[0]
    try:
        # The server notes these of the session that makes a trigger, and its body is read under them; no clause says
        # them.
        _set_client(session, (trigger.sql_mode, trigger.client, trigger.collation))
        yield
    finally:
        # A lost connection has no settings to be put back, and what went wrong before it says more.
        with contextlib.suppress(ConnectionLost):
            _set_client(session, before)


def _set_client(session: Session, values: Sequence[object]) -> None:
    """The client's character set last: ours is ASCII, whichever it is."""
    sql_mode, client, collation = values
    session.execute_raw(
        f"SET SESSION sql_mode='{sql_mode}', collation_connection={collation}, character_set_client={client}"
    )


def _create(session: Session, schema: str, table: str, trigger: Trigger) -> Trigger:
    """One statement for each name that an old table still has: who keeps them all pays with that much of the lock."""
    # A schema has each name once, and RENAME leaves the old table its triggers with their names (docs/cut-over.md).
    definer, candidates = _definer(session, trigger), names.carried_triggers(trigger.name)
    while True:
        name = next(candidates)
        try:
            session.execute_raw(_statement(schema, table, name, trigger, definer))
        except SqlError as error:
            if error.code != _EXISTS:
                raise
        else:
            return replace(trigger, name=name)


def _definer(session: Session, trigger: Trigger) -> str:
    """MariaDB's roles have no host, and with an empty one they would become users."""
    user, _, host = trigger.definer.rpartition("@")
    return ident(user) if user and not host and is_mariadb(session) else f"{ident(user)}@{ident(host)}"


def _statement(schema: str, table: str, name: str, trigger: Trigger, definer: str) -> bytes:
    sql = (
        f"CREATE DEFINER={definer} TRIGGER {qualified(schema, name)} {trigger.time} {trigger.event} "
        f"ON {qualified(schema, table)} FOR EACH ROW {trigger.body}"
    )
    try:
        return sql.encode(_CODECS.get(trigger.client, "ascii"))
    except UnicodeEncodeError:
        raise _odd(trigger, f"names beside it are not in {trigger.client}, the character set of its client") from None


def compare(session: Session, schema: str, table: str, wanted: Sequence[Trigger]) -> None:
    """Raises Refused unless the table has just these, whatever they are called."""
    found = read(session, schema, table)
    for mine, made in zip(wanted, found, strict=False):
        if not mine.is_as(made):
            raise _odd(mine, _difference(mine, made))
    if len(found) != len(wanted):
        raise Refused(f"{schema}.{table} has {len(found)} triggers, and {len(wanted)} are to be carried over.")


def _difference(mine: Trigger, made: Trigger) -> str:
    fields = ("time", "event", "order", "definer", "sql_mode", "client", "collation", "of_database", "body")
    what = next(name for name in fields if getattr(mine, name) != getattr(made, name))
    return f"{what} became {getattr(made, what)!r} of {getattr(mine, what)!r}"


def drop_all(session: Session, schema: str, table: str) -> list[str]:
    """All triggers of a table of ours; returns their names. Nobody may be making one, and nobody rename the table.

    Raises LockWait.
    """
    found = names_on(session, schema, table)
    drop(session, schema, found)
    return found


def drop(session: Session, schema: str, triggers: Iterable[str]) -> None:
    """By name, from whatever table. Raises LockWait."""
    for name in triggers:
        session.execute_raw(f"DROP TRIGGER IF EXISTS {qualified(schema, name)}")


def is_definer_us(session: Session, trigger: Trigger) -> bool:
    return bool(session.value(f"SELECT CURRENT_USER()={text(trigger.definer)}"))
