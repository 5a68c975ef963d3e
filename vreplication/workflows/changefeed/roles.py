"""Whom a feed's source replicates from. A server that comes back as the replica of another one is nobody's source.

A feed writes its lease and its heartbeat into its source. On a replica that is a transaction of its own, which ends its
replication: a strict MariaDB refuses the next number, MySQL's applier meets a row that is there already.

What must stay true: nothing of ours is written on a server that replicates from one from which it did not when the feed
began to read there; where a server does not tell, it is taken for what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vreplication.errors import Refused
from vreplication.mysql.replica import channels
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session, SqlError
from vreplication.settings import SIDECAR

NAME = "replicates"
"""Among a feed's figures: identity of a source → those that it replicates from."""


def upstreams(session: Session) -> list[str] | None:
    """host:port of those whose changes of our schema would come here; None: the server does not tell."""
    try:
        found = channels(session)
    except SqlError:
        return None
    return sorted({_name(each) for each in found if not _is_left_out(each)})


def _name(channel: Mapping[str, str]) -> str:
    host, port = (channel.get(f"master_{what}") or channel.get(f"source_{what}") or "" for what in ("host", "port"))
    return f"{host}:{port}"


def _is_left_out(channel: Mapping[str, str]) -> bool:
    """Our schema is not replicated."""
    ignored, taken = (channel.get(f"replicate_{what}_db", "") for what in ("ignore", "do"))
    return SIDECAR in ignored.split(",") or bool(taken and SIDECAR not in taken.split(","))


def known(sessions: Sequence[Session], figures: Mapping[str, object]) -> dict[str, list[str]]:
    """As it was when the feed began at each of these; of one that it has not read yet, as it is. Raises Refused."""
    return dict(_known(sessions, figures))


def _known(sessions: Sequence[Session], figures: Mapping[str, object]) -> Iterator[tuple[str, list[str]]]:
    told = figures.get(NAME)
    for session in sessions:
        server, now = identity_of(session), upstreams(session)
        before = told.get(server) if isinstance(told, dict) else None
        if before is not None:
            check(session, before)
            yield server, list(before)
        elif now is not None:
            yield server, now


def check(session: Session, before: Sequence[str]) -> None:
    """Raises Refused."""
    if added := sorted(set(upstreams(session) or ()) - set(before)):
        here = f"{session.url.host}:{session.url.port}"
        raise Refused(
            f"Server {here} replicates from {added[0]} by now, which it did not when the feed began there: what the"
            " feed writes into its schema there would end that replication.",
            cure="Go on with the server that takes the application's writes: `vreplication resume ID --source URL`; or"
            f" let that replication leave out {SIDECAR} (replicate_ignore_db).",
        )
