"""A transaction of the source that is written in parts, in one transaction on the target."""

from __future__ import annotations

import json

import pytest
from across_setup import TABLE, WORKFLOW, make_across

from tests.support.pairs import Pair
from vreplication.apply.applier import Applier
from vreplication.apply.rounds import Across
from vreplication.apply.writer import Target
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes.stream import SIGNAL
from vreplication.changes.watermark import Watermark
from vreplication.mysql.quoting import ident
from vreplication.mysql.session import Session, connect
from vreplication.state import ledger

pytestmark = pytest.mark.parametrize("pair", ["mysql-mariadb", "mariadb-mysql"], indirect=True)
CREATE = "CREATE TABLE {t} (id INT PRIMARY KEY, n INT NOT NULL)"


def rows(first: int, count: int) -> list[RowChange]:
    return [RowChange(0, None, (str(i), f"{i},{i}")) for i in range(first, first + count)]


def group(items: list[RowChange], end: int, *, is_last: bool = True) -> Group:
    at = Position.of("binlog.000001", end)
    return Group(
        kind=GroupKind.COMMIT, start=at, end=at, time_micros=1, items=items, nbytes=1, is_last=is_last, changes=9_000
    )


def opened(split: int) -> RowChange:
    told = {"table": TABLE, "split": split, "ordinal": 0, "attempt": 1}
    row = {"stream": WORKFLOW, "id": f"open/{TABLE}/{split}", "kind": "open", "number": 0, "detail": json.dumps(told)}
    return RowChange(SIGNAL, None, row)


def count(session: Session, table: str) -> int:
    return int(session.value(f"SELECT COUNT(*) FROM {ident(table)}"))


def test_a_chunk_that_opens_behind_its_end_takes_nothing_of_it(pair: Pair) -> None:
    """Half of the last part was left out, and the checkpoint went past it."""
    case = make_across(pair, CREATE, ("INSERT INTO t VALUES (1,1)",))
    split = case.cut()[0]
    ledger.claim_split(case.session, TABLE, split.number)
    chunk = ledger.Chunk(split=split.number, ordinal=0, attempt=1, state=ledger.OPEN, range=split.range)
    with connect(pair.target.url) as one, connect(pair.target.url) as other, connect(pair.target.url) as seeing:
        target = Target(mapping=case.mapping, lease=case.replicate, packet=16 << 20, id=TABLE)
        applier = Applier(
            [one, other], [target], Watermark(), held=lambda: (), on_first_open=lambda: None, across=Across()
        )
        applier.take(group(rows(10, 5_000), 400, is_last=False))
        assert count(seeing, case.shadow) == 0
        applier.take(group(rows(5_010, 1_000), 500))
        case.beat()
        with case.session.transaction():
            assert ledger.open_chunk(case.session, TABLE, chunk, stream=WORKFLOW)
        applier.take(group([opened(split.number)], 600))
        applier.flush()
        assert count(seeing, case.shadow) == 6_000
        applier.close()


def test_an_end_in_the_middle_leaves_nothing_of_it(pair: Pair) -> None:
    case = make_across(pair, CREATE)
    with connect(pair.target.url) as one, connect(pair.target.url) as seeing:
        target = Target(mapping=case.mapping, lease=case.replicate, packet=16 << 20, id=TABLE)
        applier = Applier([one], [target], Watermark(), held=lambda: (), on_first_open=lambda: None, across=Across())
        applier.take(group(rows(10, 10), 300))
        applier.take(group(rows(20, 5_000), 400, is_last=False))
        applier.end()
        applier.save_since()
        applier.close()
        assert count(seeing, case.shadow) == 0
