"""Matcher, watermark and checkpoint as one, through any interleaving of transactions, branches, beats and restarts.

The server writes a log and is the truth; reader and applying thread go through it as `replicate` does, with a target
that is written as the applier writes it: rows and checkpoint in one transaction, in the middle of a giant one as well.
"""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.changes import put
from vreplication.binlog.events import Group, GroupKind, Position, RowChange
from vreplication.changes import stream, waiting
from vreplication.changes.channel import Channel
from vreplication.changes.matcher import Held, Matcher
from vreplication.changes.sorter import DiskSorter
from vreplication.changes.watermark import Watermark
from vreplication.engine import catch_up
from vreplication.mysql.server import Xid

BATCH = 3
XIDS = [Xid(1, b"a", b""), Xid(1, b"b", b"\xff"), Xid(7, b"", b"a")]
Rows = list[tuple[str, str]]


def place(index: int) -> Position:
    return Position.of("binlog.000001", index)


@dataclass(slots=True)
class Server:
    """log: each transaction as the parts in which it is read; written: what each of them commits, key and value."""

    log: list[list[Group]] = field(default_factory=list)
    written: list[Rows] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    branches: dict[Xid, Rows] = field(default_factory=dict)
    tick: int = 1
    """The log tells times rounded down to this: MariaDB's are whole seconds."""
    now: int = 1_000
    values: int = 0

    def rows(self, keys: list[int]) -> Rows:
        """Every value is another, so that each row in the target tells which transaction wrote it."""
        self.values += len(keys)
        return [(str(key), str(self.values - n)) for n, key in enumerate(keys)]

    def write(self, kind: GroupKind, parts: list[Rows], keep: int | None = None, xid: Xid | None = None) -> None:
        """keep: of all rows but those of the last part, how many a savepoint left."""
        early = [row for part in parts[:-1] for row in part]
        left = (early if keep is None else early[:keep]) + parts[-1]
        self._log(kind, parts, keep, xid)
        committed: Rows = []
        if kind is GroupKind.COMMIT:
            committed = left
        elif kind is GroupKind.XA_PREPARE and xid is not None:
            self.branches[xid] = left
        elif kind is not GroupKind.UNFINISHED and xid is not None:
            found = self.branches.pop(xid)
            committed = found if kind is GroupKind.XA_COMMIT else []
        self.written.append(committed)

    def beat(self) -> None:
        moment = f"1970-01-01 00:00:00.{self.now + 10:06}"
        row = RowChange(stream.GATE, None, {"beat": 1, "written_at": moment})
        self._log(GroupKind.COMMIT, [[]], None, None, row)
        self.written.append([])

    def _log(self, kind: GroupKind, parts: list[Rows], keep: int | None, xid: Xid | None, *more: RowChange) -> None:
        self.now += 10
        at, micros = len(self.log), self.now // self.tick * self.tick
        whole = Group(kind=kind, start=place(at), end=place(at + 1), time_micros=micros, items=[], nbytes=0, xid=xid)
        made = []
        for number, rows in enumerate(parts):
            items = [*(put(key, value) for key, value in rows), *more]
            made.append(replace(whole, items=items, nbytes=10 * len(items), is_last=False, end=whole.start))
            if number == len(parts) - 1:
                made[-1] = replace(made[-1], is_last=True, end=whole.end, keep=keep)
        self.log.append(made)
        self.times.append(self.now)

    def table(self, transactions: int) -> dict[str, str]:
        return dict(row for rows in self.written[:transactions] for row in rows)


@dataclass(slots=True)
class Target:
    """What is durable there: the rows, and the checkpoint that was saved with them."""

    rows: dict[str, str] = field(default_factory=dict)
    position: Position | None = None
    held: str = "[]"
    assigned: int = 0
    is_inside: bool = False
    """Rows of a transaction are there of which the checkpoint knows nothing."""


