"""What holds copy and verification back, as values: each with its option, its figure and its limit.

What must stay true: pure; of several the strictest is named, that is, the one that is furthest beyond its limit.
Neither catch-up nor the cut-over asks here: what is late is not made later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from vreplication.mysql.disk import size
from vreplication.settings import BY

_HOST = re.compile(r"\w[\w.-]*|[0-9A-Fa-f:.]+(%[\w.-]+)?")
"""A name, or an address of either kind."""
_SHORT = {"seconds": "s"}
"""Units as they are written behind a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """code: an option without its dashes; where none holds it (is_limit false) what does. said: in words.

    excess: the figure as a multiple of the limit. what, value, limit, unit: for programs; None where there is none.
    """

    code: str
    said: str
    is_limit: bool = True
    excess: float = inf
    what: str | None = None
    value: float | None = None
    limit: float | None = None
    unit: str | None = None

    def __str__(self) -> str:
        return f"{BY}{self.code}: {self.said}" if self.is_limit else self.said

    def as_json(self) -> dict[str, Any]:
        figures = {"what": self.what, "value": self.value, "limit": self.limit, "unit": self.unit}
        return {"code": self.code, **figures, "sentence": str(self)}


def strictest(reasons: Iterable[Reason]) -> Reason | None:
    return next(iter(ordered(reasons)), None)


def ordered(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The one that is furthest beyond its limit first."""
    # What has no figure, such as a look that failed, is without a bound and comes first.
    return tuple(sorted(reasons, key=lambda each: -each.excess))


def beyond(option: str, what: str, figure: float, limit: float, unit: str | None = None) -> Reason | None:
    """None: it is within its limit."""
    if figure <= limit:
        return None
    behind = f" {_SHORT[unit]}" if unit else ""
    said = f"{what} is {_number(figure)}{behind}, more than {_number(limit)}{behind}"
    excess = figure / limit if limit else inf
    return Reason(code=option, said=said, excess=excess, what=what, value=figure, limit=limit, unit=unit)


def below(option: str, what: str, figure: int, limit: int) -> Reason | None:
    """Bytes, of which there are too few. None: there are enough."""
    if figure >= limit:
        return None
    said = f"{what} is {size(figure)}, less than {size(limit)}"
    excess = limit / figure if figure else inf
    return Reason(code=option, said=said, excess=excess, what=what, value=figure, limit=limit, unit="bytes")


def over_load(option: str, limits: Mapping[str, float], found: Mapping[str, float]) -> list[Reason]:
    """limits: by a status variable's name; found: by its name in lower case."""
    reasons = (_loaded(option, name, found.get(name.lower()), limit) for name, limit in limits.items())
    return [each for each in reasons if each is not None]


def _loaded(option: str, name: str, figure: float | None, limit: float) -> Reason | None:
    """What the server does not tell holds, too."""
    if figure is None:
        return Reason(code=option, said=f"the server does not tell {name}")
    return beyond(option, name, figure, limit)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def parse_load(text: str) -> dict[str, float]:
    """`Threads_running=25,Threads_connected=500`: the name of a status variable → its limit. Raises ValueError."""
    found: dict[str, float] = {}
    for each in text.split(","):
        name, _, limit = (part.strip() for part in each.partition("="))
        if not (name.replace("_", "").isalnum() and name.isascii()) or not _is_limit(limit):
            raise ValueError(f"{each.strip()!r} is no limit: write it as Threads_running=25")
        # Servers find a status variable by its name in any case, so both would be one limit.
        if name.lower() in {known.lower() for known in found}:
            raise ValueError(f"{name} is limited twice")
        found[name] = float(limit)
    return found


def _is_limit(text: str) -> bool:
    try:
        # nan is none either: every comparison with it is false.
        return 0 <= float(text) < inf
    except ValueError:
        return False


def parse_size(text: str) -> int:
    """`500M`, `20G`, `1.5 TiB`, `20GB`: bytes, by powers of 1024. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT])i?B?", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no size: write it as 20G")
    return round(float(found[1]) * 1024.0 ** ("KMGT".index(found[2].upper()) + 1))


def parse_places(text: str) -> list[tuple[str, int]]:
    """`host:3306,[::1]:3307`: hosts and ports, 3306 where none is given. Raises ValueError."""
    if "@" in text:
        raise ValueError("it holds a login, which would be stored and shown: put URLs into --lag-replicas-file")
    return [_place(each.strip()) for each in text.split(",")]


def _place(text: str) -> tuple[str, int]:
    # An address in brackets that ends the text has colons of its own, and no port.
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host, port = (host, port) if colon else (text, "3306")
    # Without brackets the last part of an address would be taken for the port.
    is_open = ":" in host and not host.startswith("[")
    host = host.removeprefix("[").removesuffix("]")
    if is_open or not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no replica: write it as host:3306, an IPv6 address as [::1]:3306")
    return host, int(port)
