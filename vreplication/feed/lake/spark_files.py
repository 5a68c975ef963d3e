"""Rows of a feed as files of a lake: which tables and columns they have, and their values in Spark's types.

An UPDATE is what the row became, under `U`; where it changed the key, or where there is none, what it was goes before
it as `D`. All of it is done by Spark, table by table; only names, types and counts come here.

What must stay true: a file counts only once a manifest names it, and is synced before; a value that a column's type
would not hold exactly makes the type wider, and the file is written again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from vreplication.errors import Terminal
from vreplication.feed.lake import types
from vreplication.feed.lake.ddl import Catalog, Statement, has_unread_alter, is_rename
from vreplication.feed.lake.manifest import TABLES, Column, File, Store, Table, Version, sync, told

OP, T, SEQ = "_vr_op", "_vr_t", "_vr_seq"
OURS = frozenset({OP, T, SEQ})
_CELLS = "MAP<STRING, STRUCT<type: STRING, value: STRING, unique: BOOLEAN>>"
# Jackson, which reads JSON for Spark, takes no text of more than 20,000,000 letters by default.
_JSON = "map('maxStringLen', '2147483647')"
# Compared as they were sent: both images are of one definition, so the same value is the same text.
_KEYS = "transform(filter(map_entries(v.`{0}`), e -> e.value.unique), e -> e.value.value)"
_IS_OTHER = f"size({_KEYS.format('before')}) = 0 OR {_KEYS.format('before')} <> {_KEYS.format('update')}"
_RECORDS = (
    "filter(array("
    f"IF(v.`before` IS NOT NULL AND coalesce({_IS_OTHER}, TRUE), struct('D' AS op, v.`before` AS img), NULL),"
    "CASE WHEN v.`delete` IS NOT NULL THEN struct('D' AS op, v.`delete` AS img)"
    " WHEN v.`before` IS NULL THEN struct('I' AS op, v.`update` AS img)"
    " ELSE struct('U' AS op, v.`update` AS img) END), r -> r IS NOT NULL)"
)
_LAYOUT = (
    "transform(map_entries({0}), e -> struct(e.key AS k, e.value.type AS y, coalesce(e.value.unique, FALSE) AS u))"
)
# A record without an op, which is counted as wrong: without any record `inline` would leave the row out, silently.
_UNREADABLE = "array(struct(CAST(NULL AS STRING) AS op, v.`update` AS img))"
_SAID = (
    *("any_value(img) AS img", "min(t) AS first", "max(t) AS last"),
    *("count(*) AS count", "count_if(op IS NULL) AS wrong"),
)
_ROWS_A_FILE = 500_000


class _Cell(msgspec.Struct):
    k: str
    y: str
    u: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Rows of one name, between two DDL, that look the same. at: how many DDL are before them."""

    schema: str
    name: str
    at: int
    looks: int
    cells: tuple[_Cell, ...]
    first: int
    last: int
    count: int

    @property
    def where(self) -> str:
        return (
            f"s = {types.literal(self.schema)} AND tb = {types.literal(self.name)}"
            f" AND at = {self.at} AND looks = {self.looks}"
        )


def _group(said: Any) -> _Group:
    """Raises Terminal."""
    if said.wrong:
        raise Terminal(
            f"A row of time {said.first} cannot be read: parts of it are missing, or the topic is not of"
            " protocol open.",
            cure="A lake is made of a topic of protocol open.",
        )
    cells = tuple(msgspec.json.decode(said.cells, type=list[_Cell]))
    where = {"schema": said.s, "name": said.tb, "at": said.at, "looks": said.looks}
    return _Group(**where, cells=cells, first=said.first, last=said.last, count=said["count"])


