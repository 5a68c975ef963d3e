"""What housekeeping and doctor make of a move that stands still behind its switch: its way back is not left over."""

from __future__ import annotations

import pytest

from tests.support.flow import purge_logs, wait_until
from tests.support.moving import Move, application, begin, quick
from tests.support.pairs import Pair, _pair_servers, pair
from vreplication.mysql.session import Session, connect
from vreplication.phases import Phase
from vreplication.scheduler import doctor, housekeeping
from vreplication.settings import SIDECAR
from vreplication.state import checkpoint, leftovers
from vreplication.state.moves import Side
from vreplication.workflows.move_tables.streams import stream_id

__all__ = ["_pair_servers", "pair", "quick"]

pytestmark = [
    pytest.mark.usefixtures("quick"),
    pytest.mark.either,
    pytest.mark.parametrize("pair", ["mariadb-mariadb", "mysql-mysql"], indirect=True),
]

T = "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v VARCHAR(40), KEY (n)) COLLATE utf8mb4_general_ci"
_OF_A_STREAM = ("lease", "checkpoint", "stream", "gate", "marker", "worker")


def stands_still(pair: Pair) -> Move:
    """The target serves, and for two hours no process has kept the source level."""
    pair.source.admin.execute_raw(T)
    pair.source.admin.execute_raw("INSERT INTO t VALUES " + ",".join(f"({i},{i * 7},'v{i}')" for i in range(200)))
    with application(pair) as app:
        move = begin(pair, "t")
        move.reach(Side.TARGET, 2, app)
        stream = stream_id(move.workflow, 2)
        wait_until(lambda: checkpoint.load(pair.target.admin, stream) is not None, "the way back saves no place")
        app.end()
    move.stop.set()
    assert move.result().event == "interrupted"
    pair.target.admin.execute(f"UPDATE {SIDECAR}.lease SET taken_at = taken_at - INTERVAL 2 HOUR")
    return move


def kept(home: Session, stream: str) -> dict[str, int]:
    """Rows of the way back, by the sidecar's table."""
    count = f"SELECT COUNT(*) FROM {SIDECAR}.{{}} WHERE workflow=%s"
    return {name: int(home.value(count.format(name), (stream,))) for name in _OF_A_STREAM}


def found_by_doctor(pair: Pair) -> set[tuple[str, str]]:
    with connect(pair.source.url) as source, connect(pair.target.url) as target:
        return {(each.kind, each.what) for each in doctor.examine_both(source, target)}


def test_the_way_back_of_a_move_that_stands_still_stays(pair: Pair) -> None:
    """Its place in the binary log went with its lease, and `resume` began at the switch, whose log may be gone."""
    move = stands_still(pair)
    stream, home = stream_id(move.workflow, 2), pair.target.admin
    before = kept(home, stream)
    assert all(before[name] for name in ("lease", "checkpoint"))
    assert not [what for kind, what in found_by_doctor(pair) if kind == housekeeping.LEASE]
    with connect(pair.target.url) as session:
        assert housekeeping.remove_all(session, housekeeping.find(session), "ann") == []
        # By a list that an earlier release has made.
        assert not leftovers.forget(session, stream)
    assert kept(home, stream) == before
    home.execute(f"UPDATE {SIDECAR}.workflow SET phase='{Phase.COMPLETE}' WHERE id=%s", (move.workflow,))
    with connect(pair.target.url) as session:
        assert [item.workflow for item in housekeeping.find(session) if item.kind == housekeeping.LEASE] == [stream]
        assert leftovers.forget(session, stream)


def test_a_way_back_whose_log_is_gone_is_named_before_its_first_checkpoint(pair: Pair) -> None:
    """A restart would read from the switch on."""
    move = stands_still(pair)
    home, named = pair.target.admin, ("binary log", move.workflow)
    home.execute(f"DELETE FROM {SIDECAR}.checkpoint WHERE workflow=%s", (stream_id(move.workflow, 2),))
    assert named not in found_by_doctor(pair)
    purge_logs(pair.target)
    assert named in found_by_doctor(pair)
