"""A transaction of the source that is too large for one batch, written in parts in one transaction on the target.

What must stay true: nothing of it can be seen on the target before its last part; one session writes it, from the first
part to the commit; no part is written twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from vreplication.errors import Transient
from vreplication.mysql.session import LockWait, Session, SqlError, is_passing


class InParts:
    """One at a time. begin: the first statement of the transaction, its fence."""

    def __init__(self, session: Session, begin: Callable[[], None]) -> None:
        self._session, self._begin = session, begin
        self._opened: contextlib.ExitStack | None = None
        self._changes = 0

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def write(self, part: Callable[[], None], changes: int) -> None:
        """Another part, and no commit. Raises Transient when a lock is in its way, or it is killed."""
        with _once():
            if self._opened is None:
                self._opened = contextlib.ExitStack()
                self._opened.enter_context(self._session.transaction())
                self._begin()
            part()
        self._changes += changes

    def end(self, rest: Callable[[], None]) -> int:
        """`rest`, and the commit; returns the number of changes in the parts before. Raises Transient likewise."""
        assert self._opened is not None
        with _once():
            rest()
        opened, self._opened = self._opened, None
        opened.close()
        changes, self._changes = self._changes, 0
        return changes

    def drop(self) -> None:
        """It is rolled back with its session."""
        self._opened = None


@contextlib.contextmanager
def _once() -> Iterator[None]:
    """The parts before are not here any more, so nothing can be repeated: the log is read again from the checkpoint."""
    try:
        yield
    except (LockWait, SqlError) as error:
        if not is_passing(error):
            raise
        raise Transient(f"A transaction that is written in parts was interrupted: {error.message}") from None
