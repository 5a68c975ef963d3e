"""What an expression takes for a date, and how: two sessions may find two dates in one value.

Text, a number or JSON that is taken for a date becomes one by the session: '2024-01-01 00:30:00+05:00' is brought into
its time zone (MySQL), a day of zero or one that no month has is NULL, an error or that day by its SQL mode, digits
behind the seconds are cut or rounded. DATE() of a date of zero is NULL or that date, likewise by the mode. Ours takes
every such day, for rows that hold them have to be copied; the application's, by default, do not.

What must stay true: an expression counts as free of that only where every date in it comes from a column of such a type
or from a literal that is one day for all. What is not known is taken for dependent: that costs time, never rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date

from vreplication.mysql.text import Token
from vreplication.schema.literals import TEMPORALS
from vreplication.schema.model import Column, Table

COMPARING = ("=", "<", ">", "<=", ">=", "<>", "!=", "<=>")
DATED = frozenset({"date", "datetime", "timestamp"})
_TAKERS = (
    *("TO_DAYS", "TO_SECONDS", "YEAR", "MONTH", "DAY", "DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "QUARTER", "LAST_DAY"),
    *("DATE", "DATEDIFF", "HOUR", "MINUTE", "SECOND", "MICROSECOND", "TIME_TO_SEC", "TIME", "TIMESTAMP"),
)
"""Functions whose arguments are taken for dates or times."""
_OF_NUMBERS = ("FROM_DAYS", "MAKEDATE")
_MADE = ("DATE", "LAST_DAY", "TIMESTAMP")
"""Functions that give a date of a date, and by the SQL mode none."""
_TYPES = ("DATE", "DATETIME", "TIME")
_COMMON = ("GREATEST", "LEAST", "NULLIF", "FIELD")
"""Functions that bring their arguments to one type."""
_MERGING = ("COALESCE", "IFNULL", "GREATEST", "LEAST")
"""Functions that give one of their arguments."""
_EDGES = ("AND", "OR", "XOR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "CASE", "WHEN", "THEN", "ELSE", "END")
_TIMES = ("date", "time", "day")
_PATTERNS = ("REGEXP", "RLIKE", "REGEXP_LIKE", "REGEXP_INSTR", "REGEXP_REPLACE", "REGEXP_SUBSTR")
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?")
_HOUR = re.compile(r"\d{1,3}:\d\d(:\d\d)?")

Cut = Callable[[str], Sequence[Token] | None]
"""An expression's tokens; None: it cannot be read."""


def are_taken(table: Table, texts: Sequence[str], cut: Cut) -> bool:
    """Something that is no date may be taken for one, or is written to a TIMESTAMP."""
    return any(_Text(table, text, parts).takes() if (parts := cut(text)) is not None else True for text in texts)


def go_by_mode(table: Table, texts: Sequence[str], cut: Cut) -> bool:
    """Of a date of zero, or one that no month has, another may be made by the session's SQL mode, or NULL."""
    return any(_Text(table, text, parts).makes() if (parts := cut(text)) is not None else True for text in texts)


def match_by_session(texts: Sequence[str], cut: Cut) -> bool:
    """A pattern: default_regex_flags (MariaDB) and NO_BACKSLASH_ESCAPES (LIKE, both) say what it matches."""
    return any((parts := cut(text)) is None or _matches(parts) for text in texts)


def _matches(parts: Sequence[Token]) -> bool:
    if any(token.is_word(*_PATTERNS) for token in parts):
        return True
    return any(
        # Servers write the zero bytes of utf16 and utf32 as \0 (docs/limits.md): those are no escapes of the pattern.
        (found := _operand(parts, at + 1)) is None or found.kind != "string" or "\\" in found.text.replace("\\0", "")
        for at, token in enumerate(parts)
        if token.is_word("LIKE")
    )


def _operand(parts: Sequence[Token], at: int) -> Token | None:
    """Behind a character set, or the DATE of a literal."""
    while at + 1 < len(parts) and parts[at].kind == "word" and parts[at + 1].kind == "string":
        at += 1
    return parts[at] if at < len(parts) else None


def is_one_day(text: str) -> bool:
    """A literal that every session takes for the same date. Its digits behind the seconds are not looked at."""
    found = _DAY.fullmatch(text)
    if found is None:
        return False
    try:
        # The year 0 is one to both servers, and a leap year.
        date(int(found[1]) or 4, int(found[2]), int(found[3]))
    except ValueError:
        return False
    return True


