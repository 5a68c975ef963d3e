"""Multi-row INSERT and REPLACE from rows that are SQL text already.

What must stay true: no statement is longer than the server takes (max_allowed_packet). A single row beyond that is put
together in user variables piece by piece: a hex literal doubles a value's length, so a row that once fitted into a
packet may not fit as text. A value that is longer than the session's packet is an error: CONCAT would give NULL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from vreplication.mysql.session import Session, SqlError

STATEMENT_BYTES = 1 << 20
STATEMENT_ROWS = 1_000
_AT_ROW = re.compile(r"at row (\d+)")
_TOO_LONG = 1153
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


def packet_of(session: Session) -> int:
    """The session's max_allowed_packet: that of the server at its start, whatever the server has been told since."""
    return session.lasting("packet", lambda: int(session.value("SELECT @@SESSION.max_allowed_packet")))


def write(
    session: Session, head: str, rows: Iterable[str], *, packet: int, after: Callable[[int], None] = lambda rows: None
) -> int:
    """Run `head` + VALUES for all rows; returns the affected rows. `packet`: the longest statement that is wanted.

    Raises SqlError, in which "at row n" counts all rows. after: called behind each statement with the number of rows
    before it, to read its warnings.
    """
    packet = min(packet, packet_of(session))
    affected = done = 0
    for part in statements(rows, max_bytes=min(STATEMENT_BYTES, packet // 2)):
        try:
            affected += _write_part(session, head, part, packet, partial(after, done))
        except SqlError as error:
            raise SqlError(_counted(error.message, done), cure=error.cure, code=error.code) from None
        done += len(part)
    return affected


def _counted(words: str, before: int) -> str:
    return _AT_ROW.sub(lambda found: f"at row {before + int(found[1])}", words)


def _write_part(session: Session, head: str, part: list[str], packet: int, after: Callable[[], None]) -> int:
    if len(part) == 1 and len(part[0]) + len(head) + 1024 > packet:
        return _write_long(session, head, part[0], packet, after)
    affected = session.execute_raw(f"{head} VALUES {','.join(part)}")
    after()
    return affected


def _write_long(session: Session, head: str, row: str, packet: int, after: Callable[[], None]) -> int:
    literals = split_literals(row[1:-1])
    names = []
    for i, literal in enumerate(literals):
        found = _HEX.match(literal) if len(literal) > 4096 else None
        if found:
            names.append(f"@vreplication_{i}")
            _assemble(session, names[-1], found.group(2), found.group(1), packet)
            literals[i] = names[-1]
    affected = session.execute_raw(f"{head} VALUES ({','.join(literals)})")
    after()
    # A session lives long, and a value of many MiB would stay in it.
    for name in names:
        session.execute_raw(f"SET {name} = NULL")
    return affected


def _assemble(session: Session, name: str, digits: str, charset: str | None, packet: int) -> None:
    """Set the variable to the value. Raises SqlError where it would not be that."""
    # An even number of digits: a byte has two.
    step = max(2, (packet // 2) & ~1)
    session.execute_raw(f"SET {name} = X''")
    for start in range(0, len(digits), step):
        session.execute_raw(f"SET {name} = CONCAT({name}, X'{digits[start : start + step]}')")
    # Behind all pieces, for one of them may end in the middle of a character.
    if charset:
        session.execute_raw(f"SET {name} = CONVERT({name} USING {charset})")
    # CONCAT beyond max_allowed_packet is NULL, with a warning and no error: the row would lose its value without a
    # word.
    if session.value(f"SELECT LENGTH({name})") != len(digits) // 2:
        size, limit = len(digits) // 2, packet_of(session)
        raise SqlError(
            f"A value of {size:,} bytes does not pass max_allowed_packet, which is {limit:,}, at row 1", code=_TOO_LONG
        )


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


def readable(literal: str) -> str:
    """A literal as a person writes it, where that is plain."""
    found = _HEX.fullmatch(literal)
    if not found:
        return literal
    # The servers' latin1 is what others call cp1252.
    codecs = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "latin1": "cp1252", "ascii": "ascii"}
    try:
        text = bytes.fromhex(found[2]).decode(codecs[found[1] or ""])
    except (KeyError, UnicodeDecodeError):
        return literal
    return repr(text) if text.isprintable() else literal


def readable_key(key: str) -> str:
    """The same for a comma list of literals."""
    return ", ".join(map(readable, split_literals(key)))
