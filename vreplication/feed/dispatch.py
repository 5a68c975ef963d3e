"""Which partition a row goes to.

CRC-32 over the rule's version, schema, table and the key's values with their lengths, modulo the count of partitions.
What the server takes for equal has equal bytes: numbers are written in one way, text as its weights under the column's
collation, which the server is asked for.

| rule | row order | order in a table | a table's transaction in one partition | even |
|---|---|---|---|---|
| table | yes | yes | yes | no |
| index-value | yes | no | no | yes |
| columns | while they do not change | no | no | as the data is |
| ts | no | no | no | yes |
| conflict | yes | no | no | yes |

conflict is index-value with Aligns between rows that exchange a value of another unique key (feed/conflicts.py).
A table that has not got what the rule asks for (it came so while the feed runs, or was altered) goes by table as long
as that is so: the ALTER holds rows behind it back in every partition.

What must stay true: the same row goes to the same partition as long as neither the generation nor its table's layout
changes; an UPDATE that would leave its partition is a DELETE there and an INSERT here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from vreplication.errors import Refused
from vreplication.feed.layout import Layout
from vreplication.feed.messages import Row
from vreplication.mysql.session import Session
from vreplication.schema.model import Column

VERSION = 1
MOST_PARTITIONS = 10_000
"""Of all topics of a feed: each gets Resolved."""
_TEXT = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_ASK, _KEPT = 500, 200_000
Way = Literal["table", "index-value", "columns", "ts", "conflict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    way: Way = "table"
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"columns:{','.join(self.columns)}" if self.way == "columns" else self.way


def parse(text: str) -> Rule:
    """Raises Refused."""
    way, _, rest = text.partition(":")
    columns = tuple(name.strip() for name in rest.split(",") if name.strip())
    if way == "columns" and columns:
        return Rule(way="columns", columns=columns)
    if way in ("table", "index-value", "ts", "conflict") and not rest:
        return Rule(way=way)  # type: ignore[arg-type]
    raise Refused(f"The dispatch {text!r} is not known.", cure="Use table, index-value, columns:a,b, ts or conflict.")


class Weights:
    """What the server compares text by. Asked for many at a time, and remembered."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[str, str], bytes] = {}
        self._spaces: dict[str, bytes] = {}

    def of(self, collation: str, text: str) -> bytes:
        """The same for all texts where the server's weights do not say which are equal."""
        text = text.rstrip(" ") if _pads(collation) else text
        # Equal there is only what has the same letters.
        if collation.endswith("_bin"):
            return text.encode()
        if is_odd(collation):
            return b""
        if (collation, text) not in self._known:
            self.ask(collation, [text])
        return self._known[collation, text]

    def ask(self, collation: str, texts: Iterable[str]) -> None:
        """Those that are not known yet."""
        if collation.endswith("_bin") or is_odd(collation):
            return
        texts = [text.rstrip(" ") if _pads(collation) else text for text in texts]
        missing = [text for text in dict.fromkeys(texts) if (collation, text) not in self._known]
        if len(self._known) + len(missing) > _KEPT:
            self._known.clear()
            missing = list(dict.fromkeys(texts))
        for at in range(0, len(missing), _ASK):
            some = missing[at : at + _ASK]
            for text, weight in zip(some, self._weights(collation, some), strict=True):
                self._known[collation, text] = self._cut(collation, weight)

    def _weights(self, collation: str, texts: Sequence[str]) -> list[bytes]:
        charset = collation.split("_", 1)[0]
        parts = ",".join(
            f"WEIGHT_STRING(CONVERT(_utf8mb4 X'{text.encode().hex()}' USING {charset}) COLLATE {collation})"
            for text in texts
        )
        (row,) = self._session.bytes_rows(f"SELECT {parts}")
        return [bytes(each or b"") for each in row]

    def _cut(self, collation: str, weight: bytes) -> bytes:
        """Where the collation pads, text is equal to itself with spaces behind it, and with what weighs as they do."""
        if not _pads(collation):
            return weight
        if collation not in self._spaces:
            (self._spaces[collation],) = self._weights(collation, [" "])
        space = self._spaces[collation]
        # Whole weights only: the end of another one may have the bytes of a space's.
        while space and weight.endswith(space) and len(weight) % len(space) == 0:
            weight = weight[: -len(space)]
        return weight


def _pads(collation: str) -> bool:
    """A text is equal to itself with spaces behind it."""
    return "_0900_" not in collation and "_nopad_" not in collation


def is_odd(collation: str) -> bool:
    """Equal texts have weights of their own there: tried with all collations of both servers.

    UCA 14 of MariaDB pads with a space in each level, or weighs by one level and compares by more; the Czech and Thai
    collations put a level in between.
    """
    is_uca = "_uca1400_" in collation and not collation.endswith("_ai_ci")
    return is_uca or collation.endswith("_czech_cs") or "_thai_520_w2" in collation or "_thai_nopad" in collation


class _Head(NamedTuple):
    """crc: of the table's name. places: of the columns that decide; texts: those compared by a collation, and which."""

    layout: Layout
    crc: int
    places: tuple[int, ...]
    texts: tuple[tuple[int, str], ...]


