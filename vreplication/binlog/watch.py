"""Which tables the reader decodes, and what it makes of a row: the codec that the consumer chose.

What must stay true: neither the reader nor a watch knows a target; a codec asks for the columns that its consumer
needs, for what nobody asks for is stepped over and costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vreplication.binlog.control import TableMap
from vreplication.binlog.definitions import Definition
from vreplication.binlog.layout import Place
from vreplication.schema.model import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a codec makes of one image, as Python source for the generated decoder.

    ordinals: the columns that are read; row: an expression in which v1, v2, … are their values, by ordinal.
    """

    ordinals: frozenset[int]
    row: str


class Codec(Protocol):
    """How a consumer wants the rows of a table. Of the image before a change it may want less than of the other."""

    @property
    def null(self) -> str:
        """Source of what a column's value is where it is NULL."""

    @property
    def names(self) -> Mapping[str, Any]:
        """Objects that the sources below use, beside those of the places."""

    def value(self, place: Place) -> str:
        """Which of the place's expressions reads a column."""

    def before(self, laid: Sequence[Place]) -> Form:
        """Of the row as it was."""

    def after(self, laid: Sequence[Place]) -> Form:
        """Of the row as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A table whose rows are handed on as `RowChange`s under this number; below zero: one of ours.

    columns: all columns of the table by ordinal (generated and invisible ones are in the row image too).
    hidden: columns behind those that no schema shows: MariaDB has one for each UNIQUE key by hash (BIGINT).
    unsent: ordinals that nobody asks for and that may be generated, which the log alone does not tell.
    is_padding_unsafe: a row that was written under PAD_CHAR_TO_FULL_LENGTH may be the same as another one for us.
    days: ordinals of dates of which a row may be so that has a day of zero there, or one that no month has.
    """

    number: int
    schema: str
    table: str
    columns: tuple[Column, ...]
    codec: Codec
    hidden: int = 0
    unsent: frozenset[int] = frozenset()
    is_padding_unsafe: bool = False
    days: frozenset[int] = frozenset()

    @property
    def is_ours(self) -> bool:
        return self.number < 0


# Apart from the numbers of our own tables (changes/stream.py), which are below zero as well.
DEFINED = -9
"""Number of the changes that are DDL: `after` is a mapping of schema, sql, verb, what and tables."""


class Catalog(Protocol):
    """Tables that are not known when reading begins: a change feed follows whatever comes, and DDL with it."""

    def watch(self, found: TableMap) -> Watch | None:
        """How the rows of a table are decoded that the log shows; None: it is not followed."""

    def defined(self, found: Definition) -> Sequence[Definition]:
        """What is handed on of this DDL, in its place, each as a change of number DEFINED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What one consumer of a reader follows.

    name: the consumer's. guarded: further tables (schema, name) whose definition must not change, such as its copy.
    catalog: tables besides, whose definition may change.
    """

    name: str = ""
    watches: tuple[Watch, ...] = ()
    guarded: frozenset[tuple[str, str]] = frozenset()
    catalog: Catalog | None = None

    @property
    def tables(self) -> frozenset[tuple[str, str]]:
        """(schema, name) of the application's tables."""
        return frozenset((watch.schema, watch.table) for watch in self.watches if not watch.is_ours)

    @property
    def names(self) -> frozenset[tuple[str, str]]:
        """Of all tables whose definition must not change."""
        return self.guarded | self.tables
