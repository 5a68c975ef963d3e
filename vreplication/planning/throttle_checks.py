"""What is to hold a workflow back, tried once before it begins: what can never work refuses.

What must stay true: nothing is held back by it here; each look is the one that is made while it runs.
"""

from __future__ import annotations

from collections.abc import Collection

from vreplication.errors import Refused, VReplicationError
from vreplication.mysql import disk, load
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import Session, SqlError, connect
from vreplication.mysql.url import SourceUrl
from vreplication.planning.facts import Check, OfServer, Verdict, ok, refuse, warn
from vreplication.planning.request import Request, check_limit
from vreplication.throttle.reasons import parse_load, parse_places

_HELD, _LAG, _ROOM = "held back", "replica lag", "free disk"
_LOOKED_AT = frozenset({"max_load", "critical_load", "max_history_list", "throttle_query"})


def held_back(facts: OfServer) -> Check:
    """By the server's own figures, or by a query."""
    return _held_back(facts.session, facts.spec)


def _held_back(session: Session, spec: Request) -> Check:
    for option, text in (("max-load", spec.max_load), ("critical-load", spec.critical_load)):
        # What the server does not tell holds (throttle/reasons.py): a misspelt name would hold the copy for ever.
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


def free_disk(facts: OfServer) -> Check:
    """What is to be free can be looked up."""
    return _free_disk(facts.session, facts.spec)


def _free_disk(session: Session, spec: Request) -> Check:
    if spec.min_disk_free is None:
        return ok(_ROOM, "No free disk space is waited for.")
    found = disk.disks(session)
    if not found:
        cure = "INSTALL SONAME 'disks' and GRANT FILE to the user, or give" if is_mariadb(session) else "Give"
        return refuse(
            _ROOM,
            f"--min-disk-free: {disk.UNKNOWN}; this is not the server's machine, or its data cannot be read here.",
            f"{cure} --throttle-query or --throttle-http with a check of your own.",
        )
    least = min(found, key=lambda each: each.free)
    return ok(_ROOM, f"{disk.size(least.free)} are free on the disk of {least.path}.")


def _unknown(session: Session, text: str | None) -> str:
    names = list(parse_load(text)) if text else []
    known = load.status(session, names) if names else {}
    return next((name for name in names if name.lower() not in known), "")


def _is_asked(spec: Request) -> bool:
    return any((spec.max_load, spec.critical_load, spec.max_history_list, spec.throttle_query, spec.throttle_http))


def replica_lag(facts: OfServer) -> Check:
    """Each replica whose lag counts is there, and takes our user."""
    return _replica_lag(facts.session, facts.spec)


def demand(session: Session, asked: Request, changed: Collection[str]) -> None:
    """Of what is changed while it runs. Raises Refused where it can never be asked."""
    if "lag_replicas" in changed:
        check_limit(asked.lag_replicas, asked.max_lag)
    checks = [_held_back(session, asked.model_copy(update={name: None for name in _LOOKED_AT - set(changed)}))]
    if {"max_lag", "lag_replicas"} & set(changed):
        checks.append(_replica_lag(session, asked))
    if "min_disk_free" in changed:
        checks.append(_free_disk(session, asked))
    for check in checks:
        if check.verdict is Verdict.REFUSE:
            raise Refused(check.sentence, cure=check.cure)


def _replica_lag(session: Session, spec: Request) -> Check:
    # Places alone hold nothing back: they say whose lag counts once a limit is given.
    if spec.max_lag is None:
        return ok(_LAG, "No replica is waited for.")
    try:
        places = places_of(session, spec)
    except SqlError as error:
        return refuse(
            _LAG, f"The server does not tell its replicas: {error.message}.", "Give --lag-replicas HOST:PORT,…"
        )
    # Waiting for none of them would hold nothing back, and look as if it did.
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
    said = f"Waited for: {', '.join(f'{host}:{port}' for host, port in places)}."
    if not spec.lag_replicas and (others := load.nowhere(session)):
        numbers = ", ".join(map(str, others))
        words = f"{said} Not for what is listed without a host (server_id {numbers})."
        return warn(_LAG, words, "Set report_host there, or give --lag-replicas HOST:PORT,… where that is a replica.")
    return ok(_LAG, said)


def at_place(session: Session, place: tuple[str, int]) -> SourceUrl:
    """A replica, with its own login or that of its source."""
    return session.url.of_replica(*place)


def number_of(session: Session, query: str) -> float:
    """The first value of a query, which can write nothing. Raises Refused where it gives no number."""
    with load.only_reading(session):
        value = session.value(query)
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        raise Refused(f"--throttle-query gives {str(value)[:80]!r}, which is no number.", cure="Correct it.") from None


def places_of(session: Session, spec: Request) -> list[tuple[str, int]]:
    """Hosts and ports of the replicas whose lag counts. Raises SqlError where they may not be asked for."""
    return parse_places(spec.lag_replicas) if spec.lag_replicas else load.replicas(session)
