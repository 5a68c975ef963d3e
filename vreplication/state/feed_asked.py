"""When rows of a table were last asked of a feed's source, on the server that consumers write to.

What must stay true: it is noted in the transaction of the rows that were asked, by partition, so that no two processes
wait for each other; the later question takes the place of the earlier one, for its source was further.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from vreplication.mysql.session import Session
from vreplication.state import rows, sidecar
from vreplication.state.feed_offsets import Key
from vreplication.state.sidecar import fetch

_t = sidecar.feed_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Not before this moment of its source rows of the table were read. micros: by the source's clock.

    gtids: what stood in its log then; '': it names no transactions.
    """

    schema: str
    table: str
    source: str
    micros: int
    gtids: str


def note(session: Session, key: Key, number: int, asked: Asked) -> None:
    """number: of the partition."""
    where = {"source": asked.source, "schema_name": asked.schema, "table_name": asked.table}
    rows.put(session, _t, {**key._asdict(), "number": number, **where}, asked_at=asked.micros, gtids=asked.gtids)


def forget(session: Session, key: Key, tables: Iterable[tuple[str, str]]) -> None:
    """tables: (schema, name)."""
    for schema, table in tables:
        rows.remove(session, _t, **key._asdict(), schema_name=schema, table_name=table)


def load(session: Session, key: Key) -> list[Asked]:
    """Of all partitions."""
    query = select(_t).where(_t.c.consumer_group == key.consumer_group, _t.c.topic == key.topic)
    return [
        Asked(
            schema=str(each["schema_name"]),
            table=str(each["table_name"]),
            source=str(each["source"]),
            micros=int(each["asked_at"]),
            gtids=str(each["gtids"]),
        )
        for each in fetch(session, query)
    ]
