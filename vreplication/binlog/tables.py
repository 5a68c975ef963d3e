"""Which table a row event belongs to, and who decodes it.

What must stay true: a table map is parsed once for each distinct body; a row event without a map of its table ends the
workflow; maps are forgotten when the server may have begun to count table ids anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from vreplication.binlog.control import names_of_map, table_map
from vreplication.binlog.rows import Decoder
from vreplication.binlog.watch import Catalog, Watch
from vreplication.errors import SourceChanged, Terminal

_DUMMY_ID = b"\xff\xff\xff\x00\x00\x00"
"""MySQL's mark for the end of a statement whose rows have all been filtered away."""
# MySQL gives tables new ids at each FLUSH TABLES, so bodies of maps never end to be new.
_MAX_KNOWN, _KEPT_IDS = 10_000, 1_000


class Tables:
    """Decoders by table id; None for a table that nobody watches."""

    def __init__(self, watches: Iterable[Watch] = (), guarded: Iterable[tuple[str, str]] = ()) -> None:
        self._watches: dict[tuple[bytes, bytes], Watch] = {}
        self._our_schemas: set[bytes] = set()
        self._our_tables: set[tuple[bytes, bytes]] = set()
        self._known: dict[bytes, Decoder | None] = {}
        self._others: set[bytes] = set()
        self.catalog: Catalog | None = None
        self.by_id: dict[bytes, Decoder | None] = {_DUMMY_ID: None}
        self.add(watches, guarded)

    def add(self, watches: Iterable[Watch], guarded: Iterable[tuple[str, str]]) -> None:
        """From the next table map on. Raises Terminal when a table is watched already."""
        for watch in watches:
            name = _name(watch.schema, watch.table)
            if name in self._watches:
                raise Terminal(f"{watch.schema}.{watch.table} is followed already.")
            self._watches[name] = watch
            if watch.is_ours:
                # All of the schema: what we write into its other tables is no application's traffic either.
                self._our_schemas.add(name[0])
        self._our_tables.update(_name(*table) for table in guarded)
        # What was nobody's may be somebody's now.
        self._known.clear()
        self._others.clear()

    def remove(self, watches: Iterable[Watch], guarded: Iterable[tuple[str, str]]) -> None:
        """At once, also in the middle of a statement, whose other tables stay known."""
        gone = list(watches)
        for watch in gone:
            self._watches.pop(_name(watch.schema, watch.table), None)
        self._our_tables.difference_update(_name(*table) for table in guarded)
        self._known.clear()
        self._others.clear()
        for table_id, decoder in self.by_id.items():
            if decoder is not None and decoder.watch in gone:
                self.by_id[table_id] = None

    def learn(self, body: bytes) -> bool:
        """Take a table map; returns whether others write to that table, who are neither the sidecar nor the copy.

        The body holds the id, so the same bytes mean the same table.
        """
        try:
            found = self._known[body]
        except KeyError:
            self._learn_new(body)
        else:
            # Taken out first: so those of the statement that is being read are the last (see `_trim`).
            self.by_id.pop(body[:6], None)
            self.by_id[body[:6]] = found
        return body in self._others

    def watch_of(self, body: bytes) -> Watch | None:
        """Of the table that a map names."""
        return self._watches.get(_key(*names_of_map(body)))

    def _learn_new(self, body: bytes) -> None:
        name = _key(*names_of_map(body))
        watch = self._watches.get(name)
        if watch is None and self.catalog is not None:
            watch = self.catalog.watch(table_map(body))
        decoder = Decoder(watch, table_map(body)) if watch else None
        if len(self._known) >= _MAX_KNOWN:
            self._trim()
        self.by_id.pop(body[:6], None)
        self._known[body] = self.by_id[body[:6]] = decoder
        if name[0] not in self._our_schemas and name not in self._our_tables:
            self._others.add(body)

    def _trim(self) -> None:
        """The maps of the statement that is being read stay."""
        self._known.clear()
        self._others.clear()
        self.by_id = {_DUMMY_ID: None, **dict(list(self.by_id.items())[-_KEPT_IDS:])}

    def decoder(self, table_id: bytes) -> Decoder | None:
        try:
            return self.by_id[table_id]
        except KeyError:
            raise SourceChanged("A row event of a table came without the table's map.") from None

    def forget(self) -> None:
        self._known.clear()
        self._others.clear()
        self.by_id = {_DUMMY_ID: None}


def _key(schema: bytes, table: bytes) -> tuple[bytes, bytes]:
    return schema, table


def _name(schema: str, table: str) -> tuple[bytes, bytes]:
    return _key(schema.encode(), table.encode())
