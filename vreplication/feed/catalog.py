"""Which tables a feed follows, and how their rows are decoded: by what the log itself says of each table.

The log's own description (binlog_row_metadata=FULL) is right for the rows behind it, whatever became of the table
since. The server knows more (unique keys, MariaDB's own types): where its definition of today fits the description,
it is taken.

What must stay true: a table of ours, a shadow or a retired table is never sent; a key column is never left out.
"""

from __future__ import annotations

import fnmatch
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vreplication import names
from vreplication.binlog.charsets import codec_of
from vreplication.binlog.control import TableMap
from vreplication.binlog.described import Described, columns_of, described, real_type
from vreplication.binlog.layout import fits
from vreplication.binlog.statements import Definition
from vreplication.binlog.watch import Watch
from vreplication.errors import Refused, SourceChanged
from vreplication.feed.layout import Layout, make_layout
from vreplication.feed.values import Decode, PlainRow, decoders
from vreplication.mysql.session import Session, SqlError
from vreplication.schema.introspect import charset_of, introspect
from vreplication.schema.model import Column, Key, KeyPart, Table
from vreplication.settings import SIDECAR

log = logging.getLogger(__name__)

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
        name = f"{schema}.{table}"
        return _matches(name, self.tables) and not _matches(name, self.exclude)

    def has_schema(self, schema: str) -> bool:
        """Some table of it may be sent."""
        return schema not in SYSTEM and any(
            fnmatch.fnmatchcase(schema, pattern.partition(".")[0]) for pattern in self.tables
        )

    def sent(self, name: str, columns: Sequence[Column], key: Sequence[str]) -> tuple[Column, ...]:
        wanted = next((found for pattern, found in self.columns if fnmatch.fnmatchcase(name, pattern)), None)
        if wanted is None:
            return tuple(columns)
        return tuple(column for column in columns if column.name in wanted or column.name in key)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


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
    """The catalog of one source. session: opens one when a definition is to be looked up."""

    filter: Filter
    connect: Callable[[], Session]
    layouts: list[Layout] = field(default_factory=list)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of tables without a primary key: by which their rows are told apart. Kept until their definition changes."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _known: dict[tuple[object, ...], Watch] = field(default_factory=dict)
    _decoders: dict[str, Decode] = field(default_factory=dict)
    _collations: dict[int, str] = field(default_factory=dict)
    _session: Session | None = None

    def layout(self, number: int) -> Layout:
        return self.layouts[number]

    # As the reader's catalog.

    def watch(self, found: TableMap) -> Watch | None:
        """Raises SourceChanged where the log does not describe the table."""
        if not self.filter.has(found.schema, found.table):
            return None
        said = described(found)
        if said is None:
            raise SourceChanged(
                f"The log does not name the columns of {found.schema}.{found.table}, so its rows cannot be told.",
                cure=_METADATA,
            )
        shape = (found.schema, found.table, found.types, found.metadata, found.described)
        if shape not in self._known:
            self._known[shape] = self._new_watch(found, said)
        return self._known[shape]

    def wants(self, found: Definition) -> bool:
        if not found.tables:
            return self.filter.has_schema(found.schema)
        return any(self.filter.has(*pair) if pair[1] else self.filter.has_schema(pair[0]) for pair in found.tables)

    def redefined(self, tables: Sequence[tuple[str, str]]) -> None:
        """A DDL that names these tables has been read: what is known of them may hold no more."""
        for schema, table in tables:
            shapes = [shape for shape in self._known if shape[0] == schema and table in ("", shape[1])]
            for shape in shapes:
                self.keys.pop(f"{shape[0]}.{shape[1]}", None)
                del self._known[shape]
            self.keys.pop(f"{schema}.{table}", None)

    def keys_by_name(self) -> dict[str, tuple[str, ...]]:
        return dict(self.keys)

    # Layouts.

    def _new_watch(self, found: TableMap, said: Described) -> Watch:
        table = self._now(found.schema, found.table)
        if table is not None and self._fits(table, found, said):
            columns, keys = table.columns, table.keys
        else:
            columns, keys = columns_of(found, said, self._collation), _key_of(said)
        hidden = len(found.types) - len(columns)
        number = next(self._numbers)
        layout = make_layout(number, found.schema, found.table, columns, keys)
        layout = layout if said.key else self._with_known_key(layout)
        sent = self.filter.sent(layout.name, columns, layout.key if layout.has_key else ())
        self.layouts.append(without(layout, sent))
        self._learn_charsets({column.charset for column in sent if column.charset})
        codec = PlainRow(ordinals=tuple(column.ordinal for column in sent), decoders=self._decoders)
        return Watch(
            number=number, schema=found.schema, table=found.table, columns=tuple(columns), codec=codec, hidden=hidden
        )

    def _with_known_key(self, layout: Layout) -> Layout:
        """Of a table without a primary key the key stays what it was chosen to be, until a DDL names the table."""
        known = self.keys.setdefault(layout.name, layout.key if layout.has_key else ())
        if not layout.places.keys() >= set(known):
            return layout
        return replace(layout, key=known or tuple(layout.places), has_key=bool(known), is_primary=False)

    def _now(self, schema: str, table: str) -> Table | None:
        """As the server defines it by now; None: it is gone."""
        try:
            return introspect(self.session, schema, table)
        except (Refused, SqlError):
            return None

    @property
    def session(self) -> Session:
        if self._session is None or not self._session.is_alive():
            self._session = self.connect()
            self._decoders.clear()
        return self._session

    def _learn_charsets(self, charsets: set[str]) -> None:
        missing = charsets - self._decoders.keys()
        if missing:
            self._decoders.update(decoders(self.session, missing))

    def _fits(self, table: Table, found: TableMap, said: Described) -> bool:
        """Today's definition says nothing else than the log of these rows. Hidden columns stand behind."""
        hidden = sum(key.index_type == "HASH" for key in table.keys)
        if len(table.columns) + hidden != len(found.types):
            return False
        now = tuple(column.name for column in table.columns)
        return now == said.names[: len(now)] and all(
            self._is_same(column, found, said, place) for place, column in enumerate(table.columns)
        )

    def _is_same(self, column: Column, found: TableMap, said: Described, place: int) -> bool:
        is_unsigned = column.is_unsigned and column.data_type != "year"
        if not fits(column, *real_type(found.types[place], found.metadata[place])):
            return False
        if is_unsigned != (place in said.unsigned) and column.data_type != "year":
            return False
        if place in said.collations and column.charset:
            return charset_of(self._collation(said.collations[place])) == column.charset
        encoding = codec_of(column.charset) or "utf-8"
        told = said.labels.get(place)
        return told is None or told == tuple(label.encode(encoding, "replace") for label in column.labels)

    def _collation(self, id: int) -> str:
        if not self._collations:
            found = self.session.rows(
                "SELECT ID, COLLATION_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL"
            )
            self._collations.update({int(number): str(name) for number, name in found})
        if id not in self._collations:
            raise SourceChanged(f"The log names collation {id}, which the server does not know.")
        return self._collations[id]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


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


def _key_of(said: Described) -> tuple[Key, ...]:
    if not said.key:
        return ()
    parts = tuple(KeyPart(column=said.names[place]) for place in said.key)
    return (Key(name="PRIMARY", parts=parts, is_unique=True, is_primary=True),)