class _Text:
    """One expression of the table's."""

    def __init__(self, table: Table, text: str, parts: Sequence[Token]) -> None:
        self.parts, self._kinds = parts, {c.name.lower(): c.data_type for c in table.columns}
        self._written = [c for c in table.columns if (c.generated and c.expression == text) or c.default == text]
        self._has_dates = any(self._kind(parts[at : at + 1]) == "date" for at in range(len(parts))) or any(
            token.is_word(*_TYPES, *_MADE, *_OF_NUMBERS) for token in parts
        )

    # What an operand is: date, time, day (a literal that is one for all, or NULL), other, or '' where it is not known.

    def _kind(self, span: Sequence[Token]) -> str:
        span = _bare(span)
        if len(span) > 1 and span[-1].kind == "string" and len(span) == 2 and span[0].kind == "word":
            return self._kind_of_literal(span[0], span[1])
        if len(span) == 1:
            return self._kind_of_one(span[0])
        if span and span[0].is_word("CASE") and span[-1].is_word("END"):
            return self._merged(_branches(span))
        if len(span) > 2 and span[0].is_name and span[1].is_punct("(") and _closed(span, 1) == len(span) - 1:
            return self._kind_of_call(span[0], span[2:-1])
        if any(_is_edge(span[at]) for at in _tops(span)):
            # True or false.
            return "other"
        # In no parenthesis: `year(d + INTERVAL 1 DAY) + 1` is a number, although an interval stands deeper within it.
        if any(_is_sum(span, at) for at in _tops(span)):
            return "date" if any(self._is_interval(span, at) for at in _tops(span)) else "other"
        return ""

    def _kind_of_literal(self, before: Token, string: Token) -> str:
        if before.is_word("DATE", "TIMESTAMP"):
            return "date" if is_one_day(string.value) else ""
        return "time" if before.is_word("TIME") else self._kind_of_one(string)

    def _kind_of_one(self, token: Token) -> str:
        if token.is_name and (kind := self._kinds.get(token.value.lower())):
            return "date" if kind in DATED else "time" if kind == "time" else "other"
        if token.is_word("NULL") or (
            token.kind == "string" and (is_one_day(token.value) or _HOUR.fullmatch(token.value))
        ):
            return "day"
        return "other" if token.kind in ("string", "number") or token.is_word("TRUE", "FALSE") else ""

    def _kind_of_call(self, name: Token, inside: Sequence[Token]) -> str:
        word, found = name.value.upper(), _split(inside)
        if word in ("CAST", "CONVERT"):
            # The type stands behind the AS that is in no further parenthesis.
            types = [inside[at + 1] for at in _tops(inside) if inside[at].is_word("AS") and at + 1 < len(inside)]
            is_time = bool(types) and types[-1].is_word(*_TYPES)
            return "other" if not is_time else "time" if types[-1].is_word("TIME") else "date"
        if word in _MADE or word in _OF_NUMBERS:
            return "date"
        if word in ("TIME", "MAKETIME"):
            return "time"
        if word in ("IF", "NULLIF", *_MERGING):
            return self._merged(found[1:] if word == "IF" else found[:1] if word == "NULLIF" else found)
        if word == "JSON_VALUE" and any(each.is_word(*_TYPES) for each in inside):
            return "date"
        return "other"

    def _merged(self, spans: Sequence[Sequence[Token]]) -> str:
        kinds = {self._kind(each) for each in spans} - {"day"}
        if not kinds:
            return "day"
        return kinds.pop() if len(kinds) == 1 else "" if "" in kinds else "other"

    # Taken for a date.

    def takes(self) -> bool:
        return any(self._takes_at(at) for at in range(len(self.parts))) or any(map(self._is_taken_by, self._written))

    def _takes_at(self, at: int) -> bool:
        token, is_called = self.parts[at], self._is_called(at)
        # Whatever they are given is a number, of which the session's SQL mode may make no date.
        if token.is_word(*_OF_NUMBERS):
            return True
        if token.is_word(*_TAKERS) and is_called:
            return not all(self._kind(each) in _TIMES for each in _split(self._inside(at + 1)))
        if token.is_word(*_TYPES) and at > 0 and self.parts[at - 1].is_word("AS"):
            return self._kind(self._before(at - 1)) not in _TIMES
        if token.is_word("RETURNING"):
            return self.parts[at + 1].is_word(*_TYPES, "YEAR") if at + 1 < len(self.parts) else True
        if self._is_interval(self.parts, at):
            return self._kind(_operand_before(self.parts, at - 1)) not in _TIMES
        return self._mixes(at)

    def _mixes(self, at: int) -> bool:
        """Values of several types are brought to one, a date among them, or a TIME."""
        kinds = {self._kind(each) for each in self._compared(at)} - {"day"}
        if "" in kinds:
            return self._has_dates
        return len(kinds) > 1

    def _compared(self, at: int) -> Sequence[Sequence[Token]]:
        """What is compared with each other there."""
        token = self.parts[at]
        if token.is_word(*_COMMON) and self._is_called(at):
            return _split(self._inside(at + 1))
        if token.is_punct(*COMPARING):
            return [self._left(at), self._right(at)]
        if token.is_word("IN"):
            return [self._left(at), *_split(self._inside(at + 1))]
        if token.is_word("BETWEEN"):
            low = self._right(at)
            return [self._left(at), low, self._right(at + len(low) + 1)]
        if token.is_word("CASE") and at + 1 < len(self.parts) and not self.parts[at + 1].is_word("WHEN"):
            return [self._right(at), *(self._right(each) for each in self._whens(at))]
        return ()

    def _whens(self, at: int) -> Iterator[int]:
        depth = 0
        for place in range(at, len(self.parts)):
            token = self.parts[place]
            depth += token.is_word("CASE") - token.is_word("END")
            if depth == 0:
                return
            if depth == 1 and token.is_word("WHEN"):
                yield place

    def _left(self, at: int) -> Sequence[Token]:
        if at > 0 and self.parts[at - 1].is_word("NOT"):
            at -= 1
        depth, start = 0, at
        while start > 0:
            token = self.parts[start - 1]
            depth += token.is_punct(")") - token.is_punct("(")
            if depth < 0 or (depth == 0 and _is_edge(token)):
                break
            start -= 1
        return self.parts[start:at]

    def _right(self, at: int) -> Sequence[Token]:
        depth, end = 0, at + 1
        while end < len(self.parts):
            token = self.parts[end]
            depth += token.is_punct("(") - token.is_punct(")")
            if depth < 0 or (depth == 0 and _is_edge(token)):
                break
            end += 1
        return self.parts[at + 1 : end]

    def _is_called(self, at: int) -> bool:
        return at + 1 < len(self.parts) and self.parts[at + 1].is_punct("(")

    def _is_interval(self, parts: Sequence[Token], at: int) -> bool:
        """`… + INTERVAL 1 DAY`, and not the function, which has a comma in its parenthesis."""
        if not parts[at].is_word("INTERVAL"):
            return False
        if at + 1 < len(parts) and parts[at + 1].is_punct("("):
            end = _closed(parts, at + 1)
            return len(_split(parts[at + 2 : end])) == 1
        return True

    def _inside(self, at: int) -> Sequence[Token]:
        """Of the parenthesis that opens there."""
        is_open = at < len(self.parts) and self.parts[at].is_punct("(")
        return self.parts[at + 1 : _closed(self.parts, at)] if is_open else ()

    def _before(self, at: int) -> Sequence[Token]:
        """From the parenthesis that is open there."""
        depth = 0
        for start in range(at - 1, -1, -1):
            depth += self.parts[start].is_punct(")") - self.parts[start].is_punct("(")
            if depth < 0:
                return self.parts[start + 1 : at]
        return ()

    def _is_taken_by(self, column: Column) -> bool:
        """The column that it is written to takes it for a date. A default without a name in it is a literal."""
        if column.data_type not in TEMPORALS or not any(t.is_name and not t.is_word("NULL") for t in self.parts):
            return False
        # A date that is written to a TIMESTAMP becomes a moment by the session's zone.
        return column.data_type == "timestamp" or self._kind(self.parts) not in _TIMES

    # Made by the SQL mode.

    def makes(self) -> bool:
        return any(self._makes_at(at) for at in range(len(self.parts))) or any(map(self._is_changed_by, self._written))

    def _makes_at(self, at: int) -> bool:
        token = self.parts[at]
        if token.is_word(*_MADE) and self._is_called(at):
            return True
        if token.is_word("DATE", "DATETIME") and at > 0 and self.parts[at - 1].is_word("AS"):
            return self._kind(self._before(at - 1)) != "day"
        if token.is_word("CASE", "IF", *_COMMON, *_MERGING):
            # MariaDB makes a new date of what such a function gives.
            inside = self._inside(at + 1) if self._is_called(at) else self._case(at)
            return any(self._kind([each]) == "date" for each in inside)
        return self._is_interval(self.parts, at)

    def _case(self, at: int) -> Sequence[Token]:
        """From CASE to the last END."""
        # Of several CASEs in one text the last END is taken for each: more counts as a date then, never less.
        ends = [place for place, token in enumerate(self.parts) if token.is_word("END")]
        return self.parts[at : ends[-1]] if ends and self.parts[at].is_word("CASE") else ()

    def _is_changed_by(self, column: Column) -> bool:
        """A date becomes one of another type."""
        kinds = {self._kinds[t.value.lower()] for t in self.parts if t.is_name and t.value.lower() in self._kinds}
        return column.data_type in DATED and bool((kinds & DATED) - {column.data_type})


