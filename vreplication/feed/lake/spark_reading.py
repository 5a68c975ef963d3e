"""What a lake's table was at a time: of each row the last change up to then, what was deleted left out.

    from vreplication.feed.lake.spark_reading import read_table
    frame = read_table(spark, "/data/lake", "shop.orders")                      # as of the newest manifest
    frame = read_table(spark, "/data/lake", "shop.orders", as_of="2026-11-24T12:00:00Z")

Rows of files with other columns are shown in those of that time: a renamed column's under its new name, what a file
does not have as NULL.

What must stay true: only files that a manifest names are read; a time is one up to which all of the source's
transactions are there whole, or it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from vreplication.errors import Refused
from vreplication.feed.lake import types
from vreplication.feed.lake.manifest import Alter, Column, File, Manifest, Store, Table, Version
from vreplication.feed.lake.spark_files import OP, SEQ, T

_OURS = f"{OP} STRING, {T} BIGINT, {SEQ} BIGINT"
TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of a writer of text: by default it would cut off microseconds."""
# Names beside a table's own: no column's name ends with a space, neither on MySQL nor on MariaDB.
_RANK, _COUNT, _SO_FAR = "`vr_rank `", "`vr_count `", "`vr_so_far `"
# The D and the U of one UPDATE have one time and number. Where Spark takes both keys for one (0.0 and -0.0) the row is
# there.
_IS_LATER = f"struct({T}, {SEQ}, {OP} <> 'D')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table as of a time, in one manifest. alters: statements whose effect on rows of before may not be shown."""

    manifest: Manifest
    table: Table
    at: int
    alters: tuple[Alter, ...] = ()


def read_table(spark: Any, directory: str | Path, table: str, as_of: int | str | datetime | None = None) -> Any:
    """A DataFrame of the table's rows. as_of: microseconds since 1970, or ISO 8601. Raises Refused."""
    store = Store(Path(directory))
    return state(spark, store, find(store.open(), table, as_of))


def read_changes(spark: Any, directory: str | Path, table: str, as_of: int | str | datetime | None = None) -> Any:
    """A DataFrame of all changes that the lake still holds, with _vr_op (I, U, D), _vr_t and _vr_seq."""
    store = Store(Path(directory))
    return all_changes(spark, store, find(store.open(), table, as_of))


def find(manifest: Manifest, table: str, as_of: int | str | datetime | None = None) -> Snapshot:
    """Raises Refused."""
    at = manifest.watermark if as_of is None else microseconds(as_of)
    if at > manifest.watermark:
        raise Refused(
            f"The lake has come to {shown(manifest.watermark)}, not yet to {shown(at)}.",
            cure="Ask for an earlier time.",
        )
    if at < manifest.horizon:
        raise Refused(
            f"The lake was folded: what was before {shown(manifest.horizon)} can no longer be told.",
            cure="Ask for a later time.",
        )
    schema, _, name = table.partition(".")
    found = manifest.find(schema, name, at)
    if found is None:
        raise Refused(f"The lake has no table {table} at {shown(at)}.", cure="vreplication lake-read lists its tables.")
    if not found.versions:
        raise Refused(f"No row of {table} has come up to {shown(at)}, so its columns are not known.")
    # Without a row of before there is nothing that it can have changed.
    alters = tuple(each for each in found.alters if each.t <= at and any(file.first < each.t for file in found.files))
    return Snapshot(manifest=manifest, table=found, at=at, alters=alters)


