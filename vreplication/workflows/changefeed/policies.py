"""Whether rows of the followed tables can be larger than a message may be, and what becomes of them then.

What must stay true: without a policy no feed begins whose tables can have a row that does not fit; of tables that come
or grow later the feed itself stops at the first such row (feed/large.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vreplication.feed import claims, large, sizes
from vreplication.feed.broker import Topic
from vreplication.feed.formats import make_format
from vreplication.feed.large import Policy
from vreplication.feed.layout import Layout
from vreplication.mysql.session import Session
from vreplication.planning.facts import Check, ok, refuse

NAME = "large messages"
DIRECTORY_CURE = (
    "Mount it where the feed runs, or make it; the feed makes folders in it, and never the directory itself."
)
# Of these not every server tells a length: a value may fill a packet.
_BIG = ("json", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon")
_BIG_SQL = ",".join(f"'{kind}'" for kind in (*_BIG, "geometrycollection", "geomcollection", "vector"))
_MOST_OF_A_KEY = 4_000
"""Bytes that no column of a key has, of which five times six are counted; of others two times seven."""
_MOST_OF_A_COLUMN = 2_100
"""Bytes of a number or a name in both images, and more: rather too many."""


def check(facts: Any, layout: Callable[[str, str], Layout]) -> Check:
    """Of one source. layout: of a table, as it is now."""
    policy: Policy = facts.spec.policy
    topic = facts.broker.find(facts.address.topic)
    if lacking := lacking_of(policy, topic):
        return lacking
    most = min(_of_topic(facts, topic), facts.spec.max_message_bytes or large.MOST_BYTES)
    piece = large.piece_of(most)
    if policy.way in ("parts", "claim-check") or (policy.way == "stop" and policy.is_chosen):
        return ok(NAME, f"A message has at most {piece:,} bytes; of what has more: {policy}.")
    for found, size in _larger(facts, layout, piece):
        if policy.way == "key-only" and found.has_key:
            continue
        return _refused(facts, policy, found, size, piece)
    then = policy.way if policy.is_chosen else "no row can have more"
    return ok(NAME, f"A message has at most {piece:,} bytes; {then}.")


def lacking_of(policy: Policy, topic: Topic | None) -> Check | None:
    if said := lacking(policy):
        return refuse(NAME, said, DIRECTORY_CURE)
    if policy.way == "parts" and topic is not None and topic.is_compacted:
        return refuse(
            NAME,
            f"Topic {topic.name} is compacted, which would keep the last part of a message alone.",
            "Use --max-message claim-check:DIRECTORY or stop.",
        )
    return None


def lacking(policy: Policy) -> str:
    """What is wrong with its directory, in words; empty: nothing."""
    if policy.directory is None or not (lacks := claims.lacks(policy.directory)):
        return ""
    return f"{policy.directory}, into which large messages are to go, {lacks}."


def _of_topic(facts: Any, topic: Topic | None) -> int:
    return topic.most_bytes if topic is not None else int(facts.broker.most_bytes())


def _refused(facts: Any, policy: Policy, layout: Layout, size: int, piece: int) -> Check:
    rows = f"Rows of {layout.name} can have {_shown(size)} in a message of {facts.spec.protocol} (an UPDATE, with both"
    if policy.way == "key-only":
        return refuse(
            NAME,
            f"{rows} images), more than the {piece:,} bytes that fit, and the table has no key by which a row could be"
            " asked for.",
            "Give it a key, leave it out (--exclude), or use --max-message claim-check:DIRECTORY or stop.",
        )
    return refuse(
        NAME,
        f"{rows} images), and {piece:,} bytes fit.",
        f"Say what is to become of such a row: --max-message claim-check:DIRECTORY, key-only, parts or stop; or raise"
        f" max.message.bytes of topic {facts.address.topic} to {size + large.OVERHEAD:,}, or leave the table"
        " (--exclude) or its large columns (--columns) out.",
    )


def _shown(size: int) -> str:
    return f"{size:,} bytes" if size < 10 << 20 else f"{size >> 20:,} MiB"


def _larger(facts: Any, layout: Callable[[str, str], Layout], piece: int) -> Iterator[tuple[Layout, int]]:
    """Tables of which a row can be larger, and how large."""
    packet = int(facts.session.value("SELECT @@GLOBAL.max_allowed_packet"))
    format = make_format(facts.spec.protocol)
    wanted = set(facts.tables)
    for table in _candidates(facts.session, sorted({schema for schema, _ in wanted}), packet, piece):
        if table in wanted:
            found = layout(*table)
            size = sizes.most_bytes(format, found, packet)
            if size > piece:
                yield found, size


def _candidates(session: Session, schemas: Sequence[str], packet: int, piece: int) -> list[tuple[str, str]]:
    """Tables that may have such rows, without asking for each of very many: the same sum, roughly, and never less."""
    if not schemas:
        return []
    each = (
        f"IF(DATA_TYPE IN ({_BIG_SQL}), {packet}, COALESCE(LEAST(CHARACTER_OCTET_LENGTH, {packet}), 0))"
        f" * IF(COALESCE(CHARACTER_OCTET_LENGTH, {_MOST_OF_A_KEY}) < {_MOST_OF_A_KEY}, 30, 14)"
        f" + LENGTH(COLUMN_TYPE) * 12 + {_MOST_OF_A_COLUMN} + LENGTH(COLUMN_NAME) * 40"
    )
    marks = ",".join(["%s"] * len(schemas))
    rows = session.rows(
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({marks})"
        f" GROUP BY TABLE_SCHEMA, TABLE_NAME HAVING SUM({each}) > {max(0, piece - 10_000)}"
        # The largest first: the first that does not fit is the one that a refusal names.
        f" ORDER BY SUM({each}) DESC, 1, 2",
        tuple(schemas),
    )
    return [(str(schema), str(name)) for schema, name in rows]
