"""Which processes of a group of consumers have been heard of, on the server that they write to.

What must stay true: it is to be looked at only: nothing that a consumer does follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vreplication.mysql.session import Session
from vreplication.settings import SIDECAR
from vreplication.state import layout, rows, sidecar
from vreplication.state.feed_offsets import Key
from vreplication.state.sidecar import now

BEAT_SECONDS, ALIVE_SECONDS = 5.0, 60
"""A process that applies a large transaction is silent meanwhile."""
_FORGOTTEN_DAYS = 1
_t = sidecar.feed_member


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """at_work: processes that were heard of just now. seen_seconds: how long ago the last of all was."""

    at_work: int
    seen_seconds: float


def beat(session: Session, key: Key, member: str, *, is_going: bool = True) -> None:
    where = {**key._asdict(), "member": member}
    rows.put(session, _t, where, seen_at=now(), is_going=int(is_going))


def forget(session: Session, key: Key) -> None:
    """Processes of days ago. To be called by one that lives, so that the last one of a group stays."""
    sql = (
        f"DELETE FROM {SIDECAR}.feed_member WHERE consumer_group=%s AND topic=%s"
        f" AND seen_at < NOW(6) - INTERVAL {_FORGOTTEN_DAYS} DAY"
    )
    session.execute(sql, key)


def read(session: Session) -> dict[Key, Members]:
    """Of every group of which a process was ever heard."""
    # Who ends in order beats once more to say so (`is_going`): it is not taken for one at work for a minute more.
    sql = (
        "SELECT consumer_group, topic, SUM(is_going AND age <= %s), MIN(age) FROM"
        " (SELECT consumer_group, topic, is_going, TIMESTAMPDIFF(MICROSECOND, seen_at, NOW(6)) / 1e6 AS age"
        f" FROM {SIDECAR}.feed_member) seen GROUP BY consumer_group, topic"
    )
    found = layout.look(session, lambda: session.rows(sql, (ALIVE_SECONDS,))) or ()
    return {
        # The server's clock may have been set back since the last beat.
        Key(str(group), str(topic)): Members(at_work=int(count), seen_seconds=max(0.0, float(age)))
        for group, topic, count, age in found
    }
