"""The sorter: order, bounds, what survives, what is deleted, and what a full disk says."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.small_disk import small_disk_at
from vreplication.changes import sorter as module
from vreplication.changes.sorter import DiskSorter, Entry, encode_key
from vreplication.errors import Terminal


@pytest.fixture
def sorter(tmp_path: Path) -> Iterator[DiskSorter]:
    made = DiskSorter(tmp_path)
    yield made
    made.remove()


def entry(table: int = 1, time: int = 1, group: int = 1, number: int = 0, data: bytes = b"x") -> Entry:
    return Entry(table, time, group, number, data)


def test_the_key_is_what_it_has_always_been() -> None:
    """Golden: a file written by one release is read by the next."""
    key = encode_key(0x01020304, Entry(5, 1_700_000_000_000_000, 6, 7, b""))
    assert key.hex() == "01020304000000000000000500060a24181e4000000000000000000600000007"


@given(st.lists(st.tuples(*[st.integers(0, 2**n - 1) for n in (64, 64, 64, 32)]), max_size=20))
def test_keys_sort_as_their_numbers(fields: list[tuple[int, int, int, int]]) -> None:
    entries = [Entry(*numbers, b"") for numbers in fields]
    assert sorted(entries, key=lambda e: encode_key(1, e)) == sorted(entries, key=lambda e: e[:4])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_fetch_gives_what_was_added_in_order(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = st.builds(
        Entry, st.integers(0, 3), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3), st.binary(max_size=4)
    )
    entries = data.draw(st.lists(made, max_size=60, unique_by=lambda e: e[:4]))
    lower, upper = sorted((data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))))
    sorter = DiskSorter(tmp_path_factory.mktemp("spool"))
    sorter.add(entries)
    for table in range(4):
        sorter.resolve(table, 9)
    for table in range(4):
        expected = sorted(e for e in entries if e.table == table and lower <= e.time <= upper)
        assert list(sorter.fetch(table, lower, upper)) == expected
    merged = list(sorter.merged(range(4), lower, upper))
    within = [e for e in entries if lower <= e.time <= upper]
    assert merged == sorted(within, key=lambda e: (e.time, e.group, e.number, e.table))
    sorter.clean(1, upper)
    sorter._delete()
    assert sorter.stats().entries == sum(1 for e in entries if e.table != 1 or e.time >= upper)
    sorter.remove()


def test_nothing_is_fetched_above_what_is_resolved(sorter: DiskSorter) -> None:
    sorter.add([entry(time=1), entry(time=3)])
    sorter.resolve(1, 2)
    assert [e.time for e in sorter.fetch(1, 0, 2)] == [1]
    with pytest.raises(Terminal, match="not complete"):
        sorter.fetch(1, 0, 3)
    sorter.resolve(1, 1)
    assert [e.time for e in sorter.fetch(1, 0, 2)] == [1]


def test_what_comes_too_late_is_an_error(sorter: DiskSorter) -> None:
    sorter.resolve(1, 5)
    with pytest.raises(Terminal, match="after everything up to then"):
        sorter.add([entry(time=5)])
    sorter.add([entry(table=2, time=5)])


def test_insert_then_delete_and_update_then_delete_keep_their_order(sorter: DiskSorter) -> None:
    """Of one key in one transaction: the number in the group decides, never the kind of the change."""
    acts = [b"insert", b"delete", b"update", b"delete"]
    sorter.add(entry(number=n, data=act) for n, act in reversed(list(enumerate(acts))))
    assert [e.data for e in sorter.read(1)] == acts


def test_a_merge_leaves_the_tables_of_a_transaction_as_they_were_written(sorter: DiskSorter) -> None:
    """Golden: commit time, then transaction, then number in it. The table comes first in the key of the file, because
    tables are fetched one by one, and nowhere in the order of a merge: a parent's number may be above its child's."""
    log = [entry(2, 5, 1, 0), entry(1, 5, 1, 1), entry(2, 5, 1, 2), entry(1, 5, 2, 0), entry(3, 6, 1, 0)]
    sorter.add(reversed(log))
    for table in range(1, 4):
        sorter.resolve(table, 9)
    assert list(sorter.merged((1, 2, 3), 0, 9)) == log


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")
def test_what_is_long_is_not_read_to_find_or_weigh_others(sorter: DiskSorter) -> None:
    """A value of 60 MB is an entry of 120 MB: every search in the file came by it."""
    long = os.urandom(1 << 20) * 24
    sorter.add([entry(table=table, data=b"short" if table == 3 else long) for table in range(1, 6)])
    for table in range(1, 6):
        sorter.resolve(table, 1)
    sorter.flush()
    before = _bytes_read()
    assert [found.data for found in sorter.fetch(3, 0, 1)] == [b"short"]
    for table in range(1, 3):
        sorter.clean(table, 2)
    assert _bytes_read() - before < 1 << 20


def _bytes_read() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def test_ranges_are_deleted_together(sorter: DiskSorter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLEAN_EVERY", 3)
    sorter.add(entry(table=t, time=1) for t in range(3))
    sorter.clean(0, 2)
    sorter.clean(1, 2)
    assert len(list(sorter.read(0))) == 1
    sorter.clean(2, 2)
    assert sorter.stats().entries == 0
    assert sorter.stats().nbytes == 0


@pytest.mark.parametrize("is_one_held", [False, True])
def test_the_file_does_not_grow_over_many_applied_spills(
    sorter: DiskSorter, monkeypatch: pytest.MonkeyPatch, is_one_held: bool
) -> None:
    """Its room is used again, and given back when nothing is left; a branch that is open is not touched."""
    monkeypatch.setattr(module, "_CLEAN_BYTES", 1 << 20)
    if is_one_held:
        sorter.add([entry(table=1000, data=b"held")])
    most = 0
    for table in range(1, 21):
        sorter.add(entry(table=table, number=n, data=os.urandom(256 << 10)) for n in range(16))
        assert sum(len(e.data) for e in sorter.read(table)) == 4 << 20
        sorter.clean(table, 2)
        most = max(most, sorter.stats().disk_bytes)
    assert most < 32 << 20
    assert sorter.stats().entries == int(is_one_held)
    assert [e.data for e in sorter.read(1000)] == [b"held"] * is_one_held
    if not is_one_held:
        assert sorter.stats().disk_bytes < 1 << 20


def test_branches_that_were_open_together_are_deleted_one_by_one(
    sorter: DiskSorter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLEAN_BYTES", 1 << 20)
    for table in range(5):
        sorter.add(entry(table=table, number=n, data=os.urandom(256 << 10)) for n in range(4))
    for table in range(5):
        sorter.clean(table, 2)
        assert sorter.stats().entries == 4 * (4 - table)


def test_what_was_flushed_survives_the_process_and_can_be_copied(tmp_path: Path) -> None:
    first = DiskSorter(tmp_path)
    first.add([entry(table=7, number=n, data=bytes([n])) for n in range(5)])
    first.flush()
    # Not closed: as after a SIGKILL.
    second = DiskSorter(tmp_path)
    assert second.copy(first.name, 7, 9) == 5
    assert [e.data for e in second.read(9)] == [bytes([n]) for n in range(5)]
    assert second.copy("00000000", 7, 10) == 0
    assert second.copy("../../etc", 7, 10) == 0
    second.flush()
    second.forget_others()
    assert [p.name for p in tmp_path.iterdir()] == [second.name]
    first.close()
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_another_pythons_file_is_not_read(tmp_path: Path) -> None:
    first = DiskSorter(tmp_path)
    first.add([entry()])
    first.flush()
    first._db.execute("UPDATE about SET value='0/0/2.7'")
    first._db.commit()
    first.close()
    assert DiskSorter(tmp_path).copy(first.name, 1, 1) == 0


def garbage(file: Path) -> None:
    file.write_bytes(os.urandom(file.stat().st_size))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def changed(file: Path) -> None:
    """A page that never reached the disk, in the middle of the rows: SQLite itself notices nothing."""
    data = bytearray(file.read_bytes())
    found = data.index(b"\x03" * 1000)
    data[found : found + 1000] = bytes(1000)
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [garbage, cut, empty, changed])
def test_what_a_crash_of_the_machine_has_damaged_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    """It counts as lost, and the log is read again; it is no error of this run's own file."""
    first = DiskSorter(tmp_path)
    first.add([entry(table=7, number=n, data=bytes([n]) * 200_000) for n in range(5)])
    first.flush()
    first.close()
    damage(first._file)
    second = DiskSorter(tmp_path)
    assert second.copy(first.name, 7, 9) < 5
    assert "damaged" in caplog.text
    second.add([entry(table=1)])
    second.flush()
    second.forget_others()
    assert [p.name for p in tmp_path.iterdir()] == [second.name]
    second.remove()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "small", 3) as place:
        yield place


def fill(sorter: DiskSorter) -> None:
    for number in range(9):
        sorter.add([entry(number=number, data=os.urandom(1 << 20))])
        sorter.flush()


def test_a_full_disk_is_told_with_its_place(small_disk: Path) -> None:
    sorter = DiskSorter(small_disk)
    with pytest.raises(Terminal, match=r"cannot be put aside .*small.*VREPLICATION_SPOOL") as error:
        fill(sorter)
    assert "full" in str(error.value)
    sorter.close()


def test_an_error_of_the_disk_is_told(sorter: DiskSorter) -> None:
    sorter._db.close()
    with pytest.raises(Terminal, match="cannot be put aside"):
        sorter.add([entry(data=b"x" * module._BATCH_BYTES)])
    sorter._db = sqlite3.connect(":memory:")


def test_the_files_are_ours_alone(sorter: DiskSorter) -> None:
    assert sorter._folder.stat().st_mode & 0o077 == 0
    assert sorter._file.stat().st_mode & 0o077 == 0
