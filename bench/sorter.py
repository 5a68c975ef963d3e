"""The sorter's engine, by itself: how fast, how much memory.

    .venv/bin/python -m bench.sorter

Small entries: 600,000 events of 240 bytes, keys of 32, in batches of 5,000. Fragments: as many rows, 4,000 an entry, as
catch-up writes them. Tables: 1,000,000 small entries of 100 and of 100,000 tables, with resolve, fetch and clean for
each; memory is the process's largest resident set. Sources: four streams, merged. RocksDB is measured too where the
package `rocksdict` is installed (it is no dependency).
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vreplication.binlog.events import RowChange
from vreplication.changes.encoding import encode_items
from vreplication.changes.sorter import DiskSorter, Entry, encode_key

EVENTS, BATCH, ROWS = 600_000, 5_000, 4_000
VALUE = b"v" * 240
CHANGE = RowChange(0, "123456789", ("123456789", "123456789,'name of the row number 123456789','12345678'"))


def small(tables: int, events: int = EVENTS) -> Iterator[Entry]:
    return (Entry(n % tables, n // tables + 1, n, 0, VALUE) for n in range(events))


def fragments() -> Iterator[Entry]:
    data = [CHANGE] * ROWS
    return (Entry(1, 0, 0, n, encode_items(data)) for n in range(EVENTS // ROWS))


def sqlite_engine(entries: Iterator[Entry], folder: Path) -> dict[str, float]:
    sorter = DiskSorter(folder)
    found = {}
    began = time.perf_counter()
    batch: list[Entry] = []
    for entry in entries:
        batch.append(entry)
        if len(batch) == BATCH:
            sorter.add(batch)
            batch = []
    sorter.add(batch)
    sorter.flush()
    found["write"] = time.perf_counter() - began
    began = time.perf_counter()
    count = sum(1 for table in range(100) for _ in sorter.read(table))
    found["scan"] = time.perf_counter() - began
    began = time.perf_counter()
    for table in range(100):
        sorter.clean(table, 1 << 60)
    sorter._delete()
    found["delete"] = time.perf_counter() - began
    assert count
    sorter.remove()
    return found


def rocks_engine(entries: Iterator[Entry], folder: Path) -> dict[str, float]:
    import rocksdict

    db = rocksdict.Rdict(str(folder / "rocks"), rocksdict.Options(raw_mode=True))
    found = {}
    began = time.perf_counter()
    batch, waiting = rocksdict.WriteBatch(raw_mode=True), 0
    for entry in entries:
        batch.put(encode_key(1, entry), entry.data)
        waiting += 1
        if waiting == BATCH:
            db.write(batch)
            batch, waiting = rocksdict.WriteBatch(raw_mode=True), 0
    db.write(batch)
    db.flush()
    found["write"] = time.perf_counter() - began
    began = time.perf_counter()
    assert sum(1 for _ in db.items())
    found["scan"] = time.perf_counter() - began
    began = time.perf_counter()
    db.delete_range(b"\x00" * 32, b"\xff" * 32)
    found["delete"] = time.perf_counter() - began
    db.close()
    return found


def in_process(work: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """What `work` returns, and the largest resident set of a process of its own, MiB."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(theirs, work, args))
    process.start()
    result = ours.recv()
    process.join()
    return result


def _run(pipe: Any, work: Callable[..., Any], args: Any) -> None:
    found = work(*args)
    pipe.send((found, peak_mib()))


def peak_mib() -> int:
    """Of this program alone: ru_maxrss begins at what the process was before it became this one."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024


def many_tables(tables: int, events: int, folder: str) -> float:
    """Write, then fetch and clean every table in ten rounds; seconds."""
    sorter = DiskSorter(Path(folder) / str(tables))
    began = time.perf_counter()
    rounds = 10
    each = events // rounds
    for number in range(rounds):
        first = number * each
        sorter.add(Entry(n % tables, n + 1, n, 0, VALUE) for n in range(first, first + each))
        upper = first + each
        count = 0
        for table in range(tables):
            sorter.resolve(table, upper)
            count += sum(1 for _ in sorter.fetch(table, first, upper))
            sorter.clean(table, upper + 1)
        assert count == each, count
    sorter.remove()
    return time.perf_counter() - began


def merge(folder: Path) -> float:
    """Four sources whose times interleave; entries a second."""
    sorter = DiskSorter(folder)
    sorter.add(Entry(n % 4, n * 7919 % 1_000_003 + 1, n, 0, VALUE) for n in range(400_000))
    for source in range(4):
        sorter.resolve(source, 1 << 60)
    began = time.perf_counter()
    last = count = 0
    for entry in sorter.merged(range(4), 0, 1 << 60):
        assert entry.time >= last
        last, count = entry.time, count + 1
    assert count == 400_000
    sorter.remove()
    return count / (time.perf_counter() - began)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-sorter-"))
    engines = {"SQLite": sqlite_engine}
    if importlib.util.find_spec("rocksdict"):
        engines["RocksDB"] = rocks_engine
    try:
        for shape, made in (("small entries", lambda: small(100)), ("fragments", fragments)):
            for name, engine in engines.items():
                place = folder / f"{name}-{shape.split()[0]}"
                place.mkdir()
                found = engine(made(), place)
                rates = ", ".join(f"{what} {EVENTS / s:,.0f} rows/s" for what, s in found.items())
                print(f"{shape:14} {name:8} {rates}", flush=True)
        for tables in (100, 100_000):
            seconds, peak = in_process(many_tables, tables, 1_000_000, str(folder))
            print(
                f"{tables:7,} tables: 1,000,000 entries in {seconds:.1f} s, largest resident set {peak} MiB", flush=True
            )
        print(f"merge of 4 sources: {merge(folder):,.0f} entries/s, in order")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
