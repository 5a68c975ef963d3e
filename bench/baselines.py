"""What the server alone can do: the other side of each ratio.

What must stay true: the same rows, on the same server, into a table of the same shape, with nothing prepared on the
server's side that our own path does not have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from bench.table import NAME
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl

COPY = "plain_copy"
_ROWS = 1_000
"""Rows of one REPLACE; one transaction each."""


def insert_select(session: Session) -> float:
    """Seconds of one INSERT … SELECT of the whole table into an empty one."""
    session.execute_raw(f"DROP TABLE IF EXISTS {ident(COPY)}")
    session.execute_raw(f"CREATE TABLE {ident(COPY)} LIKE {ident(NAME)}")
    began = time.monotonic()
    session.execute_raw(f"INSERT INTO {ident(COPY)} SELECT * FROM {ident(NAME)}")
    return time.monotonic() - began


def replace(url: SourceUrl, session: Session, ranges: Sequence[tuple[int, int]], connections: int = 2) -> float:
    """Seconds of writing the rows of these id ranges to the copy by multi-row REPLACE."""
    statements = [s for low, high in ranges for s in _statements(session, low, high)]
    shares = [statements[i::connections] for i in range(connections)]
    errors: list[BaseException] = []
    sessions = [connect(url) for _ in shares]
    threads = [
        threading.Thread(target=_run, args=(s, share, errors)) for s, share in zip(sessions, shares, strict=True)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    for one in sessions:
        one.close()
    if errors:
        raise errors[0]
    return seconds


def _statements(session: Session, low: int, high: int) -> list[str]:
    rows = session.rows(f"SELECT id, sig, c FROM {ident(NAME)} WHERE id BETWEEN {low} AND {high}")
    parts = [rows[i : i + _ROWS] for i in range(0, len(rows), _ROWS)]
    head = f"REPLACE INTO {ident(COPY)} (id, sig, c) VALUES "
    return [head + ",".join(f"({i},'{sig}','{c}')" for i, sig, c in part) for part in parts]


def _run(session: Session, statements: Sequence[str], errors: list[BaseException]) -> None:
    try:
        for statement in statements:
            session.execute_raw(statement)
    except BaseException as error:
        errors.append(error)


def drop(session: Session) -> None:
    session.execute_raw(f"DROP TABLE IF EXISTS {ident(COPY)}")
