"""How messages look: a module a format. `open` is the one that our own consumers read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vreplication.errors import Refused
from vreplication.feed.formats.canal import CanalJson
from vreplication.feed.formats.debezium import Debezium
from vreplication.feed.formats.maxwell import Maxwell
from vreplication.feed.formats.open import Open
from vreplication.feed.messages import Format

FORMATS: dict[str, Callable[..., Format]] = {each.name: each for each in (Open, Debezium, CanalJson, Maxwell)}
"""By the name of the protocol. Each is made without arguments, or with options of its own."""


def make_format(name: str, **options: Any) -> Format:
    """Raises Refused for a name that there is none of."""
    if name not in FORMATS:
        raise Refused(f"There is no protocol {name!r}.", cure=f"Use one of {', '.join(FORMATS)}.")
    return FORMATS[name](**options)
