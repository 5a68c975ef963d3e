"""A heartbeat in the log of each of several sources.

A source that writes nothing would hold the others: the feed would not know that nothing of an earlier time comes from
it. So its time goes on by a row of ours, a few times a second.

What must stay true: it writes nothing but that row; where it cannot, the feed waits, and `waits` says for what.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.settings import ALIVE_SECONDS, BEAT_SECONDS
from vreplication.state import feeds

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0


class Pulse:
    """Between `start` and `close`. seconds: between two beats. check: raises Refused where nothing may be written.

    refused: by that; the feed has to end.
    """

    def __init__(
        self,
        urls: Sequence[SourceUrl],
        workflow: str,
        seconds: float,
        check: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._workflow, self._seconds, self._check = workflow, seconds, check
        self.refused: Refused | None = None
        self._failed: dict[SourceUrl, str] = {}
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(url,), name=f"pulse-{number}", daemon=True)
            for number, url in enumerate(urls)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join(10.0)

    @property
    def waits(self) -> str:
        """What the first of them that fails meets; '': nothing."""
        # A copy: the threads write it meanwhile.
        return next((f"No heartbeat into {url}: {text}" for url, text in list(self._failed.items())), "")

    def _run(self, url: SourceUrl) -> None:
        while not self._closing.is_set():
            try:
                with connect(url, use_database=False, read_timeout=BEAT_SECONDS, idle_seconds=ALIVE_SECONDS) as session:
                    while not self._closing.wait(self._seconds):
                        # A server that has become a replica is written to no more
                        # (test_a_source_that_becomes_a_replica_is_written_to_no_more).
                        self._check(session)
                        feeds.pulse(session, self._workflow)
                        self._failed.pop(url, None)
            except Refused as error:
                # It does not pass by itself; `FeedDriver.check` ends the feed by it.
                self.refused = error
                return
            except VReplicationError as error:
                self._failed[url] = str(error)
                log.warning("no heartbeat for %s: %s", url, error)
                self._closing.wait(_AGAIN_SECONDS)
            except Exception:  # a silent end of this thread would hold the feed for ever
                log.exception("the heartbeat for %s failed", url)
                self._closing.wait(_AGAIN_SECONDS)
