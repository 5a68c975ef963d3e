"""A feed's source has failed, and a replica of it goes on in its place.

Both logs name a transaction alike, so the new server can say what the feed has not sent yet. It is taken only where
that is proved: it has every transaction that the feed has sent, it still holds the log of all others, and nothing that
it got later stands before them.

What must stay true: nothing is written here; a server that cannot be told to be of the same history is refused; times
go on behind everything that was ever told, whatever the new server's clock says. Which server is read is said in the
progress alone, so the switch is one Kafka transaction (feed.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from vreplication.binlog import position as places
from vreplication.binlog.events import Group, Position, Stopped
from vreplication.binlog.gtids import Gtids, MariadbGtids, MysqlGtids, names, parse
from vreplication.binlog.tailer import Tailer
from vreplication.errors import Refused, Terminal, Transient
from vreplication.feed.broker import Broker
from vreplication.feed.progress import PROGRESS, Followed, Progress, decode
from vreplication.mysql.server import identity_of, is_mariadb
from vreplication.mysql.session import Session

Successors = Callable[[], Mapping[str, str]]
"""As of `successors`, asked when it is needed."""
_SHOWN = 600
_ANOTHER = "Begin another feed, into another topic."


def moved(progress: Progress, sessions: Sequence[Session]) -> Progress | None:
    """The progress as it goes on with these servers; None: they are those that it tells of. Raises Refused."""
    found = [identity_of(session) for session in sessions]
    known = [each.source for each in progress.sources]
    if found == known:
        return None
    if len(found) != len(known) or len(set(found)) < len(found) or _is_mixed(found, known):
        raise Refused(
            f"Feed {progress.feed} on these brokers is of other source servers, or names them in another order.",
            cure="Give the same --source options as at its start, or the new feed another id.",
        )
    sources = (
        sent if sent.source == server else _on(progress, sent, session, server)
        for sent, session, server in zip(progress.sources, sessions, found, strict=True)
    )
    return msgspec.structs.replace(progress, sources=tuple(sources))


def _is_mixed(found: Sequence[str], known: Sequence[str]) -> bool:
    """A server that is known stands in the place of another one."""
    return any(server in known and known.index(server) != number for number, server in enumerate(found))


def _on(progress: Progress, sent: Followed, session: Session, server: str) -> Followed:
    _check(progress.feed, sent, session)
    # Up to `resolved` the topic says that all was sent, and that may be more than the last transaction's time.
    assigned = max(sent.assigned, progress.resolved)
    return msgspec.structs.replace(sent, source=server, assigned=assigned, before=(*sent.before, sent.source))


def successors(broker: Broker, topic: str) -> dict[str, str]:
    """Of each server that the topic's feed has read before, the one that it reads now. Raises Transient.

    That one has all that the former one has sent, or the feed would not have gone on there.
    """
    found, away = broker.find(topic), list[Transient]()
    feeds = [each for each in _feeds(broker, away) if found is not None and found.id in _topics(each)]
    if away and not feeds:
        raise away[0]
    return {former: each.source for feed in feeds for each in feed.sources for former in each.before}


def _feeds(broker: Broker, away: list[Transient]) -> Iterator[Progress]:
    """All that these brokers know; what another program has written is not ours. away: takes what may come back."""
    for name in broker.names(PROGRESS):
        # One that this user may not read is another feed's.
        with contextlib.suppress(Terminal):
            try:
                record = broker.last(name)
            except Transient as error:
                # Of another feed, perhaps, which is no matter of this one.
                away.append(error)
                continue
            if record is not None:
                yield decode(record)


def _topics(progress: Progress) -> set[str]:
    """Ids of the topics that it is about."""
    return {progress.topic_id, *(each.id for each in progress.topics)}


def _check(feed: str, sent: Followed, session: Session) -> None:
    """Raises Refused."""
    here = f"Server {session.url.host}:{session.url.port}"
    place = Position.parse(sent.position)
    begins = [Position.parse(each) for each in (sent.again_from, *(b.start for b in sent.branches)) if each]
    if any(each.gtids is None for each in (place, *begins)):
        raise Refused(
            f"Feed {feed} knows where it stands by file and offset ({place}), which says nothing on another server.",
            cure=f"Go on with the server that it read. {_ANOTHER}",
        )
    if isinstance(place.gtids, MariadbGtids) is not is_mariadb(session):
        raise Refused(f"{here} is of another flavor than the one that feed {feed} read.", cure=_ANOTHER)
    # In another log only a transaction can be found again by its name; rows of a chunk stand in none.
    if sent.inside is not None and (not sent.inside_of or not (sent.filled is None or sent.filled.is_done)):
        raise Refused(
            f"A part of a transaction was sent by feed {feed}, and its rest can be read on the same server only.",
            cure=f"Start the former server once more, until the feed has sent it. {_ANOTHER}",
        )
    _check_log(feed, session, here, place, begins, sent.inside_of)


def _check_log(feed: str, session: Session, here: str, place: Position, begins: Sequence[Position], half: str) -> None:
    """half: a transaction behind the place of which a part was sent."""
    if not is_mariadb(session) and str(session.value("SELECT @@global.gtid_mode")) != "ON":
        raise Refused(f"{here} has gtid_mode OFF.", cure="Set it to ON, in the steps of MySQL's manual.")
    # Also of the transaction of which a part was sent: it stands behind the place, and its rows are in the topic.
    if lacks := ",".join(filter(None, (_missing(session, each) for each in (place.gtids, parse(half))))):
        raise Refused(
            f"{here} has not got all that feed {feed} has read; what these transactions changed may stand in the topic,"
            f" and the server lacks them: {lacks[:_SHOWN]}.",
            cure=f"Go on with a server that has them. {_ANOTHER}",
        )
    # Also where a prepared branch begins: its rows are not in the progress, and are read again from there.
    if not all(places.exists(session, each) for each in (place, *begins)):
        raise Refused(
            f"{here} does not hold its binary log behind {str(place.gtids)[:_SHOWN]} any more, or never had it.",
            cure=f"What was changed since is lost to feed {feed}. {_ANOTHER}",
        )
    if isinstance(place.gtids, MariadbGtids):
        _check_numbers(session, here, place, place.gtids)


def _missing(session: Session, gtids: Gtids | None) -> str:
    """Those that are not on the server."""
    if gtids is None:
        return ""
    if isinstance(gtids, MysqlGtids):
        found = session.value("SELECT GTID_SUBTRACT(%s, @@global.gtid_executed)", (str(gtids),))
        return "".join(str(found or "").split())
    state = _state(session, "gtid_binlog_state")
    reached = {(domain, server): number for domain, server, number in state}
    return ",".join(_beyond(gtids, reached))


def _beyond(gtids: MariadbGtids, reached: dict[tuple[int, int], int]) -> Iterator[str]:
    for domain, (server, number) in sorted(gtids.last.items()):
        last = reached.get((domain, server), 0)
        if last < number:
            yield f"{domain}-{server}-{last + 1}" + (f" to {domain}-{server}-{number}" if last + 1 < number else "")


def _state(session: Session, name: str) -> list[tuple[int, int, int]]:
    return names(str(session.value(f"SELECT @@global.{name}")))


def _check_numbers(session: Session, here: str, place: Position, gtids: MariadbGtids) -> None:
    """Nothing that the feed has not sent stands before the place. Raises Refused.

    A MariaDB that is not strict takes numbers that go back, so what it wrote by itself may stand before what it got
    from the former source later: a dump behind that would pass it over. Numbers alone do not always tell; where they
    do, it is said.
    """
    if not int(session.value("SELECT @@global.gtid_strict_mode")):
        raise Refused(
            f"{here} has gtid_strict_mode OFF: it may have written transactions of its own before it got the last ones"
            " of the former source, and the feed would pass them over.",
            cure="Where it is known that it has not, SET GLOBAL gtid_strict_mode=ON there; keep it ON on all servers.",
        )
    last = {domain: (server, number) for domain, server, number in _state(session, "gtid_binlog_pos")}
    state = _state(session, "gtid_binlog_state")
    due = {}
    for domain, (server, number) in gtids.last.items():
        if last.get(domain) != (server, number):
            due[domain] = number + 1
        elif further := [f"{d}-{s}-{n}" for d, s, n in state if d == domain and s != server and n >= number]:
            # Ours is the last one here, so a higher number of another server stands before it, and the feed has not
            # sent it.
            raise _unproved(here, ", ".join(further))
    found = _first_of(session, place, set(due)) if due else {}
    for domain, number in due.items():
        if found.get(domain) != number:
            raise _unproved(here, f"number {found.get(domain)} of domain {domain} follows on {number - 1}")


def _unproved(here: str, what: str) -> Refused:
    return Refused(
        f"{here} has GTIDs in its log that do not go on where the feed stands ({what}): it may have written"
        " transactions of its own before it got the last ones of the former source.",
        cure=f"Go on with the former server, or one whose log has its order. {_ANOTHER}",
    )


def _first_of(session: Session, place: Position, domains: set[int]) -> dict[int, int]:
    """Number of the first transaction of each of these domains behind the place."""
    found: dict[int, int] = {}
    server_id = places.draw_server_id(session)
    with Tailer(session.url, place, [], server_id=server_id, is_mariadb=True) as tailer:
        for item in tailer:
            if isinstance(item, Stopped):
                raise item.error
            if not isinstance(item, Group):
                # A heartbeat: behind the place the log has nothing more.
                return found
            if item.gtid is not None and len(item.gtid) == 3 and item.gtid[0] in domains:
                found.setdefault(item.gtid[0], item.gtid[2])
            if found.keys() >= domains:
                return found
    return found
