"""Makes few files of many, and folds history: what rows were before a time is given up, what they were then is kept.

It may run beside the process that fills the lake. Files that it replaces stay for a while, for readers who have begun
with an older manifest, and are removed by a later compaction.

What must stay true: a table's state at every time from the horizon on is the same before and after; a manifest names
either the old files or the new ones; a file is removed only when no manifest has named it for the time that is kept.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vreplication.errors import Refused
from vreplication.feed.lake.ddl import Catalog
from vreplication.feed.lake.manifest import WORK, File, Manifest, Retired, Store, Table, told
from vreplication.feed.lake.spark_files import Files, T
from vreplication.feed.lake.spark_reading import changes, folded, has_state, shown
from vreplication.pausepoints import reach

_SMALL_BYTES = 64 << 20
_ROWS_A_FILE = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What came of it. files_before, files_after: of all tables; removed: files that no manifest names any more."""

    number: int
    files_before: int
    files_after: int
    removed: int
    horizon: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What takes the place of files of a table."""

    gone: tuple[str, ...]
    files: tuple[File, ...]


def compact(
    store: Store, spark: Callable[[], Any], *, fold_before: int | None = None, keep_seconds: float = 3600.0
) -> Compacted:
    """fold_before: give up what was before. Raises Refused, Terminal."""
    # First of all without the lock, whose file is made in the lake's own folder.
    store.open()
    with store.alone("compaction", "Another process compacts the lake in"):
        manifest = store.open()
        _check(manifest, fold_before)
        removed = _remove_old(store, keep_seconds)
        # Files of its own letter alone: those of the filler may belong to a batch that is being written now.
        store.remove_strays("c", manifest)
        for left in (store.directory / WORK).glob("compact-*"):
            shutil.rmtree(left, ignore_errors=True)
        made = _Compaction(store, spark, store.open(), fold_before).run()
        return replace(made, removed=removed)


def _check(manifest: Manifest, fold_before: int | None) -> None:
    if fold_before is not None and fold_before > manifest.watermark:
        raise Refused(
            f"The lake has come to {shown(manifest.watermark)}, not yet to {shown(fold_before)}.",
            cure="Fold up to an earlier time.",
        )


def _remove_old(store: Store, keep_seconds: float) -> int:
    """Files first named no more, then removed: who dies in between leaves strays."""
    until = time.time() - keep_seconds
    old = {each.path for each in store.open().retired if each.at <= until}
    if not old:
        return 0

    def change(newest: Manifest) -> Manifest:
        return replace(newest, retired=tuple(each for each in newest.retired if each.path not in old))

    store.commit(change)
    reach("lake.compact.before_removal")
    for path in old:
        # A filler that begins just now may have taken it for a stray.
        with told(store.directory / path), contextlib.suppress(FileNotFoundError):
            (store.directory / path).unlink()
    return len(old)


class _Compaction:
    def __init__(self, store: Store, spark: Callable[[], Any], manifest: Manifest, fold_before: int | None) -> None:
        self._store, self._start, self._manifest = store, spark, manifest
        self._session: Any = None
        self._horizon = max(manifest.horizon, fold_before or 0)
        self._is_folding = self._horizon > manifest.horizon
        self._work = store.directory / WORK / f"compact-{secrets.token_hex(6)}"

    @property
    def _spark(self) -> Any:
        """Started when the first file has to be read."""
        self._session = self._session or self._start()
        return self._session

    def run(self) -> Compacted:
        # Only with history: a table that was dropped can be read as of before.
        dead = self._dead() if self._is_folding else set()
        try:
            made = {n: self._table(t) for n, t in self._manifest.tables.items() if n not in dead}
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        changed = {number: each for number, each in made.items() if each is not None}
        before = _count(self._manifest)
        number, after = self._manifest.number, before
        if changed or dead or self._is_folding:
            done = self._store.commit(
                lambda newest: self._changed(newest, changed, dead), reach=lambda: reach("lake.compact.before_manifest")
            )
            number, after = done.number, _count(done)
            reach("lake.compact.after_manifest")
        return Compacted(number=number, files_before=before, files_after=after, removed=0, horizon=self._horizon)

    def _dead(self) -> set[int]:
        """Tables that had no name any more at the horizon."""
        live = {each.table for each in self._manifest.names if each.until > self._horizon}
        return set(self._manifest.tables) - live

    def _table(self, table: Table) -> _Made | None:
        old = [file for file in table.files if self._is_folding and file.first <= self._horizon]
        if not has_state(table, self._horizon):
            # Its changes stay: they are all that tells its rows.
            old = []
        folded_ones = self._fold(table, old) if old else []
        gone = {file.path for file in old}
        merged, merged_gone = self._merge(table, [file for file in table.files if file.path not in gone])
        if not folded_ones and not merged and not gone:
            return None
        return _Made(gone=(*gone, *merged_gone), files=(*folded_ones, *merged))

    def _fold(self, table: Table, old: list[File]) -> list[File]:
        """What was there at the horizon, and what these files say of later."""
        at = self._horizon
        found = self._written(table, folded(self._spark, self._store, table, at), _version_at(table, at))
        # Behind the horizon each change stays one, in the columns that it has.
        for version in {file.version for file in old if file.last > at}:
            files = [file for file in old if file.version == version]
            rows = changes(self._spark, self._store, table, files, table.version(version), self._manifest.watermark)
            found += self._written(table, rows.filter(f"{T} > {at}"), version)
        return found

    def _merge(self, table: Table, files: list[File]) -> tuple[list[File], list[str]]:
        """Small ones of a version, where there are several."""
        made: list[File] = []
        gone: list[str] = []
        for version in sorted({file.version for file in files}):
            small = [file for file in files if file.version == version and file.nbytes < _SMALL_BYTES]
            # One alone would be written anew by each compaction, and be as small.
            if len(small) < 2:
                continue
            upto = max(file.last for file in small)
            rows = changes(self._spark, self._store, table, small, table.version(version), upto)
            made += self._written(table, rows, version, sum(file.rows for file in small))
            gone += [file.path for file in small]
        return made, gone

    def _written(self, table: Table, rows: Any, version: int, count: int | None = None) -> list[File]:
        files = Files(self._spark, self._store, self._work, Catalog(self._manifest))
        # How many rows a fold leaves is not known, and to count them would be to do it twice.
        if count is not None:
            rows = rows.coalesce(1 + count // _ROWS_A_FILE)
        paths = files.save(rows, table.folder, "c")
        found = files.described(paths, version)
        # A file without a row has no times by which a manifest could list it.
        for path in set(paths) - {file.path for file in found}:
            with told(self._store.directory / path):
                (self._store.directory / path).unlink()
        return found

    def _changed(self, newest: Manifest, made: dict[int, _Made], dead: set[int]) -> Manifest:
        tables = {}
        gone = [file.path for number in dead for file in newest.tables[number].files]
        for number, table in newest.tables.items():
            if number in dead:
                continue
            change = made.get(number)
            if change is not None:
                # Files that the filler has added meanwhile stay.
                kept = tuple(file for file in table.files if file.path not in change.gone)
                table = replace(table, files=(*change.files, *kept))
                gone += change.gone
            tables[number] = table
        now = time.time()
        return replace(
            newest,
            horizon=max(newest.horizon, self._horizon),
            tables=tables,
            names=tuple(name for name in newest.names if name.table in tables),
            retired=(*newest.retired, *(Retired(path=path, at=now) for path in gone)),
        )


def _version_at(table: Table, at: int) -> int:
    found = [each.number for each in table.versions if each.t <= at]
    return found[-1] if found else table.versions[0].number


def _count(manifest: Manifest) -> int:
    return sum(len(table.files) for table in manifest.tables.values())