class Files:
    """Writes what a batch has to say into a catalog.

    check: called before each statement is run. check_rows: with a table's name, before a new version of it has rows.
    """

    def __init__(
        self,
        spark: Any,
        store: Store,
        work: Path,
        catalog: Catalog,
        *,
        check: Callable[[Catalog, Statement], None] = lambda catalog, statement: None,
        check_rows: Callable[[str, Table, Version], None] = lambda name, table, version: None,
    ) -> None:
        self._spark, self._store, self._work, self._catalog = spark, store, work, catalog
        self._check, self._check_rows = check, check_rows

    def write(self, rows: Any | None, statements: Sequence[Statement]) -> None:
        """Rows as of Staging.rows, and the DDL between them. Raises Terminal."""
        with self._records(rows, statements) as records:
            groups = [] if records is None else self._groups(records)
            for at in range(len(statements) + 1):
                for group in groups:
                    if group.at == at:
                        self._write(records, group)
                if at < len(statements):
                    self._check(self._catalog, statements[at])
                    self._catalog.run(statements[at])

    @contextlib.contextmanager
    def _records(self, rows: Any | None, statements: Sequence[Statement]) -> Iterator[Any | None]:
        if rows is None:
            yield None
            return
        times = ", ".join(f"{each.t}L" for each in statements)
        at = f"size(filter(array({times}), x -> x < t))" if times else "0"
        read = rows.selectExpr(
            *("t", "seq", "missing", f"from_json(key, 'schema STRING, `table` STRING', {_JSON}) AS k"),
            f"from_json(cast(value AS STRING), 'update {_CELLS}, before {_CELLS}, delete {_CELLS}', {_JSON}) AS v",
        )
        wrong = "missing <> 0 OR k.`table` IS NULL OR (v.`update` IS NULL AND v.`delete` IS NULL)"
        changes = read.selectExpr(
            *("t", "seq", "k.`schema` AS s", "k.`table` AS tb", f"{at} AS at"),
            f"IF(coalesce({wrong}, TRUE), {_UNREADABLE}, {_RECORDS}) AS rs",
        )
        records = changes.selectExpr("t", "seq", "s", "tb", "at", "inline(rs)").selectExpr(
            "*", f"xxhash64({_LAYOUT.format('img')}) AS looks"
        )
        # Read once to find the groups, and once again for each of them.
        records = records.persist()
        try:
            yield records
        finally:
            records.unpersist()

    def _groups(self, records: Any) -> list[_Group]:
        found = records.groupBy("s", "tb", "at", "looks").agg(*map(_expr, _SAID))
        shown = found.selectExpr("*", f"to_json({_LAYOUT.format('img')}) AS cells").drop("img").collect()
        return sorted(map(_group, shown), key=lambda group: (group.at, group.first))

    def _write(self, records: Any, group: _Group) -> None:
        pair = group.schema, group.name
        number = self._catalog.of_rows(*pair)
        if number is None:
            # What no statement has told of was there before the feed: it has its name for all of the lake's time.
            known = any((each.schema, each.name) == pair for each in self._catalog.names)
            number = self._catalog.begin(*pair, group.first if known else 0, rows=pair)
        table = self._catalog.tables[number]
        version = _version(table, group)
        if version not in table.versions:
            self._check_rows(f"{group.schema}.{group.name}", table, version)
        # It ends: each type that is missed gets wider, and a string misses nothing.
        while True:
            files, missed = self._try(records.filter(group.where), table.folder, version, group)
            if not missed:
                break
            version = replace(
                version, number=_next(table), t=group.first, columns=missed, sources=_same(version, table)
            )
        versions = table.versions if version in table.versions else (*table.versions, version)
        self._catalog.tables[number] = replace(table, versions=versions, files=(*table.files, *files))

    def _try(
        self, rows: Any, folder: str, version: Version, group: _Group
    ) -> tuple[list[File], tuple[Column, ...] | None]:
        """Files; or the columns with wider types, and no files."""
        from pyspark.sql import Observation

        texts = {column.name: f"img[{types.literal(column.name)}].value" for column in version.columns}
        wanted = [f"op AS {OP}", f"t AS {T}", f"seq AS {SEQ}"]
        wanted += [f"{types.value(c.kind, c.type, texts[c.name])} AS {types.quoted(c.name)}" for c in version.columns]
        looks = list(_looks(version, texts))
        # Counted while the files are written, so that the rows are gone through once.
        seen = Observation()
        if looks:
            rows = rows.observe(seen, *map(_expr, looks))
        # Else there would be a file for each of Spark's partitions, most of them of a few rows.
        tasks = 1 + (group.count - 1) // _ROWS_A_FILE
        written = self.save(rows.coalesce(tasks).selectExpr(*wanted), folder, "w")
        wider = _wider(version, seen.get) if looks else None
        if wider is not None:
            # No manifest names them; the next run would remove them as strays, but this one may be long.
            for path in written:
                with told(self._store.directory / path):
                    os.unlink(self._store.path(path))
            return [], wider
        return self.described(written, version.number, (group.count, group.first, group.last)), None

    def save(self, frame: Any, folder: str, letter: str) -> list[str]:
        """Write it; paths of synced files that no manifest names yet."""
        out = self._work / f"out-{secrets.token_hex(8)}"
        frame.write.parquet(str(out), compression="zstd")
        place = self._store.directory / TABLES / folder
        with told(place):
            place.mkdir(exist_ok=True)
            found = []
            for part in sorted(out.glob("*.parquet")):
                path = place / f"{letter}-{secrets.token_hex(12)}.parquet"
                os.rename(part, path)
                sync(path)
                found.append(str(path.relative_to(self._store.directory)))
            # What Spark writes beside them (checksums, _SUCCESS) would stay as long as this run does.
            shutil.rmtree(out, ignore_errors=True)
            # The table's folder may be new, and its own name is on the disk only when the folder above it is.
            for each in (place, place.parent):
                sync(each)
        return found

    def described(self, paths: list[str], version: int, whole: tuple[int, int, int] | None = None) -> list[File]:
        """whole: rows, first and last of all of them, which is asked of Spark otherwise."""
        if whole is not None and len(paths) == 1:
            return [self._file(paths[0], version, *whole)]
        if not paths:
            return []
        # Our column alone: a table's own may be called `_metadata`.
        read = self._spark.read.schema(f"{T} BIGINT").parquet(*map(self._store.path, paths))
        read = read.selectExpr("_metadata.file_name AS f", T)
        asked = read.groupBy("f").agg(*map(_expr, ("count(*) AS c", f"min({T}) AS a", f"max({T}) AS b"))).collect()
        told = {each.f: (each.c, each.a, each.b) for each in asked}
        found = [(path, told.get(os.path.basename(path))) for path in paths]
        return [self._file(path, version, *said) for path, said in found if said is not None]

    def _file(self, path: str, version: int, rows: int, first: int, last: int) -> File:
        nbytes = os.path.getsize(self._store.path(path))
        return File(path=path, version=version, rows=rows, nbytes=nbytes, first=first, last=last)