class Dispatcher:
    """partitions: how many are in use; may be set anew. warn: is told of each table that goes by table instead."""

    def __init__(
        self, rule: Rule, partitions: int, weights: Weights, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self.rule, self.partitions, self.weights, self._warn = rule, partitions, weights, warn
        self._heads: dict[int, _Head] = {}

    def check(self, layout: Layout) -> None:
        """Raises Refused where the rule does not fit the table."""
        if words := self._unfit(layout):
            by_key = "Give it a primary key, leave it out (--exclude), or use --dispatch table."
            by_columns = "Name columns that every table has and that are NOT NULL, or leave the table out."
            raise Refused(f"{words}.", cure=by_columns if self.rule.way == "columns" else by_key)

    def _unfit(self, layout: Layout) -> str:
        """'' or why, in words."""
        way = self.rule.way
        if way in ("index-value", "conflict") and not layout.has_key:
            return f"Table {layout.name} has no unique key without NULLs, so {way} cannot tell its rows apart"
        for name in self.rule.columns:
            column = next((column for column in layout.columns if column.name == name), None)
            if column is None or column.is_nullable:
                what = "has no column" if column is None else "may hold NULL in column"
                return f"Table {layout.name} {what} {name}, by which rows are to be dispatched"
        return ""

    def _columns(self, layout: Layout) -> tuple[str, ...]:
        """Whose values decide; none: the table as a whole."""
        if words := self._unfit(layout):
            cure = f"Give it {'such a column' if self.rule.columns else 'a primary key'} to have its rows spread again."
            self._warn(f"{words}: all of them go into one partition, in order. {cure}")
            return ()
        return layout.key if self.rule.way in ("index-value", "conflict") else self.rule.columns

    def prepare(self, rows: Sequence[Row]) -> None:
        """Ask the server once for what `of` will want to know of these rows."""
        wanted: dict[str, set[str]] = {}
        for row in rows:
            for place, collation in self._compiled(row.layout).texts:
                found = wanted.setdefault(collation, set())
                found.update(image[place] for image in (row.before, row.after) if image and image[place] is not None)
        for collation, texts in wanted.items():
            self.weights.ask(collation, texts)

    def placed(self, row: Row) -> tuple[tuple[int, Row], ...]:
        """Where it goes. An UPDATE that leaves its partition is a DELETE there and an INSERT here (P9)."""
        if row.before is None or row.after is None:
            image = row.before if row.after is None else row.after
            return ((0 if image is None else self.of(row.layout, image, row.place.t), row),)
        before, after = (self.of(row.layout, image, row.place.t) for image in (row.before, row.after))
        if before == after:
            return ((before, row),)
        # Both have the row's place. A reader that joins partitions takes the DELETE of one place first (docs/feed.md,
        # Transaction mode).
        return (before, msgspec.structs.replace(row, after=None)), (after, msgspec.structs.replace(row, before=None))

    def gives_up(self, row: Row, *, is_split: bool) -> bool:
        """Its key, which a row in another partition may have then (or has, where it is split): no order holds there."""
        if self.rule.way != "columns" or row.before is None or not row.layout.has_key:
            return False
        places = self._compiled(row.layout).places
        # By columns of the key rows with one key always meet in one partition.
        if set(places) <= set(row.layout.key_places):
            return False
        key = row.layout.key_places
        return is_split or row.after is None or any(row.before[place] != row.after[place] for place in key)

    def of(self, layout: Layout, image: tuple[Any, ...], t: int) -> int:
        """From 0 on."""
        if self.rule.way == "ts":
            return t % self.partitions
        _, crc, places, _ = self._compiled(layout)
        for place in places:
            data = bytes_of(layout.columns[place], image[place], self.weights)
            # With the length: else `a`, `bc` and `ab`, `c` would be one key.
            crc = zlib.crc32(b"%d:%b" % (len(data), data), crc)
        return crc % self.partitions

    def of_table(self, schema: str, table: str) -> int:
        """Where all rows of it go, with the way `table`."""
        return zlib.crc32(_head(schema, table)) % self.partitions

    def _compiled(self, layout: Layout) -> _Head:
        found = self._heads.get(layout.number)
        if found is None or found[0] is not layout:
            places = tuple(layout.places[name] for name in self._columns(layout))
            columns = [(place, layout.columns[place]) for place in places]
            texts = tuple((p, c.collation) for p, c in columns if c.data_type in _TEXT and c.collation)
            found = _Head(layout, zlib.crc32(_head(layout.schema, layout.table)), places, texts)
            self._heads[layout.number] = found
        return found


def _head(schema: str, table: str) -> bytes:
    return b"\0".join((b"%d" % VERSION, schema.encode(), table.encode(), b""))


def may_part(layout: Layout, columns: Sequence[str]) -> bool:
    """Rows by these columns: two with one value of a unique key may be in two partitions."""
    if layout.distinct is None:
        return True
    whole = ({name for name, prefix in key if prefix is None} for key in layout.distinct)
    return any(not key.issuperset(columns) for key in whole)


def is_text(column: Column) -> bool:
    """Compared by a collation."""
    return column.data_type in _TEXT and bool(column.collation)


def bytes_of(column: Column, value: Any, weights: Weights) -> bytes:
    """Equal for what the server takes for equal."""
    if value is None:
        return b"\0"
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, bytes):
        return value
    if column.data_type in _TEXT and column.collation:
        return weights.of(column.collation, value)
    if column.data_type in ("decimal", "numeric"):
        return _number(Decimal(value))
    # Minus zero and zero are one value to the server, and would be two texts.
    if isinstance(value, float):
        return repr(value + 0.0).encode()
    return str(value).encode()


def _number(value: Decimal) -> bytes:
    # Rounded to Python's 28 digits: what is equal stays so, and what differs behind them only shares a partition.
    return b"0" if not value else format(value.normalize(), "f").encode()
