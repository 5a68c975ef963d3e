"""The last comparison: rows written since they were last seen equal, under the cut-over's lock.

What must stay true: the session that holds the lock reads the source table alone and under its own name, for LOCK
TABLES lets it see nothing else; it is done after the barrier, so what differs is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.checksum import source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.verify.rounds import read_keys
from vreplication.verify.since import different


def compare_hot(
    locked: Session, other: Session, mapping: TableMapping, keys: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Keys whose rows differ. `locked` holds LOCK TABLES source WRITE; `other` reads the shadow."""
    found = different(
        partial(read_keys, locked, source_side(mapping)),
        partial(read_keys, other, target_side(mapping)),
        [",".join(key) for key in keys],
    )
    return [tuple(split_literals(key)) for key in found]
