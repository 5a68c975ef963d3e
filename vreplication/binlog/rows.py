"""Row events to changes: for each table one Python function, generated from layout and codec, decodes a whole event.

What must stay true: only full row images are read; every byte of an event is accounted for, and an event that does not
end where its last row ends is refused; a column that nobody asked for costs no more than stepping over it.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

from vreplication.binlog.control import TableMap
from vreplication.binlog.events import RowChange
from vreplication.binlog.framing import packed_int, uncompressed
from vreplication.binlog.layout import Place, places
from vreplication.binlog.watch import Form, Watch
from vreplication.errors import SourceChanged

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
        laid = places(watch.columns, found, watch.hidden)
        self._count = len(laid)
        self._full = _full_bitmap(self._count)
        self._functions = _Writer(laid, watch).functions()
        self._heads: dict[int, bytes] = {}
        """By kind of event: what stands before its images, once that has been checked."""

    def decode(self, kind: int, body: bytes, add: Add) -> None:
        """Hand the items of a row event to `add`. Raises SourceChanged."""
        act = _ACTS[kind]
        try:
            at = self._images_begin(kind, act, body)
            if kind in _COMPRESSED:
                body, at = uncompressed(body[at:]), 0
            end = self._functions[act](body, at, len(body), add)
        except (IndexError, KeyError, ValueError, struct.error, zlib.error) as error:
            raise SourceChanged(f"A row event of {self._name} cannot be read ({error!r}).") from None
        if end != len(body):
            raise SourceChanged(f"A row event of {self._name} does not end where its last row ends.")

    def _images_begin(self, kind: int, act: Act, body: bytes) -> int:
        """Check that the images are full and return where they begin."""
        head = self._heads.get(kind)
        if head is None or not body.startswith(head, _HEADER_BYTES):
            at = self._checked_head(kind, act, body)
            self._heads[kind] = head = body[_HEADER_BYTES:at]
        return _HEADER_BYTES + len(head)

    def _checked_head(self, kind: int, act: Act, body: bytes) -> int:
        at = _HEADER_BYTES
        if kind in _WITH_EXTRA:
            at += int.from_bytes(body[at : at + 2], "little")
        count, at = packed_int(body, at)
        if count != self._count:
            raise SourceChanged(f"A row event of {self._name} has {count} columns, not {self._count}.")
        size = len(self._full)
        for _ in range(2 if act == "update" else 1):
            self._check_full(body[at : at + size])
            at += size
        return at

    def _check_full(self, bitmap: bytes) -> None:
        if any(have & need != need for have, need in zip(bitmap, self._full, strict=True)):
            raise SourceChanged(
                f"A row event of {self._name} does not hold all columns.",
                cure="Set binlog_row_image=FULL for every session that writes to the table, and start again.",
            )


def _full_bitmap(count: int) -> bytes:
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


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
    """Writes the functions that decode events of one layout for one codec."""

    def __init__(self, laid: tuple[Place, ...], watch: Watch) -> None:
        self.laid, self.codec = laid, watch.codec
        self.before, self.after = watch.codec.before(laid), watch.codec.after(laid)
        self.count = len(laid)
        self.bitmap_bytes = (self.count + 7) // 8
        self.names: dict[str, Any] = {"RowChange": RowChange, "new": tuple.__new__, "TABLE": watch.number}
        self.names.update(watch.codec.names)
        for place in laid:
            self.names.update(place.names)
        # The unused bits of the last byte are ones.
        clear = bytearray(self.bitmap_bytes)
        clear[-1:] = [0xFF << (self.count % 8) & 0xFF if self.count % 8 else 0]
        self.names["NONE_NULL"] = bytes(clear)

    def functions(self) -> dict[Act, Decode]:
        source = _Source()
        for act in ("write", "update", "delete"):
            self._function(source, act)
        space = dict(self.names)
        exec(_compiled("\n".join(source.lines)), space)
        return {"write": space["write"], "update": space["update"], "delete": space["delete"]}

    def _function(self, out: _Source, act: str) -> None:
        out.depth = 0
        out.add(f"def {act}(data, at, end, add):")
        out.depth = 1
        out.add("while at < end:")
        out.depth = 2
        self.body(out, act)
        out.depth = 1
        out.add("return at")

    def body(self, out: _Source, act: str) -> None:
        """Statements that decode one row and hand on what became of it."""
        before = after = "None"
        if act in ("update", "delete"):
            before = self.image(out, self.before)
        if act == "update":
            # Reading the other image sets the same variables.
            out.add(f"before = {before}")
            before = "before"
        if act in ("update", "write"):
            after = self.image(out, self.after)
        out.add(f"add(new(RowChange, (TABLE, {before}, {after})))")

    def image(self, out: _Source, form: Form) -> str:
        """Read one image; returns the expression of the row."""
        wanted = {ordinal: f"v{ordinal}" for ordinal in form.ordinals}
        size = self.bitmap_bytes
        out.add(f"nulls = data[at:at+{size}]", f"at += {size}", "if nulls == NONE_NULL:")
        out.depth += 1
        self._columns(out, wanted, may_be_null=False)
        out.depth -= 1
        out.add("else:")
        out.depth += 1
        self._columns(out, wanted, may_be_null=True)
        out.depth -= 1
        return form.row

    def _columns(self, out: _Source, wanted: dict[int, str], *, may_be_null: bool) -> None:
        """`ahead` counts the bytes that `at` is behind: fixed-size columns move it once for a whole run."""
        ahead = 0
        for index, place in enumerate(self.laid):
            variable = wanted.get(place.column.ordinal)
            if may_be_null:
                self._maybe_null(out, index, place, variable)
            else:
                ahead = self._column(out, place, variable, ahead)
        if ahead:
            out.add(f"at += {ahead}")
        if not self.laid:
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


def _length(here: str, prefix: int) -> str:
    if prefix == 1:
        return f"data[{here}]"
    return f"int.from_bytes(data[{here}:{here}+{prefix}], 'little')"
