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
from vreplication.mysql.server import inspect
from vreplication.mysql.session import ConnectionLost, Session, SqlError, connect
from vreplication.planning.facts import Check, Verdict, looked, ok, refuse, warn
from vreplication.schema.introspect import introspect
from vreplication.workflows.move_tables.facts import MoveFacts

_LEVEL_SECONDS = 3.0
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


def check_fit(ends: Ends, route: Route) -> None:
    """Of a workflow that goes on. Raises Refused."""
    if route.replica is None:
        return
    with connect(route.replica) as replica:
        found = looked("replica: follows", partial(follows, ends.source, replica))
    if found.verdict is Verdict.REFUSE:
        raise Refused(found.sentence, cure=found.cure)


def behind(route: Route) -> str:
    """What is to be said while the replica lacks what the source logged a second ago; '' where it has all."""
    assert route.replica is not None
    try:
        with connect(route.source) as source, connect(route.replica) as replica:
            wanted = replicas.logged(source)
            if replicas.has_applied(replica, wanted, 1.0):
                return ""
            words = [_of_channel("", each) for each in replicas.channels(replica)]
    except VReplicationError as error:
        return error.message
    said = " ".join(check.sentence for check in words if check.verdict is Verdict.REFUSE)
    return f"The replica, on which the copy reads, is behind the source. {said}".strip()


def follows(source: Session, replica: Session) -> Check:
    name = "replica: follows"
    known, server = inspect(source), inspect(replica)
    if known.flavor != server.flavor:
        return refuse(name, f"The replica is {server}, and the source {known}.", _READ_ON_SOURCE)
    if not server.is_mariadb and (server.setting("gtid_mode") or "").upper() != "ON":
        return refuse(
            name,
            "The replica has no GTIDs (gtid_mode), by which it can be told how far it has got.",
            "Switch gtid_mode to ON on both, or read on the source.",
        )
    try:
        channels = replicas.channels(replica)
    except SqlError as error:
        return refuse(name, f"What the replica follows cannot be read: {error.message}", "Grant what the source has.")
    channel = next((each for each in channels if replicas.follows(each, source)), None)
    if channel is None:
        return refuse(name, f"{replica.url} is no replica of {source.url}.", _READ_ON_SOURCE)
    return _of_channel(name, channel)


def _of_channel(name: str, channel: dict[str, str]) -> Check:
    if found := sorted(replicas.filters(channel)):
        return refuse(name, f"The replica leaves out a part of the log: {', '.join(found)}.", _READ_ON_SOURCE)
    if seconds := replicas.delay_seconds(channel):
        return refuse(name, f"The replica is told to stay {seconds} s behind.", _READ_ON_SOURCE)
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
    """Another engine or index is no matter; other columns are."""
    for table in names:
        try:
            mine, theirs = (introspect(session, schema, table) for session in (source, replica))
        except ConnectionLost:
            raise
        except VReplicationError as error:
            return refuse("replica: tables", f"{table}: {error.message}", _READ_ON_SOURCE)
        if mine.columns != theirs.columns:
            return refuse("replica: tables", f"{schema}.{table} has other columns there.", _READ_ON_SOURCE)
        if _body(mine.create_sql) != _body(theirs.create_sql):
            return warn(
                "replica: tables", f"{schema}.{table} is defined otherwise there.", "See that its rows are alike."
            )
    return ok("replica: tables", "They are defined as on the source.")


def _body(create_sql: str) -> str:
    return re.sub(r" AUTO_INCREMENT=\d+", "", create_sql)
