"""The last comparison: rows that were too busy to be compared under live writes, under the cut-over's lock.

What must stay true: the session that holds the lock reads the source table alone and under its own name, for LOCK
TABLES lets it see nothing else; it is done after the barrier, so what differs is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.checksum import source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.verify.rounds import read_keys
from vreplication.verify.scan import unequal_keys


def compare_hot(
    locked: Session, other: Session, mapping: TableMapping, keys: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Keys whose rows differ. `locked` holds LOCK TABLES source WRITE; `other` reads the shadow."""
    texts = [",".join(key) for key in keys]
    ours = read_keys(locked, source_side(mapping), texts)
    theirs = read_keys(other, target_side(mapping), texts)
    return [tuple(split_literals(key)) for key in unequal_keys(ours, theirs)]
