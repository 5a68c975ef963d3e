"""The connections of an attempt at the cut-over.

What must stay true: each is opened for one attempt and closed at its end, for one that is used again could still hold
LOCK TABLES; all of them can be announced, so that who takes over ends them; the server lets none live much longer than
the deadline when nobody speaks on it any more.
"""

from __future__ import annotations

import contextlib
import math

from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl

LOCK_SECONDS = 1
"""How long LOCK TABLES may wait: the servers count whole seconds, and the deadline has more to hold than that."""
MARGIN_SECONDS = 7.0
"""How much longer than the deadline an answer is waited for: it has been decided by then, only we do not know it."""
PATIENCE_SECONDS = 2
"""How much longer than such a session is left its locks RENAME waits for one, where foreign keys are moved."""


def idle_seconds(deadline: float) -> int:
    """So long the server lets a session of ours be silent."""
    return math.ceil(deadline) + 1


class Sessions:
    """Lockers (A, one a table), renamer (B), observer (C), spare (the watchdog's).

    prober: of several tables, for where RENAME waits. maker: of triggers and foreign keys that are to be carried over.
    """

    def __init__(
        self, url: SourceUrl, deadline: float, tables: int, stack: contextlib.ExitStack, *, makes: bool = False
    ) -> None:
        self._place = (url, deadline, stack)
        self.patience_seconds = idle_seconds(deadline) + PATIENCE_SECONDS
        """Who waits for the lock when keys have been moved outlasts its holder, should we have stopped with it."""
        first, self.renamer, self.observer, self.spare = (self._open(*self._place) for _ in range(4))
        self.lockers = (first, *(self._open(*self._place) for _ in range(tables - 1)))
        self.prober = self._open(*self._place) if tables > 1 else None
        self.maker = self._open(*self._place) if makes else None
        self._guards: tuple[Session, ...] = ()
        """They hold off writers of tables that foreign keys tie to it."""

    @property
    def ids(self) -> tuple[int, ...]:
        first, *others = self.lockers
        return tuple(s.id for s in (first, self.renamer, self.observer, self.spare, *others, *self._seldom))

    def open_guards(self, number: int) -> tuple[Session, ...]:
        self._guards = tuple(self._open(*self._place) for _ in range(number))
        return self._guards

    @property
    def makers(self) -> tuple[Session, ...]:
        return self._guards if self.maker is None else (self.maker, *self._guards)

    @property
    def _seldom(self) -> list[Session]:
        return [session for session in (self.prober, *self.makers) if session]

    def keep_awake(self) -> None:
        """Placing the sentries may have taken nearly as long as the server lets a session be idle."""
        for session in (*self.lockers, self.renamer, self.observer, self.spare, *self._seldom):
            session.execute_raw("DO 0")

    @staticmethod
    def _open(url: SourceUrl, deadline: float, stack: contextlib.ExitStack) -> Session:
        session = connect(url, lock_wait_seconds=LOCK_SECONDS, read_timeout=deadline + MARGIN_SECONDS)
        stack.callback(session.close)
        # A process that is stopped (SIGSTOP, a frozen host) cannot let go: the server does it for us.
        idle = idle_seconds(deadline)
        session.execute_raw(f"SET SESSION lock_wait_timeout={LOCK_SECONDS}, wait_timeout={idle}")
        return session
