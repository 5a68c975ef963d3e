"""Webhooks of a task: what stands in the journal of its server is sent while it runs.

What must stay true: the worker's environment says where to (docs/observability.md); a wrong one is refused before a
workflow begins, and holds nothing up later.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from vreplication.engine import webhooks
from vreplication.engine.webhooks import Hook
from vreplication.errors import Refused
from vreplication.mysql.url import SourceUrl

log = logging.getLogger(__name__)
_END_SECONDS = 3.0
"""Another task comes next, in most cases."""


@contextlib.contextmanager
def events_sent(url: SourceUrl, *, is_checked: bool = False) -> Iterator[None]:
    """is_checked: raises Refused where it is configured wrongly, and sends nothing: nothing has begun."""
    hook = _hook(is_checked)
    with webhooks.delivering(None if is_checked else hook, url, _END_SECONDS):
        yield


def _hook(is_checked: bool) -> Hook | None:
    try:
        return webhooks.configured(os.environ)
    except Refused as error:
        if is_checked:
            raise
        log.warning("no events are sent: %s", error)
        return None
