"""Whom --force-cutover-after ends, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import pytest

from vreplication.cutover import force
from vreplication.cutover.blockers import METADATA_LOCK, OPEN_TRANSACTION, Blocker
from vreplication.cutover.force import Caps, Force
from vreplication.cutover.transactions import Transaction
from vreplication.mysql.processes import Process

CAPS = Caps(after_seconds=10, max_age_seconds=60, max_rows=5)


class Hand:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def blocker(**more: Any) -> Blocker:
    about = {"kind": METADATA_LOCK, "connection_id": 7, "user": "app", "host": "h", "age_seconds": 9.0}
    return Blocker(**{**about, "statement": "", "table": "s.t", **more})  # type: ignore[arg-type]


def process(user: str = "app", command: str = "Sleep") -> Process:
    return Process(id=7, user=user, host="h", schema="s", seconds=9.0, state="", statement="", command=command)


def trx(rows: int) -> dict[int, Transaction]:
    began = datetime(2026, 1, 1)
    found = Transaction(connection_id=7, began=began, age_seconds=9.0, keeps_snapshot=True, rows_modified=rows)
    return {7: found}


@pytest.mark.parametrize(
    ("found", "who", "open_ones", "prepared", "is_ended"),
    [
        (blocker(), process(), trx(5), [], True),
        (blocker(), process(), {}, [], True),
        (blocker(), process(), trx(6), [], False),
        (blocker(), process(), None, [], False),
        (blocker(), process(), {}, ["X'01'"], False),
        (blocker(age_seconds=61.0), process(), {}, [], False),
        (blocker(kind=OPEN_TRANSACTION, is_certain=False), process(), {}, [], False),
        (blocker(), None, {}, [], False),
        (blocker(), process(user="system user"), {}, [], False),
        (blocker(), process(user="repl", command="Binlog Dump GTID"), {}, [], False),
        (blocker(), process(user="us"), {}, [], False),
    ],
)
def test_who_is_ended(
    found: Blocker, who: Process | None, open_ones: dict[int, Transaction] | None, prepared: list[str], is_ended: bool
) -> None:
    assert (force._why_not(found, who, open_ones, prepared, CAPS, "us") == "") is is_ended


@pytest.mark.parametrize(
    ("readings", "is_ended"),
    [
        ([(0, ["blocked"]), (9, ["blocked"])], False),
        ([(0, ["blocked"]), (10, ["blocked"])], True),
        ([(0, ["blocked"]), (5, ["lag"]), (10, ["blocked"])], True),
        ([(0, ["blocked"]), (10, ["blocked", "lag"])], False),
        ([(0, ["blocked", "not_released"]), (10, ["blocked", "not_released"])], False),
        ([(0, ["blocked"]), (5, ["not_released"]), (10, ["blocked"])], False),
        ([(0, []), (10, [])], False),
    ],
)
def test_when(readings: list[tuple[float, list[str]]], is_ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing else is in the way, and the time that was asked for has gone by since."""
    ended: list[bool] = []
    monkeypatch.setattr(Force, "_end_all", lambda self: ended.append(True))
    clock = Hand()
    none = cast("Any", None)
    found = Force(caps=CAPS, server=none, row=none, session=none, own=none, notify=none, clock=clock)
    for at, codes in readings:
        clock.now = at
        found.note(codes)
    assert bool(ended) is is_ended