def _bare(span: Sequence[Token]) -> Sequence[Token]:
    """Without the parentheses around it, and the character set before a string."""
    while len(span) > 1 and span[0].is_punct("(") and _closed(span, 0) == len(span) - 1:
        span = span[1:-1]
    return span[1:] if len(span) == 2 and _is_charset(span[0]) else span


def _closed(parts: Sequence[Token], at: int) -> int:
    """Where the parenthesis that opens there is closed; the end where it is not."""
    depth = 0
    for end in range(at, len(parts)):
        depth += parts[end].is_punct("(") - parts[end].is_punct(")")
        if depth == 0:
            return end
    return len(parts)


def _tops(span: Sequence[Token]) -> Iterator[int]:
    """Places in no parenthesis."""
    depth = 0
    for at, token in enumerate(span):
        depth += token.is_punct("(") - token.is_punct(")")
        if depth == 0 and not token.is_punct(")"):
            yield at


def _split(span: Sequence[Token]) -> list[Sequence[Token]]:
    """At its commas."""
    ends = [at for at in _tops(span) if span[at].is_punct(",")]
    return [span[a + 1 : b] for a, b in itertools.pairwise([-1, *ends, len(span)])] if span else []


def _branches(span: Sequence[Token]) -> list[Sequence[Token]]:
    """What a CASE may give."""
    found, depth, start = [], 0, -1
    for at, token in enumerate(span):
        depth += token.is_punct("(") - token.is_punct(")") + token.is_word("CASE")
        if start >= 0 and depth == 1 and token.is_word("WHEN", "ELSE", "END"):
            found.append(span[start:at])
            start = -1
        if depth == 1 and token.is_word("THEN", "ELSE"):
            start = at + 1
        depth -= token.is_word("END")
    return found


