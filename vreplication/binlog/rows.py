"""Row events to changes: for each table one Python function, generated from layout and codec, decodes a whole event.

What must stay true: a row image is read only where it is full; it may lack what the server generates (MariaDB 11.8
leaves that out of updates and deletes), but nothing that its consumer asks for. Every byte of an event is accounted
for, and an event that does not end where its last row ends is refused; a column that nobody asked for costs no more
than stepping over it.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

from vreplication.binlog.control import TableMap
from vreplication.binlog.events import RowChange
from vreplication.binlog.framing import packed_int, uncompressed
from vreplication.binlog.layout import Place, places
from vreplication.binlog.watch import Form, Watch
from vreplication.errors import SourceChanged
from vreplication.schema.dates import is_one_day
from vreplication.schema.model import Column

Act = Literal["write", "update", "delete"]
Add = Callable[[Any], None]
Decode = Callable[[bytes, int, int, Add], int]
"""(data, place of the first row, end, what takes each item) → the place behind the last row."""

_ACTS: dict[int, Act] = {
    **dict.fromkeys((23, 30, 166, 169), "write"),
    **dict.fromkeys((24, 31, 167, 170), "update"),
    **dict.fromkeys((25, 32, 168, 171), "delete"),
}
_WITH_EXTRA = frozenset({30, 31, 32, 169, 170, 171})
_COMPRESSED = frozenset(range(166, 172))
ROW_EVENTS = frozenset(_ACTS)
_HEADER_BYTES = 8
"""Table id and flags."""


class Decoder:
    """Row events of one table layout, for one watch."""

    def __init__(self, watch: Watch, found: TableMap) -> None:
        self.watch = watch
        self._name = f"{found.schema}.{found.table}"
        self._laid = places(watch.columns, found, watch.hidden)
        self._count = len(self._laid)
        self._size = (self._count + 7) // 8
        self._known: dict[int, tuple[bytes, Decode]] = {}
        """By kind of event: what stands before its images, once that has been checked, and what reads them."""

    def decode(self, kind: int, body: bytes, add: Add) -> int:
        """Hand the items of a row event to `add`; returns how many bytes they were made of. Raises SourceChanged."""
        try:
            at, read = self._begin(kind, body)
            if kind in _COMPRESSED:
                # MariaDB compresses the images alone, and not what stands before them.
                body, at = uncompressed(body[at:]), 0
            end = read(body, at, len(body), add)
        except (IndexError, KeyError, ValueError, struct.error, zlib.error) as error:
            raise SourceChanged(f"A row event of {self._name} cannot be read ({error!r}).") from None
        # Read by another layout a row may look right: that it ends elsewhere is what gives it away.
        if end != len(body):
            raise SourceChanged(f"A row event of {self._name} does not end where its last row ends.")
        # The event itself may be a thousandth of that: MariaDB compresses rows one event at a time.
        return end

    def _begin(self, kind: int, body: bytes) -> tuple[int, Decode]:
        """Where the images begin, and what reads them."""
        known = self._known.get(kind)
        # A session with another binlog_row_image has other bits there, so its events are looked at anew; all others
        # cost one comparison.
        if known is None or not body.startswith(known[0], _HEADER_BYTES):
            known = self._known[kind] = self._checked(kind, body)
        return _HEADER_BYTES + len(known[0]), known[1]

    def _checked(self, kind: int, body: bytes) -> tuple[bytes, Decode]:
        act, at = _ACTS[kind], _HEADER_BYTES
        if kind in _WITH_EXTRA:
            # The length counts its own two bytes.
            at += int.from_bytes(body[at : at + 2], "little")
        count, at = packed_int(body, at)
        if count != self._count:
            raise SourceChanged(f"A row event of {self._name} has {count} columns, not {self._count}.")
        images = []
        for _ in range(2 if act == "update" else 1):
            images.append(self._there(body[at : at + self._size]))
            at += self._size
        return body[_HEADER_BYTES:at], self._reader(act, images[0], images[-1])

    def _there(self, bitmap: bytes) -> tuple[Place, ...]:
        """The columns that an image has."""
        found = tuple(place for i, place in enumerate(self._laid) if bitmap[i // 8] >> i % 8 & 1)
        if lacks := [place.column for place in self._laid if not self._may_lack(place) and place not in found]:
            raise self._lacking(lacks)
        return found

    def _may_lack(self, place: Place) -> bool:
        return bool(place.column.generated) or place.column.ordinal in self.watch.unsent

    def _reader(self, act: Act, first: tuple[Place, ...], last: tuple[Place, ...]) -> Decode:
        """What decodes events whose images before and after have these columns. Raises SourceChanged."""
        codec = self.watch.codec
        before = _Image(laid=first, form=codec.before(self._laid)) if act != "write" else None
        after = _Image(laid=last, form=codec.after(self._laid)) if act != "delete" else None
        for image in filter(None, (before, after)):
            if lacks := image.lacks(self._laid):
                raise self._lacking(lacks)
        return _Writer(self.watch, before, after).function()

    def _lacking(self, columns: list[Column]) -> SourceChanged:
        if all(column.generated for column in columns):
            return SourceChanged(
                f"The log leaves the generated column {columns[0].name} of {self._name} out of its rows.",
                cure="Make it an ordinary column, or do without it.",
            )
        return SourceChanged(
            f"A row event of {self._name} does not hold all columns.",
            cure="Set binlog_row_image=FULL for every session that writes to the table, and start again. (MariaDB 11.8"
            " never logs generated columns of updates and deletes.)",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """laid: the columns that it has. form: what its consumer makes of them."""

    laid: tuple[Place, ...]
    form: Form

    def lacks(self, all_of_them: Sequence[Place]) -> list[Column]:
        """What the consumer asks for and the image does not have."""
        asked = (place for place in all_of_them if place.column.ordinal in self.form.ordinals)
        return [place.column for place in asked if place not in self.laid]


@dataclass(slots=True)
class _Source:
    """Lines of a Python function that is being written."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def add(self, *lines: str) -> None:
        self.lines.extend("    " * self.depth + line for line in lines)


