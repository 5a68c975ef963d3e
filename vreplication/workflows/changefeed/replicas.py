"""A feed that is to go on on other servers than it was begun with: a source has failed, and a replica was promoted.

The sidecar is replicated as any table, so the replica knows the feed; where the feed stands is said in Kafka.

What must stay true: nothing is written here, and nobody is fenced, before every check of every new server has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vreplication.errors import Refused
from vreplication.feed.broker import Broker
from vreplication.feed.running import check_same
from vreplication.feed.terms import Feed
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session
from vreplication.planning.facts import Verdict
from vreplication.state import feeds
from vreplication.state.workflows import WorkflowRow
from vreplication.workflows.changefeed.plan import replica_checks
from vreplication.workflows.changefeed.spec import FeedSpec


def servers_of(session: Session, row: WorkflowRow) -> list[str]:
    """Identities of those that the feed was last read from; of the first alone where it has not told yet."""
    _, figures = feeds.find(session, row.id) or (None, {})
    return [str(each["server"]) for each in figures.get("sources", ())] or [row.server_identity or ""]


def check(
    row: WorkflowRow, sessions: Sequence[Session], spec: FeedSpec, password: str, feed: Callable[[], Feed]
) -> None:
    """The sources are those of before, or may go on in their places. Raises Refused; Transient without the broker."""
    known, found = servers_of(sessions[0], row), [identity_of(session) for session in sessions]
    if len(known) > 1 and len(known) != len(found):
        raise Refused(
            f"Feed {row.id} was begun with {len(known)} source servers, and these are {len(found)}.",
            cure="Name the same servers, in the same order, as at its start, or replicas in their places.",
        )
    # Of a feed that has not told its figures yet the first source alone is known.
    if found[: len(known)] == known:
        return
    for session, server in zip(sessions, found, strict=True):
        if server not in known:
            _check_replica(row, session, spec, password)
    asked = feed()
    check_same(Broker(asked.address), asked, sessions)


def _check_replica(row: WorkflowRow, session: Session, spec: FeedSpec, password: str) -> None:
    """What a plan asks of a source holds there, and the feed is known there. Raises Refused."""
    if feeds.find(session, row.id) is None:
        raise Refused(
            f"Server {session.url.host}:{session.url.port} knows nothing of feed {row.id}: it is no replica of its"
            " source, or leaves our schema out.",
            cure="Replicate our schema, too, or begin another feed, into another topic.",
        )
    refused = [each for each in replica_checks(session, spec, password) if each.verdict is Verdict.REFUSE]
    if refused:
        raise Refused(" ".join(f"{each.sentence} {each.cure}".strip() for each in refused))
