"""Which tables a feed follows, and how their rows are decoded: by what the log itself says of each table.

The log's own description (binlog_row_metadata=FULL) is right for the rows behind it, whatever became of the table
since. The server knows more (MariaDB's own types): where its definition of today fits the description,
it is taken.

What must stay true: a table of ours, a shadow or a retired table is never sent; a key column is never left out.
"""

from __future__ import annotations

import fnmatch
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vreplication import names
from vreplication.binlog.control import TableMap
from vreplication.binlog.definitions import Definition, only
from vreplication.binlog.described import Described, columns_of, described, label_collations, may_be_null, real_type
from vreplication.binlog.layout import fits
from vreplication.binlog.watch import Watch
from vreplication.errors import Refused, SourceChanged, Transient
from vreplication.feed.layout import Distinct, Layout, distinct_of, make_layout
from vreplication.feed.values import Decode, PlainRow, decoder, decoders
from vreplication.mysql.quoting import ident
from vreplication.mysql.remark import read_remark
from vreplication.mysql.server import is_mariadb
from vreplication.mysql.session import QUERY_KILLED, Session, SqlError, is_passing
from vreplication.schema.introspect import introspect
from vreplication.schema.model import Column, Key, Table
from vreplication.settings import SIDECAR

log = logging.getLogger(__name__)

