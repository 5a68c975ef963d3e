"""What a page shows, sent as it changes (server-sent events): one look for all who watch the same with the same rights.

What must stay true: between two looks a stream holds neither a thread nor a connection to a database, and looks have
threads of their own, not those of Airflow's API; a stream ends after LIFE_SECONDS, and the browser comes again with its
login: a server that is stopped waits for open answers, and nobody looks on whose login has ended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

log = logging.getLogger(__name__)

EVENTS = "text/event-stream"
LIFE_SECONDS = 20.0
_FIRST_SECONDS = 10.0
"""So much longer where nothing has been looked at so far."""
_THREADS = 4
"""Of so many looks at a time; others wait for their turn."""
_AGAIN_MILLIS = 300
"""After which the browser comes again."""
_HEADERS = {"X-Accel-Buffering": "no"}
"""A proxy that collects the answer would send it at its end."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A page to be drawn; poll: milliseconds after which it is worth another look."""

    template: str
    data: Mapping[str, Any]
    _: KW_ONLY
    poll: int
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A page as it is now."""

    status: int
    html: str
    poll: int

    @property
    def mark(self) -> str:
        return hashlib.sha256(f"{self.status} {self.html}".encode()).hexdigest()[:16]

    def event(self) -> str:
        return f"event: page\nid: {self.mark}\ndata: {json.dumps({'status': self.status, 'html': self.html})}\n\n"


_SAME = "event: same\ndata:\n\n"
"""It was looked at again, and nothing has changed."""


@dataclass(slots=True)
class _Topic:
    """What several watch. looked: set by the next look, and then another one."""

    watchers: int = 0
    drawn: Drawn | None = None
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def tell(self, drawn: Drawn | None) -> None:
        self.drawn = drawn
        self.looked.set()
        self.looked = asyncio.Event()


async def _within(looked: asyncio.Event, until: float) -> bool:
    """False: the stream's time is over first."""
    try:
        await asyncio.wait_for(looked.wait(), max(0.0, until - time.monotonic()))
    except TimeoutError:
        return False
    return True


def is_asked(request: Request) -> bool:
    return EVENTS in request.headers.get("accept", "")


class Live:
    """One for the app; used on the event loop alone."""

    def __init__(self) -> None:
        self._topics: dict[Hashable, _Topic] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="vreplication-look")

    def answer(self, request: Request, about: Hashable, draw: Callable[[], Drawn]) -> StreamingResponse:
        """about: what is drawn, and for which rights: who asks for the same is told what another's `draw` has drawn."""
        seen = request.headers.get("last-event-id", "")
        return StreamingResponse(self._events(about, draw, seen), media_type=EVENTS, headers=_HEADERS)

    async def _events(self, about: Hashable, draw: Callable[[], Drawn], seen: str) -> AsyncIterator[str]:
        """Ends where a look fails: the page then asks again by itself, and is told why."""
        # Tasks and events belong to one event loop.
        key = (asyncio.get_running_loop(), about)
        topic, until = self._join(key, draw), time.monotonic() + LIFE_SECONDS
        first = until + _FIRST_SECONDS
        try:
            yield f"retry: {_AGAIN_MILLIS}\n\n"
            looked = topic.looked
            if topic.drawn is not None or await _within(looked, first):
                while (drawn := topic.drawn) is not None:
                    # Before it is sent: a look meanwhile is not missed.
                    looked = topic.looked
                    yield _SAME if drawn.mark == seen else drawn.event()
                    seen = drawn.mark
                    if not await _within(looked, until):
                        break
        finally:
            self._leave(key, topic)

    def _join(self, key: Hashable, draw: Callable[[], Drawn]) -> _Topic:
        topic = self._topics.setdefault(key, _Topic())
        topic.watchers += 1
        if topic.task is None:
            topic.task = asyncio.create_task(self._look(key, topic, draw))
        return topic

    def _leave(self, key: Hashable, topic: _Topic) -> None:
        topic.watchers -= 1
        if not topic.watchers and topic.task is not None:
            # A look that is under way in its thread goes on to its end; no stream is told of it.
            topic.task.cancel()
            self._forget(key, topic)

    def _forget(self, key: Hashable, topic: _Topic) -> None:
        # Another one of this name may have begun since.
        if self._topics.get(key) is topic:
            del self._topics[key]

    async def _look(self, key: Hashable, topic: _Topic, draw: Callable[[], Drawn]) -> None:
        """Again and again, as long as anybody watches."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                drawn = await loop.run_in_executor(self._threads, draw)
                topic.tell(drawn)
                # Behind the look: one that takes long lowers the pace, and does not pile up.
                await asyncio.sleep(drawn.poll / 1000)
        except Exception:
            log.exception("a page could not be drawn for those who watch it")
        # First: who comes again now begins another look.
        self._forget(key, topic)
        topic.tell(None)
