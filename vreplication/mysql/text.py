"""SQL text as tokens, the way MySQL and MariaDB cut it up.

What must stay true: comments never hide anything that the server would execute (`/*! … */` and `/*M! … */`
are opened, whatever their version says), and text that ends inside a string, a quoted name or a comment is
refused instead of guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["word", "quoted", "string", "number", "punct"]

_IDENT = r"[0-9A-Za-z$_\u0080-\U0010ffff]"
_WORD = re.compile(_IDENT + "+")
# A digit may begin a name (1a), so what goes on with a letter is no number.
_NUMBER = re.compile(rf"(?:0[xX][0-9A-Fa-f]+|0b[01]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?!{_IDENT})")
_SPACE = re.compile(r"[ \t-\r\x00]+")
"""To the servers white space beyond ASCII is a letter of a name."""
# In front of anything but white space or a control character two dashes are two signs of minus.
_LINE_COMMENT = re.compile(r"(?:#|--(?=[\x00-\x20\x7f]|\Z))[^\n]*")
_OPENED = re.compile(r"/\*M?!(?:\d{5,6})?")
_PREFIXED = re.compile(r"[xXbBnN]'")
_PUNCT = re.compile(r":=|<=>|<>|!=|<=|>=|\|\||&&|<<|>>|@@|.", re.S)
# Of \% and \_ the backslash stays, as patterns of LIKE want it.
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class Unreadable(ValueError):
    """The text ends inside a string, a quoted name or a comment."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL. `text` is as written; `value` without quotes and escapes; `start`:`end` its place."""

    kind: Kind
    text: str
    value: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        """True for an unquoted word that is one of `words` (given in upper case)."""
        return self.kind == "word" and self.text.upper() in words

    def is_punct(self, *signs: str) -> bool:
        return self.kind == "punct" and self.text in signs

    @property
    def is_name(self) -> bool:
        """True for what can be an identifier: a word or a quoted name."""
        return self.kind in ("word", "quoted")


def tokens(
    sql: str, *, ansi_quotes: bool = False, backslash_escapes: bool = True, skipped: Sequence[re.Pattern[str]] = ()
) -> list[Token]:
    """Cut `sql` into tokens. skipped: opened comments that the server passes over, by beginning. Raises Unreadable."""
    return list(_Scanner(sql, ansi_quotes, backslash_escapes, skipped).run())


def scan(sql: str) -> Iterator[Token]:
    """As `tokens`, one by one: who wants the first words of a long text reads no more than those. Raises Unreadable."""
    return _Scanner(sql, ansi_quotes=False, backslash_escapes=True).run()


def has_opened_comment(
    sql: str, *, ansi_quotes: bool = False, backslash_escapes: bool = True, skipped: Sequence[re.Pattern[str]] = ()
) -> bool:
    """True when it holds a `/*! … */`, which a server executes or skips by its version; what is in quotes is none.

    As for `tokens`. Raises Unreadable.
    """
    if _OPENED.search(sql) is None:
        return False
    scanner = _Scanner(sql, ansi_quotes, backslash_escapes, skipped)
    for _ in scanner.run():
        pass
    return scanner.has_opened


class _Scanner:
    """One pass over a text."""

    def __init__(
        self, sql: str, ansi_quotes: bool, backslash_escapes: bool, skipped: Sequence[re.Pattern[str]] = ()
    ) -> None:
        self.sql = sql
        self.at = 0
        self.depth = 0
        self.skipped, self.has_opened = skipped, False
        self.found: list[Token] = []
        self.name_quotes = '`"' if ansi_quotes else "`"
        self.escapes = backslash_escapes

    def run(self) -> Iterator[Token]:
        while self.at < len(self.sql):
            if not self._skip():
                self._take()
                yield self.found[-1]
        if self.depth:
            raise Unreadable("a comment is not closed")

    def _skip(self) -> bool:
        """Pass over white space or a comment."""
        for pattern in (_SPACE, _LINE_COMMENT):
            if match := pattern.match(self.sql, self.at):
                self.at = match.end()
                return True
        match = _OPENED.match(self.sql, self.at)
        if match and not any(each.match(self.sql, self.at) for each in self.skipped):
            self.depth, self.has_opened = self.depth + 1, True
            self.at = match.end()
            return True
        return self._skip_block()

    def _skip_block(self) -> bool:
        if self.sql.startswith("/*", self.at):
            end = self.sql.find("*/", self.at + 2)
            if end < 0:
                raise Unreadable("a comment is not closed")
            self.at = end + 2
            return True
        if self.depth and self.sql.startswith("*/", self.at):
            self.depth -= 1
            self.at += 2
            return True
        return False

    def _take(self) -> None:
        char = self.sql[self.at]
        if char in "'\"`":
            self._take_quoted(self.at)
        elif _PREFIXED.match(self.sql, self.at) and not self._is_after_dot():
            self._take_quoted(self.at + 1)
        else:
            self._take_plain()

    def _is_after_dot(self) -> bool:
        """`a.1b` and `a.x'…`: what follows the dot of a name is a name."""
        last = self.found[-1] if self.found else None
        return last is not None and last.text == "." and last.end == self.at

    def _take_plain(self) -> None:
        number = None if self._is_after_dot() or self._is_dot_of_name() else _NUMBER.match(self.sql, self.at)
        match = number or _WORD.match(self.sql, self.at) or _PUNCT.match(self.sql, self.at)
        assert match is not None
        word = _WORD.match(match.group())
        self._add("number" if number else "word" if word else "punct", match.end(), match.group())

    def _is_dot_of_name(self) -> bool:
        # `shop.1a`: the dot belongs to the name, and .1 is no number.
        last = self.found[-1] if self.found else None
        return self.sql[self.at] == "." and last is not None and last.is_name and last.end == self.at

    def _take_quoted(self, opening: int) -> None:
        quote = self.sql[opening]
        # Whatever the mode, a backslash in a quoted name is a letter of it.
        is_name = quote in self.name_quotes
        end = self._end_of_quoted(opening + 1, quote, self.escapes and not is_name)
        inner = self._unquoted(self.sql[opening + 1 : end - 1], quote, self.escapes and not is_name)
        self._add("quoted" if is_name else "string", end, inner)

    @staticmethod
    def _unquoted(inner: str, quote: str, has_escapes: bool) -> str:
        if not has_escapes:
            return inner.replace(quote * 2, quote)
        return re.sub(
            rf"\\(.)|{quote}{quote}", lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else quote, inner, flags=re.S
        )

    def _end_of_quoted(self, at: int, quote: str, has_escapes: bool) -> int:
        """Place behind the closing quote; a doubled quote does not close."""
        while at < len(self.sql):
            if has_escapes and self.sql[at] == "\\":
                at += 2
            elif self.sql[at] != quote:
                at += 1
            elif self.sql.startswith(quote, at + 1):
                at += 2
            else:
                return at + 1
        raise Unreadable("a quoted text is not closed")

    def _add(self, kind: Kind, end: int, value: str) -> None:
        self.found.append(Token(kind, self.sql[self.at : end], value, self.at, end))
        self.at = end