@functools.lru_cache(256)
def _compiled(text: str) -> CodeType:
    """Tables of one layout have one text, and MySQL's table ids change with every FLUSH."""
    return compile(text, "<row decoder>", "exec")


class _Writer:
    """Writes the function that decodes events of one kind with images of these columns for one codec."""

    def __init__(self, watch: Watch, before: _Image | None, after: _Image | None) -> None:
        self.codec, self.before, self.after, self.days = watch.codec, before, after, watch.days
        # `new`, for each row: a NamedTuple's own constructor is a Python function in between.
        self.names: dict[str, Any] = {"RowChange": RowChange, "new": tuple.__new__, "TABLE": watch.number}
        self.names.update(watch.codec.names)
        if watch.days:
            self.names["one_day"] = functools.partial(_one_day, f"{watch.schema}.{watch.table}")
        for place in (*(before.laid if before else ()), *(after.laid if after else ())):
            self.names.update(place.names)

    def function(self) -> Decode:
        out = _Source()
        out.add("def decode(data, at, end, add):")
        out.depth = 1
        out.add("while at < end:")
        out.depth = 2
        self.body(out)
        out.depth = 1
        out.add("return at")
        space = dict(self.names)
        # No name and no value of an application can become code: they stand in the text by `repr`, or are handed in as
        # objects.
        exec(_compiled("\n".join(out.lines)), space)
        return space["decode"]  # type: ignore[no-any-return]

    def body(self, out: _Source) -> None:
        """Statements that decode one row and hand on what became of it."""
        before = after = "None"
        if self.before:
            before = self.image(out, self.before)
        if self.before and self.after:
            # Reading the other image sets the same variables.
            out.add(f"before = {before}")
            before = "before"
        if self.after:
            after = self.image(out, self.after)
            out.add(*(f"one_day(v{each})" for each in sorted(self.days & self.after.form.ordinals)))
        out.add(f"add(new(RowChange, (TABLE, {before}, {after})))")

    def image(self, out: _Source, image: _Image) -> str:
        """Read one image; returns the expression of the row. Its bits for NULLs are of the columns that it has."""
        wanted = {ordinal: f"v{ordinal}" for ordinal in image.form.ordinals}
        count = len(image.laid)
        size = (count + 7) // 8
        none = self._none_null(count)
        out.add(f"nulls = data[at:at+{size}]", f"at += {size}", f"if nulls == {none}:")
        out.depth += 1
        self._columns(out, image.laid, wanted, may_be_null=False)
        out.depth -= 1
        out.add("else:")
        out.depth += 1
        self._columns(out, image.laid, wanted, may_be_null=True)
        out.depth -= 1
        return image.form.row

    def _none_null(self, count: int) -> str:
        """The unused bits of the last byte are ones."""
        clear = bytearray((count + 7) // 8)
        # Where a server left them zero the slower of both ways would be taken, with the same rows.
        clear[-1:] = [0xFF << (count % 8) & 0xFF if count % 8 else 0]
        self.names[f"NONE_NULL_{count}"] = bytes(clear)
        return f"NONE_NULL_{count}"

    def _columns(self, out: _Source, laid: tuple[Place, ...], wanted: dict[int, str], *, may_be_null: bool) -> None:
        """`ahead` counts the bytes that `at` is behind: fixed-size columns move it once for a whole run."""
        ahead = 0
        for index, place in enumerate(laid):
            variable = wanted.get(place.column.ordinal)
            if may_be_null:
                self._maybe_null(out, index, place, variable)
            else:
                ahead = self._column(out, place, variable, ahead)
        if ahead:
            out.add(f"at += {ahead}")
        if not laid:
            out.add("pass")

    def _maybe_null(self, out: _Source, index: int, place: Place, variable: str | None) -> None:
        out.add(f"if nulls[{index // 8}] & {1 << index % 8}:")
        out.depth += 1
        out.add(f"{variable} = {self.codec.null}" if variable else "pass")
        out.depth -= 1
        out.add("else:")
        out.depth += 1
        ahead = self._column(out, place, variable, 0)
        out.add(f"at += {ahead}")
        out.depth -= 1

    def _column(self, out: _Source, place: Place, variable: str | None, ahead: int) -> int:
        expression = self.codec.value(place)
        here = f"at+{ahead}" if ahead else "at"
        if not place.prefix:
            if variable:
                out.add(f"{variable} = {expression.format(p=here)}")
            return ahead + place.size
        out.add(f"a = {_length(here, place.prefix)}", f"a, at = at+{ahead + place.prefix}, at+{ahead + place.prefix}+a")
        if variable:
            out.add(f"{variable} = {expression.format(a='a', b='at')}")
        return 0


def _one_day(table: str, literal: str) -> None:
    """Raises SourceChanged where sessions differ on which day it is."""
    if literal != "NULL" and not is_one_day(literal.strip("'")):
        raise SourceChanged(
            f"A row of {table} was written with the day {literal}. A unique key makes another date of it, by the SQL"
            " mode of each session: for us it may be the same row as another one.",
            cure="Drop that key, or make it over a plain column; or write NULL or a day that there is.",
        )


def _length(here: str, prefix: int) -> str:
    if prefix == 1:
        return f"data[{here}]"
    return f"int.from_bytes(data[{here}:{here}+{prefix}], 'little')"
