"""The webhook of a command: delivered from each server that it works on, until a few seconds after its end.

What must stay true: commands that only ask deliver nothing, for that writes; what is configured is checked for all of
them. The secret does not stay in our environment, so no child has it.
"""

from __future__ import annotations

import os
from pathlib import Path

from vreplication.cli.say import warn
from vreplication.engine import webhooks
from vreplication.engine.webhooks import Deliverer, Hook
from vreplication.mysql.url import SourceUrl

_ASKING = frozenset({
    "plan", "status", "metrics", "blockers", "doctor", "feed-check", "lake", "lake-read", "lake-compact", "consume",
    "backfill", "spark-archive", "replicate",
})  # fmt: skip
"""Or what has no journal."""
_hook: Hook | None = None
_started: dict[str, Deliverer] = {}


def configure(command: str | None, url: str | None, secret_file: Path | None) -> None:
    """By options, else by the environment. Raises Refused."""
    global _hook
    _hook = None
    names = (webhooks.URL, webhooks.SECRET, webhooks.SECRET_FILE)
    # Also for commands that deliver nothing, for they may start children as well.
    given = {name: os.environ.pop(name, "") for name in names}
    if url:
        given[webhooks.URL] = url
    if secret_file:
        given[webhooks.SECRET_FILE] = str(secret_file)
    found = webhooks.configured(given)
    if found is None and secret_file:
        warn("There is a secret for a webhook, and no webhook.")
    # Behind the check, which is for all commands: a typing error is to be told by the first one, not by the longest.
    _hook = None if command in _ASKING else found


def follow(url: SourceUrl) -> None:
    """Deliver what comes into the journal of this server."""
    # A journal is the server's, whichever schema the URL names.
    if _hook is not None and url.place not in _started:
        _started[url.place] = Deliverer(_hook, url)
        _started[url.place].start()


def end() -> None:
    """What is open is delivered, as far as that goes in a few seconds."""
    global _hook
    _hook = None
    while _started:
        _started.popitem()[1].end()
