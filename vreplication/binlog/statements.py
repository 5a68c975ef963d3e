"""What a statement in the log means for us: control of a transaction, something we may pass over, or the end.

What must stay true: where a server may have read the text in two ways, both must pass; text that cannot be read passes
only where it can neither write rows nor mean a table of ours.
"""

from __future__ import annotations

import re

from vreplication.binlog.charsets import EXACT
from vreplication.binlog.control import Query
from vreplication.binlog.grammar import (
    DEFINING,
    FIRST_WORDS,
    PASS,
    SIMPLE,
    Kind,
    Meaning,
    Names,
    StatementReader,
    cut,
    folded,
    has_version_comment,
    is_harmless,
    stop,
)
from vreplication.mysql.text import Unreadable

_MARIADB_COMMENT = re.compile(r"/\*(?=M!)")
_LATER_COMMENT = re.compile(r"/\*(?=!(?:\d{6}|50[7-9]\d\d|5[1-9]\d{3}|[6-9]\d{4}))")
"""Opened by servers of that version, or of one flavor only; every server that we know opens those below 5.7."""
_FOREIGN_SPACE = re.compile(r"[^\S\x00-\x7f]")


def meaning(query: Query, codec: str | None, watched: Names) -> Meaning:
    """Classify. `codec`: Python's name of the text's character set, if known. `watched`: (schema, table), any case."""
    simple = SIMPLE.get(query.text)
    if simple is not None:
        return simple
    try:
        # Every client's character set has ASCII in it.
        found = _of_text(query.text.decode(codec or "ascii"), query, watched)
    except (Unreadable, UnicodeDecodeError):
        return _of_unreadable(query.text, watched)
    if found.kind is Kind.PASS and not query.text.isascii() and _may_be_misread(query.text, codec, watched):
        return stop("a statement that we cannot read")
    return found


def _of_text(sql: str, query: Query, watched: Names) -> Meaning:
    """Of every way to read it, when all mean the same. Raises Unreadable."""
    found = [_of_reading(text, skipped, query, watched) for text, skipped in _readings(sql)]
    odd = stop("a statement that servers read differently")
    return next((m for m in found if m.kind is Kind.STOP), found[0] if found.count(found[0]) == len(found) else odd)


def _readings(sql: str) -> list[tuple[str, tuple[re.Pattern[str], ...]]]:
    """With the comments opened or not that some server skips; white space beyond ASCII is a letter to UTF-8 clients."""
    texts = [sql]
    if _FOREIGN_SPACE.search(sql):
        texts.append(_FOREIGN_SPACE.sub(" ", sql))
    some: list[tuple[re.Pattern[str], ...]] = [()]
    for pattern in filter(lambda each: each.search(sql), (_MARIADB_COMMENT, _LATER_COMMENT)):
        some += [(*each, pattern) for each in some]
    return [(text, each) for text in texts for each in some]


def _of_reading(sql: str, skipped: tuple[re.Pattern[str], ...], query: Query, watched: Names) -> Meaning:
    found = cut(sql, query, skipped)
    return StatementReader(found, query.schema, watched, has_version_comment(sql, query, skipped)).meaning(sql)


def _of_unreadable(raw: bytes, watched: Names) -> Meaning:
    """A definition or something harmless that has none of our names in its bytes cannot mean us."""
    found = FIRST_WORDS.match(raw)
    verb, follows = (word.decode().upper() for word in found.groups()) if found else ("", "")
    is_known = verb in DEFINING or is_harmless(verb, follows)
    # A name of ours beyond ASCII may stand there in bytes of a character set that we do not know.
    may_name = _has_in_bytes(raw, watched) or not (raw.isascii() or _are_plain(watched))
    if is_known and not may_name and not _may_run(verb, raw.lower()):
        return PASS
    return stop("a statement that we cannot read")


def _may_be_misread(raw: bytes, codec: str | None, watched: Names) -> bool:
    """Text that the server itself writes, whole or in part, is UTF-8 whatever the client's character set is."""
    if codec == "utf-8":
        return False
    if codec in EXACT:
        # What is ASCII in one reading is so in the other.
        return _has_in_bytes(raw, frozenset(pair for pair in watched if not _are_plain(frozenset({pair}))))
    return _has_in_bytes(raw, watched) or not _are_plain(watched)


def _has_in_bytes(raw: bytes, watched: Names) -> bool:
    text = folded(raw.decode("utf-8", "replace"))
    return any(folded(name) in text for pair in watched for name in pair)


def _are_plain(watched: Names) -> bool:
    """True when our names are the same bytes in every client's character set."""
    return all(name.isascii() and "\\" not in name for pair in watched for name in pair)


def _may_run(verb: str, low: bytes) -> bool:
    """CREATE TABLE with rows, or a comment that some servers open."""
    # CREATE TABLE a TABLE b takes the rows of b.
    has_rows = b"select" in low or b"values" in low or low.count(b"table") > 1
    return (verb == "CREATE" and b"table" in low and has_rows) or b"/*!" in low or b"/*m!" in low