_OWN_TYPES = {"uuid": 16, "inet6": 16, "inet4": 4}
_BINARY_COLLATION = 63
_TOLD = frozenset({1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 245, 246, 247, 248, 252, 253, 254})
"""Types that the log describes whole: numbers, times, text, bytes, labels, JSON."""
_TEXTUAL = frozenset({15, 252, 253, 254})
"""Types of text and of bytes."""
SYSTEM = frozenset({"mysql", "sys", "information_schema", "performance_schema", SIDECAR})
_METADATA = "Run SET GLOBAL binlog_row_metadata=FULL on the source, and start the feed again behind that place."


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """tables, exclude: patterns of `schema.table`, as of a shell. columns: table pattern → columns that are sent."""

    tables: tuple[str, ...] = ("*.*",)
    exclude: tuple[str, ...] = ()
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def has(self, schema: str, table: str) -> bool:
        if schema in SYSTEM or names.is_ours(table):
            return False
        return _matches(schema, table, self.tables) and not _matches(schema, table, self.exclude)

    def has_schema(self, schema: str) -> bool:
        """Some table of it may be sent."""
        return schema not in SYSTEM and any(
            fnmatch.fnmatchcase(schema, pattern.rpartition(".")[0]) for pattern in self.tables
        )

    def has_all_of(self, schema: str) -> bool:
        """Each of its tables, whatever it is called."""
        patterns = (pattern.rpartition(".") for pattern in self.tables)
        excluded = (pattern.rpartition(".")[0] for pattern in self.exclude)
        is_whole = any(table == "*" and fnmatch.fnmatchcase(schema, of) for of, _, table in patterns)
        return is_whole and not any(fnmatch.fnmatchcase(schema, of) for of in excluded)

    def chosen(self, name: str) -> int | None:
        """Which entry of `columns` decides about a table: the first whose pattern matches."""
        return next((at for at, (pattern, _) in enumerate(self.columns) if fnmatch.fnmatchcase(name, pattern)), None)

    def sent(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> tuple[Column, ...]:
        at = self.chosen(name)
        if at is None:
            return tuple(columns)
        # As the servers tell columns apart, whatever the spelling: RENAME COLUMN may change that, too.
        wanted = {column.lower() for column in self.columns[at][1]}
        return tuple(column for column in columns if column.name.lower() in wanted or column.name in key)


def _matches(schema: str, table: str, patterns: Sequence[str]) -> bool:
    """Schema and table apart: either name may hold a dot."""
    parts = (pattern.rpartition(".") for pattern in patterns)
    return any(fnmatch.fnmatchcase(schema, of) and fnmatch.fnmatchcase(table, name) for of, _, name in parts)


def parse_columns(given: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """`shop.orders:id,total` → its columns. Raises Refused."""
    found = []
    for text in given:
        pattern, colon, rest = text.partition(":")
        columns = tuple(name.strip() for name in rest.split(",") if name.strip())
        if not colon or "." not in pattern or not columns:
            raise Refused(f"Columns {text!r} are not valid.", cure="Use schema.table:column,column.")
        found.append((pattern, columns))
    return tuple(found)


@dataclass(slots=True)
class Tables:
    """The catalog of one source. connect: opens a session when a definition is to be looked up.

    first: number of its first layout, where a feed has several sources. is_asking: the server is asked of each table,
    also of those that the log tells whole: for unique keys, and for layouts that are the same from both.
    """

    filter: Filter
    connect: Callable[[], Session]
    first: int = 0
    is_asking: bool = False
    layouts: list[Layout] = field(default_factory=list)
    _by_name: dict[str, list[Layout]] = field(default_factory=dict)
    _known: dict[tuple[object, ...], Watch] = field(default_factory=dict)
    _decoders: dict[str, Decode] = field(default_factory=dict)
    _collations: dict[int, str] = field(default_factory=dict)
    _session: Session | None = None
    _is_mariadb: bool | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def layout(self, number: int) -> Layout:
        return self.layouts[number - self.first]

    # As the reader's catalog.

    def watch(self, found: TableMap) -> Watch | None:
        """Raises SourceChanged where the log does not describe the table."""
        # Before all else: rows of other tables may be logged without the names of their columns.
        if not self.filter.has(found.schema, found.table):
            return None
        if self._is_mariadb is None:
            self._is_mariadb = is_mariadb(self.session)
        said = described(found, is_mariadb=self._is_mariadb)
        if said is None:
            raise SourceChanged(
                f"The log does not name the columns of {found.schema}.{found.table}, so its rows cannot be told.",
                cure=_METADATA,
            )
        shape = (found.schema, found.table, found.types, found.metadata, found.described)
        if shape not in self._known:
            self._known[shape] = self._new_watch(found, said)
        return self._known[shape]

    def defined(self, found: Definition) -> tuple[Definition, ...]:
        """The statement, where it is about what is followed; of a cut-over of ours the ALTERs that it stands for.

        Else what our own workflows do around a table is theirs alone. Of several tables that are dropped or renamed the
        others are not named: what has their names on a target is its own.
        """
        if not any(names.is_ours(table) for _, table in found.tables):
            return (only(found, self._has),) if self._follows(found) else ()
        if found.verb == "RENAME" and (altered := _altered(found)):
            return tuple(each for each in altered if self._follows(each))
        # A followed table is another one now, or gone, and the text is all that can be said of it.
        theirs = tuple(pair for pair in found.tables if not names.is_ours(pair[1])) if found.verb == "DROP" else ()
        concerned = found.replaced or theirs
        is_sent = concerned and self._follows(replace(found, tables=concerned))
        return (only(found, self._has),) if is_sent else ()

    def _follows(self, found: Definition) -> bool:
        """One of its tables is sent, or may be."""
        if not found.tables:
            return self.filter.has_schema(found.schema)
        return any(map(self._has, found.tables))

    def _has(self, name: tuple[str, str]) -> bool:
        ((schema, table),) = self.stored([name])
        return self.filter.has(schema, table) if table else self.filter.has_schema(schema)

    def stored(self, tables: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """Names of a statement as the server stores them, and as its log says them of rows."""
        return [(schema.lower(), table.lower()) for schema, table in tables] if self.is_folded else tables

    @property
    def is_folded(self) -> bool:
        """The server stores names in lower case, or takes them for the same."""
        return bool(self.session.lasting("folded", lambda: int(self.session.value("SELECT @@lower_case_table_names"))))

    def redefined(self, tables: Sequence[tuple[str, str]]) -> None:
        """A DDL that names these tables has been read: what is known of them may hold no more."""
        for schema, table in self.stored(tables):
            # The log may describe the table as before and mean something else: a MariaDB UUID is bytes to it, like the
            # BINARY(16) that it was, and it tells no unique keys beside the first.
            for shape in [shape for shape in self._known if shape[0] == schema and table in ("", shape[1])]:
                del self._known[shape]

    # Layouts.

    def _new_watch(self, found: TableMap, said: Described) -> Watch:
        is_told = not self.is_asking and tells_all(found, said)
        table = None if is_told else self._now(found.schema, found.table)
        is_fit = table is not None and self._fits(table, found, said)
        columns = table.columns if table is not None and is_fit else self._told_columns(table, found, said)
        keys = table.keys if table is not None and is_fit else ()
        layout = self._layout_of(found, said, columns, keys, _distinct(table, said.names))
        sent = layout.columns
        self._learn_charsets({column.charset for column in sent if column.charset})
        return Watch(
            number=layout.number,
            schema=found.schema,
            table=found.table,
            columns=tuple(columns),
            codec=PlainRow(ordinals=tuple(column.ordinal for column in sent), decoders=self._decoders),
            hidden=len(found.types) - len(columns),
            unsent=frozenset(column.ordinal for column in columns if column not in sent),
        )

    def _layout_of(
        self,
        found: TableMap,
        said: Described,
        columns: tuple[Column, ...],
        keys: Sequence[Key],
        distinct: tuple[Distinct, ...] | None,
    ) -> Layout:
        """The key is the one that the log tells: the primary one, or the first that is unique and has no NULLs."""
        key = tuple(said.names[place] for place in said.key)
        unique = tuple(k.columns for k in keys if k.is_unique and not k.has_expression)
        whole = Layout(
            number=0,
            schema=found.schema,
            table=found.table,
            columns=columns,
            key=key or tuple(column.name for column in columns),
            unique=unique or ((key,) if key else ()),
            has_key=bool(key),
            is_primary=bool(key),
            distinct=distinct,
        )
        return self._registered(without(whole, self.filter.sent(whole.name, columns, key)))

    def layout_now(self, table: Table) -> Layout:
        """Of a table as the server defines it, for rows that are read from it. From any thread."""
        made = make_layout(0, table)
        unique = tuple(k.columns for k in table.keys if k.is_unique and not k.has_expression)
        distinct = _distinct(table, [column.name for column in table.columns])
        whole = replace(made, unique=unique or made.unique, is_primary=made.has_key, distinct=distinct)
        key = whole.key if whole.has_key else ()
        return self._registered(without(whole, self.filter.sent(whole.name, table.columns, key)))

    def _registered(self, layout: Layout) -> Layout:
        """The one that is known already, or this one with a number."""
        # The thread of a snapshot comes here as well.
        with self._lock:
            for known in self._by_name.setdefault(layout.name, []):
                # Formats compile their writers by a layout's number: a definition that comes back finds its own again.
                if replace(layout, number=known.number) == known:
                    return known
            made = replace(layout, number=self.first + len(self.layouts))
            self._by_name[layout.name].append(made)
            self.layouts.append(made)
            return made

    def _told_columns(self, table: Table | None, found: TableMap, said: Described) -> tuple[Column, ...]:
        """As the log tells them. Of MariaDB's own types it tells bytes; a namesake of today knows better."""
        session = self.session
        told = columns_of(found, said, self._collation, lambda charset: decoder(session, charset))
        now = {column.name: column for column in table.columns} if table is not None else {}
        return tuple(_with_own_type(column, now.get(column.name), found) for column in told)

    def _now(self, schema: str, table: str) -> Table | None:
        """As the server defines it by now; None: it is gone, or cannot be read. Raises Transient."""
        try:
            return introspect(self.session, schema, table)
        except Refused:
            return None
        except SqlError as error:
            # What is said here stays until the next DDL: rows of a table that is there would be told by the log alone.
            if error.code == QUERY_KILLED:
                raise Transient(f"A query for the definition of {schema}.{table} was killed ({error.code}).") from error
            return None

    @property
    def session(self) -> Session:
        if self._session is None or not self._session.is_alive():
            # Decoders ask by the session that they were made with.
            self._session = self.connect()
            self._decoders.clear()
        return self._session

    def _learn_charsets(self, charsets: set[str]) -> None:
        missing = charsets - self._decoders.keys()
        if missing:
            self._decoders.update(decoders(self.session, missing))

    def _fits(self, table: Table, found: TableMap, said: Described) -> bool:
        """Today's definition says nothing else than the log of these rows. Hidden columns stand behind."""
        # MariaDB has a hidden column for each UNIQUE key over a BLOB, and says HASH of that key.
        hidden = sum(key.index_type == "HASH" for key in table.keys)
        if len(table.columns) + hidden != len(found.types):
            return False
        now = tuple(column.name for column in table.columns)
        collations = said.collations | label_collations(found)
        return now == said.names[: len(now)] and all(
            self._is_same(column, found, said, collations.get(place)) for place, column in enumerate(table.columns)
        )

    def _is_same(self, column: Column, found: TableMap, said: Described, collation: int | None) -> bool:
        place = column.ordinal - 1
        if not fits(column, *real_type(found.types[place], found.metadata[place])):
            return False
        if column.is_nullable != may_be_null(found, place):
            return False
        # The log has a bit for a YEAR among those of unsigned numbers; a definition says nothing of it.
        if column.data_type != "year" and column.is_unsigned != (place in said.unsigned):
            return False
        if not self._is_collated(column, real_type(found.types[place], found.metadata[place])[0], collation):
            return False
        told = said.labels.get(place)
        return told is None or tuple(map(decoder(self.session, column.charset or "utf8mb4"), told)) == column.labels

    def _is_collated(self, column: Column, kind: int, told: int | None) -> bool:
        """Bytes and text have one type in the log; by their collation alone it tells CHAR from BINARY."""
        if kind in _TEXTUAL:
            return self._collation(_BINARY_COLLATION if told is None else told) == (column.collation or "binary")
        return told is None or not column.collation or self._collation(told) == column.collation

    def _collation(self, id: int) -> str:
        if not self._collations:
            self._collations.update(_all_collations(self.session))
        if id not in self._collations:
            raise SourceChanged(f"The log names collation {id}, which the server does not know.")
        return self._collations[id]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def _altered(found: Definition) -> tuple[Definition, ...]:
    """What a cut-over says that it has done to each of its tables."""
    return tuple(
        Definition(
            verb="ALTER",
            what="TABLE",
            schema=each.schema,
            sql=f"ALTER TABLE {ident(each.table)} {each.clauses}",
            tables=((each.schema, each.table),),
            moment=each.moment,
        )
        for each in read_remark(found.sql)
    )


def _distinct(table: Table | None, names: Sequence[str]) -> tuple[Distinct, ...] | None:
    """Those of today's keys that may have been there when the row was written. What has gone since is not known."""
    # Rows of such a key (MariaDB) are in one another's way where they overlap, which no equal values show.
    if table is None or "WITHOUT OVERLAPS" in table.create_sql:
        return None
    found = distinct_of(table.keys)
    return tuple(key for key in found if {name for name, _ in key}.issubset(names))


def tells_all(found: TableMap, said: Described) -> bool:
    """The log alone says what a feed needs, so that the server need not be asked for each of very many tables.

    It does not tell ZEROFILL, which is unsigned, kinds of geometry, and MariaDB's types that look like BINARY.
    """
    if said.unsigned:
        return False
    for place, (kind, meta) in enumerate(map(real_type, found.types, found.metadata)):
        is_bytes = said.collations.get(place, _BINARY_COLLATION) == _BINARY_COLLATION
        if kind not in _TOLD or (kind == 254 and is_bytes and meta & 0xFF in _OWN_TYPES.values()):
            return False
    return True


def without(layout: Layout, sent: tuple[Column, ...]) -> Layout:
    """With fewer columns. A table without a key is told apart by those that are left."""
    if len(sent) == len(layout.columns):
        return layout
    there = {column.name for column in sent}
    return replace(
        layout,
        columns=sent,
        key=layout.key if layout.has_key else tuple(column.name for column in sent),
        unique=tuple(key for key in layout.unique if there.issuperset(key)),
    )


def _with_own_type(told: Column, now: Column | None, found: TableMap) -> Column:
    size = _OWN_TYPES.get(now.data_type) if now is not None else None
    _, meta = real_type(found.types[told.ordinal - 1], found.metadata[told.ordinal - 1])
    if now is None or told.data_type != "binary" or size != meta & 0xFF:
        return told
    return replace(told, data_type=now.data_type, column_type=now.column_type)


def _all_collations(session: Session) -> dict[int, str]:
    """Names by id. MariaDB's newer ones have an id for each character set."""
    found = session.rows("SELECT ID, COLLATION_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL")
    # MySQL has a table of this name, too, but without ids.
    try:
        found += session.rows(
            "SELECT ID, FULL_COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            " WHERE ID IS NOT NULL"
        )
    except SqlError as error:
        if is_passing(error):
            raise
    return {int(number): str(name) for number, name in found}
