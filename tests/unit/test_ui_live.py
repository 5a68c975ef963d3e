"""Pages sent as they change: one look for however many watch, an end for each stream, nothing left over without one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import Request

from vreplication.ui import live
from vreplication.ui.live import Drawn, Live

WATCHERS = 50


class Looks:
    """What a look finds: the next of some texts, and then the last of them for ever."""

    def __init__(self, *texts: str, poll: int = 1) -> None:
        self.texts, self.poll, self.count = list(texts), poll, 0
        self.at_a_time, self.most = 0, 0
        self._lock = threading.Lock()

    def __call__(self) -> Drawn:
        with self._lock:
            text = self.texts[min(self.count, len(self.texts) - 1)]
            self.count += 1
            self.at_a_time += 1
            self.most = max(self.most, self.at_a_time)
        try:
            if text == "broken":
                raise ValueError("it cannot be drawn")
            return Drawn(status=200, html=text, poll=self.poll)
        finally:
            with self._lock:
                self.at_a_time -= 1


def stream(on: Live, looks: Callable[[], Drawn], about: str = "list", seen: str = "") -> AsyncIterator[str]:
    headers = [(b"last-event-id", seen.encode())] if seen else []
    found = on.answer(Request({"type": "http", "headers": headers}), about, looks)
    return found.body_iterator  # type: ignore[return-value]


def told(event: str) -> Any:
    """The page of an event; None: it is the same as before."""
    lines = dict(line.split(": ", 1) for line in event.strip().splitlines() if ": " in line)
    return json.loads(lines["data"])["html"] if lines["event"] == "page" else None


async def events(found: AsyncIterator[str], count: int) -> list[Any]:
    """Behind the head of the stream, which is left open."""
    assert (await anext(found)).startswith("retry: ")
    return [told(await anext(found)) for _ in range(count)]


def test_all_who_watch_the_same_are_told_by_one_look() -> None:
    async def watch() -> tuple[list[list[Any]], int, int]:
        on, looks, others = Live(), Looks("a", poll=60_000), Looks("b", poll=60_000)
        open_ones = [stream(on, looks) for _ in range(WATCHERS)] + [stream(on, others, "other rights")]
        found = await asyncio.gather(*(events(each, 1) for each in open_ones))
        return found, looks.count, others.count

    found, looks, others = asyncio.run(watch())
    assert (found, looks, others) == ([["a"]] * WATCHERS + [["b"]], 1, 1)


def test_what_has_not_changed_is_not_sent_again_and_to_nobody_who_has_it() -> None:
    async def watch() -> tuple[list[Any], list[Any], list[Any]]:
        on = Live()
        first = await events(stream(on, Looks("a", "a", "b")), 3)
        again = await events(stream(on, Looks("b"), "again", Drawn(status=200, html="b", poll=1).mark), 1)
        return first, again, await events(stream(on, Looks("b"), "other", "of another page"), 1)

    assert asyncio.run(watch()) == (["a", None, "b"], [None], ["b"])


def test_a_stream_ends_and_with_the_last_one_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LIFE_SECONDS", 0.2)

    async def watch() -> tuple[int, int, dict[Any, Any]]:
        on, looks = Live(), Looks("a")
        async for _ in stream(on, looks):
            pass
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*left, return_exceptions=True)
        return looks.count, looks.most, on._topics

    count, most, topics = asyncio.run(watch())
    assert (count > 1, most, topics) == (True, 1, {})


def test_a_look_that_fails_ends_the_streams_and_the_next_one_begins_anew() -> None:
    async def watch() -> tuple[list[list[str]], list[Any]]:
        on, looks = Live(), Looks("broken", "a")

        async def to_its_end() -> list[str]:
            return [event async for event in stream(on, looks)][1:]

        ended = await asyncio.gather(to_its_end(), to_its_end())
        return ended, await events(stream(on, looks), 1)

    assert asyncio.run(watch()) == ([[], []], ["a"])
