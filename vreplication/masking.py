"""Takes secrets out of every text that leaves us: output, logs, exceptions, journal, sidecar, page, Airflow.

Statements of other sessions are shown where they block, and a server quotes statements in its errors, so a secret is
told by the words before it, whoever's it is; our own connections' secrets are known, and found anywhere.

What must stay true: a literal whose end is cut off is masked to the end of the text; masking twice is masking once; a
text without such words is returned as it is; nothing raises, and the time is in proportion to the text's length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

STARS = "***"
_LONG = 6
"""A shorter secret is masked where a password stands, not inside every word."""

_GAP = r"(?:\s|\\+[nrt]|/\*M?!\d*|/\*.*?\*/|--\s[^\n]*\n|\#[^\n]*\n)"
"""What SQL may have between two words; also as a string's \\n, where a statement is quoted in another text."""
_EDGE = r"(?:(?<!\w)|(?<=\\[nrt]))"
_OPENING = r"(?:(?:_\w+\s*|[nxb])?\\*['\"]|0x)"
_PLUGIN = rf"(?:with|via|or){_GAP}+\\*['\"`]?[\w.]+\\*['\"`]?{_GAP}+"
_LITERAL = re.compile(
    r"(?P<before>(?:_\w+\s*|[nxb])?(?P<slashes>\\*))(?P<quote>['\"])|0x[0-9a-f]*(?!\w)", re.IGNORECASE
)
_TRIGGER = re.compile(
    rf"""
    (?P<function>{_EDGE}(?:(?:old_)?password|encrypt|(?:aes|des)_(?:en|de)crypt|encode|decode){_GAP}*\()
    | (?P<for>{_EDGE}set{_GAP}+password{_GAP}+for\b.{{0,300}}?={_GAP}*(?=password{_GAP}*\(|{_OPENING}))
    | (?P<by>{_EDGE}identified{_GAP}+by(?:{_GAP}+password)?{_GAP}*(?={_OPENING}))
    | (?P<account>{_EDGE}(?:identified(?={_GAP}+(?:with|via)\b)|set(?={_GAP}+password\b)))
    | (?:password|passwd|passphrase|pwd)(?P<key>\\*['"`])?{_GAP}*(?P<sign>:=|=>|=|:)(?P<space>{_GAP}*)\(*{_GAP}*
    | {_EDGE}password{_GAP}+(?={_OPENING})
    | (?P<clause>{_EDGE}(?:{_PLUGIN}(?:by|as|using)|replace)(?:{_GAP}+password)?{_GAP}*(?={_OPENING}))
    | (?P<end>;)
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_CLOSING = {mark: re.compile(rf"(?<!\\)(\\*){mark}") for mark in "'\""}
_CALL = re.compile(rf"\w+{_GAP}*\(", re.DOTALL)
_BARE = re.compile(r"[^\s&'\"]*[^\s&'\"),.;\]}\\]")
_NUMBER = re.compile(r"-?\d[\w.]*")
_URL = re.compile(r"(\w://[^\s:/@'\"]*):(?:[^\s'\"]*|\S*)@")

_known: set[str] = set()


def remember(*secrets: str) -> None:
    """From now on these are masked wherever they stand."""
    _known.update(form for secret in secrets for form in _forms(secret))


def forget() -> None:
    """Know no secret any more (for tests)."""
    _known.clear()


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with stars in the place of what is a secret by the words before it, of these, and of those remembered."""
    text = _masked_statements(_URL.sub(rf"\1:{STARS}@", text))
    known = _known.union(form for secret in secrets for form in _forms(secret))
    # The longest first: of one that begins with another one the end would stay to be read.
    for secret in sorted(known, key=len, reverse=True):
        text = _without(text, secret)
    return text


def masked(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same value with every text inside it masked: values of mappings and items of lists, too."""
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {key: masked(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner, secrets) for inner in value]
    return value


def without_password(url: str) -> str:
    """A URL as typed, without its password and without the key's passphrase."""
    bare = re.sub(r"^([\w+]+://[^:/@]*):\S*@", r"\1@", url)
    return re.sub(r"([?&])(?:ssl_key_)?password=[^&]*&?", r"\1", bare).rstrip("?&")


def _forms(secret: str) -> set[str]:
    """As it is typed, in a URL, in SQL and in JSON."""
    slashed = secret.replace("\\", "\\\\")
    quoted = {form.replace(q, 2 * q) for form in (secret, slashed) for q in "'\""}
    quoted |= {slashed.replace(q, "\\" + q) for q in "'\""}
    # An empty one would be found at each place of every text.
    return {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], *quoted} - {""}


def _without(text: str, secret: str) -> str:
    if len(secret) >= _LONG:
        return text.replace(secret, STARS)
    return re.sub(rf"(?<=[:='\"]){re.escape(secret)}(?=[@'\"&\s]|$)", STARS, text)


def _masked_statements(text: str) -> str:
    done: list[str] = []
    at = 0
    is_account = False
    while found := _TRIGGER.search(text, at):
        is_account = bool(found["for"] or found["by"] or found["account"] or (is_account and not found["end"]))
        words, end = _value(text, found) if is_account or not found["clause"] else ("", found.end())
        done += [text[at : found.end()], words]
        at = end
    return "".join(done) + text[at:]


def _value(text: str, found: re.Match[str]) -> tuple[str, int]:
    """What stands in the place of the secret behind a trigger, and where the text goes on."""
    at = found.end()
    if found["function"]:
        return _arguments(text, at)
    if not (found["account"] or found["end"]) and _LITERAL.match(text, at):
        return _literals(text, at)
    if found["sign"] == "=" and not found["space"]:
        return _bare(text, at)
    if found["sign"] in ("=", ":=", "=>") and (call := _CALL.match(text, at)):
        words, end = _arguments(text, call.end())
        return call[0] + words, end
    number = _NUMBER.match(text, at) if found["key"] else None
    return (STARS, number.end()) if number else ("", at)


def _bare(text: str, at: int) -> tuple[str, int]:
    """A word without quotes; it may be what calls a function on the secret."""
    if not (bare := _BARE.match(text, at)):
        return "", at
    words, end = _arguments(text, bare.end()) if "(" in bare[0] and text[bare.end() :][:1] in ("'", '"') else ("", 0)
    return STARS + words, end or bare.end()


def _literals(text: str, at: int) -> tuple[str, int]:
    """A literal, and those that SQL takes for its continuation: 'a' 'b' is 'ab'."""
    words, end = _literal(text, at)
    while (gap := re.compile(rf"{_GAP}+", re.DOTALL).match(text, end)) and text.startswith(("'", '"'), gap.end()):
        more, end = _literal(text, gap.end())
        words += gap[0] + more
    return words, end


def _literal(text: str, at: int) -> tuple[str, int]:
    found = _LITERAL.match(text, at)
    if found is None or not found["quote"]:
        return STARS, found.end() if found else at
    slashes, mark = len(found["slashes"]), found["quote"]
    closing = found["slashes"] + mark
    return found[0] + STARS + closing, _end(text, found.end(), slashes, mark)


def _end(text: str, at: int, slashes: int, mark: str) -> int:
    """Behind the literal. slashes: before its quotes, where the statement is quoted in another text.

    A quote with fewer of them ends that other text, and so what is left of the literal. Behind escaped backslashes it
    ends the literal, or it is one of the literal's own in a text that is quoted once more: then all goes that follows.
    """
    quoted = "\\" * slashes + mark
    while found := _CLOSING[mark].search(text, at):
        at = found.end()
        more = len(found[1]) - slashes
        if more < 0:
            return found.start()
        if more == 0 and not text.startswith(quoted, at):
            return at
        if more and more % (2 * slashes + 2) == 0:
            break
        at += len(quoted) if more == 0 else 0
    return len(text)


def _arguments(text: str, at: int) -> tuple[str, int]:
    """Up to the bracket that closes the call, with stars in the place of each literal."""
    done: list[str] = []
    depth = 1
    stop = re.compile(r"[()]|\\*['\"]|\b0x[0-9a-f]+(?!\w)", re.IGNORECASE)
    while depth and (found := stop.search(text, at)):
        done.append(text[at : found.start()])
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        words, at = (found[0], found.end()) if found[0] in "()" else _literal(text, found.start())
        done.append(words)
    return "".join(done), at