class Worker:
    """One round of `replicate`, with the applier's steps."""

    def __init__(self, server: Server, target: Target, home: Path, budget: int, watermark: Watermark) -> None:
        self.server, self.target, self.watermark = server, target, watermark
        self.sorter = DiskSorter(home)
        self.matcher = Matcher(is_strict=True, budget_bytes=budget, sorter=self.sorter)
        self.run = catch_up._Run(
            stop=threading.Event(), watermark=watermark, sorter=self.sorter, channel=Channel()
        )  # fmt: skip
        watermark.forget_queued()
        watermark.go_on_from(target.assigned)
        self.position = target.position
        self.unread = (self._restore().offset, 0)
        server.beat()
        self.start, self.is_fresh = place(len(server.log)), False
        self.queue: list[Group] = []
        self.batch: Rows = []
        self.time: int | None = None
        self.beat: int | None = None
        self.taken: int | None = None

    def _restore(self) -> Position:
        if self.position is None:
            return place(0)
        held = [Held.of(fields) for fields in json.loads(self.target.held)]
        start = self.matcher.restore(held, self.position)
        for branch in held:
            self.watermark.track(branch.xid)
        return start

    def read(self) -> bool:
        """One part."""
        index, part = self.unread
        if index >= len(self.server.log):
            return False
        group = self.server.log[index][part]
        catch_up._note_read(group, self.run)
        self.queue.append(group)
        self.unread = (index + 1, 0) if group.is_last else (index, part + 1)
        return True

    def apply(self) -> bool:
        if not self.queue:
            return False
        for group in catch_up._matched(self.matcher, self.queue.pop(0), self.run):
            self.take(group)
        return True

    def take(self, group: Group) -> None:
        if self.time is None:
            self.time = self.watermark.begin(group.time_micros)
        for item in group.items:
            if item.table == stream.FIRST:
                self.batch.append(item.after)
            elif item.after is not None:
                self.beat = catch_up.beat_micros(item.after)
        if group.is_last:
            self.position = group.end
            self.taken = self.watermark.took(self.time, self.beat)
            self.time = self.beat = None
        if len(self.batch) >= BATCH:
            self.flush()

    def flush(self) -> None:
        if self.batch:
            self.target.rows.update(self.batch)
            self.target.is_inside = self.time is not None
            self.save()
            self.watermark.applied_changes(len(self.batch))
            self.batch = []
        if self.taken is not None:
            self.watermark.resolve(self.taken)
            self.taken = None
            self.is_fresh = self.is_fresh or (self.position is not None and self.position >= self.start)

    def save(self) -> None:
        """With rows, or when idle; as the applier nothing before the first whole transaction."""
        if self.position is None:
            return
        self.target.position, self.target.assigned = self.position, self.watermark.assigned
        self.target.held = json.dumps([branch.fields() for branch in self.matcher.held()])

    def save_idle(self) -> None:
        """Only of what is new: on the way from a missing branch to the checkpoint the branch would be forgotten."""
        if not self.batch and self.time is None and self.position != self.target.position:
            self.save()


def check(server: Server, target: Target, worker: Worker, before: int) -> int:
    """Returns the newest time up to which all is said to be applied."""
    saved = target.position.offset if target.position else 0
    committed = {value for rows in server.written for _, value in rows}
    assert set(target.rows.values()) <= committed, "a row is there that was not committed"
    if not target.is_inside:
        assert target.rows == server.table(saved)
    reading = worker.watermark.reading(server.now)
    resolved = reading.resolved_micros
    if resolved is None:
        return before
    assert resolved <= (reading.received_micros or 0)
    for time, rows in zip(server.times[saved:], server.written[saved:], strict=True):
        assert resolved < time or not rows, "something at or below resolved is not applied"
    if not worker.is_fresh:
        # What was written before our start comes first; until then nobody is told how far we are.
        return before
    assert resolved >= before, "resolved went back"
    return resolved


def write(server: Server, data: st.DataObject) -> None:
    free = [xid for xid in XIDS if xid not in server.branches]
    acts = ["commit", "commit", "beat", "unfinished", *["prepare"] * bool(free), *["end"] * (2 * bool(server.branches))]
    act = data.draw(st.sampled_from(acts))
    if act == "beat":
        server.beat()
    elif act == "end":
        xid = data.draw(st.sampled_from(sorted(server.branches)))
        server.write(data.draw(st.sampled_from([GroupKind.XA_COMMIT, GroupKind.XA_ROLLBACK])), [[]], xid=xid)
    else:
        sizes = st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=3)
        parts = [server.rows(keys) for keys in data.draw(sizes)]
        early = sum(map(len, parts[:-1]))
        keep = data.draw(st.none() | st.integers(0, early)) if len(parts) > 1 else None
        kinds = {"commit": GroupKind.COMMIT, "unfinished": GroupKind.UNFINISHED, "prepare": GroupKind.XA_PREPARE}
        xid = data.draw(st.sampled_from(free)) if act == "prepare" else None
        server.write(kinds[act], parts, keep, xid)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_what_comes_out_is_what_was_committed_whatever_happens(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("spool")
    budget = data.draw(st.sampled_from([20, 10_000]))
    server, target, resolved = Server(tick=data.draw(st.sampled_from([1, 50]))), Target(), 0
    with mock.patch.object(waiting, "PART_ROWS", 2):
        worker = Worker(server, target, home, budget, Watermark())
        for _ in range(data.draw(st.integers(5, 60))):
            act = data.draw(st.sampled_from(["write", "read", "read", "apply", "apply", "flush", "save", "restart"]))
            if act == "write":
                write(server, data)
            elif act == "read":
                worker.read()
            elif act == "apply":
                worker.apply()
            elif act == "flush":
                worker.flush()
            elif act == "save":
                worker.save_idle()
            elif act == "restart":
                worker = restarted(worker, home, budget, data)
            resolved = check(server, target, worker, resolved)
        while worker.read() or worker.apply():
            resolved = check(server, target, worker, resolved)
        worker.flush()
        check(server, target, worker, resolved)
        assert target.rows == server.table(len(server.log))
        assert worker.watermark.reading(server.now).backlog == 0
        assert {branch.xid for branch in worker.matcher.held()} == set(server.branches)
        worker.sorter.remove()


def restarted(worker: Worker, home: Path, budget: int, data: st.DataObject) -> Worker:
    """Of the process, or of a round in it; with what was put aside, or without."""
    worker.sorter.close()
    if data.draw(st.booleans()):
        shutil.rmtree(home)
        home.mkdir()
    watermark = worker.watermark if data.draw(st.booleans()) else Watermark()
    watermark.server_time(worker.server.now)
    return Worker(worker.server, worker.target, home, budget, watermark)
