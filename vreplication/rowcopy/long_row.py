"""A row whose text no packet holds, on its way to another server: its long values go there in pieces.

The target puts them together in variables of the session, from which the row is inserted in one statement, so that
constraints see it whole. A value beyond the target's max_allowed_packet cannot be put together there, nor could
catch-up write it: it is refused.

What must stay true: all pieces are of one version of the row; a value is what its literal (`schema.literals`) would be,
or it is refused, never cut.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from vreplication.errors import VReplicationError
from vreplication.mysql.ends import Ends
from vreplication.mysql.quoting import ident
from vreplication.mysql.values import packet_of
from vreplication.rowcopy.probes import as_text, source_key, source_sql
from vreplication.rowcopy.warned import Place, bad_value
from vreplication.schema.bounds import equal_sql
from vreplication.schema.literals import from_bytes_sql, has_bytes, pair_literal_sql, piece_sql, unit_bytes
from vreplication.schema.model import ColumnPair, TableMapping

_LONG_BYTES = 64 << 10
_PIECE_BYTES = 16 << 20


@dataclass(slots=True)
class LongRow:
    """place: of the one key. packet_bytes: length that a statement may have."""

    ends: Ends
    mapping: TableMapping
    place: Place
    packet_bytes: int
    variables: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def assembled(self) -> Iterator[str]:
        """`(value,…)`, to be inserted on the target inside the block; '' when the row is gone. Raises BadValue."""
        try:
            yield self._values()
        finally:
            for name in self.variables:
                # A variable lives as long as its session, which goes on copying: up to a packet of memory for each. One
                # that is lost has let go of it.
                with contextlib.suppress(VReplicationError):
                    self.ends.target.execute_raw(f"SET {name} = NULL")

    def _values(self) -> str:
        pairs = self.mapping.pairs
        # Of the next transaction alone: one version of the row.
        self.ends.source.execute_raw("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with self.ends.source.transaction():
            lengths = self._read([self._length_sql(pair) for pair in pairs])
            if lengths is None:
                return ""
            # So all values that go as literals, at two hexadecimal digits a byte, take about half of a packet at most.
            longest = min(_LONG_BYTES, self.packet_bytes // (4 * len(pairs)))
            sizes = [self._size(pair, length) for pair, length in zip(pairs, lengths, strict=True)]
            short = self._read(
                [self._short_sql(pair, is_long=size > longest) for pair, size in zip(pairs, sizes, strict=True)]
            )
            assert short is not None
            written = [
                self._carried(pair, size) if size > longest else pair.convert.format(as_text(literal))
                for pair, size, literal in zip(pairs, sizes, short, strict=True)
            ]
        return f"({','.join(written)})"

    def _size(self, pair: ColumnPair, length: object) -> int:
        """Bytes of a value. MySQL gives of JSON that no packet holds an empty text (measured)."""
        if length is None:
            limit = packet_of(self.ends.source)
            words = f"the source does not give column {pair.source.name}: max_allowed_packet is {limit:,} there"
            cure = "Raise max_allowed_packet of the source, and start again."
            raise bad_value(self.ends.target, self.mapping, words, self.place, cure=cure)
        return int(str(length))

    def _read(self, columns: Sequence[str]) -> Sequence[object] | None:
        where = equal_sql(source_key(self.mapping), self.place.bounds.lower)
        return self.ends.source.row(f"SELECT {','.join(columns)} FROM {source_sql(self.mapping)} WHERE {where}")

    def _length_sql(self, pair: ColumnPair) -> str:
        if pair.is_constant or not has_bytes(pair.source):
            return "0"
        name = ident(pair.source.name)
        # No JSON document is empty, so a length of 0 is MySQL's answer for one that no packet holds (see `_size`).
        length = f"NULLIF(LENGTH({name}),0)" if pair.source.data_type == "json" else f"LENGTH({name})"
        return f"IF({name} IS NULL,0,{length})"

    def _short_sql(self, pair: ColumnPair, *, is_long: bool) -> str:
        """SQL of the literal of a value that is not long."""
        if is_long or pair.is_constant:
            return "''"
        return pair_literal_sql(self.mapping, pair, ident(pair.source.name))

    def _carried(self, pair: ColumnPair, size: int) -> str:
        """SQL of the value, which lies in a variable on the target."""
        target, limit = self.ends.target, packet_of(self.ends.target)
        if size > limit:
            raise self._refused(pair, size, limit)
        name = f"@vreplication_{len(self.variables)}"
        self.variables.append(name)
        target.execute_raw(f"SET {name} = X''")
        for piece in self._pieces(pair):
            target.execute_raw(f"SET {name} = CONCAT({name}, X'{piece.hex()}')")
        target.execute_raw(f"SET {name} = {from_bytes_sql(self.mapping, pair, name)}")
        # CONCAT gives NULL, with a warning and no error, as soon as the value is longer than max_allowed_packet.
        if target.value(f"SELECT LENGTH({name})") != size:
            raise self._refused(pair, size, limit)
        return pair.convert.format(name)

    def _pieces(self, pair: ColumnPair) -> Iterator[bytes]:
        """The value's bytes, a quarter of a packet at a time."""
        # A quarter, for a piece is written in hexadecimal digits: two of them a byte.
        length = min(_PIECE_BYTES, self.packet_bytes // 4) // unit_bytes(pair.source)
        for start in itertools.count(1, length):
            found = self._read([piece_sql(pair.source, ident(pair.source.name), start, length)])
            piece = found[0] if found else None
            if not isinstance(piece, bytes) or not piece:
                return
            yield piece

    def _refused(self, pair: ColumnPair, size: int, limit: int) -> VReplicationError:
        words = (
            f"column {pair.source.name} has {size:,} bytes, and max_allowed_packet is {limit:,} there"
            f" ({packet_of(self.ends.source):,} on the source)"
        )
        cure = f"Set max_allowed_packet of the target to {size:,} or more, at most 1 GiB, and start again."
        return bad_value(self.ends.target, self.mapping, words, self.place, cure=cure)
