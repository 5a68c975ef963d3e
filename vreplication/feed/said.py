"""What a piece of a source's log says, as rows and statements that a format can write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vreplication.feed.layout import Layout
from vreplication.feed.messages import Ddl, Place, Row
from vreplication.feed.reading import Piece
from vreplication.feed.sending import Sending

# For each row: a NamedTuple's own constructor is a Python function in between.
_new = tuple.__new__


def rows_of(sending: Sending, piece: Piece, layout: Callable[[int], Layout]) -> list[Row]:
    t, gtid, commit, name, is_snapshot = piece.t, piece.gtid, piece.commit, sending.name, piece.is_snapshot
    return [
        Row(
            layout=layout(change.table),
            place=_new(Place, (t, seq)),
            before=change.before,
            after=change.after,
            gtid=gtid,
            source=name,
            commit=commit,
            is_snapshot=is_snapshot,
        )
        for seq, change in enumerate(piece.changes, piece.seq)
    ]


def ddl_of(sending: Sending, piece: Piece) -> Ddl:
    said: dict[str, Any] = piece.changes[0].after
    return Ddl(
        place=Place(piece.t, piece.seq),
        schema=said["schema"],
        sql=said["sql"],
        verb=said["verb"],
        what=said["what"],
        tables=tuple((schema, table) for schema, table in said["tables"]),
        gtid=piece.gtid,
        source=sending.name,
        commit=piece.commit,
    )
