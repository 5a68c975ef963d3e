"""What consumers make of row images: SQL text for a table like the source's, or plain values.

What must stay true: a codec knows columns and templates, and no server; two rows that are one to it are one to its
consumer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vreplication.binlog.layout import Place
from vreplication.binlog.watch import Form

Template = tuple[int, str]
"""A column's ordinal, and a format string with one `{}` for the literal of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlText:
    """Rows as lists of SQL literals with commas between, conversions included, without parentheses.

    Before: the key, str. After: (key, values), both str. Nothing else of the image before is read.
    as_text: ordinals of documents that become text: the expression that rebuilds one with all of its types may be one
    that the target does not know.
    """

    key: tuple[Template, ...]
    values: tuple[Template, ...]
    as_text: frozenset[int] = frozenset()

    null = "'NULL'"
    names: ClassVar[Mapping[str, Any]] = {}

    def value(self, place: Place) -> str:
        return place.shown if place.column.ordinal in self.as_text else place.literal

    def before(self, laid: Sequence[Place]) -> Form:
        return Form(ordinals=frozenset(o for o, _ in self.key), row=_joined(self.key))

    def after(self, laid: Sequence[Place]) -> Form:
        ordinals = frozenset(o for o, _ in (*self.key, *self.values))
        return Form(ordinals=ordinals, row=f"({_joined(self.key)}, {_joined(self.values)})")


def _joined(parts: tuple[Template, ...]) -> str:
    """An f-string that puts each value into its template, with commas between."""
    return "f" + repr(",".join(_piece(template, f"v{ordinal}") for ordinal, template in parts))


def _piece(template: str, variable: str) -> str:
    """The template with `{variable}` for its placeholder, and its own braces doubled."""
    around = template.format("\0").split("\0")
    return f"{{{variable}}}".join(text.replace("{", "{{").replace("}", "}}") for text in around)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainValues:
    """Rows as {column name: int, str, bytes or None}; DATETIME and what has a text of its own as str. Both images."""

    null = "None"
    names: ClassVar[Mapping[str, Any]] = {}

    def value(self, place: Place) -> str:
        return place.plain

    def before(self, laid: Sequence[Place]) -> Form:
        return self.after(laid)

    def after(self, laid: Sequence[Place]) -> Form:
        pairs = (f"{p.column.name!r}: v{p.column.ordinal}" for p in laid)
        return Form(ordinals=frozenset(p.column.ordinal for p in laid), row="{" + ", ".join(pairs) + "}")
