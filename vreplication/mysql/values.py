"""Multi-row INSERT and REPLACE from rows that are SQL text already.

What must stay true: no statement is longer than the server takes (max_allowed_packet). A single row beyond that is put
together in user variables piece by piece: a hex literal doubles a value's length, so a row that once fitted into a
packet may not fit as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from vreplication.mysql.session import Session

STATEMENT_BYTES = 1 << 20
STATEMENT_ROWS = 1_000
_HEX = re.compile(r"(?:_(\w+) )?X'([0-9a-fA-F]*)'\Z")


def statements(
    rows: Iterable[str], *, max_rows: int = STATEMENT_ROWS, max_bytes: int = STATEMENT_BYTES
) -> Iterator[list[str]]:
    """Cut rows (each "(…)") into lists that make one statement each; a long row comes alone."""
    part: list[str] = []
    size = 0
    for row in rows:
        if part and (len(part) >= max_rows or size + len(row) > max_bytes):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row) + 1
    if part:
        yield part


def write(session: Session, head: str, rows: Iterable[str], *, packet: int) -> int:
    """Run `head` + VALUES for all rows; returns the affected rows. `packet`: the server's max_allowed_packet."""
    affected = 0
    for part in statements(rows, max_bytes=min(STATEMENT_BYTES, packet // 2)):
        if len(part) == 1 and len(part[0]) + len(head) + 1024 > packet:
            affected += _write_long(session, head, part[0], packet)
        else:
            affected += session.execute_raw(f"{head} VALUES {','.join(part)}")
    return affected


def _write_long(session: Session, head: str, row: str, packet: int) -> int:
    literals = split_literals(row[1:-1])
    names = []
    for i, literal in enumerate(literals):
        found = _HEX.match(literal) if len(literal) > 4096 else None
        if found:
            name = f"@vreplication_{i}"
            _assemble(session, name, found.group(2), packet)
            names.append(name)
            literals[i] = f"CONVERT({name} USING {found.group(1)})" if found.group(1) else name
    affected = session.execute_raw(f"{head} VALUES ({','.join(literals)})")
    for name in names:
        session.execute_raw(f"SET {name} = NULL")
    return affected


def _assemble(session: Session, name: str, digits: str, packet: int) -> None:
    step = max(2, (packet // 2) & ~1)
    session.execute_raw(f"SET {name} = X''")
    for start in range(0, len(digits), step):
        session.execute_raw(f"SET {name} = CONCAT({name}, X'{digits[start : start + step]}')")


def split_literals(text: str) -> list[str]:
    """The literals of a comma list. Commas stand inside function calls and quoted text too."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        ch = text[i]
        if ch == "'":
            # Our literals hold no escaped quotes: hex, dates and numbers only.
            i = text.index("'", i + 1)
        elif ch == "(":
            depth += 1
        elif ch == ")":
            depth -= 1
        elif ch == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        i += 1
    return [*parts, text[start:]]
