"""Which table a row event belongs to, and who decodes it.

What must stay true: a table map is parsed once for each distinct body; a row event without a map of its table ends the
workflow; maps are forgotten when the server may have begun to count table ids anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from vreplication.binlog.control import names_of_map, table_map
from vreplication.binlog.rows import Decoder
from vreplication.binlog.watch import Watch
from vreplication.errors import SourceChanged

_DUMMY_ID = b"\xff\xff\xff\x00\x00\x00"
"""MySQL's mark for the end of a statement whose rows have all been filtered away."""
_MAX_KNOWN = 10_000


class Tables:
    """Decoders by table id; None for a table that nobody watches."""

    def __init__(self, watches: Iterable[Watch], guarded: Iterable[tuple[str, str]] = ()) -> None:
        self._watches = {_key(w.schema.encode(), w.table.encode()): w for w in watches}
        self._our_schemas = {w.schema.encode() for w in self._watches.values() if w.is_ours}
        self._our_tables = {_key(schema.encode(), table.encode()) for schema, table in guarded}
        self._known: dict[bytes, Decoder | None] = {}
        self._others: set[bytes] = set()
        self.by_id: dict[bytes, Decoder | None] = {_DUMMY_ID: None}

    def learn(self, body: bytes) -> bool:
        """Take a table map; returns whether others write to that table, who are neither the sidecar nor the copy.

        The body holds the id, so the same bytes mean the same table.
        """
        try:
            self.by_id[body[:6]] = self._known[body]
        except KeyError:
            self._learn_new(body)
        return body in self._others

    def _learn_new(self, body: bytes) -> None:
        name = _key(*names_of_map(body))
        watch = self._watches.get(name)
        decoder = Decoder(watch, table_map(body)) if watch else None
        if len(self._known) >= _MAX_KNOWN:
            self.forget()
        self._known[body] = self.by_id[body[:6]] = decoder
        if name[0] not in self._our_schemas and name not in self._our_tables:
            self._others.add(body)

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