def _is_sum(span: Sequence[Token], at: int) -> bool:
    return span[at].is_punct("+", "-", "*", "/", "%") or span[at].is_word("DIV", "MOD")


def _operand_before(parts: Sequence[Token], at: int) -> Sequence[Token]:
    """What stands before the sign at this place; nothing where it is no sign."""
    if at < 1 or not parts[at].is_punct("+", "-"):
        return ()
    start = at - 1
    if parts[start].is_punct(")"):
        depth = 0
        while start >= 0:
            depth += parts[start].is_punct(")") - parts[start].is_punct("(")
            if depth == 0:
                break
            start -= 1
    if start > 0 and parts[start - 1].is_name and not parts[start - 1].is_word("AND", "OR", "THEN", "ELSE", "WHEN"):
        start -= 1
    return parts[max(start, 0) : at]


def _is_edge(token: Token) -> bool:
    """Between two operands of a comparison and what stands around them."""
    return token.is_punct(",", *COMPARING) or token.is_word(*_EDGES)


def is_compared(parts: Sequence[Token], at: int) -> bool:
    """`name = 'x'`, `name IN (…)`, `name IS NULL`, `CASE name WHEN`, `IF(name, …`: what it holds is not written."""
    before, following = parts[at - 1 : at] if at else (), parts[at + 1 : at + 2]
    if at > 1 and parts[at - 1].is_punct("(") and parts[at - 2].is_word("IF") and following:
        return following[0].is_punct(",", *COMPARING) or following[0].is_word("IN", "IS", "LIKE")
    return any(each.is_punct(*COMPARING) or each.is_word("CASE") for each in before) or any(
        each.is_punct(*COMPARING) or each.is_word("IN", "IS", "LIKE") for each in following
    )


def _is_charset(token: Token) -> bool:
    return token.kind == "word" and token.text.startswith("_")
