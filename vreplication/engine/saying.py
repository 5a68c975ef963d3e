"""Telling a person what is being waited for: at once when it changes, else now and then.

What must stay true: a sentence in which only numbers differ (an age, a backlog) is the same news.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from vreplication.clock import SYSTEM

REPEAT_SECONDS = 30.0
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(slots=True)
class Saying:
    tell: Callable[[str], None]
    now: Callable[[], float] = SYSTEM.monotonic
    _news: str = ""
    _at: float = 0.0

    def say(self, sentence: str) -> None:
        news = _NUMBER.sub("#", sentence)
        if news == self._news and self.now() - self._at < REPEAT_SECONDS:
            return
        self._news, self._at = news, self.now()
        self.tell(sentence)
