"""Checks of the replica that the copy is to read: it follows the source, whole, and has the same tables.

What must stay true: what could make the replica count as level and yet show other rows refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from vreplication.errors import Refused, VReplicationError
from vreplication.mysql import replica as replicas
from vreplication.mysql.ends import Ends, Route
from vreplication.mysql.server import inspect, is_mariadb, prepared_branches
from vreplication.mysql.session import ConnectionLost, Session, SqlError, connect
from vreplication.planning.facts import Check, Verdict, looked, ok, refuse, warn
from vreplication.schema.introspect import introspect
from vreplication.workflows.move_tables.facts import MoveFacts

_LEVEL_SECONDS = 3.0
_ANSWER_SECONDS = 3.0
_READ_ON_SOURCE = "Read on the source (leave the replica out), or name another replica of it."


def checks(facts: MoveFacts) -> Iterator[Check]:
    """None where the copy reads on the source."""
    replica = facts.replica
    if replica is None:
        return
    yield looked("replica: follows", partial(follows, facts.source.session, replica))
    names = [table.source.name for table in facts.tables]
    yield looked("replica: level", partial(_level, facts.source.session, replica))
    yield looked("replica: tables", partial(_tables, facts.source.session, replica, facts.schema, names))


def check_fit(ends: Ends, route: Route, tables: list[str]) -> None:
    """For the copy of a workflow that goes on. Raises Refused."""
    if route.replica is None:
        return
    with connect(route.replica) as replica:
        for found in (
            looked("replica: follows", partial(follows, ends.source, replica)),
            looked("replica: tables", partial(_tables, ends.source, replica, ends.source.url.database, tables)),
        ):
            if found.verdict is Verdict.REFUSE:
                raise Refused(found.sentence, cure=found.cure)


def behind(route: Route) -> str:
    """What the copy may be waiting for: '' where the replica has what the source logged a second ago."""
    assert route.replica is not None
    try:
        with (
            connect(route.source, read_timeout=_ANSWER_SECONDS) as source,
            connect(route.replica, read_timeout=_ANSWER_SECONDS) as replica,
        ):
            words = [_of_channel("", each) for each in replicas.channels(replica)]
            found = [check.sentence for check in words if check.verdict is Verdict.REFUSE]
            if not replicas.has_applied(replica, replicas.logged(source), 1.0):
                found.insert(0, "The replica, on which the copy reads, is behind the source.")
            elif alone := _alone(source, replica):
                found.append(f"On the replica alone an XA branch is prepared, which the copy waits for: {alone}.")
    except VReplicationError as error:
        return error.message
    return " ".join(found)


def _alone(source: Session, replica: Session) -> str:
    """A prepared branch that the source does not list; on MySQL it holds nothing up."""
    # MariaDB shows an XA COMMIT later than its place in the log, so there the copy waits for each listed branch.
    if not is_mariadb(source):
        return ""
    there, here = (set(map(str, prepared_branches(each, is_mariadb=True))) for each in (replica, source))
    return min(there - here, default="")


def follows(source: Session, replica: Session) -> Check:
    name = "replica: follows"
    known, server = inspect(source), inspect(replica)
    if known.flavor != server.flavor:
        return refuse(name, f"The replica is {server}, and the source {known}.", _READ_ON_SOURCE)
    if not server.is_mariadb and any((each.setting("gtid_mode") or "").upper() != "ON" for each in (known, server)):
        return refuse(
            name,
            "Source and replica do not both have GTIDs (gtid_mode), by which it can be told how far the replica is.",
            "Switch gtid_mode to ON on both, or read on the source.",
        )
    try:
        channels = replicas.channels(replica)
    except SqlError as error:
        return refuse(name, f"What the replica follows cannot be read: {error.message}", "Grant what the source has.")
    channel = next((each for each in channels if replicas.follows(each, source)), None)
    if channel is None:
        return refuse(name, f"{replica.url} is no replica of {source.url}.", _READ_ON_SOURCE)
    # On MySQL a GTID names the server that gave it out, so other channels do no harm.
    if server.is_mariadb and len(channels) > 1:
        # MASTER_GTID_WAIT goes by the numbers of a domain, which another source may count on.
        return refuse(name, "The replica has several sources.", _READ_ON_SOURCE)
    return _of_channel(name, channel)


def _of_channel(name: str, channel: dict[str, str]) -> Check:
    if found := sorted(replicas.filters(channel)):
        return refuse(name, f"The replica leaves out a part of the log: {', '.join(found)}.", _READ_ON_SOURCE)
    if seconds := replicas.delay_seconds(channel):
        return refuse(name, f"The replica is told to stay {seconds} s behind.", _READ_ON_SOURCE)
    if channel.get("using_gtid", "").upper() == "NO":
        return refuse(
            name,
            "The replica does not replicate by GTID, so what it says of its place may be another server's.",
            "CHANGE MASTER TO MASTER_USE_GTID=slave_pos on it first.",
        )
    if not replicas.is_running(channel):
        return refuse(name, "Replication has stopped on the replica.", "Start replication on it first.")
    return ok(name, "It replicates all of the source, and its place is known by GTID.")


def _level(source: Session, replica: Session) -> Check:
    """It may also lack transactions that it will never get, from before it was set up; only a person can tell."""
    if replicas.has_applied(replica, replicas.logged(source), _LEVEL_SECONDS):
        return ok("replica: level", "It has applied what the source has logged.")
    return warn(
        "replica: level",
        f"It has not applied what the source had logged {_LEVEL_SECONDS:.0f} s before; the copy waits until it has.",
        "Compare the GTIDs of both servers.",
    )


def _tables(source: Session, replica: Session, schema: str, names: list[str]) -> Check:
    """Other columns refuse, and without the source's unique keys rows cannot be read in its order."""
    differs = ""
    for table in names:
        try:
            mine, theirs = (introspect(session, schema, table) for session in (source, replica))
        except ConnectionLost:
            raise
        except VReplicationError as error:
            return refuse("replica: tables", f"{table}: {error.message}", _READ_ON_SOURCE)
        if theirs.engine.lower() != mine.engine.lower():
            return refuse("replica: tables", f"{schema}.{table} is a table of {theirs.engine} there.", _READ_ON_SOURCE)
        if mine.columns != theirs.columns:
            return refuse("replica: tables", f"{schema}.{table} has other columns there.", _READ_ON_SOURCE)
        if missing := [key.name for key in mine.keys if key.is_unique and key not in theirs.keys]:
            return refuse("replica: tables", f"{schema}.{table} lacks the key {missing[0]} there.", _READ_ON_SOURCE)
        if _body(mine.create_sql) != _body(theirs.create_sql):
            differs = differs or table
    if differs:
        return warn(
            "replica: tables", f"{schema}.{differs} is defined otherwise there.", "See that its rows are alike."
        )
    return ok("replica: tables", "They are defined as on the source.")


def _body(create_sql: str) -> str:
    return re.sub(r" AUTO_INCREMENT=\d+", "", create_sql)
