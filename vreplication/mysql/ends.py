"""Between which servers a stream goes, and its open sessions there.

Rows are read on `source` and written on `target`; the stream's state (lease, ledger, checkpoint) is on `home`. The copy
may read them on a replica of the source instead (rowcopy/chunker.py says what that takes), and nothing else does. An
online DDL has all three on one server. Tables that move have their home on the new server, also when their stream is
turned round afterwards and rows go back to the old one.

What must stay true: a route holds passwords: it travels inside a Spark task's closure, a pipe or memory, and nowhere
else; where rows are written at home they share a session with the state, so that they can share a transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Sessions of one thread. On one server all are the same.

    is_across: the source's log does not carry the state's rows, even where both are schemas of one server. replica:
    where the copy reads, if that is not the source; only its tasks have it.
    """

    source: Session
    target: Session
    home: Session
    is_across: bool = False
    replica: Session | None = None

    @property
    def reading(self) -> Ends:
        """As a copy's statements see it: the replica in the source's place."""
        return self if self.replica is None else replace(self, source=self.replica, replica=None)

    @classmethod
    def on(cls, session: Session) -> Ends:
        """All on one server."""
        return cls(source=session, target=session, home=session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the ends are. replica: of the source, where the copy is to read; None: at the source."""

    source: SourceUrl
    target: SourceUrl
    home: SourceUrl
    is_across: bool = True
    replica: SourceUrl | None = None

    @classmethod
    def within(cls, url: SourceUrl) -> Route:
        """All on one server."""
        return cls(source=url, target=url, home=url, is_across=False)

    def turned(self) -> Route:
        """The way back; its state stays where it is, and nothing is copied."""
        return Route(source=self.target, target=self.source, home=self.home)

    @contextlib.contextmanager
    def open_replica(self, **options: Any) -> Iterator[Session | None]:
        """None: there is none to be read."""
        if self.replica is None:
            yield None
            return
        with connect(self.replica, **options) as session:
            yield session

    @contextlib.contextmanager
    def open(self, **options: Any) -> Iterator[Ends]:
        """Sessions for the time of a block; options as of `mysql.session.connect`."""
        with contextlib.ExitStack() as stack:
            home = stack.enter_context(connect(self.home, **options))
            if not self.is_across:
                yield Ends.on(home)
                return
            # The home's session is the target's as well, where rows are written there: rows and checkpoint are one
            # transaction.
            at = {url: stack.enter_context(connect(url, **options)) for url in {self.source, self.target} - {self.home}}
            at[self.home] = home
            yield Ends(source=at[self.source], target=at[self.target], home=home, is_across=True)
