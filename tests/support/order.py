"""Where a test stands among those of the session, for what is to end before the session does."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def is_last(item: pytest.Item, belongs: Callable[[pytest.Item], bool]) -> bool:
    """No test that belongs to it comes after this one. A group of pytest-xdist's is one worker's, in this order."""
    items = item.session.items
    return belongs(item) and not any(map(belongs, items[items.index(item) + 1 :]))
