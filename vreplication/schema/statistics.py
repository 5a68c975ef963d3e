"""Statistics that a person has had collected: histograms on MySQL, the engine-independent ones on MariaDB.

Both belong to the table and not to its name: RENAME takes them along to the retired table, and a table that is made
LIKE another has none. So they are collected anew on the new table.

What must stay true: only what the source has is collected, of columns and indexes that live on, under their new names
and with the same settings; what is there already is left alone; reading needs no more than SELECT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vreplication.mysql.quoting import idents, qualified, text
from vreplication.mysql.session import NO_SUCH_TABLE, Session, SqlError
from vreplication.schema.literals import GEOMETRIES
from vreplication.schema.model import Column, Key, Table, TableMapping

STAT_TABLES = ("table_stats", "column_stats", "index_stats")
_NO_HISTOGRAM = "histogram_size=0"
_WITHOUT = {True: GEOMETRIES | {"tinyblob", "blob", "mediumblob", "longblob"}, False: GEOMETRIES | {"json", "vector"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """columns: the settings of each, as SQL. has_rows: the number of rows is kept too (MariaDB)."""

    columns: dict[str, str] = field(default_factory=dict)
    indexes: frozenset[str] = frozenset()
    has_rows: bool = False

    def __bool__(self) -> bool:
        return bool(self.columns or self.indexes or self.has_rows)

    def without(self, other: Statistics) -> Statistics:
        columns = {name: settings for name, settings in self.columns.items() if name not in other.columns}
        return Statistics(
            columns=columns, indexes=self.indexes - other.indexes, has_rows=self.has_rows and not other.has_rows
        )


def collected(session: Session, schema: str, table: str, *, is_mariadb: bool) -> Statistics | None:
    """What has been collected for the table; None: that cannot be read, for want of a grant as a rule."""
    try:
        return _persistent(session, schema, table) if is_mariadb else _histograms(session, schema, table)
    except SqlError as error:
        # Where the server has no such tables nothing can have been collected. Any other refusal is passed on as not
        # known, and the plan warns: taken for none, statistics would stay behind without a word.
        return Statistics() if error.code == NO_SUCH_TABLE else None


def _histograms(session: Session, schema: str, table: str) -> Statistics:
    found = session.rows(
        """SELECT column_name, histogram->>'$."number-of-buckets-specified"', histogram->>'$."auto-update"' """
        f"FROM information_schema.column_statistics WHERE schema_name={text(schema)} AND table_name={text(table)}"
    )
    updated = {"true": " AUTO UPDATE"}
    settings = {str(name): f"WITH {int(count)} BUCKETS{updated.get(auto, '')}" for name, count, auto in found}
    return Statistics(columns=settings)


def _persistent(session: Session, schema: str, table: str) -> Statistics:
    where = f"WHERE db_name={text(schema)} AND table_name={text(table)}"
    columns = session.rows(f"SELECT column_name, hist_size, hist_type FROM mysql.column_stats {where}")
    indexes = session.rows(f"SELECT DISTINCT index_name FROM mysql.index_stats {where}")
    return Statistics(
        columns={_text(name): _size(size, kind) for name, size, kind in columns},
        indexes=frozenset(_text(name) for (name,) in indexes),
        has_rows=session.row(f"SELECT 1 FROM mysql.table_stats {where}") is not None,
    )


def _size(size: object, kind: object) -> str:
    return f"histogram_size={int(str(size))}, histogram_type='{_text(kind)}'" if size else _NO_HISTOGRAM


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def carried(found: Statistics, mapping: TableMapping, *, is_mariadb: bool) -> Statistics:
    """What of the source's is to be collected for the target, by its names."""
    names, sizes = _new_names(mapping), sorted(set(found.columns.values()) - {_NO_HISTOGRAM})
    columns = {}
    for name, settings in found.columns.items():
        column = names.get(name.lower())
        if column and _can_have(mapping.target, column, is_mariadb):
            # MariaDB makes no histogram of such a column, whatever the settings: one scan of the table less.
            is_spared = settings == _NO_HISTOGRAM and sizes and _is_alone_unique(mapping.target, column)
            columns[column.name] = sizes[0] if is_spared else settings
    indexes = {key.name for name in found.indexes if (key := _heir(mapping, names, name))}
    return Statistics(columns=columns, indexes=frozenset(indexes), has_rows=found.has_rows)


def lost(found: Statistics, mapping: TableMapping, *, is_mariadb: bool) -> list[str]:
    """Columns of the source whose statistics the new definition has no place for."""
    names = _new_names(mapping)
    kept = carried(found, mapping, is_mariadb=is_mariadb).columns
    return sorted(n for n in found.columns if (new := names.get(n.lower())) is None or new.name not in kept)


def _new_names(mapping: TableMapping) -> dict[str, Column]:
    """Of each column that lives on, in lower case; generated ones are in no pair, and keep their names."""
    generated = {column.name.lower(): column for column in mapping.target.columns if column.generated}
    return generated | {p.source.name.lower(): p.target for p in mapping.pairs if not p.is_constant}


def _can_have(target: Table, column: Column, is_mariadb: bool) -> bool:
    """MySQL makes no histogram where a unique index says it all."""
    return column.data_type not in _WITHOUT[is_mariadb] and (is_mariadb or not _is_alone_unique(target, column))


def _is_alone_unique(target: Table, column: Column) -> bool:
    return any(key.is_unique and key.columns == (column.name,) and not key.has_expression for key in target.keys)


def _heir(mapping: TableMapping, names: dict[str, Column], name: str) -> Key | None:
    """The target's index of that name, or of the same columns."""
    by_name = {key.name.lower(): key for key in mapping.target.keys}
    before = next((key for key in mapping.source.keys if key.name.lower() == name.lower()), None)
    columns = [names[c.lower()].name for c in before.columns if c.lower() in names] if before else []
    alike = (key for key in mapping.target.keys if before and list(key.columns) == columns and columns)
    return by_name.get(name.lower()) or next(alike, None)


def statements(wanted: Statistics, target: Table, *, is_mariadb: bool) -> Iterator[str]:
    """SQL that collects them. Logged, as ANALYZE is: replicas switch, too."""
    table, indexes = qualified(target.schema, target.name), idents(sorted(wanted.indexes))
    # As few as there can be: MariaDB reads the whole table for each, 5 s for three columns of 1,000,000 rows.
    for settings in sorted(set(wanted.columns.values())):
        columns = idents(name for name, own in wanted.columns.items() if own == settings)
        if is_mariadb:
            yield f"SET STATEMENT {settings} FOR {_for(table, columns, indexes)}"
            # With the first statement alone: with each further one the indexes would be scanned again.
            indexes = ""
        else:
            yield f"ANALYZE TABLE {table} UPDATE HISTOGRAM ON {columns} {settings}"
    if is_mariadb and (indexes or (wanted.has_rows and not wanted.columns)):
        yield _for(table, "", indexes)


def _for(table: str, columns: str, indexes: str) -> str:
    return f"ANALYZE TABLE {table} PERSISTENT FOR COLUMNS ({columns}) INDEXES ({indexes})"