def microseconds(as_of: int | str | datetime) -> int:
    """Raises Refused."""
    if isinstance(as_of, int):
        return as_of
    try:
        if isinstance(as_of, str) and as_of.isdigit():
            return int(as_of)
        given = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    except ValueError:
        raise Refused(f"{as_of!r} is no time.", cure="Use microseconds since 1970, or 2026-11-24T12:00:00Z.") from None
    given = given if given.tzinfo else given.replace(tzinfo=UTC)
    since = given - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def shown(t: int) -> str:
    """A time of the lake."""
    try:
        return datetime.fromtimestamp(t // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{t % 1_000_000:06}Z"
    except (ValueError, OverflowError, OSError):
        return str(t)


def state(spark: Any, store: Store, snapshot: Snapshot) -> Any:
    """Rows without our columns."""
    version = _version(snapshot.table, snapshot.at)
    rows = folded(spark, store, snapshot.table, snapshot.at)
    return rows.select(*(types.quoted(column.name) for column in version.columns))


def all_changes(spark: Any, store: Store, snapshot: Snapshot) -> Any:
    """Changes up to then, with our columns, in the columns of then."""
    table, at = snapshot.table, snapshot.at
    return changes(spark, store, table, table.files, _version(table, at), at)


def lines(frame: Any) -> Any:
    """Each row as a JSON object, in the column `line`."""
    given = {"ignoreNullFields": "false", **TIMES}.items()
    words = ", ".join(f"{types.literal(name)}, {types.literal(value)}" for name, value in given)
    return frame.selectExpr(f"to_json(struct(*), map({words})) AS line")


def folded(spark: Any, store: Store, table: Table, at: int) -> Any:
    """Rows that are there at a time, each as its last change, with our columns. Raises Refused."""
    # By stretches of one key: which change of a row is its last is told by the key of then, not by that of now.
    (before, files), *more = _epochs(table, at)
    found = _last(changes(spark, store, table, files, before, at), before)
    for version, files in more:
        here = changes(spark, store, table, files, version, at)
        found = _last(_moved(found, table, before, version).unionByName(here), version)
        before = version
    return _moved(found, table, before, _version(table, at))


def has_state(table: Table, at: int) -> bool:
    """False: `folded` refuses it."""
    try:
        return not table.versions or bool(_epochs(table, at))
    except Refused:
        return False


def _last(rows: Any, version: Version) -> Any:
    """Of each row the last change; of what has no key as many as there are."""
    if version.key:
        keys = (column for column in version.columns if column.name in version.key)
        by = ", ".join(types.identity(each.kind, each.type, types.quoted(each.name)) for each in keys)
        ranked = rows.selectExpr("*", f"row_number() OVER (PARTITION BY {by} ORDER BY {_IS_LATER} DESC) AS {_RANK}")
        return ranked.filter(f"{_RANK} = 1 AND {OP} <> 'D'").selectExpr(OP, T, SEQ, *_names(version))
    return _counted(rows, _names(version))


def _names(version: Version) -> list[str]:
    return [types.quoted(column.name) for column in version.columns]


def _counted(rows: Any, names: Sequence[str]) -> Any:
    """Of what has no key as many as there are: what came, less what went."""
    by, signed = ", ".join(names), f"sum(IF({OP} = 'D', -1, 1))"
    until = f"OVER (PARTITION BY {by} ORDER BY {_IS_LATER} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    # Below zero at a time: so many were there before the feed, whose INSERT the lake has not. What comes behind that is
    # there. Counted at the end alone, it would be taken for one that went, and a fold, which forgets those, show it.
    least = f"least(0, min({_SO_FAR}))"
    counted = (
        rows.selectExpr("*", f"{signed} {until} AS {_SO_FAR}")
        .groupBy(*names)
        .agg(*map(_expr, (f"{signed} - {least} AS {_COUNT}", f"max({T}) AS {T}", f"max({SEQ}) AS {SEQ}")))
    )
    repeated = counted.filter(f"{_COUNT} > 0").selectExpr("*", f"explode(sequence(1, {_COUNT})) AS {_RANK}")
    return repeated.selectExpr(f"'I' AS {OP}", T, SEQ, *names)


def changes(spark: Any, store: Store, table: Table, files: Iterable[File], target: Version, at: int) -> Any:
    """All changes of these files up to a time, in the columns of a version."""
    by_version: dict[int, list[str]] = {}
    for file in files:
        if file.first <= at:
            by_version.setdefault(file.version, []).append(store.path(file.path))
    parts = [
        _moved(_read(spark, table.version(v), paths), table, table.version(v), target)
        for v, paths in by_version.items()
    ]
    if not parts:
        return _none(spark, target)
    return reduce(lambda a, b: a.unionByName(b), parts).filter(f"{T} <= {at}")


def _read(spark: Any, version: Version, paths: list[str]) -> Any:
    # Given, for Spark would start a job that looks into the files for it.
    columns = ", ".join(f"{types.quoted(column.name)} {column.type}" for column in version.columns)
    return spark.read.schema(f"{_OURS}, {columns}").parquet(*paths)


def _none(spark: Any, version: Version) -> Any:
    """No rows. Not out of Python, for which Spark would start workers."""
    ours = ((OP, "STRING"), (T, "BIGINT"), (SEQ, "BIGINT"))
    columns = [*ours, *((column.name, column.type) for column in version.columns)]
    nulls = ", ".join(f"CAST(NULL AS {type}) AS {types.quoted(name)}" for name, type in columns)
    return spark.sql(f"SELECT {nulls} WHERE FALSE")


def _moved(rows: Any, table: Table, old: Version, new: Version) -> Any:
    """In the columns of a later version."""
    if old == new:
        return rows
    return rows.selectExpr(OP, T, SEQ, *(_column(table, old, new, column) for column in new.columns))


def _column(table: Table, old: Version, new: Version, column: Column) -> str:
    source = _source(table, old, new, column.name)
    name = types.quoted(column.name)
    if source is None:
        return f"CAST(NULL AS {column.type}) AS {name}"
    before = next(each for each in old.columns if each.name == source)
    return f"{types.converted(types.quoted(source), before.type, column.type)} AS {name}"


def _source(table: Table, old: Version, new: Version, name: str) -> str | None:
    """What a column was called in an older version; None: it was not there."""
    between = [each for each in table.versions if old.number < each.number <= new.number]
    for version in reversed(between):
        found = version.sources.get(name)
        if found is None:
            return None
        name = found
    # A file of a later version than the one that is asked for: as it is called there.
    return name if any(column.name == name for column in old.columns) else None


def _version(table: Table, at: int) -> Version:
    """The last one up to a time."""
    found = [each for each in table.versions if each.t <= at]
    return found[-1] if found else table.versions[0]


def _epochs(table: Table, at: int) -> list[tuple[Version, list[File]]]:
    """Files by stretches of versions with one key, each with the last version of it. Raises Refused."""
    wanted = _version(table, at)
    found: list[tuple[Version, list[File]]] = []
    for version in table.versions:
        files = [file for file in table.files if file.version == version.number and file.first <= at]
        if version.number > wanted.number:
            break
        if not found or not any(before for _, before in found):
            found = [(version, files)]
        elif _has_key_of(table, found[-1][0], version):
            found[-1] = version, [*found[-1][1], *files]
        else:
            found.append((version, files))
    return found


def _has_key_of(table: Table, old: Version, new: Version) -> bool:
    """Rows of both are told apart by the same columns, whatever they are called. Raises Refused."""
    sources = [_source(table, old, new, name) for name in new.key]
    if set(sources) == set(old.key) and new.key and old.key:
        return True
    if not new.key and not old.key:
        return False
    if any(source is None for source in sources):
        raise Refused(
            f"The key {', '.join(new.key)} of the table was added at {shown(new.t)}: its values of rows that were there"
            " are in no log.",
            cure="Read an earlier time, or the changes (--changes).",
        )
    return False


def _expr(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)
