"""Keeps secrets out of what is sent to a browser, should one have got into a text in spite of everything.

What must stay true: every answer passes `masked`; it changes text and nothing else, and never raises.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, quote_plus

from vreplication.mysql.url import SourceUrl

STARS = "***"
_URL = re.compile(r"(\w://[^\s:/@'\"]*):[^\s@'\"]*@")
_OPTION = re.compile(r"((?:ssl_key_)?password=)[^\s&'\"]+", re.IGNORECASE)
_STATEMENT = re.compile(
    r"(\bIDENTIFIED\b[^'\"]*|\bPASSWORD\b\s*[=(]?\s*\(?\s*)(['\"])(?:(?!\2)[^\\]|\\.|\2\2)*(?:\2|$)", re.IGNORECASE
)
_LONG = 6


def masked(value: Any, urls: tuple[SourceUrl, ...] = ()) -> Any:
    """`value` with the secrets of these sources, and what looks like one, replaced in every text inside it."""
    secrets = sorted({form for url in urls for form in _forms(url)}, key=len, reverse=True)
    return _walk(value, secrets)


def _walk(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return _text(value, secrets)
    if isinstance(value, dict):
        return {key: _walk(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(inner, secrets) for inner in value]
    return value


def _text(text: str, secrets: list[str]) -> str:
    text = _OPTION.sub(rf"\1{STARS}", _URL.sub(rf"\1:{STARS}@", text))
    text = _STATEMENT.sub(rf"\1\2{STARS}\2", text)
    for secret in secrets:
        text = _mask(text, secret)
    return text


def _mask(text: str, secret: str) -> str:
    """A short one is masked where a password stands, not inside every word."""
    if len(secret) >= _LONG:
        return text.replace(secret, STARS)
    return re.sub(rf"(?<=[:='\"]){re.escape(secret)}(?=[@'\"&\s]|$)", STARS, text)


def _forms(url: SourceUrl) -> set[str]:
    found = [url.password, *(value for name, value in url.tls if name == "ssl_key_password")]
    return {form for secret in found if secret for form in (secret, quote(secret, safe=""), quote_plus(secret))}
