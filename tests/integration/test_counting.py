"""What a copy has done, counted on from what was counted before: at each step what counting all of it gives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sandbox.databases import Database
from vreplication.mysql.session import Session, connect
from vreplication.state import counting, layout, ledger
from vreplication.state.counting import Counting
from vreplication.state.ledger import REPAIR_SPLIT

SPLITS = (0, 1, 2, REPAIR_SPLIT, REPAIR_SPLIT + 1)
STEPS = 200


@pytest.fixture
def session(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(counting, "_FOLD_CHUNKS", 3)
    with connect(database.url) as opened:
        layout.install(opened)
        yield opened


class Copy:
    """Of one workflow, driven by chance. Most chunks have landed long ago; a few never will have."""

    def __init__(self, session: Session, workflow: str, seed: int) -> None:
        self.session, self.workflow, self.chance = session, workflow, random.Random(seed)
        self.states: dict[tuple[int, int], str] = {}
        self.done: set[int] = set()
        self.splits: list[int] = []

    def step(self) -> None:
        often = (self.open, self.land, self.match) * 4
        self.chance.choice((self.cut, *often, self.end))()

    def cut(self) -> None:
        if len(self.splits) < len(SPLITS):
            split = SPLITS[len(self.splits)]
            self.splits.append(split)
            named = "workflow, split, lower_bound, upper_bound, has_lower, estimated_rows, attempt, is_done"
            self.run(f"INSERT INTO split ({named}) VALUES (%s, {split}, '[]', '[]', 0, 10, 1, 0)")

    def open(self) -> None:
        """A split has one chunk open at the most; others may wait to be matched, in any order."""
        for split in self.left():
            mine = [ordinal for at, ordinal in self.states if at == split]
            if all(self.states[split, ordinal] != "open" for ordinal in mine):
                self.states[split, len(mine)] = "open"
                named = "workflow, split, ordinal, attempt, state, lower_bound, upper_bound, has_lower, opened_at"
                self.run(
                    f"INSERT INTO chunk ({named}) VALUES (%s, {split}, {len(mine)}, 1, 'open', '[]', '[]', 0, NOW(6))"
                )
                return

    def land(self) -> None:
        ago = self.chance.choice((-3600, *[3600] * 30))
        landed = (
            f"state='landed', rows_read={self.chance.randrange(9)}, millis=7, landed_at=NOW(6)-INTERVAL {ago} SECOND"
        )
        self.become("open", "landed", landed)

    def match(self) -> None:
        self.become("landed", "matched", "state='matched', matched_at=NOW(6)")

    def become(self, before: str, after: str, change: str) -> None:
        found = sorted(place for place, state in self.states.items() if state == before)
        if found:
            split, ordinal = self.chance.choice(found[:2])
            self.states[split, ordinal] = after
            self.run(f"UPDATE chunk SET {change} WHERE workflow=%s AND split={split} AND ordinal={ordinal}")

    def end(self) -> None:
        for split in self.left():
            mine = [state for (at, _), state in self.states.items() if at == split]
            if len(mine) > 8 and "open" not in mine:
                self.done.add(split)
                self.run(f"UPDATE split SET is_done=1 WHERE workflow=%s AND split={split}")
                return

    def left(self) -> list[int]:
        found = [split for split in self.splits if split not in self.done]
        self.chance.shuffle(found)
        return found

    def run(self, sql: str) -> None:
        for name in ("chunk", "split"):
            sql = sql.replace(f" {name} ", f" _vreplication.{name} ", 1)
        self.session.execute(sql, (self.workflow,))


@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_counting_all_gives(session: Session, seed: int) -> None:
    copy, counted, away = Copy(session, f"w{seed}", seed), Counting(f"w{seed}"), 0
    for _ in range(STEPS):
        copy.step()
        if copy.chance.random() < 0.5:
            assert counted.totals(session) == ledger.totals(session, copy.workflow)
            away = max(away, sum(split.upto for split in counted.splits.values()))
    assert away > 5, "nothing is put away"
    left = ledger.left(session, copy.workflow)
    totals = ledger.totals(session, copy.workflow)
    assert (left.splits, left.splits_done) == (totals.splits, totals.splits_done)
    assert left.chunks == totals.chunks_open + totals.chunks_landed
    assert Counting(copy.workflow).totals(session) == totals


def test_a_chunk_that_is_put_away_is_not_read_again(session: Session) -> None:
    """Else a table with a hundred thousand chunks would cost its server a tenth of a second, twice a second."""
    copy, counted = Copy(session, "w", 0), Counting("w")
    copy.cut()
    for _ in range(40):
        copy.open()
        copy.become("open", "landed", "state='landed', rows_read=1, landed_at=NOW(6)-INTERVAL 1 HOUR")
        copy.match()
    counted.totals(session)
    session.execute_raw("UPDATE _vreplication.chunk SET rows_read=100 WHERE workflow='w' AND ordinal < 40")
    assert counted.totals(session).rows_copied == 40


def test_the_last_match_is_found_among_all_splits(session: Session) -> None:
    copy = Copy(session, "w", 1)
    for _ in range(STEPS):
        copy.step()
    found = session.value("SELECT MAX(matched_at) FROM _vreplication.chunk WHERE workflow='w'")
    session.execute_raw("UPDATE _vreplication.chunk SET matched_at='2000-01-01' WHERE matched_at IS NOT NULL")
    session.execute_raw(
        "UPDATE _vreplication.chunk c JOIN (SELECT split, MAX(ordinal) o FROM _vreplication.chunk GROUP BY split) l "
        "ON l.split=c.split AND l.o=c.ordinal SET c.matched_at='2026-01-02 03:04:05' WHERE c.split=1"
    )
    assert found is not None
    assert str(ledger.last_matched(session, "w")) == "2026-01-02 03:04:05"
    assert ledger.last_matched(session, "none") is None