def _expr(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def _next(table: Table) -> int:
    return 1 + max((each.number for each in table.versions), default=0)


def _same(version: Version, table: Table) -> dict[str, str]:
    """As `version` follows from the table's last one, which may be itself."""
    return {c.name: c.name for c in version.columns} if version in table.versions else version.sources


def _version(table: Table, group: _Group) -> Version:
    """One that the table has, where rows of the group look so; else one that follows its last."""
    # Spark tells names that differ in case alone no more apart than MySQL does.
    if ours := [cell.k for cell in group.cells if cell.k.lower() in OURS]:
        raise Terminal(f"{group.schema}.{group.name} has a column {min(ours)}, a name that a lake needs for itself.")
    key = tuple(cell.k for cell in group.cells if cell.u)
    last = table.versions[-1] if table.versions else None
    shown = _shown(table, last, group, key)
    for version in _alike(table, key):
        if tuple((c.name, c.kind) for c in version.columns) == shown:
            return version
    known = {column.name: column for column in last.columns} if last else {}
    return Version(
        number=_next(table),
        t=group.first,
        columns=tuple(Column(name=k, kind=y, type=_type(known.get(k), y)) for k, y in shown),
        key=key,
        sources={k: k for k, _ in shown if k in known},
    )


def _shown(table: Table, last: Version | None, group: _Group, key: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """(column, kind). What no ALTER has dropped stays: rows without it are of a source that does not have it yet."""
    own = {cell.k: cell.y for cell in group.cells}
    names = {column.name for column in last.columns} if last else set[str]()
    if last is None or last.key != key or not own.keys() < names or has_unread_alter(table):
        return tuple(own.items())
    return tuple((column.name, own.get(column.name, column.kind)) for column in last.columns)


def _alike(table: Table, key: tuple[str, ...]) -> Iterator[Version]:
    """Of the last version and those before it with the same columns those of the key.

    Each of several sources may have its own types, and for a while its own key.
    """
    other: Version | None = None
    for version in reversed(table.versions):
        if version.key != key:
            other = version
        elif other is not None and _is_changed_back(table, version, other):
            return
        else:
            yield version
        if version.sources != {column.name: column.name for column in table.versions[-1].columns}:
            return


def _is_changed_back(table: Table, before: Version, other: Version) -> bool:
    """The key is again what it was before another one: under that version its rows would come before the other's."""
    # One that has not changed its key yet, of several sources, is told by nothing, or by what the others have run.
    told = {each.sql for each in table.alters if before.t < each.t <= other.t and not is_rename(each)}
    return any(each.t > other.t and each.sql not in told for each in table.alters)


def _type(before: Column | None, kind: str) -> str:
    return before.type if before is not None and before.kind == kind else types.first_type(kind)


def _looks(version: Version, texts: dict[str, str]) -> Iterator[str]:
    """SQL that counts what a type does not hold."""
    for at, column in enumerate(version.columns):
        text = texts[column.name]
        misses = types.misses(column.kind, column.type, text)
        if misses:
            yield f"count_if({misses}) AS m{at}"
            if column.kind == "Decimal":
                yield f"max({types.whole(text)}) AS w{at}"
                yield f"max({types.fraction(text)}) AS f{at}"


def _wider(version: Version, seen: dict[str, Any]) -> tuple[Column, ...] | None:
    if not any(value for name, value in seen.items() if name.startswith("m")):
        return None
    found = []
    for at, column in enumerate(version.columns):
        if seen.get(f"m{at}"):
            whole, fraction = seen.get(f"w{at}") or 0, seen.get(f"f{at}") or 0
            wider = types.wider(column.kind, column.type, whole=whole, fraction=fraction)
            found.append(replace(column, type=wider))
        else:
            found.append(column)
    return tuple(found)
