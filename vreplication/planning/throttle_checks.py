"""What is to hold a workflow back, tried once before it begins: what can never work refuses.

What must stay true: nothing is held back by it here; each look is the one that is made while it runs.
"""

from __future__ import annotations

from dataclasses import replace

from vreplication.errors import Refused, VReplicationError
from vreplication.mysql import load
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.facts import Check, OfServer, ok, refuse
from vreplication.planning.spec import Request
from vreplication.throttle.reasons import parse_load, parse_places

_HELD, _LAG = "held back", "replica lag"


def held_back(facts: OfServer) -> Check:
    """By the server's own figures, or by a query."""
    spec, session = facts.spec, facts.session
    for option, text in (("max-load", spec.max_load), ("critical-load", spec.critical_load)):
        if unknown := _unknown(session, text):
            return refuse(
                _HELD, f"--{option}: the server has no status variable {unknown} that is a number.", "Correct it."
            )
    try:
        if spec.max_history_list is not None:
            load.history_list(session)
        if spec.throttle_query is not None:
            number_of(session, spec.throttle_query)
    except SqlError as error:
        return refuse(_HELD, f"What is to hold it back cannot be asked: {error.message}.", "Correct or grant it.")
    return ok(
        _HELD, "What is to hold it back can be asked." if _is_asked(spec) else "By the application's commits alone."
    )


def _unknown(session: Session, text: str | None) -> str:
    names = list(parse_load(text)) if text else []
    known = load.status(session, names) if names else {}
    return next((name for name in names if name.lower() not in known), "")


def _is_asked(spec: Request) -> bool:
    return any((spec.max_load, spec.critical_load, spec.max_history_list, spec.throttle_query, spec.throttle_http))


def replica_lag(facts: OfServer) -> Check:
    """Each replica whose lag counts is there, and takes our user."""
    spec, session = facts.spec, facts.session
    if spec.max_lag is None:
        return ok(_LAG, "No replica is waited for.")
    try:
        places = places_of(session, spec)
    except SqlError as error:
        return refuse(
            _LAG, f"The server does not tell its replicas: {error.message}.", "Give --lag-replicas HOST:PORT,…"
        )
    if not places:
        cure = "Give --lag-replicas HOST:PORT,…, or set report_host on the replicas."
        return refuse(_LAG, "--max-lag: the server lists no replica with its host.", cure)
    for place in places:
        try:
            connect(at_place(session, place)).close()
        except VReplicationError as error:
            return refuse(
                _LAG, f"Replica {place[0]}:{place[1]} cannot be asked: {error}", "Correct it, or leave it out."
            )
    return ok(_LAG, f"Waited for: {', '.join(f'{host}:{port}' for host, port in places)}.")


def at_place(session: Session, place: tuple[str, int]) -> SourceUrl:
    """A replica, with the user of its source."""
    return replace(session.url, host=place[0], port=place[1], unix_socket=None, database="")


def number_of(session: Session, query: str) -> float:
    """The first value of a SELECT. Raises Refused where it gives no number."""
    value = session.value(query)
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        raise Refused(f"--throttle-query gives {str(value)[:80]!r}, which is no number.", cure="Correct it.") from None


def places_of(session: Session, spec: Request) -> list[tuple[str, int]]:
    """Hosts and ports of the replicas whose lag counts. Raises SqlError where they may not be asked for."""
    return parse_places(spec.lag_replicas) if spec.lag_replicas else load.replicas(session)
