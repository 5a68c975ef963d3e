"""What catch-up follows in the log: the application's table, and of ours those that tell what copy and cut-over do.

What must stay true: numbers of the application's tables are those of the workflow's tables, from 0 on; ours are below
zero and the same in every process, for rows wait on disk under them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vreplication.binlog.events import RowChange
from vreplication.binlog.watch import Watch
from vreplication.changes.codecs import PlainValues, SqlText
from vreplication.schema.literals import is_character
from vreplication.schema.mapping import is_told_apart_by_padding, told_apart_by_days
from vreplication.schema.model import Column, ColumnPair, TableMapping

FIRST = 0
"""The one table of a workflow that has one."""
CHUNK, GATE, MARKER = -1, -2, -3
SIGNAL = -4
"""The one table on a source whose stream has its state elsewhere (state/source_marks.py)."""
_OURS = {CHUNK: "chunk", GATE: "gate", MARKER: "marker"}


def of_mapping(mapping: TableMapping, number: int = FIRST) -> Watch:
    """The source's table, its rows as the target's text."""
    return Watch(
        number=number,
        schema=mapping.source.schema,
        table=mapping.source.name,
        columns=mapping.source.columns,
        codec=SqlText(
            key=tuple((p.source.ordinal, p.convert) for p in mapping.key),
            values=tuple((p.source.ordinal, p.convert) for p in mapping.pairs),
            as_text=frozenset(p.source.ordinal for p in mapping.pairs if _becomes_text(p)),
        ),
        # MariaDB keeps a hidden column behind each UNIQUE key over a whole BLOB or TEXT, and logs it with the row.
        hidden=sum(key.index_type == "HASH" for key in mapping.source.keys),
        is_padding_unsafe=is_told_apart_by_padding(mapping),
        days=told_apart_by_days(mapping),
    )


def _becomes_text(pair: ColumnPair) -> bool:
    return pair.source.data_type == "json" and is_character(pair.target)


def of_ours(schema: str, columns: Callable[[str], tuple[Column, ...]]) -> list[Watch]:
    """columns: of one of our tables by its name."""
    return [
        Watch(number=number, schema=schema, table=name, columns=columns(name), codec=PlainValues())
        for number, name in _OURS.items()
    ]


def of_source_marks(schema: str, table: str, columns: tuple[Column, ...]) -> list[Watch]:
    """The same for a source whose stream has its state elsewhere."""
    return [Watch(number=SIGNAL, schema=schema, table=table, columns=columns, codec=PlainValues())]


def owner_of(row: dict[str, Any]) -> str:
    """Whose a row of ours is: a workflow's, or a stream's."""
    return str(row["workflow"] if "workflow" in row else row["stream"])


def count_changes(items: Sequence[RowChange]) -> int:
    """Of the application's tables."""
    # F9b: were our own rows backlog, each chunk that the copy writes down would hold the copy back.
    return sum(1 for item in items if item.table >= FIRST)
