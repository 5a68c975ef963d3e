"""What an expression takes for a date, and how: two sessions may find two dates in one value.

Text, a number or JSON that is taken for a date becomes one by the session: '2024-01-01 00:30:00+05:00' is brought into
its time zone (MySQL), a day of zero or one that no month has is NULL, an error or that day by its SQL mode, digits
behind the seconds are cut or rounded. DATE() of a date of zero is NULL or that date, likewise by the mode. Ours takes
every such day, for rows that hold them have to be copied; the application's, by default, do not.

What must stay true: an expression counts as free of that only where every date in it comes from a column of such a type
or from a literal that is one day for all. What is not known is taken for dependent: that costs time, never rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_STAYS = ("DATE", "DATETIME", "TIME", "CAST", "AS", "LAST_DAY", "COALESCE", "IFNULL", "NULL")
_PATTERNS = ("REGEXP", "RLIKE", "REGEXP_LIKE", "REGEXP_INSTR", "REGEXP_REPLACE", "REGEXP_SUBSTR")
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?")
_LONG_NUMBER = re.compile(r"\d{6}")

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
        (found := _operand(parts, at + 1)) is None or found.kind != "string" or "\\" in found.text
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
        date(*map(int, found.groups()))
    except ValueError:
        return False
    return True


class _Text:
    """One expression of the table's."""

    def __init__(self, table: Table, text: str, parts: Sequence[Token]) -> None:
        self.parts, self._kinds = parts, {c.name.lower(): c.data_type for c in table.columns}
        self._written = [c for c in table.columns if (c.generated and c.expression == text) or c.default == text]
        names = {token.value.lower() for at, token in enumerate(parts) if self._is_column(at)}
        self._has_dates = any(self._kinds[name] in DATED for name in names)
        self._has_others = any(self._kinds[name] not in DATED for name in names) or any(map(_is_other, parts))

    def _is_column(self, at: int) -> bool:
        token, following = self.parts[at], self.parts[at + 1 : at + 2]
        is_called = token.kind == "word" and bool(following) and following[0].is_punct("(")
        return token.is_name and token.value.lower() in self._kinds and not is_called

    def _kind(self, token: Token | None) -> str:
        """date, day (a literal that is one, or NULL), other, or '' where that is not known."""
        if token is None or token.kind == "punct":
            return ""
        if token.is_name and token.value.lower() in self._kinds:
            return "date" if self._kinds[token.value.lower()] in DATED else "other"
        if token.is_word("NULL") or (token.kind == "string" and is_one_day(token.value)):
            return "day"
        return "" if token.is_name else "other"

    # Taken for a date.

    def takes(self) -> bool:
        return any(self._takes_at(at) for at in range(len(self.parts))) or any(map(self._is_taken_by, self._written))

    def _takes_at(self, at: int) -> bool:
        token, following = self.parts[at], self.parts[at + 1 : at + 2]
        if token.is_word(*_TAKERS) and following and following[0].is_punct("("):
            return not self._are_times(self._inside(at + 1))
        if token.is_word(*_TYPES) and self.parts[at - 1].is_word("AS") and at > 0:
            return not self._are_times(self._before(at - 1))
        if token.is_word(*_OF_NUMBERS):
            return True
        if token.is_word("RETURNING"):
            return bool(following) and following[0].is_word(*_TYPES, "YEAR")
        if token.is_word("INTERVAL") and not (following and following[0].is_punct("(")):
            return self._has_others
        return self._compares(at)

    def _compares(self, at: int) -> bool:
        token = self.parts[at]
        if token.is_word(*_COMMON):
            kinds = {self._kind(each) for each in self._inside(at + 1) if not each.is_punct(",")}
            return self._has_dates and not kinds <= {"date", "day"}
        if token.is_punct(*COMPARING):
            kinds = {self._kind(self.parts[at - 1] if at else None), self._kind(_operand(self.parts, at + 1))}
            if kinds <= {"other", "day"} or kinds <= {"date", "day"}:
                return False
            return self._has_dates and self._has_others
        if token.is_word("IN", "BETWEEN"):
            before = self.parts[at - 2] if at > 1 and self.parts[at - 1].is_word("NOT") else self.parts[at - 1]
            return self._kind(before) != "other" and self._has_dates and self._has_others
        following = self.parts[at + 1 : at + 2]
        if token.is_word("CASE") and following and not following[0].is_word("WHEN"):
            return self._kind(following[0]) != "other" and self._has_dates and self._has_others
        return False

    def _are_times(self, inside: Sequence[Token]) -> bool:
        """Columns of times and dates, literals that are one day, and what leaves them what they are."""
        return bool(inside) and all(
            (token.is_name and self._kinds.get(token.value.lower(), "") in TEMPORALS)
            or token.is_punct("(", ")", ",")
            or token.is_word(*_STAYS)
            or (token.kind == "word" and token.text.startswith("_"))
            or (token.kind == "string" and is_one_day(token.value))
            or (token.kind == "number" and _is_precision(inside, at))
            for at, token in enumerate(inside)
        )

    def _inside(self, at: int) -> Sequence[Token]:
        """Of the parenthesis that opens there."""
        depth = 0
        for end in range(at, len(self.parts)):
            depth += self.parts[end].is_punct("(") - self.parts[end].is_punct(")")
            if depth == 0:
                return self.parts[at + 1 : end]
        return ()

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
        if column.data_type == "timestamp":
            return True
        return any(self._kinds[name] not in TEMPORALS for name in self._valued()) or any(self._odd_days())

    def _valued(self) -> Iterator[str]:
        """Columns whose values it may have: not those that are compared only."""
        for at, token in enumerate(self.parts):
            if self._is_column(at) and not is_compared(self.parts, at):
                yield token.value.lower()

    def _odd_days(self) -> Iterator[bool]:
        for at, token in enumerate(self.parts):
            if token.kind == "string" and not is_one_day(token.value) and re.search(r"\d-|\d{6}", token.value):
                yield not is_compared(self.parts, at)

    # Made by the SQL mode.

    def makes(self) -> bool:
        return any(self._makes_at(at) for at in range(len(self.parts))) or any(map(self._is_changed_by, self._written))

    def _makes_at(self, at: int) -> bool:
        token, following = self.parts[at], self.parts[at + 1 : at + 2]
        if token.is_word(*_MADE) and following and following[0].is_punct("("):
            return True
        if token.is_word("DATE", "DATETIME") and at > 0 and self.parts[at - 1].is_word("AS"):
            return any(self._kind(each) != "day" for each in self._before(at - 1) if not _is_charset(each))
        return token.is_word("INTERVAL") and not (following and following[0].is_punct("("))

    def _is_changed_by(self, column: Column) -> bool:
        """A date becomes one of another type."""
        kinds: Mapping[str, str] = self._kinds
        return column.data_type in DATED and any(kinds[name] != column.data_type for name in self._valued())


def is_compared(parts: Sequence[Token], at: int) -> bool:
    """`name = 'x'`, `name IN (…)`, `name IS NULL`: what it holds is not written."""
    before = at - 1
    while before > 0 and parts[before].kind == "word" and parts[before].text.startswith("_"):
        before -= 1
    following = parts[at + 1 : at + 2]
    return (before >= 0 and parts[before].is_punct(*COMPARING)) or any(
        each.is_punct(*COMPARING) or each.is_word("IN", "IS", "LIKE") for each in following
    )


def _is_other(token: Token) -> bool:
    """A literal that is no day for all."""
    if token.kind == "string":
        return not is_one_day(token.value)
    return token.kind == "number" and _LONG_NUMBER.search(token.text) is not None


def _is_precision(inside: Sequence[Token], at: int) -> bool:
    """The 3 of DATETIME(3)."""
    return at > 1 and inside[at - 1].is_punct("(") and inside[at - 2].is_word("DATETIME", "TIME")


def _is_charset(token: Token) -> bool:
    return token.kind == "word" and token.text.startswith("_")
