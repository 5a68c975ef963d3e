"""Keeps secrets out of whatever we print or log, should one get into a text in spite of everything.

What must stay true: `scrub` never makes a text longer than a few stars and never raises; a password of one or two
letters is masked where a password stands (after ':' before '@', after '=', in quotes), not in every word.
"""

from __future__ import annotations

import re
from urllib.parse import quote, quote_plus

from vreplication.mysql.url import SourceUrl

STARS = "***"
_URL = re.compile(r"(\w://[^\s:/@'\"]*):[^\s@'\"]*@")
_OPTION = re.compile(r"(ssl_key_password=)[^\s&'\"]+")
_LONG = 6

_secrets: set[str] = set()


def remember(url: SourceUrl) -> None:
    """From now on the secrets of this URL are masked."""
    for secret in (url.password, *(value for name, value in url.tls if name == "ssl_key_password")):
        if secret:
            _secrets.update({secret, quote(secret, safe=""), quote_plus(secret)})


def forget() -> None:
    """Mask nothing but passwords in URLs (for tests)."""
    _secrets.clear()


def scrub(text: str) -> str:
    text = _OPTION.sub(rf"\1{STARS}", _URL.sub(rf"\1:{STARS}@", text))
    for secret in sorted(_secrets, key=len, reverse=True):
        text = _mask(text, secret)
    return text


def _mask(text: str, secret: str) -> str:
    if len(secret) >= _LONG:
        return text.replace(secret, STARS)
    return re.sub(rf"(?<=[:='\"]){re.escape(secret)}(?=[@'\"&\s]|$)", STARS, text)


def without_password(url: str) -> str:
    """A URL as typed, without its password and without the key's passphrase."""
    bare = re.sub(r"^([\w+]+://[^:/@]*):[^@]*@", r"\1@", url)
    return re.sub(r"([?&])ssl_key_password=[^&]*&?", r"\1", bare).rstrip("?&")
