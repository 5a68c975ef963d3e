"""The servers' own window between a commit's place in the log and its being visible: a probe of many samples.

A SELECT behind a marker must see whatever stands before the marker in the log. MariaDB makes an XA COMMIT visible after
it is in the log (docs/correctness.md, F1b), so there a reader waits for the branches that XA RECOVER lists. The probe
counts how often a reader that does not wait misses something, and demands that one that waits never does.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandbox.databases import Database
from tests.support.tailing import groups, here, ours, watch
from vreplication.binlog.events import Group, GroupKind, Position
from vreplication.changes import stream
from vreplication.changes.matcher import Matcher
from vreplication.mysql.session import Session, connect
from vreplication.rowcopy.settle import wait_for_branches
from vreplication.settings import SIDECAR
from vreplication.state import layout, markers

SAMPLES = 150
WRITERS = 3
WORKFLOW = "probe"
LOOK = f"""CREATE PROCEDURE look(name CHAR(16)) BEGIN
  INSERT INTO {SIDECAR}.marker VALUES ('{WORKFLOW}', name, '{markers.PLAIN}', NOW(6));
  SELECT id, v FROM t;
END"""
Seen = dict[int, int]


@pytest.mark.seldom
def test_reader_behind_a_marker_sees_all_before_it(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    is_mariadb = database.server.is_mariadb
    database.admin.execute_raw("CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL)")
    for writer in range(2 * WRITERS):
        database.admin.execute_raw(f"INSERT INTO t VALUES ({writer}, 0)")
    with database.server.admin(database.name) as session:
        layout.install(session)
        database.admin.execute_raw(LOOK)
        start = here(database)
        with _writing(database):
            hasty, patient = {}, {}
            for _ in range(SAMPLES):
                hasty |= _at_once(session)
                patient |= _after_waiting(session, is_mariadb=is_mariadb)
        wanted = _at_markers(database, session, start)
    missed = [sum(_misses(wanted[marker], seen) for marker, seen in looks.items()) for looks in (hasty, patient)]
    with capsys.disabled():
        told = f"{missed[0]} missed at once, {missed[1]} after waiting"
        print(f" [{database.server.flavor}: {SAMPLES} samples of each, {told}]", end="")
    assert max(max(v.values(), default=0) for v in wanted.values()) > 20, "the writers wrote next to nothing"
    assert missed[1] == 0
    if not is_mariadb:
        assert missed[0] == 0


def _at_once(session: Session) -> dict[str, Seen]:
    """Marker → what a SELECT right behind it saw: one call, with nothing but the server between them."""
    marker = secrets.token_hex(8)
    return {marker: {int(i): int(v) for i, v in session.rows(f"CALL look('{marker}')")}}


def _after_waiting(session: Session, *, is_mariadb: bool) -> dict[str, Seen]:
    """Marker → what one saw that waited first, where the server needs it."""
    marker = markers.write(session, WORKFLOW)
    if is_mariadb:
        wait_for_branches(session, markers.OnServer(session, WORKFLOW), lambda: None)
    return {marker: _look(session)}


def _look(session: Session) -> Seen:
    return {int(i): int(v) for i, v in session.rows("SELECT id, v FROM t")}


def _misses(wanted: Seen, seen: Seen) -> bool:
    """Each row only ever counts up."""
    return any(seen[row] < value for row, value in wanted.items())


@contextmanager
def _writing(database: Database) -> Iterator[None]:
    """Writers that count up a row each, half of them by XA; every one has its own."""
    stop = threading.Event()
    work = [threading.Thread(target=_count, args=(database, n, n < WRITERS, stop)) for n in range(2 * WRITERS)]
    for thread in work:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in work:
            thread.join()


def _count(database: Database, row: int, is_xa: bool, stop: threading.Event) -> None:
    """A hundred at a time in a procedure: the writers commit as often as the server can, whatever Python does."""
    update, branch = f"UPDATE t SET v=v+1 WHERE id={row}", f"'probe','{row}',1"
    around = (f"XA START {branch}", update, f"XA END {branch}", f"XA PREPARE {branch}", f"XA COMMIT {branch}")
    body = "; ".join(around if is_xa else (update,))
    with connect(database.app_url) as session:
        session.execute_raw(
            f"CREATE PROCEDURE count_{row}() BEGIN DECLARE n INT DEFAULT 0; "
            f"WHILE n < 100 DO {body}; SET n = n + 1; END WHILE; END"
        )
        while not stop.is_set():
            session.execute_raw(f"CALL count_{row}()")


def _at_markers(database: Database, session: Session, start: Position) -> dict[str, Seen]:
    """What was committed, by the log, before each marker."""
    matcher, state, found = Matcher(is_strict=False), dict[int, int](), dict[str, Seen]()
    for group in groups(database, start, watch(database, "t"), ours(database)):
        for done in _committed(matcher, group):
            for item in done.items:
                if item.table == stream.FIRST and item.after is not None:
                    key, values = item.after
                    state[int(key)] = int(values.split(",")[1])
                elif item.table == stream.MARKER and item.after is not None:
                    found[str(item.after["id"])] = dict(state)
    return found


def _committed(matcher: Matcher, group: Group) -> list[Group]:
    return [done for done in matcher.feed(group) if done.kind is not GroupKind.XA_PREPARE]
