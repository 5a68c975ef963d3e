"""The last comparison: rows written since they were last seen equal, under the cut-over's lock.

What must stay true: the session that holds the lock reads the source table alone and under its own name, for LOCK
TABLES lets it see nothing else; it is done after the barrier, so what differs is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from vreplication.mysql.session import Session
from vreplication.mysql.values import split_literals
from vreplication.schema.checksum import RowHash, source_side, target_side
from vreplication.schema.model import TableMapping
from vreplication.verify.rounds import read_keys
from vreplication.verify.since import different


def compare_hot(
    locked: Session, other: Session, mapping: TableMapping, keys: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Keys whose rows differ. `locked` holds LOCK TABLES source WRITE; `other` reads the target, wherever it is.

    They are the same where one session holds both tables' locks.
    """
    if not keys:
        return []
    listed = [",".join(key) for key in keys]
    if locked is other:
        found = different(lambda asked: _in_turn(locked, mapping, asked), listed)
    else:
        found = _beside(locked, other, mapping, listed)
    return [tuple(split_literals(key)) for key in found]


def _in_turn(session: Session, mapping: TableMapping, asked: Sequence[str]) -> tuple[list[RowHash], list[RowHash]]:
    return read_keys(session, source_side(mapping), asked), read_keys(session, target_side(mapping), asked)


def _beside(locked: Session, other: Session, mapping: TableMapping, keys: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="compare") as beside:

        def both(asked: Sequence[str]) -> tuple[list[RowHash], list[RowHash]]:
            """At once, for writers are waiting; when the lock is lost, nothing more is read."""
            is_lost = threading.Event()
            # The target by another session: under LOCK TABLES the locker reads the source alone (1100).
            of_target = beside.submit(read_keys, other, target_side(mapping), asked, is_lost.is_set)
            try:
                return read_keys(locked, source_side(mapping), asked), of_target.result()
            except BaseException:
                # The pool waits at its end for that read, and with it the attempt, whose writers are waiting.
                is_lost.set()
                raise

        return different(both, keys)
